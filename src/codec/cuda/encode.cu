// Rows into codes: a warp transforms the vectors of a few tokens of one head, divides them by their norms and searches the
// nearest centroids (search.cuh). Compiled without contraction: the same operations in the same order as on the CPU give the same
// codes.
#include "codec/cuda/rows.cuh"
#include "codec/cuda/search.cuh"
#include "codec/norm_steps.h"

namespace vecinfer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTokens = 2;  // per warp

__device__ constexpr NormSteps kSteps = kNormSteps;

// As in codec/norm.cc.
__device__ int norm_byte(float rms) {
    if (!(rms > 0.0f)) {
        return 0;
    }
    if (rms > 65536.0f) {
        return 255;
    }
    int exponent = 0;
    const double mantissa = 2.0 * frexp(static_cast<double>(rms), &exponent);
    int code = kNormBias + kNormStepsPerOctave * (exponent - 1);
    for (int i = 0; i < kNormStepsPerOctave; ++i) {
        code += mantissa >= kSteps.thresholds[i] ? 1 : 0;
    }
    return max(1, min(255, code));
}

__device__ float norm_value(int code) {
    return code == 0 ? 0.0f
                     : static_cast<float>(ldexp(kSteps.values[code % kNormStepsPerOctave],
                                                (code / kNormStepsPerOctave) - (kNormBias / kNormStepsPerOctave)));
}

__device__ double warp_sum_double(double x) {
    for (int step = 16; step >= 1; step /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, step);
    }
    return x;
}

}  // namespace

/// Codes of one vector to their places in a granule. Words of 3-bit codes are shared by cells that other warps write.
template <int HD, int D>
__device__ void store_codes(const EncodeSide& side, const std::uint8_t* from, std::uint8_t* granule, int cell, int lane) {
    if constexpr (D == 1) {
        if (side.sub_dim == 1) {
            for (int channel = 4 * lane; channel < HD; channel += 128) {
                LevelPlace at = side.value ? v_level_place(cell, channel) : k_level_place(cell, channel, HD);
                for (int bit = 0; bit < 3; ++bit) {
                    std::uint32_t bits = 0;
                    for (int i = 0; i < 4; ++i) {
                        bits |= static_cast<std::uint32_t>(from[channel + i] >> bit & 1) << (4 * i);
                    }
                    const int first = level_bit(at, bit, HD);
                    std::uint32_t* word = reinterpret_cast<std::uint32_t*>(granule) + first / 32;
                    atomicXor(word, (*word ^ bits << (first % 32)) & 0x1111u << (first % 32));
                }
            }
            return;
        }
    }
    const int parts = side.sub_dim / D;  // codes of a byte
    const int bytes = HD / side.sub_dim;
    for (int m = lane; m < bytes; m += 32) {
        int byte = 0;
        for (int i = 0; i < parts; ++i) {
            byte |= from[m * parts + i] << (i * side.spec.code_bits);
        }
        granule[side.value ? v_code_offset(cell, m, side.sub_dim, bytes) : k_code_offset(cell, m, side.sub_dim, bytes)] =
            static_cast<std::uint8_t>(byte);
    }
}

/// Shared memory of a block.
template <int HD, int D>
struct EncodeShared {
    float table[D == 1 ? kMaxLevels : 256 * D];  // centroid values, layout (256, D)
    float unit[kWarps][kTokens][HD];             // transformed, divided by the norm
    std::uint8_t codes[kWarps][kTokens][HD / D];
};

template <int HD, int D>
__global__ void __launch_bounds__(32 * kWarps, 2) encode_rows(const __grid_constant__ EncodeArgs a) {
    constexpr int N = HD / 32;  // channels of a lane
    constexpr int kSubspaces = HD / D;
    extern __shared__ __align__(1024) unsigned char memory[];
    EncodeShared<HD, D>& sm = *reinterpret_cast<EncodeShared<HD, D>*>(memory);
    const int head = blockIdx.y;
    const EncodeSide& side = a.side;
    const int lane = threadIdx.x;
    const int warp = threadIdx.y;

    const float scale = side.scales[head];
    const std::uint32_t* words = side.words + head * words_per_head(side.sub_dim);
    if constexpr (D == 1) {
        if (warp == 0 && lane < kMaxLevels) {
            sm.table[lane] = side.levels[head * kMaxLevels + lane];
        }
    } else {
        for (int i = 32 * warp + lane; i < 256 * D; i += 32 * kWarps) {
            const std::uint32_t w = words[D == 8 ? i / 8 * 2 + i % 8 / 4 : i / D];
            sm.table[i] = scale * static_cast<float>(static_cast<std::int8_t>(w >> (8 * (i % D % 4))));
        }
    }
    __syncthreads();
    const Search<D> search(words, sm.table, scale, lane);

    for (int token0 = (blockIdx.x * kWarps + warp) * kTokens; token0 < a.num_tokens; token0 += gridDim.x * kWarps * kTokens) {
        float y[kTokens][N];  // transformed
        double energy[kTokens];
        int norm[kTokens];
#pragma unroll
        for (int j = 0; j < kTokens; ++j) {
            load_row(a, token0 + j, head, y[j], lane);
            store_window_row(a, token0 + j, head, y[j], lane);
            transform_row(side, head, y[j], lane);
            energy[j] = 0.0;
            norm[j] = kUnitNorm;
            float divisor = 1.0f;
            if (side.norms) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    energy[j] += static_cast<double>(y[j][i]) * static_cast<double>(y[j][i]);
                }
                energy[j] = warp_sum_double(energy[j]);
                norm[j] = norm_byte(static_cast<float>(sqrt(energy[j] / HD)));
                divisor = norm[j] == 0 ? 1.0f : norm_value(norm[j]);
            }
#pragma unroll
            for (int i = 0; i < N; ++i) {
                sm.unit[warp][j][lane * N + i] = y[j][i] / divisor;
            }
        }
        __syncwarp();
        for (int j = 0; j < kTokens; ++j) {
            if constexpr (D == 1) {
                for (int m = lane; m < HD; m += 32) {
                    sm.codes[warp][j][m] =
                        static_cast<std::uint8_t>(search.nearest(sm.unit[warp][j][m], 1 << side.spec.code_bits));
                }
            } else {
                for (int m = 0; m < kSubspaces; m += 8) {
                    const int code = search.nearest(&sm.unit[warp][j][m * D]);
                    if (lane % 4 == 0) {
                        sm.codes[warp][j][m + lane / 4] = static_cast<std::uint8_t>(code);
                    }
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < kTokens; ++j) {
            int stored = norm[j];
            if (side.norms && side.unbiased && norm[j] != 0) {
                const float divisor = norm_value(norm[j]);
                double projection = 0.0;
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    const int channel = lane * N + i;
                    const float part = sm.table[sm.codes[warp][j][channel / D] * D + channel % D];
                    projection += static_cast<double>(divisor * part) * static_cast<double>(y[j][i]);
                }
                projection = warp_sum_double(projection);
                if (projection > 0) {
                    stored = norm_byte(static_cast<float>(divisor * (energy[j] / projection)));
                }
            }
            const Cell cell = find_cell(a, token0 + j, head);
            if (cell.stored) {
                const int granule = cell.in_page / kGranule;
                const int in = cell.in_page % kGranule;
                std::uint8_t* codes =
                    cell.head_page + side.codes_offset + static_cast<std::int64_t>(granule) * granule_bytes(HD, side.sub_dim);
                store_codes<HD, D>(side, sm.codes[warp][j], codes, in, lane);
                if (lane == 0) {
                    cell.head_page[a.norm_offset + static_cast<std::int64_t>(granule) * kNormBytes +
                                   norm_offset(in, side.value != 0)] = static_cast<std::uint8_t>(stored);
                }
            }
        }
        __syncwarp();
    }
}

namespace {

template <int HD, int D>
EncodeKernel entry() {
    return {reinterpret_cast<const void*>(&encode_rows<HD, D>), kWarps, kWarps * kTokens, sizeof(EncodeShared<HD, D>)};
}

template <int HD>
EncodeKernel entry(int sub_dim) {
    return sub_dim == 1 ? entry<HD, 1>() : sub_dim == 2 ? entry<HD, 2>() : sub_dim == 4 ? entry<HD, 4>() : entry<HD, 8>();
}

}  // namespace

EncodeKernel encode_kernel(int head_dim, int sub_dim) {
    return head_dim == 64 ? entry<64>(sub_dim) : head_dim == 128 ? entry<128>(sub_dim) : entry<256>(sub_dim);
}

}  // namespace vecinfer::cuda
