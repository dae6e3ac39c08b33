#include "codec/vq/shaping.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "codec/vq/encode.h"

namespace vecinfer {

namespace {

constexpr int kMaxSubDim = 8;
constexpr double kReach = 4;  // of goals, in units of the largest centroid

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

ShapingTables shaping_tables(std::span<const float> directions, int head_dim, int sub_dim, int code_bits, const float* centroids,
                             float scale) {
    ShapingTables t;
    const int num_centroids = 1 << code_bits;
    const int given = static_cast<int>(std::min<std::size_t>(directions.size() / head_dim, NoiseShaping::kMaxRank));
    const int rank = (given + 7) / 8 * 8;
    const int num_subspaces = head_dim / sub_dim;
    t.head_dim = head_dim;
    t.num_centroids = num_centroids;
    t.rank = rank;
    t.centroids = centroids;
    t.by_channel.resize(static_cast<std::size_t>(head_dim) * rank);
    t.by_rank.resize(t.by_channel.size());
    for (int d = 0; d < head_dim; ++d) {
        for (int r = 0; r < given; ++r) {
            const float u = directions[r * head_dim + d];
            t.by_channel[d * rank + r] = u;
            t.by_rank[(d / sub_dim * rank + r) * sub_dim + d % sub_dim] = u;
        }
    }
    t.metric.resize(static_cast<std::size_t>(head_dim) * sub_dim);
    for (int m = 0; m < num_subspaces; ++m) {
        for (int a = 0; a < sub_dim; ++a) {
            for (int b = 0; b < sub_dim; ++b) {
                double sum = a == b ? 1.0 : 0.0;
                for (int r = 0; r < given; ++r) {
                    sum += static_cast<double>(t.by_channel[(m * sub_dim + a) * rank + r]) *
                           static_cast<double>(t.by_channel[(m * sub_dim + b) * rank + r]);
                }
                t.metric[(m * sub_dim + a) * sub_dim + b] = static_cast<float>(sum);
            }
        }
    }
    if (num_centroids > ShapingTables::kMaxCentroids) {
        for (int m = 0; m < num_subspaces; ++m) {
            t.bound.push_back(largest_eigenvalue(t.metric.data() + m * sub_dim * sub_dim, sub_dim));
        }
        t.nearest = ScanTables::for_nearest(centroids, sub_dim, num_centroids, scale);
        return t;
    }
    constexpr std::align_val_t kAlignment{64};
    auto* bias = static_cast<float*>(::operator new(sizeof(float) * num_subspaces * num_centroids, kAlignment));
    t.bias = {bias, [](const float* p) { ::operator delete(const_cast<float*>(p), kAlignment); }};
    std::vector<double> biases;
    double magnitude = 0;
    double largest = 0;
    for (int m = 0; m < num_subspaces; ++m) {
        const float* w = t.metric.data() + m * sub_dim * sub_dim;
        for (int i = 0; i < num_centroids; ++i) {
            double sum = 0;
            for (int a = 0; a < sub_dim; ++a) {
                magnitude = std::max(magnitude, std::fabs(static_cast<double>(centroids[a * num_centroids + i])));
                for (int b = 0; b < sub_dim; ++b) {
                    sum += static_cast<double>(w[a * sub_dim + b]) * static_cast<double>(centroids[a * num_centroids + i]) *
                           static_cast<double>(centroids[b * num_centroids + i]);
                }
            }
            bias[m * num_centroids + i] = static_cast<float>(sum);
            biases.push_back(bias[m * num_centroids + i]);
            largest = std::max(largest, sum);
        }
    }
    // bias - 2 goal . c in floats: 2 sub_dim operations, whose results are at most `largest` + 2 |goal| . |c|. The winner's cost
    // is off once, the least one's as well.
    const double reach = kReach * magnitude;
    const double most = largest + 2 * sub_dim * reach * magnitude;
    t.scan = ScanTables(centroids, sub_dim, num_centroids, scale, biases, reach, 2 * (2 * sub_dim + 1) * 0x1p-24 * most);
    return t;
}

NoiseShaping::NoiseShaping(std::span<const float> directions, int head_dim, int sub_dim, int code_bits, const float* centroids,
                           float scale)
    : sub_dim_(sub_dim), tables_(shaping_tables(directions, head_dim, sub_dim, code_bits, centroids, scale)) {}

void NoiseShaping::improve(int n, const float* y, std::uint16_t* codes) const noexcept {
    encode_kernels(sub_dim_).improve(tables_, n, y, codes);
}

}  // namespace vecinfer
