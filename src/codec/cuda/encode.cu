// Rows into codes: a block transforms the vectors of a tile of tokens of one head and divides them by their norms; then a warp
// takes one subspace of eight tokens at a time and searches the nearest centroids (search.cuh). Compiled without contraction: the
// same operations in the same order as on the CPU give the same codes.
#include "codec/cuda/rows.cuh"
#include "codec/cuda/search.cuh"
#include "codec/cuda/shaping.cuh"
#include "codec/norm_steps.h"

namespace vecinfer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRows = 64;  // of a tile: tokens, of shaped codes each with three norms
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
    if constexpr (D != 1) {
        for (int m = lane; m < HD / D; m += 32) {
            granule[side.value ? v_code_offset(cell, m, D, HD / D) : k_code_offset(cell, m, D, HD / D)] =
                static_cast<std::uint8_t>(from[m]);
        }
    } else {
        const int parts = side.form.sub_dim;  // codes of a byte
        const int bytes = HD / parts;
        for (int m = lane; m < bytes; m += 32) {
            int byte = 0;
            for (int i = 0; i < parts; ++i) {
                byte |= from[m * parts + i] << (i * side.spec.code_bits);
            }
            granule[side.value ? v_code_offset(cell, m, parts, bytes) : k_code_offset(cell, m, parts, bytes)] =
                static_cast<std::uint8_t>(byte);
        }
    }
}

/// Who shares a codebook and how wide its codes are.
enum class Books { shared, own, wide };

/// Shared memory of a block. A row is a token and the norm that is tried for it.
template <int HD, int D, Books B>
struct EncodeShared {
    using Code = std::conditional_t<B == Books::wide, std::uint16_t, std::uint8_t>;
    static constexpr int kRow = HD + 4;
    static constexpr int kBits = B == Books::wide ? 12 : 8;
    alignas(16) float y[kRows][kRow];                                                 // transformed, by token
    alignas(16) float unit[kRows][kRow];                                              // divided by the norm, by row
    alignas(16) float table[D == 1 ? kMaxLevels : B == Books::shared ? 256 * D : 4];  // centroid values, layout (256, D)
    ShapingState<D == 1 || B != Books::shared ? 4 : HD> shaping[kWarps];
    double energy[kRows];
    double projection[kRows];
    std::uint8_t* head_page[kRows];  // null: not stored
    int in_page[kRows];
    float divisor[kRows];
    float peak[kRows];            // largest entry of a token
    float group_peak[kRows / 8];  // of eight rows, divided by the norms
    std::uint8_t norm[kRows];
    std::uint8_t chosen[kRows];  // row of a token
    Code codes[kRows][HD / D];
};

/// Centroids of one subspace.
template <int HD, int D, Books B>
__device__ __forceinline__ auto centroids_of(const EncodeArgs& a, const EncodeShared<HD, D, B>& sm, int head, int m) {
    const EncodeSide& side = a.side;
    const auto* bytes = reinterpret_cast<const std::int8_t*>(side.words);
    if constexpr (B == Books::shared) {
        return FloatCentroids<D>{sm.table, side.scales[head]};
    } else if constexpr (B == Books::own) {
        return ByteCentroids<D>{bytes + 256 * HD * head + 256 * D * m, side.steps[head * HD + m * D], D};
    } else {
        return ByteCentroids<D>{bytes + 4096 * D * head, side.scales[head], D};
    }
}

template <int HD, int D, Books B>
__global__ void __launch_bounds__(kThreads, 2) encode_rows(const __grid_constant__ EncodeArgs a) {
    constexpr int N = HD / 32;  // channels of a lane
    constexpr int kSubspaces = HD / D;
    constexpr bool kShapes = D != 1 && B == Books::shared;
    using Sm = EncodeShared<HD, D, B>;
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
    } else if constexpr (B == Books::shared) {
        const auto* bytes = reinterpret_cast<const std::int8_t*>(side.words + head * words_per_head(side.form, false, HD));
        const ByteCentroids<D> from = {bytes, side.scales[head], max(D, 4)};
        for (int i = thread; i < 256 * D; i += kThreads) {
            sm.table[i] = from.at(i / D, i % D);
        }
    }
    const Form form = D == 1 ? side.form : Form{D, Sm::kBits};
    const bool shaped = kShapes && side.shaping_rank > 0;
    const int tries = shaped && side.unbiased ? 3 : 1;
    const int tile = kRows / tries;

    for (int token0 = blockIdx.x * tile; token0 < a.num_tokens; token0 += gridDim.x * tile) {
        const int count = min(tile, a.num_tokens - token0);
        const int rows = count * tries;
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
            const int norm = side.norms ? norm_byte(static_cast<float>(sqrt(sm.energy[thread] / HD))) : kUnitNorm;
            const Cell cell = find_cell(a, token0 + thread, head);
            sm.head_page[thread] = cell.stored ? cell.head_page : nullptr;
            sm.in_page[thread] = cell.in_page;
            for (int i = 0; i < tries; ++i) {
                const int tried = norm == 0 || tries == 1 ? norm : max(1, min(255, norm + i - 1));
                sm.norm[thread * tries + i] = static_cast<std::uint8_t>(tried);
                sm.divisor[thread * tries + i] = side.norms && tried != 0 ? norm_value(tried) : 1.0f;
            }
        }
        __syncthreads();
        for (int i = warp; i < rows; i += kWarps) {
            const float divisor = sm.divisor[i];
            const int token = tries == 1 ? i : i / 3;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                sm.unit[i][lane * N + k] = sm.y[token][lane * N + k] / divisor;
            }
        }
        for (int group = warp; group < kRows / 8; group += kWarps) {
            const int row = min(8 * group + lane % 8, rows - 1);
            const float peak = warp_max(sm.peak[tries == 1 ? row : row / 3] / sm.divisor[row]);
            if (lane == 0) {
                sm.group_peak[group] = peak;
            }
        }
        __syncthreads();

        if constexpr (D == 1) {
            for (int i = warp; i < rows; i += kWarps) {
                for (int m = lane; m < HD; m += 32) {
                    sm.codes[i][m] = static_cast<std::uint8_t>(nearest_level(sm.unit[i][m], sm.table, 1 << side.spec.code_bits));
                }
            }
        } else {
            Search<D, Sm::kBits> search;
            constexpr int kBook = 8 << Sm::kBits;  // words of the fragments of a codebook
            for (int m = warp; m < kSubspaces; m += kWarps) {
                if (B == Books::own || m == warp) {
                    const std::int64_t book = B == Books::own ? static_cast<std::int64_t>(head) * kSubspaces + m : head;
                    search.use(side.fragments + book * kBook, lane);
                }
                const auto centroids = centroids_of<HD, D, B>(a, sm, head, m);
                const float steps = 1.0f / centroids.scale;
                for (int first = 0; first < rows; first += 8) {
                    const float error = Search<D, Sm::kBits>::error_of(sm.group_peak[first / 8] * steps);
                    const int code =
                        search.nearest(&sm.unit[first][m * D], Sm::kRow, centroids, steps, error, rows - first, lane);
                    if (lane % 4 == 0) {
                        sm.codes[first + lane / 4][m] = static_cast<typename Sm::Code>(code);
                    }
                }
            }
        }
        __syncthreads();
        for (int i = warp; i < rows; i += kWarps) {
            if constexpr (kShapes) {
                if (shaped) {
                    improve_codes<HD, D>(side, head, sm.shaping[warp], sm.unit[i], sm.table, sm.codes[i], lane);
                    __syncwarp();
                }
            }
            if (side.norms && side.unbiased) {
                const int token = tries == 1 ? i : i / 3;
                double projection = 0.0;
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    const int channel = lane * N + k;
                    float part = 0.0f;
                    if constexpr (D == 1) {
                        part = sm.table[sm.codes[i][channel]];
                    } else {
                        part = centroids_of<HD, D, B>(a, sm, head, channel / D).at(sm.codes[i][channel / D], channel % D);
                    }
                    projection += static_cast<double>(sm.divisor[i] * part) * static_cast<double>(sm.y[token][channel]);
                }
                projection = warp_sum_double(projection);
                if (lane == 0) {
                    sm.projection[i] = projection;
                }
            }
        }
        __syncthreads();
        // As RowCodec::encode_unbiased: of the norms that were tried the one whose correction falls closest to a step.
        if (thread < count) {
            int stored = sm.norm[thread * tries];
            int chosen = thread * tries;
            if (side.norms && side.unbiased && stored != 0) {
                const double energy = sm.energy[thread];
                double least = INFINITY;
                for (int row = thread * tries; row < (thread + 1) * tries; ++row) {
                    const double projection = sm.projection[row];
                    int corrected = sm.norm[row];
                    double miss = energy;
                    if (projection > 0) {
                        corrected = norm_byte(static_cast<float>(sm.divisor[row] * (energy / projection)));
                        miss = fabs(projection * static_cast<double>(norm_value(corrected) / sm.divisor[row]) - energy);
                    }
                    if (miss < least) {
                        least = miss;
                        stored = corrected;
                        chosen = row;
                    }
                }
            }
            sm.chosen[thread] = static_cast<std::uint8_t>(chosen);
            if (sm.head_page[thread] != nullptr) {
                sm.head_page[thread][a.norm_offset + static_cast<std::int64_t>(sm.in_page[thread] / kGranule) * kNormBytes +
                                     norm_offset(sm.in_page[thread] % kGranule, side.value != 0)] =
                    static_cast<std::uint8_t>(stored);
            }
        }
        __syncthreads();
        for (int i = warp; i < count; i += kWarps) {
            if (sm.head_page[i] != nullptr) {
                std::uint8_t* granule = sm.head_page[i] + side.codes_offset +
                                        static_cast<std::int64_t>(sm.in_page[i] / kGranule) * granule_bytes(HD, form);
                store_codes<HD, D, Sm::kBits>(side, sm.codes[sm.chosen[i]], granule, sm.in_page[i] % kGranule, lane);
            }
        }
        __syncthreads();
    }
}

namespace {

template <int HD, int D, Books B = Books::shared>
EncodeKernel entry() {
    return {reinterpret_cast<const void*>(&encode_rows<HD, D, B>), kWarps, kRows, sizeof(EncodeShared<HD, D, B>)};
}

template <int HD>
EncodeKernel entry(int sub_dim, int code_bits, bool own_books) {
    if (code_bits > 8) {
        return sub_dim == 4 ? entry<HD, 4, Books::wide>() : entry<HD, 8, Books::wide>();
    }
    if (own_books) {
        return sub_dim == 2 ? entry<HD, 2, Books::own>() : entry<HD, 4, Books::own>();
    }
    return sub_dim == 1 ? entry<HD, 1>() : sub_dim == 2 ? entry<HD, 2>() : sub_dim == 4 ? entry<HD, 4>() : entry<HD, 8>();
}

}  // namespace

EncodeKernel encode_kernel(int head_dim, const CodecSpec& spec, bool own_books) {
    return head_dim == 64    ? entry<64>(spec.sub_dim, spec.code_bits, own_books)
           : head_dim == 128 ? entry<128>(spec.sub_dim, spec.code_bits, own_books)
                             : entry<256>(spec.sub_dim, spec.code_bits, own_books);
}

}  // namespace vecinfer::cuda
