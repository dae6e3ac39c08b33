// Attention of a warp over f16 rows of the window, on f16 matrix products. Two f16 digits for queries and for p: 22 bits.
#pragma once

#include "attention/cuda/codes.cuh"

namespace vecinfer::cuda {

inline constexpr float kDigit = 2048.0f;  // an f16 digit counts this often in the next one

/// f16 rows of a sequence and head: the sinks, then those from exact_lo on.
template <class C>
struct ExactRows {
    std::int64_t base;
    int count;
    int sinks;
    int first_recent;
    int sink_rows;
    int ring;

    __device__ __forceinline__ ExactRows(const DecodeArgs& a, const Place& at, const Reach& reach)
        : base((static_cast<std::int64_t>(a.window_slots != nullptr ? a.window_slots[at.seq] : at.seq) * a.num_kv_heads +
                at.head) *
               a.window_rows),
          count(reach.sinks + reach.len - reach.exact_lo),
          sinks(reach.sinks),
          first_recent(reach.exact_lo),
          sink_rows(a.sink),
          ring(max(1, a.window_rows - a.sink)) {}

    __device__ __forceinline__ int position(int i) const { return i < sinks ? i : first_recent + i - sinks; }
    /// Of the row of a position in window_k and window_v.
    __device__ __forceinline__ std::int64_t offset(int pos) const {
        return (base + (pos < sink_rows ? pos : sink_rows + (pos - sink_rows) % ring)) * C::HD;
    }
};

/// Brings the rows of a granule nearer.
template <class C>
__device__ __forceinline__ void prefetch_exact(const DecodeArgs& a, const Place& at, const Reach& reach, int granule) {
    const ExactRows<C> rows(a, at, reach);
    const int lane = threadIdx.x & 31;
    const int i = granule * 16 + lane % 16;
    if (i < rows.count) {
        const std::uint16_t* row = (lane < 16 ? a.window_k : a.window_v) + rows.offset(rows.position(i));
#pragma unroll
        for (int channel = 0; channel < C::HD; channel += 64) {
            prefetch(row + channel);
        }
    }
}

/// Granules first, first + WARPS, ... below end of 16 f16 rows: the sinks, then the rows from exact_lo on. Sums in 2^ref, element
/// order as in exact_channel.
template <class C>
__device__ __forceinline__ void attend_exact(const DecodeArgs& a, Shared<C>& sm, const Place& at, const Reach& reach, int first,
                                             int end, float* o, LaneState<C>& state) {
    constexpr int NT = C::NT;
    constexpr int HD = C::HD;
    const int lane = threadIdx.x & 31;
    const int g = lane >> 2;
    const int t = lane & 3;
    state.reset();
    if (first >= end) {
        return;
    }
    const ExactRows<C> rows(a, at, reach);

    float acc[NT][HD / 16][4];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
        state.ref[n] = kUnset;
#pragma unroll
        for (int i = 0; i < HD / 16; ++i) {
            acc[n][i][0] = acc[n][i][1] = acc[n][i][2] = acc[n][i][3] = 0.0f;
        }
    }
    for (int granule = first; granule < end; granule += C::WARPS) {
        float c[NT][4];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
        }
        const int i0 = granule * 16 + g;
        const bool has0 = i0 < rows.count;
        const bool has1 = i0 + 8 < rows.count;
        const int pos0 = rows.position(i0);
        const int pos1 = rows.position(i0 + 8);
        const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < HD / 32; ++j) {
            const int channel = 8 * (t + 4 * j);
            const uint4 k0 = has0 ? *reinterpret_cast<const uint4*>(a.window_k + rows.offset(pos0) + channel) : zero;
            const uint4 k1 = has1 ? *reinterpret_cast<const uint4*>(a.window_k + rows.offset(pos1) + channel) : zero;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 q = *reinterpret_cast<const uint4*>(&sm.q_exact[8 * n + g][channel]);
                mma_f16(c[n], k0.x, k1.x, k0.y, k1.y, q.x, q.y);
                mma_f16(c[n], k0.z, k1.z, k0.w, k1.w, q.z, q.w);
            }
        }
        std::uint32_t p[NT][2];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const int r = 4 * n + t;
            const int row = at.row_tile * C::kRows + r;
            const int token = min(row / a.group, a.num_q - 1);
            const int q_pos = reach.len - a.num_q + token;
            float s[2] = {(c[n][0] + c[n][1] * (1.0f / kDigit)) * sm.q_exact_scale[r],
                          (c[n][2] + c[n][3] * (1.0f / kDigit)) * sm.q_exact_scale[r]};
            float top = kUnset;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int pos = e == 0 ? pos0 : pos1;
                if constexpr (C::General) {
                    if (a.soft_cap != 0.0f) {
                        const float cap = a.soft_cap * kLog2e;
                        s[e] = cap * tanhf(s[e] / cap);
                    }
                    if (a.alibi_slopes != nullptr && row / a.group < a.num_q) {
                        s[e] += a.alibi_slopes[at.head * a.group + row % a.group] * kLog2e * static_cast<float>(pos - q_pos);
                    }
                }
                const bool seen = (e == 0 ? has0 : has1) && pos <= q_pos && (pos < a.sink || pos > q_pos - a.recent) &&
                                  (a.sliding_window == INT_MAX || pos > q_pos - a.sliding_window);
                s[e] = seen ? s[e] : -INFINITY;
                top = fmaxf(top, s[e]);
            }
            top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 4));
            top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 8));
            top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 16));
            const float ref = fmaxf(state.ref[n], top);
            const float factor = exp2_fast(state.ref[n] - ref);
            state.ref[n] = ref;
            state.sum[n] *= factor;
#pragma unroll
            for (int i = 0; i < HD / 16; ++i) {
                acc[n][i][0] *= factor;
                acc[n][i][1] *= factor;
                acc[n][i][2] *= factor;
                acc[n][i][3] *= factor;
            }
            const float p0 = exp2_fast(s[0] - ref);
            const float p1 = exp2_fast(s[1] - ref);
            state.sum[n] += p0 + p1;
            const __half2 high = __floats2half2_rn(p0, p1);
            const float2 back = __half22float2(high);
            const __half2 low = __floats2half2_rn((p0 - back.x) * kDigit, (p1 - back.y) * kDigit);
            const std::uint32_t high_bits = *reinterpret_cast<const std::uint32_t*>(&high);
            const std::uint32_t low_bits = *reinterpret_cast<const std::uint32_t*>(&low);
            const bool is_low = g & 1;
            const int even = (2 * t) * 4 + g / 2;
            const std::uint32_t from_even_high = __shfl_sync(kAllLanes, high_bits, even);
            const std::uint32_t from_even_low = __shfl_sync(kAllLanes, low_bits, even);
            const std::uint32_t from_odd_high = __shfl_sync(kAllLanes, high_bits, even + 4);
            const std::uint32_t from_odd_low = __shfl_sync(kAllLanes, low_bits, even + 4);
            p[n][0] = is_low ? from_even_low : from_even_high;
            p[n][1] = is_low ? from_odd_low : from_odd_high;
        }
        std::int64_t at_v[4];
        bool has[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int i = granule * 16 + 2 * t + e / 2 + 8 * (e % 2);
            has[e] = i < rows.count;
            at_v[e] = has[e] ? rows.offset(rows.position(i)) : 0;
        }
#pragma unroll
        for (int piece = 0; piece < HD / 64; ++piece) {
            std::uint32_t v[4][4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const uint4 x = has[e] ? *reinterpret_cast<const uint4*>(a.window_v + at_v[e] + HD / 8 * g + 8 * piece) : zero;
                v[e][0] = x.x;
                v[e][1] = x.y;
                v[e][2] = x.z;
                v[e][3] = x.w;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const std::uint32_t a0 = __byte_perm(v[0][i], v[1][i], 0x5410);
                const std::uint32_t a1 = __byte_perm(v[0][i], v[1][i], 0x7632);
                const std::uint32_t a2 = __byte_perm(v[2][i], v[3][i], 0x5410);
                const std::uint32_t a3 = __byte_perm(v[2][i], v[3][i], 0x7632);
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    mma_f16(acc[n][4 * piece + i], a0, a1, a2, a3, p[n][0], p[n][1]);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < HD / 16; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                o[((n * (HD / 16) + i) * 2 + half) * 32 + lane] = acc[n][i][2 * half] + acc[n][i][2 * half + 1] * (1.0f / kDigit);
            }
        }
    }
}

}  // namespace vecinfer::cuda
