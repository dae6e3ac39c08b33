#include "codec/vq/scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <new>
#include <vector>

namespace vecinfer {
namespace {

constexpr int kLanes = 16;                        // classes that are ordered together
constexpr int kMostClassBits = 8;                 // int8 centroids times 2^8 fill 16 bits
constexpr double kMostSteps = 32766;              // one less than 16 bits hold: what saturates is beyond
constexpr double kCostLimit = 1 << 30;            // of a shifted cost; twice that overflows
constexpr double kRoundedStep = 0.5 + 1.0 / 256;  // of x times steps in float, then rounded to an integer
constexpr double kLeastMagnitude = 1e-12;         // of the largest centroid: float arithmetic stays far from its ends
constexpr double kMostMagnitude = 1e12;

int scan_position(int centroid, int class_size) {
    const int in_block = centroid % (kLanes * class_size);
    return centroid - in_block + in_block % class_size * kLanes + in_block / class_size;
}

}  // namespace

ScanTables::ScanTables(const float* centroids, int sub_dim, int num_centroids, float scale, std::span<const double> biases,
                       double reach, double rounding) {
    table_.centroids = centroids;
    table_.num_centroids = num_centroids;
    table_.class_size = num_centroids >> kMostClassBits > 4 ? 16 : 4;
    table_.class_bits = std::bit_width(static_cast<unsigned>(num_centroids / table_.class_size - 1));

    const auto at = [&](int i, int c) {
        return static_cast<double>(centroids[static_cast<std::ptrdiff_t>(c) * num_centroids + i]);
    };
    double most_steps = 0;  // sum over channels of a centroid's integers
    double off = 0;         // sum over channels of what they miss
    double magnitude = 0;
    for (int i = 0; i < num_centroids; ++i) {
        double sum = 0;
        double missed = 0;
        for (int c = 0; c < sub_dim; ++c) {
            const double integer = std::nearbyint(at(i, c) / scale);
            sum += std::fabs(integer);
            missed += std::fabs(at(i, c) - integer * scale);
            magnitude = std::max(magnitude, std::fabs(at(i, c)));
        }
        most_steps = std::max(most_steps, sum);
        off = std::max(off, missed);
    }
    double most_bias = 0;
    for (const double b : biases) {
        most_bias = std::max(most_bias, std::fabs(b));
    }
    const std::size_t words = static_cast<std::size_t>(sub_dim / 2) * num_centroids;
    constexpr std::align_val_t kAlignment{64};
    auto* memory = static_cast<std::int32_t*>(::operator new((words + biases.size()) * sizeof(std::int32_t), kAlignment));
    memory_ = {memory, [](const std::int32_t* p) { ::operator delete(const_cast<std::int32_t*>(p), kAlignment); }};
    std::fill_n(memory, words + biases.size(), 0);
    table_.words = memory;
    table_.bias = memory + words;
    if (table_.class_bits > kMostClassBits ||
        !(magnitude >= kLeastMagnitude && magnitude <= kMostMagnitude && reach > 0 && std::isfinite(most_bias))) {
        return;
    }

    // In units of scale / steps, a cost is half of bias - 2 x . c. Per step of the largest x:
    const double per_step = most_steps + most_bias / 2 / (scale * reach);
    const double shift = std::exp2(table_.class_bits);
    const double most = std::min(kMostSteps, std::floor((kCostLimit / shift - 2) / per_step) - 1);
    // What rounds to `most` steps or fewer is within reach.
    table_.steps = static_cast<float>((most + 1) / reach * (1 + 1e-6));
    const double unit = static_cast<double>(scale) / table_.steps;
    const double error = kRoundedStep * most_steps + 0.5 + reach * off / unit;
    const double margin = (std::ceil(2 * error + rounding / 2 / unit) + 1) * shift;
    if (!(most >= 1 && margin <= kCostLimit / 2)) {
        return;
    }
    table_.most = static_cast<std::int32_t>(most);
    table_.margin = static_cast<std::int32_t>(margin);
    for (int i = 0; i < num_centroids; ++i) {
        for (int c = 0; c < sub_dim; c += 2) {
            const auto digit = [&](int channel) {
                return static_cast<std::uint32_t>(static_cast<std::int32_t>(std::nearbyint(at(i, channel) / scale) * shift));
            };
            memory[static_cast<std::size_t>(c / 2) * num_centroids + scan_position(i, table_.class_size)] =
                static_cast<std::int32_t>((digit(c) & 0xffffu) | digit(c + 1) << 16);
        }
    }
    for (std::size_t b = 0; b < biases.size(); ++b) {
        const int i = static_cast<int>(b % num_centroids);
        memory[words + b - i + scan_position(i, table_.class_size)] =
            static_cast<std::int32_t>(std::nearbyint(biases[b] / 2 / unit) * shift) + i / table_.class_size;
    }
}

ScanTables ScanTables::for_nearest(const float* centroids, int sub_dim, int num_centroids, float scale) {
    std::vector<double> norms(num_centroids);
    double magnitude = 0;
    for (int i = 0; i < num_centroids; ++i) {
        for (int c = 0; c < sub_dim; ++c) {
            const double v = centroids[static_cast<std::ptrdiff_t>(c) * num_centroids + i];
            norms[i] += v * v;
            magnitude = std::max(magnitude, std::fabs(v));
        }
    }
    // A float distance d is off by at most (sub_dim + 2) 2^-24 d, so the winner's true distance is at most 3 times that above the
    // least one; and both are below that of the farthest corner.
    const double reach = 2 * magnitude;
    const double farthest = sub_dim * (reach + magnitude) * (reach + magnitude);
    return {centroids, sub_dim, num_centroids, scale, norms, reach, 3 * (sub_dim + 2) * 0x1p-24 * farthest};
}

}  // namespace vecinfer
