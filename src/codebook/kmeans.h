// k-means in its parts, for train_codebook, the universal codebooks and their tests. Arguments are valid; memory errors throw.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "vecinfer/codebook.h"

namespace vecinfer {

/// ok() if (sub_dim, code_bits) is one of supported_vq_specs().
Status check_vq_spec(int sub_dim, int code_bits);

struct WeightedRows {
    const float* rows = nullptr;     // layout (n, sub_dim), magnitudes below 1e15
    const float* weights = nullptr;  // n, null for equal weights
    std::int64_t n = 0;
    int sub_dim = 0;
};

/// Called with the number of centroids or iterations done; false stops.
using KMeansStep = std::function<bool(int)>;

/// k-means++ on a deterministic subsample, rows drawn in proportion to their weights. Layout of the result (num_centroids,
/// sub_dim). With fewer distinct rows than centroids the last ones repeat. Empty when `step` stopped it.
std::vector<float> seed_centroids(const WeightedRows& data, int num_centroids, std::uint64_t seed, const KMeansStep& step = {});

struct LloydResult {
    /// Weighted mean squared error per entry at the start of each iteration, that is for the centroids it began with.
    std::vector<double> errors;
    bool stopped = false;  // by `step`
};

/// At most max_iterations of assignment and update, fewer once the error falls by less than one part in 10^5. `centroids`:
/// layout (num_centroids, sub_dim), in and out. The result does not depend on num_threads >= 1.
LloydResult lloyd(const WeightedRows& data, std::vector<float>& centroids, int max_iterations, int num_threads,
                  const KMeansStep& step = {});

/// int8 with one scale, the largest magnitude at 127.
Codebook round_to_int8(std::span<const float> centroids, int sub_dim, int code_bits);

/// Threads to use for an option of KMeansOptions::num_threads.
int thread_count(int requested) noexcept;

}  // namespace vecinfer
