#include "codebook/kmeans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "random.h"
#include "vecinfer/codebook.h"

namespace vecinfer {
namespace {

constexpr std::int64_t kMinSeedRows = 16384;
constexpr std::int64_t kSeedRowsPerCentroid = 8;
constexpr int kBlock = 256;  // rows whose seeding errors are added up together

/// Subsample of the rows for seeding, channel-major so that distances vectorize.
struct SeedRows {
    std::int64_t n = 0;
    std::vector<float> channels;  // (sub_dim, n)
    std::vector<float> weights;   // n
};

SeedRows draw_seed_rows(const WeightedRows& data, int num_centroids, Random& random) {
    const std::int64_t wanted = std::max(kMinSeedRows, kSeedRowsPerCentroid * num_centroids);
    std::vector<std::int64_t> chosen;
    const auto weight = [&](std::int64_t i) { return data.weights == nullptr ? 1.0 : data.weights[i]; };
    if (data.n <= wanted) {
        for (std::int64_t i = 0; i < data.n; ++i) {
            chosen.push_back(i);
        }
    } else {
        // Systematic sampling: one point in each of `wanted` equal shares of the total weight.
        double total = 0;
        for (std::int64_t i = 0; i < data.n; ++i) {
            total += weight(i);
        }
        double reached = 0;
        double target = random.uniform() * total / static_cast<double>(wanted);
        for (std::int64_t i = 0; i < data.n; ++i) {
            reached += weight(i);
            while (target < reached && static_cast<std::int64_t>(chosen.size()) < wanted) {
                chosen.push_back(i);
                target = (static_cast<double>(chosen.size()) + random.uniform()) * total / static_cast<double>(wanted);
            }
        }
    }
    SeedRows rows;
    rows.n = static_cast<std::int64_t>(chosen.size());
    rows.channels.resize(static_cast<std::size_t>(rows.n * data.sub_dim));
    rows.weights.resize(chosen.size(), 1.0f);
    for (std::int64_t i = 0; i < rows.n; ++i) {
        for (int c = 0; c < data.sub_dim; ++c) {
            rows.channels[static_cast<std::size_t>(c * rows.n + i)] = data.rows[chosen[i] * data.sub_dim + c];
        }
        if (data.n <= wanted) {
            rows.weights[i] = static_cast<float>(weight(chosen[i]));
        }
    }
    return rows;
}

/// Squared distance of every row to the centroids chosen so far, in `nearest`, after `row` has become one of them.
void lower_distances(const SeedRows& rows, int sub_dim, std::int64_t row, std::int64_t begin, std::int64_t end,
                     float* __restrict nearest) {
    float distance[kBlock] = {};
    const std::int64_t count = end - begin;
    for (int c = 0; c < sub_dim; ++c) {
        const float* channel = &rows.channels[static_cast<std::size_t>(c * rows.n)];
        const float center = channel[row];
        for (std::int64_t i = 0; i < count; ++i) {
            const float t = channel[begin + i] - center;
            distance[i] += t * t;
        }
    }
    for (std::int64_t i = 0; i < count; ++i) {
        nearest[begin + i] = std::min(nearest[begin + i], distance[i]);
    }
}

/// Row at position `target` of the cumulated scores; scores of zero are never chosen while there are others.
template <class Score>
std::int64_t pick_row(const std::vector<double>& block_sums, std::int64_t n, double target, const Score& score) {
    std::size_t block = 0;
    std::size_t last = 0;  // last block with a positive sum
    for (std::size_t b = 0; b < block_sums.size(); ++b) {
        last = block_sums[b] > 0 ? b : last;
    }
    while (block < last && target >= block_sums[block]) {
        target -= block_sums[block++];
    }
    const std::int64_t begin = static_cast<std::int64_t>(block) * kBlock;
    const std::int64_t end = std::min(n, begin + kBlock);
    std::int64_t picked = begin;
    for (std::int64_t i = begin; i < end; ++i) {
        const double s = score(i);
        if (s > 0) {
            picked = i;
            if (target < s) {
                break;
            }
            target -= s;
        }
    }
    return picked;
}

/// Largest magnitude, or an error that names the first value that is not finite.
Result<float> largest_magnitude(std::span<const float> samples, int sub_dim) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        if (!std::isfinite(samples[i])) {
            const std::size_t width = static_cast<std::size_t>(sub_dim);
            return argument_error("samples", fmt::format("{} at row {} channel {}", samples[i], i / width, i % width),
                                  "finite values");
        }
        largest = std::max(largest, std::abs(samples[i]));
    }
    return largest;
}

Status check_options(std::span<const float> samples, std::span<const float> weights, int sub_dim, int code_bits,
                     const KMeansOptions& options) {
    if (Status status = check_vq_spec(sub_dim, code_bits); !status.ok()) {
        return status;
    }
    const std::size_t width = static_cast<std::size_t>(sub_dim);
    if (samples.empty() || samples.size() % width != 0) {
        return argument_error("samples", fmt::format("{} values", samples.size()),
                              fmt::format("a positive multiple of sub_dim {}", sub_dim));
    }
    if (options.max_iterations < 1) {
        return argument_error("max_iterations", fmt::format("{}", options.max_iterations), "at least 1");
    }
    if (options.num_threads < 0) {
        return argument_error("num_threads", fmt::format("{}", options.num_threads), "0 (all cores) or more");
    }
    if (weights.empty()) {
        return {};
    }
    if (weights.size() != samples.size() / width) {
        return argument_error("weights", fmt::format("{} values", weights.size()),
                              fmt::format("{}, one per row", samples.size() / width));
    }
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (!std::isfinite(weights[i]) || weights[i] < 0.0f) {
            return argument_error(fmt::format("weights[{}]", i), fmt::format("{}", weights[i]), "a finite number, 0 or more");
        }
        sum += weights[i];
    }
    return sum > 0 ? Status() : argument_error("weights", "a sum of 0", "a positive sum");
}

Result<Codebook> train(std::span<const float> samples, std::span<const float> weights, int sub_dim, int code_bits,
                       const KMeansOptions& options) {
    const Result<float> largest = largest_magnitude(samples, sub_dim);
    if (!largest.ok()) {
        return largest.status();
    }
    // Distances of extreme values would overflow or vanish, so those are trained on a rescaled copy.
    std::vector<float> rescaled;
    double unit = 1.0;
    if (largest.value() > 1e15f || (largest.value() < 1e-15f && largest.value() > 0.0f)) {
        unit = largest.value();
        rescaled.reserve(samples.size());
        for (float x : samples) {
            rescaled.push_back(static_cast<float>(x / unit));
        }
        samples = rescaled;
    }
    const WeightedRows data{.rows = samples.data(),
                            .weights = weights.empty() ? nullptr : weights.data(),
                            .n = static_cast<std::int64_t>(samples.size()) / sub_dim,
                            .sub_dim = sub_dim};
    constexpr double kSeedingShare = 0.1;
    const int num_centroids = 1 << code_bits;
    const auto report = [&](double share) { return !options.progress || options.progress(share); };
    const Status cancelled(ErrorCode::cancelled, "codebook training: cancelled by the progress callback");

    std::vector<float> centroids =
        seed_centroids(data, num_centroids, options.seed, [&](int done) { return report(kSeedingShare * done / num_centroids); });
    if (centroids.empty()) {
        return cancelled;
    }
    const LloydResult result = lloyd(data, centroids, options.max_iterations, thread_count(options.num_threads), [&](int done) {
        return report(kSeedingShare + (1 - kSeedingShare) * done / (options.max_iterations + 1));
    });
    if (result.stopped) {
        return cancelled;
    }
    Codebook codebook = round_to_int8(centroids, sub_dim, code_bits);
    codebook.scale = std::max(static_cast<float>(codebook.scale * unit), std::numeric_limits<float>::min());
    if (!report(1.0)) {
        return cancelled;
    }
    return codebook;
}

}  // namespace

std::vector<float> seed_centroids(const WeightedRows& data, int num_centroids, std::uint64_t seed, const KMeansStep& step) {
    Random random(seed);
    const SeedRows rows = draw_seed_rows(data, num_centroids, random);
    std::vector<float> nearest(static_cast<std::size_t>(rows.n), std::numeric_limits<float>::infinity());
    std::vector<double> sums(static_cast<std::size_t>((rows.n + kBlock - 1) / kBlock));
    std::vector<float> centroids;
    centroids.reserve(static_cast<std::size_t>(num_centroids) * static_cast<std::size_t>(data.sub_dim));
    std::int64_t row = 0;
    for (int k = 0; k < num_centroids; ++k) {
        const auto score = [&](std::int64_t i) { return (k == 0 ? 1.0 : static_cast<double>(nearest[i])) * rows.weights[i]; };
        double total = 0;
        for (std::size_t b = 0; b < sums.size(); ++b) {
            const std::int64_t begin = static_cast<std::int64_t>(b) * kBlock;
            const std::int64_t end = std::min(rows.n, begin + kBlock);
            if (k > 0) {
                lower_distances(rows, data.sub_dim, row, begin, end, nearest.data());
            }
            double sum = 0;
            for (std::int64_t i = begin; i < end; ++i) {
                sum += score(i);
            }
            sums[b] = sum;
            total += sum;
        }
        // A total of 0 means that every row is a centroid already: the last one is repeated.
        if (total > 0) {
            row = pick_row(sums, rows.n, random.uniform() * total, score);
        }
        for (int c = 0; c < data.sub_dim; ++c) {
            centroids.push_back(rows.channels[static_cast<std::size_t>(c * rows.n + row)]);
        }
        if (step && (k + 1) % 64 == 0 && !step(k + 1)) {
            return {};
        }
    }
    return centroids;
}

Result<Codebook> train_codebook(std::span<const float> samples, std::span<const float> weights, int sub_dim, int code_bits,
                                const KMeansOptions& options) {
    try {
        if (Status status = check_options(samples, weights, sub_dim, code_bits, options); !status.ok()) {
            return status;
        }
        return train(samples, weights, sub_dim, code_bits, options);
    } catch (const std::bad_alloc&) {
        return Status(ErrorCode::out_of_memory, fmt::format("codebook training: no memory for {} samples", samples.size()));
    } catch (const std::length_error&) {
        return Status(ErrorCode::out_of_memory, fmt::format("codebook training: no memory for {} samples", samples.size()));
    }
}

}  // namespace vecinfer
