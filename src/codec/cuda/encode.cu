// Rows into codes: one warp transforms a head's vector, divides it by its norm, and every lane searches the nearest centroid of
// its sub-vectors, for several tokens at once so that a centroid is read once for all. Compiled without contraction: the same
// operations in the same order as on the CPU give the same codes.
#include "attention/cuda/primitives.cuh"
#include "codec/cuda/encode_args.h"
#include "codec/cuda/layout.h"

namespace vecinfer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTokens = 4;  // per warp

// As in codec/norm.cc.
__device__ constexpr double kThresholds[8] = {1.0442737824274138, 1.1387886347566916, 1.2418578120734840, 1.3542555469368927,
                                              1.4768261459394993, 1.6104903319492543, 1.7562521603732995, 1.9152065613971474};
__device__ constexpr double kSteps[8] = {1.0,
                                         1.0905077326652577,
                                         1.1892071150027210,
                                         1.2968395546510096,
                                         1.4142135623730951,
                                         1.5422108254079407,
                                         1.6817928305074290,
                                         1.8340080864093424};

__device__ int norm_byte(float rms) {
    if (!(rms > 0.0f)) {
        return 0;
    }
    if (rms > 65536.0f) {
        return 255;
    }
    int exponent = 0;
    const double mantissa = 2.0 * frexp(static_cast<double>(rms), &exponent);
    int code = 128 + 8 * (exponent - 1);
    for (int i = 0; i < 8; ++i) {
        code += mantissa >= kThresholds[i] ? 1 : 0;
    }
    return max(1, min(255, code));
}

__device__ float norm_value(int code) {
    return code == 0 ? 0.0f : static_cast<float>(ldexp(kSteps[code % 8], code / 8 - 16));
}

__device__ double warp_sum_double(double x) {
    for (int step = 16; step >= 1; step /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, step);
    }
    return x;
}

/// As codec/f16.h: nearest f16, finite magnitudes above 65504 clamped, non-finite 0.
__device__ float round_to_half(float x) {
    if (!(fabsf(x) <= 3.402823466e38f)) {
        return 0.0f;
    }
    return __half2float(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

struct Cell {
    bool stored;
    std::uint8_t* head_page;
    int in_page;
};

__device__ Cell find_cell(const EncodeArgs& a, int token, int head) {
    const std::int64_t slot = token < a.num_tokens ? a.slots[token] : -1;
    if (slot < 0) {
        return {false, nullptr, 0};
    }
    return {true, a.pages + slot / a.page_size * a.page_bytes + head * a.head_bytes, static_cast<int>(slot % a.page_size)};
}

/// Where a token's f16 row goes, or -1. Only the last rows of a sequence have a place in the ring.
__device__ std::int64_t window_row(const EncodeArgs& a, int token, int head) {
    const int seq = a.sequences != nullptr ? a.sequences[token] : token;
    const int pos = a.positions[token];
    const int ring = a.window_rows - a.sink;
    const int slot = a.window_slots != nullptr ? a.window_slots[seq] : seq;
    const std::int64_t base = (static_cast<std::int64_t>(slot) * a.num_kv_heads + head) * a.window_rows;
    if (pos < a.sink) {
        return base + pos;
    }
    return ring > 0 && pos >= a.kv_lens[seq] - ring ? base + a.sink + (pos - a.sink) % ring : -1;
}

template <int HD>
__global__ void __launch_bounds__(32 * kWarps) encode_rows(const __grid_constant__ EncodeArgs a) {
    constexpr int N = HD / 32;             // channels of a lane
    constexpr int kLanes = N < 4 ? 4 / N : 1;  // lanes that share a sub-vector
    constexpr int kPieces = N < 4 ? 1 : N / 4;  // sub-vectors of a lane
    extern __shared__ __align__(1024) unsigned char memory[];
    float4* centroids = reinterpret_cast<float4*>(memory);  // [256]
    const int head = blockIdx.y;
    const bool value = blockIdx.z == 1;
    const EncodeSide& side = a.side[value ? 1 : 0];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;

    const float scale = side.scales[head];
    for (int i = threadIdx.x; i < 256; i += 32 * kWarps) {
        const std::uint32_t w = side.words[head * 256 + i];
        centroids[i] = make_float4(scale * static_cast<float>(static_cast<std::int8_t>(w)),
                                   scale * static_cast<float>(static_cast<std::int8_t>(w >> 8)),
                                   scale * static_cast<float>(static_cast<std::int8_t>(w >> 16)),
                                   scale * static_cast<float>(static_cast<std::int8_t>(w >> 24)));
    }
    __syncthreads();

    const int token0 = (blockIdx.x * kWarps + warp) * kTokens;
    float x[kTokens][kPieces][4];  // divided by the norm
    float y[kTokens][N];           // transformed
    double energy[kTokens];
    int norm[kTokens];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
        const int token = token0 + j;
        const bool there = token < a.num_tokens;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            y[j][i] = there ? round_to_half(load_number(side.x, token * side.token_stride + head * side.head_stride + lane * N + i,
                                                        a.type))
                            : 0.0f;
        }
        if (side.window != nullptr && there && a.slots[token] >= 0) {
            const std::int64_t row = window_row(a, token, head);
            if (row >= 0) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    side.window[row * HD + lane * N + i] = __half_as_ushort(__float2half_rn(y[j][i]));
                }
            }
        }
        const int channel = head * HD + lane * N;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            y[j][i] = side.center != nullptr ? y[j][i] - side.center[channel + i] : y[j][i];
            y[j][i] = side.inverse != nullptr ? y[j][i] * side.inverse[channel + i] : y[j][i];
        }
        if (side.hadamard) {
            warp_hadamard(y[j], lane);
        }
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
        float unit[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            unit[i] = y[j][i] / divisor;
        }
        if constexpr (kLanes == 1) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                x[j][i / 4][i % 4] = unit[i];
            }
        } else {  // two lanes make a sub-vector; both search, each half of the centroids
            const float other0 = __shfl_xor_sync(kAllLanes, unit[0], 1);
            const float other1 = __shfl_xor_sync(kAllLanes, unit[1], 1);
            x[j][0][0] = lane & 1 ? other0 : unit[0];
            x[j][0][1] = lane & 1 ? other1 : unit[1];
            x[j][0][2] = lane & 1 ? unit[0] : other0;
            x[j][0][3] = lane & 1 ? unit[1] : other1;
        }
    }

    float best[kTokens][kPieces];
    int code[kTokens][kPieces];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            best[j][p] = INFINITY;
            code[j][p] = 0;
        }
    }
    const int first = kLanes == 1 ? 0 : (lane & 1) * 128;
#pragma unroll 4
    for (int i = first; i < first + 256 / kLanes; ++i) {
        const float4 c = centroids[i];
#pragma unroll
        for (int j = 0; j < kTokens; ++j) {
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
                const float d0 = x[j][p][0] - c.x;
                const float d1 = x[j][p][1] - c.y;
                const float d2 = x[j][p][2] - c.z;
                const float d3 = x[j][p][3] - c.w;
                const float d = ((d0 * d0 + d1 * d1) + d2 * d2) + d3 * d3;
                code[j][p] = d < best[j][p] ? i : code[j][p];
                best[j][p] = d < best[j][p] ? d : best[j][p];
            }
        }
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
        if constexpr (kLanes == 2) {
            const float other = __shfl_xor_sync(kAllLanes, best[j][0], 1);
            const int other_code = __shfl_xor_sync(kAllLanes, code[j][0], 1);
            code[j][0] = other < best[j][0] || (other == best[j][0] && other_code < code[j][0]) ? other_code : code[j][0];
        }
        int stored = norm[j];
        if (side.norms && side.unbiased && norm[j] != 0) {
            const float divisor = norm_value(norm[j]);
            double projection = 0.0;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const float4 c = centroids[code[j][N < 4 ? 0 : i / 4]];
                const int channel = N < 4 ? (lane & 1) * 2 + i : i % 4;
                const float part = channel == 0 ? c.x : channel == 1 ? c.y : channel == 2 ? c.z : c.w;
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
            std::uint8_t* codes = cell.head_page + (value ? a.v_offset : 0) + static_cast<std::int64_t>(granule) * granule_bytes(HD / 4);
            if (kLanes == 1 || (lane & 1) == 0) {
#pragma unroll
                for (int p = 0; p < kPieces; ++p) {
                    const int m = kLanes == 1 ? lane * kPieces + p : lane / 2;
                    codes[value ? v_code_offset(in, m, HD / 4) : k_code_offset(in, m, HD / 4)] =
                        static_cast<std::uint8_t>(code[j][p]);
                }
            }
            if (lane == 0) {
                cell.head_page[a.norm_offset + static_cast<std::int64_t>(granule) * kNormBytes + norm_offset(in, value)] =
                    static_cast<std::uint8_t>(stored);
            }
        }
    }
}

}  // namespace

EncodeKernel encode_kernel(int head_dim) {
    const void* function = head_dim == 64    ? reinterpret_cast<const void*>(&encode_rows<64>)
                           : head_dim == 128 ? reinterpret_cast<const void*>(&encode_rows<128>)
                                             : reinterpret_cast<const void*>(&encode_rows<256>);
    return {function, 32 * kWarps, kWarps * kTokens, 256 * sizeof(float4)};
}

}  // namespace vecinfer::cuda
