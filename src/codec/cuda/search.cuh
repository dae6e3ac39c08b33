// Nearest centroid of many sub-vectors by one warp, exactly as the CPU finds it.
//
// The matrix unit computes x . c - |c|^2 / 2 for 16 centroids and 8 sub-vectors at a time, x in two f16 digits, c as integers:
// off by about 2^-20 of its terms. Per lane, groups of candidates only keep their maximum; positive floats compare as integers,
// so one instruction takes two more of them. The best group, which group it is (in its low bits) and the second-best group are
// what a scan leaves behind. If the second lies further away than the error can be, the winner is in the best group, whose
// candidates are measured again in the CPU's arithmetic. Else all are.
#pragma once

#include <climits>

#include "attention/cuda/primitives.cuh"

namespace vecinfer::cuda {

/// Squared distance in the CPU's order of operations. Compile without contraction.
template <int D>
__device__ __forceinline__ float exact_distance(const float (&x)[D], const float (&c)[D]) {
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
        const bool better =
            static_cast<int>(other < distance) | (static_cast<int>(other == distance) & static_cast<int>(other_code < code));
        distance = better ? other : distance;
        code = better ? other_code : code;
    }
};

/// D floats from an address that is a multiple of theirs.
template <int D>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[D]) {
    if constexpr (D == 2) {
        const float2 x = *reinterpret_cast<const float2*>(from);
        to[0] = x.x;
        to[1] = x.y;
    } else {
#pragma unroll
        for (int k = 0; k < D; k += 4) {
            const float4 x = *reinterpret_cast<const float4*>(from + k);
            to[k] = x.x;
            to[k + 1] = x.y;
            to[k + 2] = x.z;
            to[k + 3] = x.w;
        }
    }
}

/// Centroids of a codebook as floats, layout (n, D), in shared memory.
template <int D>
struct FloatCentroids {
    const float* table;
    float scale;

    __device__ __forceinline__ float at(int code, int channel) const { return table[code * D + channel]; }
    __device__ __forceinline__ void load(int code, float (&c)[D]) const { load_floats(table + code * D, c); }
};

/// As integers, `stride` bytes apart (tables.h), and their scale.
template <int D>
struct ByteCentroids {
    const std::int8_t* bytes;
    float scale;
    int stride;

    __device__ __forceinline__ float at(int code, int channel) const {
        return scale * static_cast<float>(bytes[code * stride + channel]);
    }
    __device__ __forceinline__ void load(int code, float (&c)[D]) const {
#pragma unroll
        for (int k = 0; k < D; ++k) {
            c[k] = at(code, k);
        }
    }
};

template <int D, int Bits>
class Search {
public:
    static constexpr int kTiles = (1 << Bits) / 16;       // of 16 centroids
    static constexpr int kGroups = Bits > 8 ? 16 : 4;     // of tiles
    static constexpr int kGroupTiles = kTiles / kGroups;  // 2 * kGroupTiles candidates of a lane
    static constexpr int kIdBits = Bits > 8 ? 7 : 5;      // of 8 kGroups groups
    static constexpr bool kInRegisters = Bits <= 8;
    static constexpr float kKeyError = Bits > 8 ? 0x1p-15f : 0x1p-17f;  // what the low bits can hide

    /// fragments: of one codebook, as LayerCodec makes them.
    __device__ __forceinline__ void use(const std::uint32_t* fragments, int lane) {
        fragments_ = reinterpret_cast<const uint4*>(fragments) + lane;
        if constexpr (kInRegisters) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                tiles_[i] = fragments_[32 * i];
            }
        }
    }

    /// How far x . c - |c|^2 / 2 can be off, in squared steps, for entries up to `peak` steps; negative if they are too large.
    static __device__ __forceinline__ float error_of(float peak) {
        const float size = static_cast<float>(D) * peak;
        // Terms are at most 127 |x_k| each and D 127^2 / 2. The CPU's distances have rounding errors of their own.
        const float error = (size * 127.0f + 8064.5f * D) * kRelativeError + size * size * kRelativeRounding;
        return peak < 30000.0f ? error : -1.0f;  // f16 ends soon
    }

    /// Code of sub-vector lane / 4 of eight, `row` floats apart at x, shared memory. The same in its four lanes. steps: of a
    /// centroid's integer per unit. Only the first `count` are wanted.
    template <class Centroids>
    __device__ __forceinline__ int nearest(const float* x, int row, const Centroids& centroids, float steps, float error,
                                           int count, int lane) const {
        const int g = lane >> 2;
        const int t = lane & 3;
        const int first = D == 2 ? 0 : D == 4 ? 2 * (t % 2) : 2 * t;
        const float2 u = *reinterpret_cast<const float2*>(x + g * row + first);
        const std::uint32_t high = pack(u.x * steps, u.y * steps);
        const std::uint32_t low = pack(u.x * steps - half_at(high, 0), u.y * steps - half_at(high, 1));
        // Of sub_dim 2 and 4 ones meet the digits of -|c|^2 / 2.
        const std::uint32_t digits = (D == 4 ? t > 1 : t == 1) ? low : D == 2 && t > 1 ? kOnePair : high;
        const std::uint32_t ones = t == 0 ? kOnePair : 0u;

        int best[2] = {INT_MIN, INT_MIN};  // of columns 2t and 2t + 1
        int second[2] = {INT_MIN, INT_MIN};
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            int top[2] = {INT_MIN, INT_MIN};
#pragma unroll
            for (int j = 0; j < kGroupTiles; ++j) {
                const int i = group * kGroupTiles + j;
                uint4 tile;
                if constexpr (kInRegisters) {
                    tile = tiles_[i];
                } else {
                    tile = fragments_[32 * i];
                }
                float d[4];
                if constexpr (D == 8) {
                    const float b0 = __uint_as_float(tile.z);
                    const float b1 = __uint_as_float(tile.w);
                    mma_f16_first(d, tile.x, tile.y, tile.x, tile.y, high, low, b0, b0, b1, b1);
                } else if constexpr (D == 4) {
                    mma_f16_first(d, tile.x, tile.y, tile.z, tile.w, digits, ones, 0.0f, 0.0f, 0.0f, 0.0f);
                } else {
                    mma_f16_k8(d, tile.x, tile.y, digits, 0.0f, 0.0f);
                }
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    top[c] = max_of_three(top[c], __float_as_int(d[c]), __float_as_int(d[c + 2]));
                }
            }
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int key = (top[c] & -(1 << kIdBits)) | (group * 8 + g);
                second[c] = max(second[c], min(best[c], key));
                best[c] = max(best[c], key);
            }
        }
#pragma unroll
        for (int step = 4; step <= 16; step *= 2) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int other = __shfl_xor_sync(kAllLanes, best[c], step);
                const int other_second = __shfl_xor_sync(kAllLanes, second[c], step);
                second[c] = max_of_three(second[c], other_second, min(best[c], other));
                best[c] = max(best[c], other);
            }
        }
        // Column g is held by the lanes with t = g / 2.
        const int key0 = __shfl_sync(kAllLanes, best[0], g / 2);
        const int key1 = __shfl_sync(kAllLanes, best[1], g / 2);
        const int next0 = __shfl_sync(kAllLanes, second[0], g / 2);
        const int next1 = __shfl_sync(kAllLanes, second[1], g / 2);
        const int key = g & 1 ? key1 : key0;
        const float value = __int_as_float(key);
        const float gap = value - __int_as_float(max(g & 1 ? next1 : next0, 0));
        const bool sure = (gap > error + value * kKeyError && error >= 0.0f && key > 0) || g >= count;

        float own[D];
        load_floats(x + g * row, own);
        const int id = key & ((1 << kIdBits) - 1);
        Candidate found;
#pragma unroll
        for (int j = 0; j < kGroupTiles; j += 4) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int code = 16 * (id / 8 * kGroupTiles + j + t) + id % 8 + 8 * half;
                float c[D];
                centroids.load(code, c);
                if (j == 0 && half == 0) {
                    found = {exact_distance<D>(own, c), code};
                } else {
                    found.take(exact_distance<D>(own, c), code);
                }
            }
        }
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
                shared_x[k] = x[which * row + k];
            }
            Candidate all{INFINITY, 0};
            for (int code = lane; code < 16 * kTiles; code += 32) {
                float c[D];
                centroids.load(code, c);
                all.take(exact_distance<D>(shared_x, c), code);
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
    static constexpr std::uint32_t kOnePair = 0x3c003c00u;
    static constexpr float kRelativeError = 2e-6f;
    static constexpr float kRelativeRounding = 5e-7f;

    static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
        const __half2 both = __floats2half2_rn(low, high);
        return *reinterpret_cast<const std::uint32_t*>(&both);
    }

    const uint4* fragments_ = nullptr;
    uint4 tiles_[kInRegisters ? kTiles : 1];
};

/// Nearest of few levels, layout [count].
__device__ __forceinline__ int nearest_level(float x, const float* levels, int count) {
    Candidate found{INFINITY, 0};
    for (int i = 0; i < count; ++i) {
        found.take((x - levels[i]) * (x - levels[i]), i);
    }
    return found.code;
}

}  // namespace vecinfer::cuda
