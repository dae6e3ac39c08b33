// One step of Lloyd's algorithm against the plain search of all centroids. Rows and weights are small dyadic numbers: their sums
// are exact in any order, so that centroids must agree in every bit, and ties are common.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "codebook/kmeans.h"
#include "random.h"

namespace vecinfer {
namespace {

struct Step {
    std::vector<float> centroids;  // those without weight as they were
    std::vector<double> weights;   // of every centroid's rows
    double error = 0;
};

Step plain_step(const WeightedRows& data, const std::vector<float>& centroids) {
    const int d = data.sub_dim;
    const std::size_t count = centroids.size() / d;
    Step step{centroids, std::vector<double>(count), 0};
    std::vector<double> sums(centroids.size());
    double total = 0;
    for (std::int64_t i = 0; i < data.n; ++i) {
        const float* x = data.rows + i * d;
        std::size_t best = 0;
        float least = std::numeric_limits<float>::infinity();
        for (std::size_t k = 0; k < count; ++k) {
            float sum = 0.0f;
            for (int c = 0; c < d; ++c) {
                const float t = x[c] - centroids[k * d + c];
                volatile float square = t * t;  // `volatile`: not fused with the sum
                sum = sum + square;
            }
            if (sum < least) {
                least = sum;
                best = k;
            }
        }
        const double w = data.weights == nullptr ? 1.0 : data.weights[i];
        for (int c = 0; c < d; ++c) {
            sums[best * d + c] += w * x[c];
        }
        step.weights[best] += w;
        step.error += w * least;
        total += w;
    }
    step.error /= total * d;
    for (std::size_t k = 0; k < count; ++k) {
        for (int c = 0; c < d && step.weights[k] > 0; ++c) {
            step.centroids[k * d + c] = static_cast<float>(sums[k * d + c] / step.weights[k]);
        }
    }
    return step;
}

/// Compares the first `steps` steps from `centroids`. Each is done twice: as the first one, that guesses from a few of the
/// centroids, and as the last of so many, whose guesses are the assignment before.
void compare(const WeightedRows& data, std::vector<float> centroids, int steps, const std::string& what) {
    const std::vector<float> start = centroids;
    for (int done = 1; done <= steps; ++done) {
        const Step expected = plain_step(data, centroids);
        const LloydResult alone = lloyd(data, centroids, 1, 2);
        ASSERT_NEAR(alone.errors[0], expected.error, 1e-7 * expected.error) << what;
        for (std::size_t i = 0; i < centroids.size(); ++i) {
            if (expected.weights[i / data.sub_dim] > 0) {
                ASSERT_EQ(centroids[i], expected.centroids[i]) << what << " step " << done << " at " << i;
            }
        }
        std::vector<float> all = start;
        const LloydResult together = lloyd(data, all, done, 1);
        if (static_cast<int>(together.errors.size()) < done) {
            return;  // settled
        }
        ASSERT_EQ(together.errors.back(), alone.errors[0]) << what << " step " << done;
        ASSERT_EQ(all, centroids) << what << " step " << done;
    }
}

std::vector<float> dyadic_normals(std::int64_t n, std::uint64_t seed, float step) {
    Random random(seed);
    std::vector<float> out;
    for (std::int64_t i = 0; i < n; ++i) {
        out.push_back(step * static_cast<float>(std::nearbyint(random.normal() / step)));
    }
    return out;
}

TEST(LloydStep, IsThatOfThePlainSearch) {
    const CodecSpec specs[] = {{CodecKind::vq, 1, 2}, {CodecKind::vq, 1, 4},  {CodecKind::vq, 2, 8},  {CodecKind::vq, 4, 8},
                               {CodecKind::vq, 8, 8}, {CodecKind::vq, 4, 10}, {CodecKind::vq, 4, 12}, {CodecKind::vq, 8, 12}};
    for (const CodecSpec& spec : specs) {
        const int count = 1 << spec.code_bits;
        for (const std::int64_t n : {std::int64_t{1}, std::int64_t{33}, std::int64_t{count > 1024 ? 2500 : 9001}}) {
            const int steps = count > 256 ? 2 : 4;
            for (const float step : {0.5f, 1.0f / 64}) {  // half steps: most rows and centroids coincide with others
                const std::vector<float> rows = dyadic_normals(n * spec.sub_dim, 3 + n, step);
                WeightedRows data{.rows = rows.data(), .n = n, .sub_dim = spec.sub_dim};
                const auto what = testing::Message()
                                  << "d" << spec.sub_dim << "b" << spec.code_bits << " n " << n << " step " << step;
                compare(data, seed_centroids(data, count, 7), steps, what.GetString() + " from rows");
                compare(data, dyadic_normals(static_cast<std::int64_t>(count) * spec.sub_dim, 11, step), steps, what.GetString());
            }
        }
    }
}

TEST(LloydStep, WeightsOfZeroCount) {
    const std::int64_t n = 5000;
    const std::vector<float> rows = dyadic_normals(n * 4, 5, 1.0f / 64);
    std::vector<float> weights;
    for (std::int64_t i = 0; i < n; ++i) {
        weights.push_back(static_cast<float>(i % 3) * 0.25f);
    }
    const WeightedRows data{.rows = rows.data(), .weights = weights.data(), .n = n, .sub_dim = 4};
    std::vector<float> centroids;
    for (int k = 0; k < 256; ++k) {
        centroids.insert(centroids.end(), &rows[(3 * k + 1) * 4], &rows[(3 * k + 1) * 4] + 4);
    }
    compare(data, centroids, 1, "weights");
}

TEST(LloydStep, ExtremesAreSearchedLikeTheRest) {
    const std::int64_t n = 4500;
    for (const int sub_dim : {4, 8}) {
        for (const float unit : {0x1p-60f, 0x1p-75f, 0x1p-85f, 0x1p47f}) {  // squares vanish, or come near the largest float
            std::vector<float> rows = dyadic_normals(n * sub_dim, 8, 1.0f / 64);
            for (std::int64_t i = 0; i < n * sub_dim; ++i) {
                // Some rows far from all others, some at the origin.
                rows[i] *= i / sub_dim % 50 == 7 ? unit : i / sub_dim % 50 == 9 ? 0.0f : unit * 0x1p-8f;
            }
            const WeightedRows data{.rows = rows.data(), .n = n, .sub_dim = sub_dim};
            std::vector<float> centroids(rows.begin(), rows.begin() + 4096 * sub_dim);
            const Step expected = plain_step(data, centroids);
            lloyd(data, centroids, 1, 2);
            for (std::size_t i = 0; i < centroids.size(); ++i) {
                if (expected.weights[i / sub_dim] > 0) {
                    ASSERT_EQ(centroids[i], expected.centroids[i]) << sub_dim << ' ' << unit << " at " << i;
                }
            }
        }
    }
}

}  // namespace
}  // namespace vecinfer
