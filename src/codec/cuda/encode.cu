// Rows into codes: a block transforms the vectors of a tile of tokens of one head and divides them by their norms; then a warp
// takes one subspace of eight tokens at a time and searches the nearest centroids (search.cuh). Compiled without contraction: the
// same operations in the same order as on the CPU give the same codes.
#include "codec/cuda/rows.cuh"
#include "codec/cuda/search.cuh"
#include "codec/norm_steps.h"

namespace vecinfer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTokens = 64;  // of a tile
constexpr int kThreads = 32 * kWarps;

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
template <int HD, int D, int Bits, class Code>
__device__ void store_codes(const EncodeSide& side, const Code* from, std::uint8_t* granule, int cell, int lane) {
    if constexpr (D == 1) {
        if (side.form.sub_dim == 1) {
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
    if constexpr (Bits > 8) {
        const int size = granule_bytes(HD, side.form);
        for (int m = lane; m < HD / D; m += 32) {
            WidePlace at = side.value ? v_wide_place(cell, m) : k_wide_place(cell, m, D, HD);
            if (at.which == 0) {
                const int next = m + (side.value ? 8 : 4);  // its partner in the pair
                const std::uint32_t pair = from[m] | static_cast<std::uint32_t>(from[next]) << 12;
                for (int i = 0; i < 3; ++i) {
                    granule[wide_bit(at, 8 * i, size) / 8] = static_cast<std::uint8_t>(pair >> (8 * i));
                }
            }
        }
        return;
    }
    const int parts = side.form.sub_dim / D;  // codes of a byte
    const int bytes = HD / side.form.sub_dim;
    for (int m = lane; m < bytes; m += 32) {
        int byte = 0;
        for (int i = 0; i < parts; ++i) {
            byte |= from[m * parts + i] << (i * side.spec.code_bits);
        }
        granule[side.value ? v_code_offset(cell, m, side.form.sub_dim, bytes) : k_code_offset(cell, m, side.form.sub_dim, bytes)] =
            static_cast<std::uint8_t>(byte);
    }
}

/// Shared memory of a block.
template <int HD, int D, int Bits>
struct EncodeShared {
    using Code = std::conditional_t<(Bits > 8), std::uint16_t, std::uint8_t>;
    static constexpr int kRow = HD + 4;
    alignas(16) float y[kTokens][kRow];     // transformed
    alignas(16) float unit[kTokens][kRow];  // divided by the norm
    alignas(16) float table[D == 1 ? kMaxLevels : Bits > 8 ? 4 : 256 * D];  // centroid values, layout (256, D)
    double energy[kTokens];
    float peak[kTokens];           // largest entry
    std::uint8_t norm[kTokens];
    Code codes[kTokens][HD / D];
};

/// Centroids of one subspace.
template <int HD, int D, int Bits>
__device__ __forceinline__ Centroids<D> centroids_of(const EncodeArgs& a, const EncodeShared<HD, D, Bits>& sm, int head, int m) {
    const EncodeSide& side = a.side;
    if (side.own_books != 0) {
        return {nullptr, side.words + 64 * HD * head + 64 * D * m, side.steps[head * HD + m * D], true};
    }
    return {Bits > 8 ? nullptr : sm.table, side.words + head * words_per_head(side.form, false, HD), side.scales[head], false};
}

template <int HD, int D, int Bits>
__global__ void __launch_bounds__(kThreads, 2) encode_rows(const __grid_constant__ EncodeArgs a) {
    constexpr int N = HD / 32;  // channels of a lane
    constexpr int kSubspaces = HD / D;
    using Sm = EncodeShared<HD, D, Bits>;
    extern __shared__ __align__(1024) unsigned char memory[];
    Sm& sm = *reinterpret_cast<Sm*>(memory);
    const int head = blockIdx.y;
    const EncodeSide& side = a.side;
    const int lane = threadIdx.x;
    const int warp = threadIdx.y;
    const int thread = 32 * warp + lane;

    if constexpr (D == 1) {
        if (thread < kMaxLevels) {
            sm.table[thread] = side.levels[head * kMaxLevels + thread];
        }
    } else if (Bits == 8 && side.own_books == 0) {
        const Centroids<D> shared = {nullptr, side.words + head * words_per_head(side.form, false, HD), side.scales[head], false};
        for (int i = thread; i < 256; i += kThreads) {
            float c[D];
            shared.load(i, c);
            for (int k = 0; k < D; ++k) {
                sm.table[i * D + k] = c[k];
            }
        }
    }
    Search<(D == 1 ? 4 : D), Bits> search;
    constexpr int kBook = 8 << Bits;  // words of the fragments of a codebook
    if (D != 1 && side.own_books == 0) {
        search.use(side.fragments + static_cast<std::int64_t>(head) * kBook, lane);
    }

    for (int token0 = blockIdx.x * kTokens; token0 < a.num_tokens; token0 += gridDim.x * kTokens) {
        const int count = min(kTokens, a.num_tokens - token0);
        for (int i = warp; i < count; i += kWarps) {
            float y[N];
            load_row(a, token0 + i, head, y, lane);
            store_window_row(a, token0 + i, head, y, lane);
            transform_row(side, head, y, lane);
            double energy = 0.0;
            float peak = 0.0f;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                energy += static_cast<double>(y[k]) * static_cast<double>(y[k]);
                peak = fmaxf(peak, fabsf(y[k]));
                sm.y[i][lane * N + k] = y[k];
            }
            energy = side.norms ? warp_sum_double(energy) : 0.0;
            peak = warp_max(peak);
            if (lane == 0) {
                sm.energy[i] = energy;
                sm.peak[i] = peak;
            }
        }
        __syncthreads();
        if (thread < count) {
            int norm = kUnitNorm;
            if (side.norms) {
                norm = norm_byte(static_cast<float>(sqrt(sm.energy[thread] / HD)));
                sm.peak[thread] /= norm == 0 ? 1.0f : norm_value(norm);
            }
            sm.norm[thread] = static_cast<std::uint8_t>(norm);
        }
        __syncthreads();
        for (int i = warp; i < count; i += kWarps) {
            const int norm = sm.norm[i];
            const float divisor = side.norms && norm != 0 ? norm_value(norm) : 1.0f;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                sm.unit[i][lane * N + k] = sm.y[i][lane * N + k] / divisor;
            }
        }
        __syncthreads();

        if constexpr (D == 1) {
            for (int i = warp; i < count; i += kWarps) {
                for (int m = lane; m < HD; m += 32) {
                    sm.codes[i][m] = static_cast<std::uint8_t>(nearest_level(sm.unit[i][m], sm.table, 1 << side.spec.code_bits));
                }
            }
        } else {
            for (int m = warp; m < kSubspaces; m += kWarps) {
                const Centroids<D> centroids = centroids_of<HD, D, Bits>(a, sm, head, m);
                const float steps = 1.0f / centroids.scale;
                if (side.own_books != 0) {
                    search.use(side.fragments + (static_cast<std::int64_t>(head) * kSubspaces + m) * kBook, lane);
                }
                for (int first = 0; first < count; first += 8) {
                    float peak = 0.0f;
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        peak = first + i < count ? fmaxf(peak, sm.peak[first + i]) : peak;
                    }
                    const int code = search.nearest(&sm.unit[first][m * D], Sm::kRow, centroids, steps,
                                                    Search<D, Bits>::error_of(peak * steps), count - first, lane);
                    if (lane % 4 == 0) {
                        sm.codes[first + lane / 4][m] = static_cast<typename Sm::Code>(code);
                    }
                }
            }
        }
        __syncthreads();
        for (int i = warp; i < count; i += kWarps) {
            const int norm = sm.norm[i];
            int stored = norm;
            if (side.norms && side.unbiased && norm != 0) {
                const float divisor = norm_value(norm);
                double projection = 0.0;
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    const int channel = lane * N + k;
                    float part = 0.0f;
                    if constexpr (D == 1) {
                        part = sm.table[sm.codes[i][channel]];
                    } else {
                        float c[D];
                        centroids_of<HD, D, Bits>(a, sm, head, channel / D).load(sm.codes[i][channel / D], c);
#pragma unroll
                        for (int x = 0; x < D; ++x) {
                            part = channel % D == x ? c[x] : part;
                        }
                    }
                    projection += static_cast<double>(divisor * part) * static_cast<double>(sm.y[i][channel]);
                }
                projection = warp_sum_double(projection);
                if (projection > 0) {
                    stored = norm_byte(static_cast<float>(divisor * (sm.energy[i] / projection)));
                }
            }
            const Cell cell = find_cell(a, token0 + i, head);
            if (cell.stored) {
                const int granule = cell.in_page / kGranule;
                const int in = cell.in_page % kGranule;
                std::uint8_t* codes =
                    cell.head_page + side.codes_offset + static_cast<std::int64_t>(granule) * granule_bytes(HD, side.form);
                store_codes<HD, D, Bits>(side, sm.codes[i], codes, in, lane);
                if (lane == 0) {
                    cell.head_page[a.norm_offset + static_cast<std::int64_t>(granule) * kNormBytes +
                                   norm_offset(in, side.value != 0)] = static_cast<std::uint8_t>(stored);
                }
            }
        }
        __syncthreads();
    }
}

namespace {

template <int HD, int D, int Bits = 8>
EncodeKernel entry() {
    return {reinterpret_cast<const void*>(&encode_rows<HD, D, Bits>), kWarps, kTokens, sizeof(EncodeShared<HD, D, Bits>)};
}

template <int HD>
EncodeKernel entry(int sub_dim, bool wide) {
    if (wide) {
        return sub_dim == 4 ? entry<HD, 4, 12>() : entry<HD, 8, 12>();
    }
    return sub_dim == 1 ? entry<HD, 1>() : sub_dim == 2 ? entry<HD, 2>() : sub_dim == 4 ? entry<HD, 4>() : entry<HD, 8>();
}

}  // namespace

EncodeKernel encode_kernel(int head_dim, int sub_dim, int code_bits) {
    const bool wide = code_bits > 8;
    return head_dim == 64    ? entry<64>(sub_dim, wide)
           : head_dim == 128 ? entry<128>(sub_dim, wide)
                             : entry<256>(sub_dim, wide);
}

}  // namespace vecinfer::cuda
