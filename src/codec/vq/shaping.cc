#include "codec/vq/shaping.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "codec/vq/nearest.h"
#include "transform/hadamard.h"

namespace vecinfer {

namespace {

constexpr int kPasses = 2;      // a third one finds next to nothing
constexpr int kMaxTable = 256;  // codebooks up to this size have a table of c^T W c per subspace; larger ones a bound of W
constexpr int kMaxSubDim = 8;

// Largest eigenvalue of a symmetric positive n x n matrix by power iteration, with a margin for what that misses.
float largest_eigenvalue(const float* w, int n) {
    double x[kMaxSubDim];
    std::fill_n(x, n, 1.0);
    double value = 1.0;
    for (int round = 0; round < 64; ++round) {
        double y[kMaxSubDim] = {};
        double square = 0;
        for (int a = 0; a < n; ++a) {
            for (int b = 0; b < n; ++b) {
                y[a] += static_cast<double>(w[a * n + b]) * x[b];
            }
            square += y[a] * y[a];
        }
        value = std::sqrt(square);
        for (int a = 0; a < n; ++a) {
            x[a] = y[a] / value;
        }
    }
    return static_cast<float>(1.05 * value);
}

}  // namespace

NoiseShaping::NoiseShaping(std::span<const float> directions, int head_dim, int sub_dim, int code_bits, const float* centroids)
    : head_dim_(head_dim),
      sub_dim_(sub_dim),
      num_centroids_(1 << code_bits),
      rank_(static_cast<int>(std::min<std::size_t>(directions.size() / head_dim, kMaxRank))),
      centroids_(centroids) {
    by_channel_.resize(static_cast<std::size_t>(head_dim) * rank_);
    for (int d = 0; d < head_dim; ++d) {
        for (int r = 0; r < rank_; ++r) {
            by_channel_[d * rank_ + r] = directions[r * head_dim + d];
        }
    }
    const int num_subspaces = head_dim / sub_dim;
    metric_.resize(static_cast<std::size_t>(head_dim) * sub_dim);
    for (int m = 0; m < num_subspaces; ++m) {
        for (int a = 0; a < sub_dim; ++a) {
            for (int b = 0; b < sub_dim; ++b) {
                double sum = a == b ? 1.0 : 0.0;
                for (int r = 0; r < rank_; ++r) {
                    sum += static_cast<double>(by_channel_[(m * sub_dim + a) * rank_ + r]) *
                           static_cast<double>(by_channel_[(m * sub_dim + b) * rank_ + r]);
                }
                metric_[(m * sub_dim + a) * sub_dim + b] = static_cast<float>(sum);
            }
        }
    }
    if (num_centroids_ > kMaxTable) {
        for (int m = 0; m < num_subspaces; ++m) {
            bound_.push_back(largest_eigenvalue(metric_.data() + m * sub_dim * sub_dim, sub_dim));
        }
        return;
    }
    constexpr std::align_val_t kAlignment{64};
    auto* bias = static_cast<float*>(::operator new(sizeof(float) * num_subspaces * num_centroids_, kAlignment));
    bias_ = {bias, [](const float* p) { ::operator delete(const_cast<float*>(p), kAlignment); }};
    for (int m = 0; m < num_subspaces; ++m) {
        const float* w = metric_.data() + m * sub_dim * sub_dim;
        for (int i = 0; i < num_centroids_; ++i) {
            double sum = 0;
            for (int a = 0; a < sub_dim; ++a) {
                for (int b = 0; b < sub_dim; ++b) {
                    sum += static_cast<double>(w[a * sub_dim + b]) * static_cast<double>(centroids[a * num_centroids_ + i]) *
                           static_cast<double>(centroids[b * num_centroids_ + i]);
                }
            }
            bias[m * num_centroids_ + i] = static_cast<float>(sum);
        }
    }
}

void NoiseShaping::improve(const float* y, std::uint16_t* codes) const noexcept {
    float error[kMaxHeadDim];
    float z[kMaxRank] = {};  // U e
    const int num_subspaces = head_dim_ / sub_dim_;
    const auto add_error = [&](int m, float sign) {
        for (int d = m * sub_dim_; d < (m + 1) * sub_dim_; ++d) {
            const float e = sign * error[d];
            const float* u = by_channel_.data() + d * rank_;
            for (int r = 0; r < rank_; ++r) {
                z[r] += e * u[r];
            }
        }
    };
    const auto set_error = [&](int m) {
        for (int c = 0; c < sub_dim_; ++c) {
            error[m * sub_dim_ + c] = centroids_[c * num_centroids_ + codes[m]] - y[m * sub_dim_ + c];
        }
    };
    for (int m = 0; m < num_subspaces; ++m) {
        set_error(m);
        add_error(m, 1.0f);
    }
    const LeastCostFn least_cost = least_cost_kernel(sub_dim_);
    const NearestFn nearest = nearest_kernel(sub_dim_);
    for (int pass = 0; pass < kPasses; ++pass) {
        for (int m = 0; m < num_subspaces; ++m) {
            add_error(m, -1.0f);
            const float* w = metric_.data() + m * sub_dim_ * sub_dim_;
            // Half the slope of the cost at centroid 0 is -goal: cost(c) = c^T W c - 2 goal . c + const.
            float goal[kMaxSubDim];
            for (int a = 0; a < sub_dim_; ++a) {
                const float* u = by_channel_.data() + (m * sub_dim_ + a) * rank_;
                float others = 0;
                for (int r = 0; r < rank_; ++r) {
                    others += u[r] * z[r];
                }
                float own = 0;
                for (int b = 0; b < sub_dim_; ++b) {
                    own += w[a * sub_dim_ + b] * y[m * sub_dim_ + b];
                }
                goal[a] = own - others;
            }
            if (bias_ != nullptr) {
                for (int a = 0; a < sub_dim_; ++a) {
                    goal[a] *= 2.0f;
                }
                codes[m] = least_cost(goal, centroids_, bias_.get() + m * num_centroids_, num_centroids_);
            } else {
                // W <= bound: around the present centroid c the cost lies below a sphere whose minimum is at c - (W c - goal) /
                // bound.
                float target[kMaxSubDim];
                for (int a = 0; a < sub_dim_; ++a) {
                    float slope = -goal[a];
                    for (int b = 0; b < sub_dim_; ++b) {
                        slope += w[a * sub_dim_ + b] * centroids_[b * num_centroids_ + codes[m]];
                    }
                    target[a] = centroids_[a * num_centroids_ + codes[m]] - slope / bound_[m];
                }
                nearest(target, 1, centroids_, num_centroids_, codes + m, nullptr);
            }
            set_error(m);
            add_error(m, 1.0f);
        }
    }
}

}  // namespace vecinfer
