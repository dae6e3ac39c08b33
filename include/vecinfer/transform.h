// Key and value transforms of one KV head: channel smoothing, then an orthonormal Hadamard transform.
// VecInfer: K~ = K diag(lambda)^-1 H and q~ = q diag(lambda) H, so q~ . K~ = q . K (paper, section "smooth and Hadamard").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

/// Floor of smooth factors: a channel that was never seen to move must not be blown up.
inline constexpr float kMinSmoothFactor = 1e-4f;

/// In place x <- x H for one vector of `head_dim` floats, H orthonormal. head_dim = m * 2^k: a Walsh-Hadamard matrix when m = 1,
/// the Kronecker product with a Hadamard matrix of order 12, 20 or 28 when that divides head_dim and leaves a power of two,
/// else block-diagonal, cut into the largest power-of-two blocks from the left (576 = 512 + 64). head_dim must be even, 2 to
/// 1024.
Status hadamard(float* x, int head_dim);
/// In place x <- x H^T, the inverse.
Status hadamard_inverse(float* x, int head_dim);

class HeadTransform {
public:
    /// Identity over zero channels; only assignable.
    HeadTransform() = default;
    /// `center`: head_dim finite floats, subtracted first of all; empty unless spec.center.
    /// `smooth_factors`: head_dim positive finite floats, one per channel; empty unless spec.smooth. Values below
    /// kMinSmoothFactor are raised to it.
    /// `matrix`: head_dim x head_dim finite floats, row-major, invertible; empty unless spec.full. Code space is then (x - m) A,
    /// and queries go to q A^-T.
    static Result<HeadTransform> create(int head_dim, const TransformSpec& spec, std::span<const float> smooth_factors,
                                        std::span<const float> center = {}, std::span<const float> matrix = {});

    int head_dim() const noexcept { return head_dim_; }
    bool is_identity() const noexcept { return !hadamard_ && smooth_.empty() && center_.empty() && matrix_.empty(); }
    // What it was created with; smooth factors are floored. Empty where a part is off.
    bool has_hadamard() const noexcept { return hadamard_; }
    std::span<const float> smooth_factors() const noexcept { return smooth_; }
    std::span<const float> center() const noexcept { return center_; }
    std::span<const float> matrix() const noexcept { return matrix_; }
    /// Hash of everything that changes what forward computes; the same on every platform.
    std::uint64_t hash() const noexcept;

    // Each reads head_dim floats and writes head_dim floats; input and output may be the same array.
    void forward(const float* x, float* y) const noexcept;        // keys or values into code space: (x - m) diag(lambda)^-1 H
    void inverse(const float* y, float* x) const noexcept;        // back
    void forward_query(const float* q, float* y) const noexcept;  // q diag(lambda) H
    /// Inverse of a sum of code-space vectors whose weights add up to `weight`.
    void inverse_sum(const float* y, float weight, float* x) const noexcept;
    /// q . m: what a score over code space lacks. q . x = forward_query(q) . forward(x) + query_bias(q).
    float query_bias(const float* q) const noexcept;

private:
    int head_dim_ = 0;
    bool hadamard_ = false;
    std::vector<float> center_;      // [head_dim] m, empty when off
    std::vector<float> matrix_;      // A, layout (head_dim, head_dim), empty when off
    std::vector<float> inverse_;     // A^-1
    std::vector<float> inverse_t_;   // A^-T
    std::vector<float> smooth_;      // [head_dim] lambda, empty when off
    std::vector<float> inv_smooth_;  // [head_dim] 1 / lambda
};

}  // namespace VECINFER_API
