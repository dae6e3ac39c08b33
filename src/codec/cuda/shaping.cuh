// Noise shaping on the device (codec/vq/shaping.h): one warp improves the codes of one vector, with the operations of the CPU in
// the same order. Sums over directions run in one lane for each channel, updates over directions have directions in the lanes,
// and the scan for the least cost has centroids in the lanes.
#pragma once

#include "codec/cuda/encode_args.h"
#include "codec/cuda/search.cuh"

namespace vecinfer::cuda {

inline constexpr int kMaxShapingRank = 64;
inline constexpr int kShapingPasses = 2;

/// Of a warp, in shared memory.
template <int HD>
struct ShapingState {
    float error[HD];
    alignas(16) float z[kMaxShapingRank];  // U e
};

/// z += sign * U e of the channels first .. first + count - 1.
template <int HD>
__device__ __forceinline__ void add_error(ShapingState<HD>& state, const float* by_channel, int rank, int first, int count,
                                          float sign, int lane) {
    for (int r = lane; r < rank; r += 32) {
        float z = state.z[r];
        for (int d = first; d < first + count; ++d) {
            z += sign * state.error[d] * by_channel[d * rank + r];
        }
        state.z[r] = z;
    }
    __syncwarp();
}

/// unit: the vector divided by the norm; table: centroids, layout (256, D). Both and codes in shared memory.
template <int HD, int D>
__device__ void improve_codes(const EncodeSide& side, int head, ShapingState<HD>& state, const float* unit, const float* table,
                              std::uint8_t* codes, int lane) {
    constexpr int kSubspaces = HD / D;
    const int rank = side.shaping_rank;
    const float* by_channel = side.shaping + static_cast<std::int64_t>(head) * HD * rank;
    const float* metric = side.shaping_metric + static_cast<std::int64_t>(head) * HD * D;
    const float* bias = side.shaping_bias + static_cast<std::int64_t>(head) * kSubspaces * 256;
    for (int d = lane; d < HD; d += 32) {
        state.error[d] = table[codes[d / D] * D + d % D] - unit[d];
    }
    for (int r = lane; r < rank; r += 32) {
        state.z[r] = 0.0f;
    }
    __syncwarp();
    add_error(state, by_channel, rank, 0, HD, 1.0f, lane);
    for (int visit = 0; visit < kShapingPasses * kSubspaces; ++visit) {
        const int m = visit % kSubspaces;
        add_error(state, by_channel, rank, m * D, D, -1.0f, lane);
        float goal = 0.0f;
        if (lane < D) {
            const float* u = by_channel + (m * D + lane) * rank;
            float others = 0.0f;
            for (int r = 0; r < rank; r += 4) {
                const float4 direction = *reinterpret_cast<const float4*>(u + r);
                const float4 z = *reinterpret_cast<const float4*>(state.z + r);
                others += direction.x * z.x;
                others += direction.y * z.y;
                others += direction.z * z.z;
                others += direction.w * z.w;
            }
            float own = 0.0f;
            for (int b = 0; b < D; ++b) {
                own += metric[(m * D + lane) * D + b] * unit[m * D + b];
            }
            goal = 2.0f * (own - others);
        }
        float goals[D];
#pragma unroll
        for (int a = 0; a < D; ++a) {
            goals[a] = __shfl_sync(kAllLanes, goal, a);
        }
        Candidate found{INFINITY, 0};
#pragma unroll
        for (int i = 0; i < 256; i += 32) {
            float c[D];
            load_floats(table + (i + lane) * D, c);
            float cost = bias[m * 256 + i + lane];
#pragma unroll
            for (int a = 0; a < D; ++a) {
                cost -= goals[a] * c[a];
            }
            found.take(cost, i + lane);
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_xor_sync(kAllLanes, found.distance, step);
            const int other_code = __shfl_xor_sync(kAllLanes, found.code, step);
            found.take(other, other_code);
        }
        if (lane == 0) {
            codes[m] = static_cast<std::uint8_t>(found.code);
        }
        if (lane < D) {
            state.error[m * D + lane] = table[found.code * D + lane] - unit[m * D + lane];
        }
        __syncwarp();
        add_error(state, by_channel, rank, m * D, D, 1.0f, lane);
    }
}

}  // namespace vecinfer::cuda
