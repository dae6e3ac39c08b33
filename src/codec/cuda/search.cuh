// Nearest centroid of many sub-vectors by one warp, exactly as the CPU finds it.
//
// The matrix unit computes x . c - |c|^2 / 2 for 16 centroids and 8 sub-vectors at a time, x in two f16 digits, c as integers:
// off by about 2^-20 of its terms. Per lane, groups of 8 candidates only keep their maximum; the best group, which group it is
// and the second-best group are what a scan leaves behind. If the second lies further away than the error can be, the winner is
// in the best group: its 8 candidates are measured again in the CPU's arithmetic. Else, about once in a hundred, all 256 are.
#pragma once

#include "attention/cuda/primitives.cuh"

namespace vecinfer::cuda {

/// Squared distance in the CPU's order of operations. Compile without contraction.
template <int D>
__device__ __forceinline__ float exact_distance(const float* x, const float* c) {
    float d = 0.0f;
#pragma unroll
    for (int k = 0; k < D; ++k) {
        const float difference = x[k] - c[k];
        d = k == 0 ? difference * difference : d + difference * difference;
    }
    return d;
}

struct Candidate {
    float distance;
    int code;

    /// The nearer one, the lower code on ties.
    __device__ __forceinline__ void take(float other, int other_code) {
        const bool better = other < distance || (other == distance && other_code < code);
        distance = better ? other : distance;
        code = better ? other_code : code;
    }
};

template <int D>
class Search {
public:
    static constexpr int kTiles = 16;      // of 16 centroids
    static constexpr int kGroupTiles = 4;  // tiles of a group: 8 candidates of a lane

    /// words: of one codebook, see tables.h; table: centroid values, layout (256, D), shared.
    __device__ __forceinline__ Search(const std::uint32_t* words, const float* table, float scale, int lane)
        : table_(table), steps_(1.0f / scale), lane_(lane) {
        const int g = lane >> 2;
        const int t = lane & 3;
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int centroid = 16 * i + 8 * half + g;
                const std::uint32_t w0 = words[D == 8 ? 2 * centroid : centroid];
                const std::uint32_t w1 = D == 8 ? words[2 * centroid + 1] : 0u;
                // Channels 2t and 2t + 1 (modulo D): digits of x follow each other in k.
                const int first = D == 2 ? 0 : D == 4 ? 2 * (t % 2) : 2 * t;
                const std::uint32_t w = first < 4 ? w0 : w1;
                const float low = static_cast<float>(static_cast<std::int8_t>(w >> (8 * (first % 4))));
                const float high = static_cast<float>(static_cast<std::int8_t>(w >> (8 * (first % 4 + 1))));
                a_[i][half] = D == 2 && t > 1 ? 0u : pack(low, high);
                float norm = 0.0f;
#pragma unroll
                for (int k = 0; k < D; ++k) {
                    const float c = static_cast<float>(static_cast<std::int8_t>((k < 4 ? w0 : w1) >> (8 * (k % 4))));
                    norm += c * c;
                }
                bias_[i][half] = -0.5f * norm;
            }
        }
    }

    /// Code of sub-vector lane / 4 of the eight at x, layout (8, D), shared memory. The same in its four lanes.
    __device__ __forceinline__ int nearest(const float* x) const {
        const int g = lane_ >> 2;
        const int t = lane_ & 3;
        float own[D];  // sub-vector g
        float size = 0.0f;
#pragma unroll
        for (int k = 0; k < D; ++k) {
            own[k] = x[g * D + k];
            size += fabsf(own[k]);
        }
        const int first = D == 2 ? 0 : D == 4 ? 2 * (t % 2) : 2 * t;
        const float u0 = x[g * D + first] * steps_;
        const float u1 = x[g * D + first + 1] * steps_;
        const std::uint32_t high = pack(u0, u1);
        const std::uint32_t low = pack(u0 - low_half(high), u1 - high_half(high));

        float best[2] = {-INFINITY, -INFINITY};  // of columns 2t and 2t + 1
        float second[2] = {-INFINITY, -INFINITY};
        int where[2] = {0, 0};
#pragma unroll
        for (int group = 0; group < kTiles / kGroupTiles; ++group) {
            float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int j = 0; j < kGroupTiles; ++j) {
                const int i = group * kGroupTiles + j;
                float d[4];
                if constexpr (D == 8) {
                    // Two products: high digits, then low digits on top.
                    float e[4];
                    mma_f16_k8(e, a_[i][0], a_[i][1], high, bias_[i][0], bias_[i][1]);
                    mma_f16_k8_add(d, a_[i][0], a_[i][1], low, e);
                } else {
                    const bool is_low = D == 4 ? t > 1 : t == 1;
                    mma_f16_k8(d, a_[i][0], a_[i][1], is_low ? low : high, bias_[i][0], bias_[i][1]);
                }
                top[0] = fmaxf(top[0], fmaxf(d[0], d[2]));
                top[1] = fmaxf(top[1], fmaxf(d[1], d[3]));
            }
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                second[c] = fmaxf(second[c], fminf(best[c], top[c]));
                where[c] = top[c] > best[c] ? group * 8 + g : where[c];
                best[c] = fmaxf(best[c], top[c]);
            }
        }
#pragma unroll
        for (int step = 4; step <= 16; step *= 2) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float other = __shfl_xor_sync(kAllLanes, best[c], step);
                const float other_second = __shfl_xor_sync(kAllLanes, second[c], step);
                const int other_where = __shfl_xor_sync(kAllLanes, where[c], step);
                second[c] = fmaxf(fmaxf(second[c], other_second), fminf(best[c], other));
                where[c] = other > best[c] ? other_where : where[c];
                best[c] = fmaxf(best[c], other);
            }
        }
        // Column g is held by the lanes with t = g / 2.
        const int from = g / 2;
        const float gap0 = __shfl_sync(kAllLanes, best[0] - second[0], from);
        const float gap1 = __shfl_sync(kAllLanes, best[1] - second[1], from);
        const int where0 = __shfl_sync(kAllLanes, where[0], from);
        const int where1 = __shfl_sync(kAllLanes, where[1], from);
        const float gap = g & 1 ? gap1 : gap0;
        const int winner = g & 1 ? where1 : where0;
        // Terms are at most 127 |x_k| / scale each and D 127^2 / 2. The CPU's distances have rounding errors of their own.
        const float steps = size * steps_;
        const float error = (steps * 127.0f + 8064.5f * D) * kRelativeError + steps * steps * kRelativeRounding;
        const bool sure = gap > error && steps < 30000.0f;  // f16 ends soon

        const int code0 = 16 * (winner / 8 * kGroupTiles + t) + winner % 8;
        Candidate found{exact_distance<D>(own, table_ + code0 * D), code0};
        found.take(exact_distance<D>(own, table_ + (code0 + 8) * D), code0 + 8);
#pragma unroll
        for (int step = 1; step <= 2; step *= 2) {
            const float other = __shfl_xor_sync(kAllLanes, found.distance, step);
            const int other_code = __shfl_xor_sync(kAllLanes, found.code, step);
            found.take(other, other_code);
        }
        unsigned open = __ballot_sync(kAllLanes, !sure);
        while (open != 0) {
            const int which = (__ffs(static_cast<int>(open)) - 1) / 4;
            open &= ~(0xfu << (4 * which));
            float shared_x[D];
#pragma unroll
            for (int k = 0; k < D; ++k) {
                shared_x[k] = x[which * D + k];
            }
            Candidate all{INFINITY, 0};
            for (int c = lane_; c < 256; c += 32) {
                all.take(exact_distance<D>(shared_x, table_ + c * D), c);
            }
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const float other = __shfl_xor_sync(kAllLanes, all.distance, step);
                const int other_code = __shfl_xor_sync(kAllLanes, all.code, step);
                all.take(other, other_code);
            }
            found.code = g == which ? all.code : found.code;
        }
        return found.code;
    }

private:
    static constexpr float kRelativeError = 2e-6f;
    static constexpr float kRelativeRounding = 5e-7f;

    static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
        return static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(low))) |
               static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(high))) << 16;
    }
    static __device__ __forceinline__ float low_half(std::uint32_t w) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(w & 0xffffu)));
    }
    static __device__ __forceinline__ float high_half(std::uint32_t w) {
        return __half2float(__ushort_as_half(static_cast<unsigned short>(w >> 16)));
    }
    /// d = A B + e.
    static __device__ __forceinline__ void mma_f16_k8_add(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0,
                                                          const float (&e)[4]) {
        mma_f16_k8(d, a0, a1, b0, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            d[i] += e[i];
        }
    }

    const float* table_;
    float steps_;  // of a centroid's integer per unit
    int lane_;
    std::uint32_t a_[kTiles][2];
    float bias_[kTiles][2];
};

/// A lane's own search among few levels.
template <>
class Search<1> {
public:
    __device__ __forceinline__ Search(const std::uint32_t*, const float* table, float, int) : table_(table) {}

    __device__ __forceinline__ int nearest(float x, int count) const {
        Candidate found{INFINITY, 0};
        for (int i = 0; i < count; ++i) {
            found.take(exact_distance<1>(&x, table_ + i), i);
        }
        return found.code;
    }

private:
    const float* table_;
};

}  // namespace vecinfer::cuda
