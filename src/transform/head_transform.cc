#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "fnv.h"
#include "transform/hadamard.h"
#include "vecinfer/transform.h"

namespace vecinfer {
namespace {

void multiply(const float* x, const float* factors, float* y, int n) noexcept {
    for (int i = 0; i < n; ++i) {
        y[i] = x[i] * factors[i];
    }
}

void copy(const float* x, float* y, int n) noexcept {
    if (x != y) {
        std::copy_n(x, n, y);
    }
}

}  // namespace

Result<HeadTransform> HeadTransform::create(int head_dim, const TransformSpec& spec, std::span<const float> smooth_factors) {
    if (Status status = check_head_dim(head_dim); !status.ok()) {
        return status;
    }
    if (spec.automatic) {
        return argument_error("transform", "automatic", "a resolved one (see resolve)");
    }
    const std::size_t expected = spec.smooth ? static_cast<std::size_t>(head_dim) : 0;
    if (smooth_factors.size() != expected) {
        return argument_error("smooth_factors", fmt::format("{} values", smooth_factors.size()),
                              spec.smooth ? fmt::format("{}, one per channel", head_dim) : "none for a transform without smooth");
    }
    for (std::size_t i = 0; i < smooth_factors.size(); ++i) {
        if (!std::isfinite(smooth_factors[i]) || smooth_factors[i] <= 0.0f) {
            return argument_error(fmt::format("smooth_factors[{}]", i), fmt::format("{}", smooth_factors[i]),
                                  "a positive finite number");
        }
    }
    try {
        HeadTransform transform;
        transform.head_dim_ = head_dim;
        transform.hadamard_ = spec.hadamard;
        for (float factor : smooth_factors) {
            transform.smooth_.push_back(std::max(factor, kMinSmoothFactor));
            transform.inv_smooth_.push_back(1.0f / transform.smooth_.back());
        }
        return transform;
    } catch (const std::bad_alloc&) {
        return Status(ErrorCode::out_of_memory, fmt::format("transform: no memory for {} smooth factors", smooth_factors.size()));
    }
}

void HeadTransform::forward(const float* x, float* y) const noexcept {
    if (inv_smooth_.empty()) {
        copy(x, y, head_dim_);
    } else {
        multiply(x, inv_smooth_.data(), y, head_dim_);
    }
    if (hadamard_) {
        hadamard_forward(y, head_dim_);
    }
}

void HeadTransform::inverse(const float* y, float* x) const noexcept {
    copy(y, x, head_dim_);
    if (hadamard_) {
        hadamard_backward(x, head_dim_);
    }
    if (!smooth_.empty()) {
        multiply(x, smooth_.data(), x, head_dim_);
    }
}

void HeadTransform::forward_query(const float* q, float* y) const noexcept {
    if (smooth_.empty()) {
        copy(q, y, head_dim_);
    } else {
        multiply(q, smooth_.data(), y, head_dim_);
    }
    if (hadamard_) {
        hadamard_forward(y, head_dim_);
    }
}

std::uint64_t HeadTransform::hash() const noexcept {
    Fnv fnv;
    fnv.add(static_cast<std::uint64_t>(head_dim_));
    fnv.add(hadamard_ ? 1u : 0u);
    fnv.add(smooth_);
    return fnv.value();
}

}  // namespace vecinfer
