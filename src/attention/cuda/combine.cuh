// From the sums of warps to outputs: within a block, over the blocks that share an item, then back to the original space.
#pragma once

#include "attention/cuda/codes.cuh"

namespace vecinfer::cuda {

/// Row and channel of element `index` of a warp's sums: over codes as flush() (CodeSums) or ValueSums leave them, over f16 rows a
/// lane has neighbouring channels.
template <class C>
__device__ __forceinline__ int element_row(int index, bool exact) {
    const int lane = index & 31;
    return index / (32 * (C::HD / 8)) * 4 + (exact || C::kScalar ? lane & 3 : lane >> 3);
}

template <class C>
__device__ __forceinline__ int element_channel(int index, bool exact) {
    const int g = (index >> 2) & 7;
    const int t = index & 3;
    if (exact) {
        const int i = (index >> 6) % (C::HD / 16);
        const int half = (index >> 5) & 1;
        return C::HD / 8 * g + 2 * i + half;
    }
    if constexpr (C::kScalar) {
        return 8 * ((index >> 5) % (C::HD / 8)) + g;
    } else {
        constexpr int kPairs = kUnit<C> / 2;
        const int x = (index >> 5) & 3;
        const int m = (index >> 7) % (C::HD / 32) + (g & 1) * (C::HD / 32);
        return kUnit<C> * (8 * (m / kPairs) + 2 * t + (x & 1)) + 2 * (m % kPairs) + (x >> 1);
    }
}

/// Softmax states of all warps, over codes and over f16 rows, into factors and one reference and sum per row. Whole block.
template <class C>
__device__ __forceinline__ void combine_stats(Shared<C>& sm, const LaneState<C> (&states)[2]) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
#pragma unroll
        for (int n = 0; n < C::NT; ++n) {
            float sum = states[kind].sum[n];
            sum += __shfl_xor_sync(kAllLanes, sum, 4);
            sum += __shfl_xor_sync(kAllLanes, sum, 8);
            sum += __shfl_xor_sync(kAllLanes, sum, 16);
            if (lane < 4) {
                sm.warp_ref[kind][warp][4 * n + lane] = sum > 0.0f ? states[kind].ref[n] : -INFINITY;
                sm.warp_sum[kind][warp][4 * n + lane] = sum;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x < 2 * C::kRows) {
        const int kind = threadIdx.x / C::kRows;
        const int r = threadIdx.x % C::kRows;
        float ref = -INFINITY;
        for (int w = 0; w < C::WARPS; ++w) {
            ref = fmaxf(ref, sm.warp_ref[kind][w][r]);
        }
        float sum = 0.0f;
        for (int w = 0; w < C::WARPS; ++w) {
            const float from = sm.warp_ref[kind][w][r];
            const float factor = from == -INFINITY ? 0.0f : exp2f(from - ref);
            sm.warp_factor[kind][w][r] = factor;
            sum += factor * sm.warp_sum[kind][w][r];
        }
        sm.row_ref[kind][r] = ref;
        sm.row_sum[kind][r] = sum;
    }
    __syncthreads();
}

/// Element of the block's sums.
template <class C>
__device__ __forceinline__ float combined(const Shared<C>& sm, int kind, int index) {
    const int row = element_row<C>(index, kind == 1);
    float x = 0.0f;
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) {
        const float factor = sm.warp_factor[kind][w][row];
        x += factor != 0.0f ? factor * (kind == 0 ? sm.o[w][index] : sm.warp[w].o_exact[index]) : 0.0f;
    }
    return x;
}

/// Most blocks of a grid: what sm.o can hold of their references and sums.
template <class C>
constexpr int max_blocks() {
    return static_cast<int>(sizeof(Shared<C>::o) / sizeof(float2)) / (2 * C::kRows);
}

/// Partial results of blocks b0 .. b1 of an item into sm.rows, sm.row_ref and sm.row_sum. Overwrites sm.o.
template <class C>
__device__ __forceinline__ void merge_blocks(const DecodeArgs& a, Shared<C>& sm, int item, int b0, int b1) {
    const std::size_t slot0 = static_cast<std::size_t>(b0) + item;
    const int count = b1 - b0 + 1;
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    float2* stats = reinterpret_cast<float2*>(sm.o);  // layout (count, 2, kRows); x becomes the factor of a partial result
    const float2* from = a.stats + slot0 * 2 * C::kRows;
    for (int i = threadIdx.x; i < count * 2 * C::kRows; i += C::kThreads) {
        stats[i] = __ldcg(from + i);
    }
    __syncthreads();
    for (int row = warp; row < 2 * C::kRows; row += C::WARPS) {
        float ref = -INFINITY;
        for (int b = lane; b < count; b += 32) {
            ref = fmaxf(ref, stats[b * 2 * C::kRows + row].x);
        }
        ref = warp_max(ref);
        float sum = 0.0f;
        for (int b = lane; b < count; b += 32) {
            float2& s = stats[b * 2 * C::kRows + row];
            s.x = s.x == -INFINITY ? 0.0f : exp2f(s.x - ref);
            sum += s.x * s.y;
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            sm.row_ref[row / C::kRows][row % C::kRows] = ref;
            sm.row_sum[row / C::kRows][row % C::kRows] = sum;
        }
    }
    __syncthreads();
    const float* partials = a.partials + slot0 * 2 * C::kWarpFloats;
    for (int i = threadIdx.x; i < 2 * C::kWarpFloats; i += C::kThreads) {
        const int kind = i / C::kWarpFloats;
        const int index = i % C::kWarpFloats;
        const int row = element_row<C>(index, kind == 1);
        float x = 0.0f;
#pragma unroll 8
        for (int b = 0; b < count; ++b) {
            const float factor = stats[(b * 2 + kind) * C::kRows + row].x;
            // What a block without such cells left there is not a number.
            x += factor != 0.0f ? factor * __ldcg(partials + static_cast<std::size_t>(b) * 2 * C::kWarpFloats + i) : 0.0f;
        }
        sm.rows[kind][row][element_channel<C>(index, kind == 1)] = x;
    }
    __syncthreads();
}

/// sm.rows into outputs: one warp per row.
template <class C>
__device__ __forceinline__ void write_outputs(const DecodeArgs& a, Shared<C>& sm, const Place& at) {
    constexpr int N = C::HD / 32;
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    for (int r = warp; r < C::kRows; r += C::WARPS) {
        const int row = at.row_tile * C::kRows + r;
        const int token = row / a.group;
        if (token >= a.num_q) {
            continue;
        }
        const int head = at.head * a.group + row % a.group;
        const float sink = a.sinks != nullptr ? a.sinks[head] * kLog2e : -INFINITY;
        const float ref = fmaxf(fmaxf(sm.row_ref[0][r], sm.row_ref[1][r]), sink);
        const float code_factor = sm.row_ref[0][r] == -INFINITY ? 0.0f : exp2f(sm.row_ref[0][r] - ref);
        const float exact_factor = sm.row_ref[1][r] == -INFINITY ? 0.0f : exp2f(sm.row_ref[1][r] - ref);
        const float code_sum = code_factor * sm.row_sum[0][r];
        const float total = code_sum + exact_factor * sm.row_sum[1][r] + (sink == -INFINITY ? 0.0f : exp2f(sink - ref));
        const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
        const float code_scale = code_factor * a.v_scale[at.head] * (1.0f / C::kOne) * inverse;
        float x[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            x[i] = code_factor != 0.0f ? sm.rows[0][r][lane * N + i] * code_scale : 0.0f;
            x[i] = a.v_steps != nullptr ? x[i] * a.v_steps[at.head * C::HD + lane * N + i] : x[i];
        }
        if (a.v_hadamard) {
            warp_hadamard(x, lane);  // symmetric: its own inverse
        }
        const std::int64_t out = at.seq * a.out_seq_stride + token * a.out_token_stride + head * a.out_head_stride + lane * N;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int channel = lane * N + i;
            x[i] += a.v_center != nullptr ? a.v_center[at.head * C::HD + channel] * code_sum * inverse : 0.0f;
            x[i] += exact_factor != 0.0f ? sm.rows[1][r][channel] * exact_factor * inverse : 0.0f;
            store_number(a.out, out + i, a.out_type, x[i]);
        }
        if (a.lse != nullptr && lane == 0) {
            const std::int64_t to = (static_cast<std::int64_t>(at.seq) * a.num_q + token) * a.num_kv_heads * a.group + head;
            a.lse[to] = total > 0.0f ? (ref + log2f(total)) * (1.0f / kLog2e) : -INFINITY;
        }
    }
}

}  // namespace vecinfer::cuda
