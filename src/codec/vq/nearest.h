// Nearest centroid: the search of encoding and of k-means, one kernel per ISA and sub_dim.
#pragma once

#include <cstdint>

#include "dispatch/isa.h"

namespace vecinfer {

/// codes[i] <- index of the centroid nearest to sub-vector i, 0 <= i < n; distances[i] <- its squared distance unless null.
/// x: layout (n, sub_dim). table: channel-major centroids, layout (sub_dim, num_centroids), 64-byte aligned; num_centroids is a
/// multiple of 64 and at most 65536.
/// The distance is the f32 sum over channels in order of (x - c)^2, each operation rounded (no fused multiply-add); ties go to
/// the lowest index. So results are the same bits on every ISA. Where all distances are NaN or infinite the code is 0.
using NearestFn = void (*)(const float* x, std::int64_t n, const float* table, int num_centroids, std::uint16_t* codes,
                           float* distances);

/// The kernel of one ISA, which must be among available_isas(); sub_dim is 1, 2, 4 or 8.
NearestFn nearest_kernel(Isa isa, int sub_dim) noexcept;
/// That of active_isa().
NearestFn nearest_kernel(int sub_dim) noexcept;

/// The code with the least bias[code] - sum_c x[c] * centroid[c], x: sub_dim floats, bias: num_centroids floats, 64-byte aligned.
/// Rounded after each operation, in channel order; ties go to the lowest index: the same bits on every ISA, as long as no product
/// or sum overflows.
using LeastCostFn = std::uint16_t (*)(const float* x, const float* table, const float* bias, int num_centroids);

LeastCostFn least_cost_kernel(Isa isa, int sub_dim) noexcept;
LeastCostFn least_cost_kernel(int sub_dim) noexcept;

// One per ISA, for nearest_kernel and least_cost_kernel alone.
LeastCostFn least_cost_kernel_scalar(int sub_dim) noexcept;
LeastCostFn least_cost_kernel_avx2(int sub_dim) noexcept;
LeastCostFn least_cost_kernel_avx512(int sub_dim) noexcept;
NearestFn nearest_kernel_scalar(int sub_dim) noexcept;
NearestFn nearest_kernel_avx2(int sub_dim) noexcept;
NearestFn nearest_kernel_avx512(int sub_dim) noexcept;

}  // namespace vecinfer
