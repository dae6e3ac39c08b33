// Queries of one (sequence, KV head, row tile) into the digits that the matrix units read, and the codebook into shared memory.
//
// Precision: a transformed query is 127 * 128 steps of its largest entry, two int8 digits, so a score is off by about
// 2^-15 |q|max |k|. Products: 127 * 127 * 256 channels < 2^23 per digit, hi * 128 + lo < 2^30: no overflow. Rows of f16 get two
// f16 digits, 22 bits.
#pragma once

#include "attention/cuda/shared_state.cuh"

namespace vecinfer::cuda {

/// f16 digits of a transformed query whose largest entry is `most`, with and without weights (scalar_layout.h).
template <class C, int N>
__device__ __forceinline__ void scalar_digits(Shared<C>& sm, const float (&y)[N], float most, int r, int lane) {
    const float steps = most > 0.0f ? 1.0f / most : 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int channel = lane * N + i;
        const float less = exp2f(-static_cast<float>(pair_weight(C::Keys::kBits, channel / 8, C::HD)));
        const float e = y[i] * steps;
        const float high = __half2float(__float2half_rn(e));
        const float low = (e - high) * 2048.0f;
        sm.q_plain[2 * r][channel] = __half_as_ushort(__float2half_rn(high));
        sm.q_plain[2 * r + 1][channel] = __half_as_ushort(__float2half_rn(low));
        sm.q_code[2 * r][channel] = __half_as_ushort(__float2half_rn(high * less));
        sm.q_code[2 * r + 1][channel] = __half_as_ushort(__float2half_rn(low * less));
    }
}

/// One warp per row.
template <class C>
__device__ __forceinline__ void prepare_queries(const DecodeArgs& a, Shared<C>& sm, const Place& at) {
    constexpr int N = C::HD / 32;
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    for (int r = warp; r < C::kRows; r += C::WARPS) {
        const int row = at.row_tile * C::kRows + r;
        const int token = row / a.group;
        const int head = at.head * a.group + row % a.group;
        float x[N];
        float y[N];
        float bias = 0.0f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            x[i] = 0.0f;
        }
        if (token < a.num_q) {
            const std::int64_t at_q = at.seq * a.q_seq_stride + token * a.q_token_stride + head * a.q_head_stride + lane * N;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                x[i] = load_number(a.q, at_q + i, a.q_type);
            }
        }
        const int channel = at.head * C::HD + lane * N;
        float most_exact = 0.0f;
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            y[i] = a.q_factors != nullptr ? x[i] * a.q_factors[channel + i] : x[i];
            bias += a.k_center != nullptr ? x[i] * a.k_center[channel + i] : 0.0f;
            most_exact = fmaxf(most_exact, fabsf(x[i]));
        }
        if (a.k_hadamard) {
            warp_hadamard(y, lane);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            y[i] = a.k_steps != nullptr ? y[i] * a.k_steps[channel + i] : y[i];
            most = fmaxf(most, fabsf(y[i]));
        }
        most = warp_max(most);
        most_exact = warp_max(most_exact);
        bias = a.k_center != nullptr ? warp_sum(bias) : 0.0f;

        if constexpr (C::kScalar) {
            scalar_digits<C>(sm, y, most, r, lane);
            if (lane == 0) {
                sm.q_scale[r] = most * a.sm_scale * kLog2e;
            }
        } else {
            // Steps of the integer query are 2^-11 octaves apart, so that adding 4112 to the logarithm loses nothing (codes.cuh).
            const float unit = a.k_scale[at.head] * a.sm_scale * kLog2e;
            float log_scale = most > 0.0f ? __log2f(most * fabsf(unit) * (1.0f / 16256.0f)) + 4.0f / 2048.0f : -100.0f;
            log_scale = fmaxf(ceilf(log_scale * 2048.0f) * (1.0f / 2048.0f), -100.0f);
            const float steps = unit * exp2f(-log_scale);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const int q = max(-16256, min(16256, __float2int_rn(y[i] * steps)));
                const int high = (q + 64) >> 7;
                sm.q_code[2 * r][lane * N + i] = static_cast<std::int8_t>(high);
                sm.q_code[2 * r + 1][lane * N + i] = static_cast<std::int8_t>(q - high * 128);
            }
            if (lane == 0) {
                sm.q_log_scale[r] = log_scale;
            }
        }
        const float exact_steps = most_exact > 0.0f ? 1.0f / most_exact : 0.0f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float e = x[i] * exact_steps;
            const __half e_high = __float2half_rn(e);
            sm.q_exact[2 * r][lane * N + i] = __half_as_ushort(e_high);
            sm.q_exact[2 * r + 1][lane * N + i] = __half_as_ushort(__float2half_rn((e - __half2float(e_high)) * 2048.0f));
        }
        if (lane == 0) {
            sm.q_bias[r] = bias * a.sm_scale * kLog2e;
            sm.q_exact_scale[r] = most_exact * a.sm_scale * kLog2e;
        }
    }
}

/// 32 copies of a word side by side, one for each bank, so that no two lanes of a look-up meet. Of sub_dim 8, 16 copies of two
/// words: half a warp at a time reads pairs of banks. Levels of sub_dim 1 are two words.
template <int D, Table T, int Words>
__device__ __forceinline__ void fill_table(const std::uint32_t* words, std::uint32_t (&table)[Words], int threads) {
    if constexpr (D == 1) {
        if (threadIdx.x < 2) {
            table[threadIdx.x] = words[threadIdx.x];
        }
    } else if constexpr (T == Table::copies) {
        for (int i = threadIdx.x; i < 256 * 8; i += threads) {
            const int row = i >> 3;
            const std::uint32_t x = words[D == 8 ? 2 * row : row];
            const std::uint32_t y = D == 8 ? words[2 * row + 1] : x;
            reinterpret_cast<uint4*>(table)[i] = make_uint4(x, y, x, y);
        }
    } else {
        for (int i = threadIdx.x; i < Words / 4; i += threads) {
            reinterpret_cast<uint4*>(table)[i] = reinterpret_cast<const uint4*>(words)[i];
        }
    }
}

template <class C>
__device__ __forceinline__ void fill_tables(const DecodeArgs& a, Shared<C>& sm, int head) {
    fill_table<C::KD, C::KT>(a.k_words + head * words_per_head(C::kKeyForm, C::KT == Table::own, C::HD), sm.k_table, C::kThreads);
    fill_table<C::VD, C::VT>(a.v_words + head * words_per_head(C::kValueForm, C::VT == Table::own, C::HD), sm.v_table,
                             C::kThreads);
}

}  // namespace vecinfer::cuda
