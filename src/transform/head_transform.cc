#include <fmt/format.h>

#include <algorithm>
#include <array>
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

void add(float* x, const float* y, float factor, int n) noexcept {
    for (int i = 0; i < n; ++i) {
        x[i] += factor * y[i];
    }
}

constexpr int kMaxHeadDim = 1024;

// y = x M; x and y may be the same array.
void row_times_matrix(const float* x, const float* matrix, float* y, int n) noexcept {
    std::array<float, kMaxHeadDim> sum;
    std::fill_n(sum.begin(), n, 0.0f);
    for (int i = 0; i < n; ++i) {
        const float* row = matrix + static_cast<std::ptrdiff_t>(i) * n;
        for (int j = 0; j < n; ++j) {
            sum[j] += x[i] * row[j];
        }
    }
    std::copy_n(sum.begin(), n, y);
}

// Gauss-Jordan with partial pivoting in double. False if a pivot vanishes against the matrix's largest entry.
bool invert(const std::vector<float>& matrix, int n, std::vector<float>& inverse) {
    const auto width = static_cast<std::size_t>(2) * n;
    std::vector<double> a(n * width, 0.0);
    double largest = 0;
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            a[i * width + j] = matrix[static_cast<std::size_t>(i) * n + j];
            largest = std::max(largest, std::fabs(a[i * width + j]));
        }
        a[i * width + n + i] = 1.0;
    }
    for (int column = 0; column < n; ++column) {
        int pivot = column;
        for (int i = column + 1; i < n; ++i) {
            pivot = std::fabs(a[i * width + column]) > std::fabs(a[pivot * width + column]) ? i : pivot;
        }
        if (std::fabs(a[pivot * width + column]) <= 1e-12 * largest) {
            return false;
        }
        std::swap_ranges(a.begin() + pivot * width, a.begin() + (pivot + 1) * width, a.begin() + column * width);
        const double scale = 1.0 / a[column * width + column];
        for (std::size_t j = 0; j < width; ++j) {
            a[column * width + j] *= scale;
        }
        for (int i = 0; i < n; ++i) {
            const double factor = i == column ? 0.0 : a[i * width + column];
            for (std::size_t j = 0; factor != 0 && j < width; ++j) {
                a[i * width + j] -= factor * a[column * width + j];
            }
        }
    }
    inverse.clear();
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            inverse.push_back(static_cast<float>(a[i * width + n + j]));
        }
    }
    return true;
}

void copy(const float* x, float* y, int n) noexcept {
    if (x != y) {
        std::copy_n(x, n, y);
    }
}

}  // namespace

Result<HeadTransform> HeadTransform::create(int head_dim, const TransformSpec& spec, std::span<const float> smooth_factors,
                                            std::span<const float> center, std::span<const float> matrix) {
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
    if (center.size() != (spec.center ? static_cast<std::size_t>(head_dim) : 0)) {
        return argument_error("center", fmt::format("{} values", center.size()),
                              spec.center ? fmt::format("{}, one per channel", head_dim) : "none for a transform without center");
    }
    for (std::size_t i = 0; i < center.size(); ++i) {
        if (!std::isfinite(center[i])) {
            return argument_error(fmt::format("center[{}]", i), fmt::format("{}", center[i]), "a finite number");
        }
    }
    const std::size_t entries = spec.full ? static_cast<std::size_t>(head_dim) * static_cast<std::size_t>(head_dim) : 0;
    if (spec.full && (spec.smooth || spec.hadamard)) {
        return argument_error("transform", "full with smooth or hadamard", "full alone or after center");
    }
    if (matrix.size() != entries) {
        return argument_error("matrix", fmt::format("{} values", matrix.size()),
                              spec.full ? fmt::format("{}", entries) : "none for a transform without full");
    }
    for (const float v : matrix) {
        if (!std::isfinite(v)) {
            return argument_error("matrix", fmt::format("{}", v), "finite numbers");
        }
    }
    try {
        HeadTransform transform;
        transform.center_.assign(center.begin(), center.end());
        if (!matrix.empty()) {
            transform.matrix_.assign(matrix.begin(), matrix.end());
            if (!invert(transform.matrix_, head_dim, transform.inverse_)) {
                return argument_error("matrix", "a singular or nearly singular one", "an invertible one");
            }
            for (int i = 0; i < head_dim; ++i) {
                for (int j = 0; j < head_dim; ++j) {
                    transform.inverse_t_.push_back(transform.inverse_[static_cast<std::size_t>(j) * head_dim + i]);
                }
            }
        }
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
    copy(x, y, head_dim_);
    if (!center_.empty()) {
        add(y, center_.data(), -1.0f, head_dim_);
    }
    if (!matrix_.empty()) {
        row_times_matrix(y, matrix_.data(), y, head_dim_);
    }
    if (!inv_smooth_.empty()) {
        multiply(y, inv_smooth_.data(), y, head_dim_);
    }
    if (hadamard_) {
        hadamard_forward(y, head_dim_);
    }
}

void HeadTransform::inverse(const float* y, float* x) const noexcept {
    inverse_sum(y, 1.0f, x);
}

void HeadTransform::inverse_sum(const float* y, float weight, float* x) const noexcept {
    copy(y, x, head_dim_);
    if (hadamard_) {
        hadamard_backward(x, head_dim_);
    }
    if (!smooth_.empty()) {
        multiply(x, smooth_.data(), x, head_dim_);
    }
    if (!inverse_.empty()) {
        row_times_matrix(x, inverse_.data(), x, head_dim_);
    }
    if (!center_.empty()) {
        add(x, center_.data(), weight, head_dim_);
    }
}

float HeadTransform::query_bias(const float* q) const noexcept {
    float sum = 0;
    for (std::size_t i = 0; i < center_.size(); ++i) {
        sum += q[i] * center_[i];
    }
    return sum;
}

void HeadTransform::forward_query(const float* q, float* y) const noexcept {
    if (!inverse_t_.empty()) {
        row_times_matrix(q, inverse_t_.data(), y, head_dim_);
    } else if (smooth_.empty()) {
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
    if (!center_.empty()) {
        fnv.add(center_);
    }
    if (!matrix_.empty()) {
        fnv.add(matrix_);
    }
    return fnv.value();
}

}  // namespace vecinfer
