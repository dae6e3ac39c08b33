#include "vecinfer/codebook.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../../tools/universal_recipe.h"
#include "codebook/kmeans.h"
#include "random.h"

namespace vecinfer {
namespace {

struct Pair {
    int sub_dim;
    int code_bits;
};
constexpr Pair kPairs[] = {{2, 8}, {4, 8}, {8, 8}, {4, 12}, {8, 12}, {4, 10}, {1, 2}, {1, 3}, {1, 4}};

std::vector<float> normals(std::int64_t count, std::uint64_t seed) {
    Random random(seed);
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& v : x) {
        v = static_cast<float>(random.normal());
    }
    return x;
}

/// Mean squared error per entry of the best centroid, by plain search in double.
double brute_force_error(std::span<const float> samples, std::span<const float> centroids, int sub_dim) {
    double total = 0;
    for (std::size_t row = 0; row < samples.size(); row += sub_dim) {
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t k = 0; k < centroids.size(); k += sub_dim) {
            double d = 0;
            for (int c = 0; c < sub_dim; ++c) {
                const double t = static_cast<double>(samples[row + c]) - centroids[k + c];
                d += t * t;
            }
            least = std::min(least, d);
        }
        total += least;
    }
    return total / static_cast<double>(samples.size());
}

std::vector<float> values_of(const Codebook& codebook) {
    std::vector<float> values;
    for (int k = 0; k < codebook.num_centroids(); ++k) {
        for (int c = 0; c < codebook.sub_dim; ++c) {
            values.push_back(codebook.at(k, c));
        }
    }
    return values;
}

double error_of(const Codebook& codebook, std::span<const float> samples) {
    return brute_force_error(samples, values_of(codebook), codebook.sub_dim);
}

TEST(Random, IsTheSameEverywhere) {
    Random random(0);
    EXPECT_EQ(random.next(), 0x99ec5f36cb75f2b4ull);  // published first output of xoshiro256** after splitmix64(0)
    double sum = 0;
    double squares = 0;
    double fourth = 0;
    const int n = 200000;
    for (int i = 0; i < n; ++i) {
        const double x = random.normal();
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
    }
    EXPECT_NEAR(sum / n, 0, 0.01);
    EXPECT_NEAR(squares / n, 1, 0.015);
    EXPECT_NEAR(fourth / n, 3, 0.12);
    for (double x : {1e-300, 1e-9, 0.3, 0.70710678, 0.99999999, 1.0, 1.41421356, 2.0, 12345.678}) {
        EXPECT_NEAR(portable_log(x), std::log(x), 4e-16 * std::max(1.0, std::abs(std::log(x)))) << x;
    }
}

TEST(Lloyd, NeverIncreasesTheErrorAndReportsIt) {
    const std::vector<float> samples = normals(4 * 6000, 1);
    const WeightedRows data{.rows = samples.data(), .n = 6000, .sub_dim = 4};
    std::vector<float> centroids = seed_centroids(data, 256, 5);
    const std::vector<float> seeds = centroids;
    const LloydResult result = lloyd(data, centroids, 30, 2);
    ASSERT_GE(result.errors.size(), 5u);
    EXPECT_NEAR(result.errors.front(), brute_force_error(samples, seeds, 4), 1e-6);
    for (std::size_t i = 1; i < result.errors.size(); ++i) {
        EXPECT_LE(result.errors[i], result.errors[i - 1] * (1 + 1e-6)) << i;
    }
    EXPECT_LE(brute_force_error(samples, centroids, 4), result.errors.back() * (1 + 1e-6));
    EXPECT_LT(result.errors.back(), 0.8 * result.errors.front());
}

TEST(Lloyd, OneIterationMovesCentroidsToTheMeansOfTheirRows) {
    const std::vector<float> samples = normals(2 * 5000, 2);
    const WeightedRows data{.rows = samples.data(), .n = 5000, .sub_dim = 2};
    const std::vector<float> seeds = seed_centroids(data, 256, 6);
    std::vector<float> centroids = seeds;
    lloyd(data, centroids, 1, 1);
    std::vector<double> sums(512);
    std::vector<int> counts(256);
    for (std::size_t row = 0; row < 5000; ++row) {
        std::size_t best = 0;
        float least = std::numeric_limits<float>::infinity();
        for (std::size_t k = 0; k < 256; ++k) {
            const float a = samples[2 * row] - seeds[2 * k];
            const float b = samples[2 * row + 1] - seeds[2 * k + 1];
            const float d = a * a + b * b;
            if (d < least) {
                least = d;
                best = k;
            }
        }
        sums[2 * best] += samples[2 * row];
        sums[2 * best + 1] += samples[2 * row + 1];
        ++counts[best];
    }
    for (std::size_t k = 0; k < 256; ++k) {
        ASSERT_GT(counts[k], 0);  // every seed is a row, hence nearest to itself
        EXPECT_NEAR(centroids[2 * k], sums[2 * k] / counts[k], 1e-6);
        EXPECT_NEAR(centroids[2 * k + 1], sums[2 * k + 1] / counts[k], 1e-6);
    }
}

TEST(Lloyd, WeightsActLikeRepeatedRows) {
    const std::vector<float> samples = normals(4 * 3000, 3);
    std::vector<float> weights;
    std::vector<float> repeated;
    for (std::size_t row = 0; row < 3000; ++row) {
        weights.push_back(static_cast<float>(row % 4));
        for (std::size_t copy = 0; copy < row % 4; ++copy) {
            repeated.insert(repeated.end(), &samples[4 * row], &samples[4 * row] + 4);
        }
    }
    const WeightedRows weighted{.rows = samples.data(), .weights = weights.data(), .n = 3000, .sub_dim = 4};
    const WeightedRows plain{.rows = repeated.data(), .n = static_cast<std::int64_t>(repeated.size()) / 4, .sub_dim = 4};
    std::vector<float> a = seed_centroids(weighted, 256, 1);
    std::vector<float> b = a;
    const LloydResult from_weights = lloyd(weighted, a, 8, 1);
    const LloydResult from_copies = lloyd(plain, b, 8, 1);
    ASSERT_EQ(from_weights.errors.size(), from_copies.errors.size());
    for (std::size_t i = 0; i < from_weights.errors.size(); ++i) {
        EXPECT_NEAR(from_weights.errors[i], from_copies.errors[i], 1e-9);
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], 1e-5) << i;
    }
}

TEST(Lloyd, EmptyClustersAreMovedToBadlyServedRows) {
    const std::vector<float> samples = normals(4 * 4096, 4);
    const WeightedRows data{.rows = samples.data(), .n = 4096, .sub_dim = 4};
    std::vector<float> centroids(4 * 256, 100.0f);  // all alike and far away: one cluster has every row, 255 are empty
    const LloydResult result = lloyd(data, centroids, 60, 1);
    EXPECT_LT(result.errors.back(), 0.1);
    std::vector<int> used(256);
    for (std::size_t row = 0; row < samples.size(); row += 4) {
        std::size_t best = 0;
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t k = 0; k < 256; ++k) {
            double d = 0;
            for (std::size_t c = 0; c < 4; ++c) {
                d += std::pow(static_cast<double>(samples[row + c]) - centroids[4 * k + c], 2);
            }
            if (d < least) {
                least = d;
                best = k;
            }
        }
        ++used[best];
    }
    EXPECT_EQ(std::count(used.begin(), used.end(), 0), 0);
}

TEST(Seeding, ChoosesRowsAndPrefersThoseNotYetServed) {
    // 300 distinct rows, one of them repeated 20000 times: seeding must not pick it twice.
    std::vector<float> samples;
    for (int i = 0; i < 300; ++i) {
        samples.push_back(static_cast<float>(i));
        samples.push_back(static_cast<float>(-i));
    }
    for (int i = 0; i < 10000; ++i) {
        samples.insert(samples.end(), {7.0f, -7.0f});
    }
    const WeightedRows data{.rows = samples.data(), .n = 10300, .sub_dim = 2};
    const std::vector<float> centroids = seed_centroids(data, 256, 3);
    std::set<float> distinct;
    for (std::size_t k = 0; k < centroids.size(); k += 2) {
        EXPECT_EQ(centroids[k], -centroids[k + 1]);
        EXPECT_EQ(centroids[k], std::round(centroids[k]));
        distinct.insert(centroids[k]);
    }
    EXPECT_EQ(distinct.size(), 256u);
}

TEST(Seeding, RowsOfWeightZeroAreNeverChosen) {
    std::vector<float> samples = normals(2 * 40000, 9);  // more rows than the seeding subsample
    std::vector<float> weights(40000, 0.0f);
    for (std::size_t row = 0; row < 40000; ++row) {
        if (row % 100 == 0) {
            weights[row] = 1.0f;
            samples[2 * row] += 1000.0f;
        }
    }
    const WeightedRows data{.rows = samples.data(), .weights = weights.data(), .n = 40000, .sub_dim = 2};
    const std::vector<float> centroids = seed_centroids(data, 256, 3);
    for (std::size_t k = 0; k < centroids.size(); k += 2) {
        EXPECT_GT(centroids[k], 900.0f);
    }
}

TEST(TrainCodebook, ErrorOnGaussianSamplesIsNearTheBestKnown) {
    const std::vector<float> test = normals(8 * 4000, 1000);
    const auto trained = [&](int sub_dim) {
        const Result<Codebook> codebook = train_codebook(normals(sub_dim * 131072, 10), {}, sub_dim, 8, {.seed = 1});
        EXPECT_TRUE(codebook.ok()) << codebook.status().message();
        EXPECT_TRUE(validate(codebook.value()).ok());
        return error_of(codebook.value(), test);
    };
    EXPECT_LE(trained(2), 0.0087);
    EXPECT_LE(trained(4), 0.0995);
    EXPECT_LE(trained(8), 0.33);
}

TEST(TrainCodebook, DoesNotDependOnThreads) {
    for (const auto& [sub_dim, code_bits] : kPairs) {
        const std::vector<float> samples = normals(sub_dim * (code_bits == 8 ? 20000 : 9000), 20);
        std::vector<Codebook> results;
        for (int threads : {1, 2, 3}) {
            const KMeansOptions options{.max_iterations = 5, .seed = 3, .num_threads = threads};
            Result<Codebook> codebook = train_codebook(samples, {}, sub_dim, code_bits, options);
            ASSERT_TRUE(codebook.ok()) << codebook.status().message();
            EXPECT_TRUE(validate(codebook.value()).ok());
            results.push_back(std::move(codebook).value());
        }
        EXPECT_EQ(results[0], results[1]);
        EXPECT_EQ(results[0], results[2]);
        const Result<Codebook> other =
            train_codebook(samples, {}, sub_dim, code_bits, {.max_iterations = 5, .seed = 4, .num_threads = 1});
        EXPECT_NE(results[0], other.value());
    }
}

TEST(TrainCodebook, LargestMagnitudeUsesTheWholeInt8Range) {
    const Codebook codebook = train_codebook(normals(4 * 5000, 21), {}, 4, 8, {}).value();
    int largest = 0;
    for (std::int8_t c : codebook.centroids) {
        largest = std::max(largest, std::abs(static_cast<int>(c)));
    }
    EXPECT_EQ(largest, 127);
}

TEST(TrainCodebook, FewDistinctRowsAreMetExactly) {
    for (int n : {1, 3, 100}) {
        std::vector<float> samples;
        for (int i = 0; i < n; ++i) {
            // Multiples of the scale that the largest entry, 127, leads to.
            samples.insert(samples.end(), {127.0f, static_cast<float>(i), -static_cast<float>(i), 1.0f});
        }
        for (int copies : {1, 3}) {
            std::vector<float> repeated;
            for (int copy = 0; copy < copies; ++copy) {
                repeated.insert(repeated.end(), samples.begin(), samples.end());
            }
            for (int code_bits : {8, 12}) {
                const Result<Codebook> codebook = train_codebook(repeated, {}, 4, code_bits, {});
                ASSERT_TRUE(codebook.ok()) << codebook.status().message();
                EXPECT_LT(error_of(codebook.value(), samples), 1e-10) << n << ' ' << copies;
            }
        }
    }
}

TEST(TrainCodebook, ZerosAndExtremeMagnitudesStayFinite) {
    const std::vector<float> zeros(4 * 10, 0.0f);
    const Codebook of_zeros = train_codebook(zeros, {}, 4, 8, {}).value();
    EXPECT_TRUE(validate(of_zeros).ok());
    EXPECT_EQ(error_of(of_zeros, zeros), 0.0);
    // The scale is a normal number even where that is coarser than the samples.
    EXPECT_TRUE(validate(train_codebook(std::vector<float>(4, 1e-44f), {}, 4, 8, {}).value()).ok());
    const std::vector<float> base = normals(4 * 3000, 30);
    const Codebook reference = train_codebook(base, {}, 4, 8, {.seed = 2}).value();
    const double relative = error_of(reference, base);
    for (float unit : {1e-35f, 1e-20f, 1e20f, 5e37f}) {
        std::vector<float> samples = base;
        for (float& x : samples) {
            x *= unit;
        }
        const Result<Codebook> codebook = train_codebook(samples, {}, 4, 8, {.seed = 2});
        ASSERT_TRUE(codebook.ok());
        ASSERT_TRUE(validate(codebook.value()).ok());
        EXPECT_NEAR(error_of(codebook.value(), samples) / unit / unit, relative, 0.1 * relative) << unit;
    }
}

TEST(TrainCodebook, WeightsDrawCentroids) {
    std::vector<float> samples = normals(2 * 20000, 40);
    std::vector<float> weights(20000, 1.0f);
    std::vector<float> heavy;
    for (std::size_t row = 0; row < 20000; ++row) {
        if (row % 2 == 0) {
            samples[2 * row] += 20.0f;
            weights[row] = 1000.0f;
            heavy.insert(heavy.end(), &samples[2 * row], &samples[2 * row] + 2);
        }
    }
    const double with = error_of(train_codebook(samples, weights, 2, 8, {}).value(), heavy);
    const double without = error_of(train_codebook(samples, {}, 2, 8, {}).value(), heavy);
    EXPECT_LT(with, 0.75 * without);
}

TEST(TrainCodebook, ProgressRisesToOneAndCancels) {
    const std::vector<float> samples = normals(4 * 5000, 50);
    std::vector<double> shares;
    KMeansOptions options;
    const std::thread::id caller = std::this_thread::get_id();
    options.num_threads = 2;
    options.progress = [&](double share) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        shares.push_back(share);
        return true;
    };
    ASSERT_TRUE(train_codebook(samples, {}, 4, 8, options).ok());
    ASSERT_GE(shares.size(), 5u);
    EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
    EXPECT_GE(shares.front(), 0.0);
    EXPECT_EQ(shares.back(), 1.0);
    for (double limit : {0.0, 0.2, 0.99}) {
        options.progress = [&](double share) { return share < limit; };
        EXPECT_EQ(train_codebook(samples, {}, 4, 8, options).status().code(), ErrorCode::cancelled) << limit;
    }
}

TEST(TrainCodebook, BadArgumentsAreNamed) {
    const std::vector<float> good = normals(64, 60);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    const auto message = [](std::span<const float> samples, std::vector<float> weights, int sub_dim, int code_bits,
                            KMeansOptions options = {}) {
        const Status status = train_codebook(samples, weights, sub_dim, code_bits, options).status();
        EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
        return status.message();
    };
    EXPECT_NE(message(good, {}, 3, 8).find("got d3b8, expected one of"), std::string::npos);
    EXPECT_NE(message(good, {}, 2, 12).find("got d2b12"), std::string::npos);
    EXPECT_NE(message({}, {}, 4, 8).find("samples: got 0 values"), std::string::npos);
    EXPECT_NE(message(std::span(good).first(63), {}, 4, 8).find("samples: got 63 values"), std::string::npos);
    for (float bad : {nan, infinity, -infinity}) {
        std::vector<float> samples = good;
        samples[13] = bad;
        EXPECT_NE(message(samples, {}, 4, 8).find("at row 3 channel 1"), std::string::npos);
        EXPECT_NE(message(good, std::vector<float>(16, bad), 4, 8).find("weights[0]: got"), std::string::npos);
    }
    EXPECT_NE(message(good, std::vector<float>(15, 1.0f), 4, 8).find("weights: got 15 values, expected 16"), std::string::npos);
    EXPECT_NE(message(good, std::vector<float>(16, 0.0f), 4, 8).find("weights: got a sum of 0"), std::string::npos);
    EXPECT_NE(message(good, std::vector<float>(16, -1.0f), 4, 8).find("weights[0]: got -1"), std::string::npos);
    EXPECT_NE(message(good, {}, 4, 8, {.max_iterations = 0}).find("max_iterations: got 0"), std::string::npos);
    EXPECT_NE(message(good, {}, 4, 8, {.num_threads = -1}).find("num_threads: got -1"), std::string::npos);
}

TEST(Codebook, ValidateNamesWhatIsWrong) {
    const Codebook good = *universal_codebook(4, 8);
    EXPECT_TRUE(validate(good).ok());
    Codebook bad = good;
    bad.sub_dim = 8;
    EXPECT_NE(validate(bad).message().find("centroids: got 1024 values, expected 256 x 8 = 2048"), std::string::npos);
    bad = good;
    bad.code_bits = 9;
    EXPECT_NE(validate(bad).message().find("got d4b9"), std::string::npos);
    for (float scale : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        bad = good;
        bad.scale = scale;
        EXPECT_NE(validate(bad).message().find("scale: got"), std::string::npos);
    }
    bad = good;
    bad.centroids.pop_back();
    EXPECT_EQ(validate(bad).code(), ErrorCode::invalid_argument);
}

TEST(Codebook, HashCoversEveryPart) {
    const Codebook base = *universal_codebook(4, 8);
    std::set<std::uint64_t> hashes = {hash(base)};
    EXPECT_EQ(hash(Codebook(base)), hash(base));
    for (std::size_t i : {std::size_t{0}, base.centroids.size() / 2, base.centroids.size() - 1}) {
        Codebook other = base;
        other.centroids[i] = static_cast<std::int8_t>(other.centroids[i] ^ 1);
        EXPECT_TRUE(hashes.insert(hash(other)).second);
    }
    Codebook other = base;
    other.scale = std::nextafter(base.scale, 1.0f);
    EXPECT_TRUE(hashes.insert(hash(other)).second);
    other = base;
    other.sub_dim = 8;
    EXPECT_TRUE(hashes.insert(hash(other)).second);
    std::swap(other.centroids[0], other.centroids[1]);
    EXPECT_TRUE(hashes.insert(hash(other)).second);
}

TEST(Universal, EveryPairExistsAndIsAsGoodAsClaimed) {
    const std::vector<float> test = normals(8 * 2500, 2000);
    const auto error = [&](int sub_dim, int code_bits) {
        const Codebook* codebook = universal_codebook(sub_dim, code_bits);
        EXPECT_NE(codebook, nullptr);
        EXPECT_TRUE(validate(*codebook).ok());
        EXPECT_EQ(codebook->sub_dim, sub_dim);
        EXPECT_EQ(codebook->code_bits, code_bits);
        return error_of(*codebook, test);
    };
    EXPECT_LE(error(2, 8), 0.0082);
    EXPECT_LE(error(4, 8), 0.0990);
    EXPECT_LE(error(8, 8), 0.3300);
    EXPECT_LE(error(4, 12), 0.0268);
    EXPECT_LE(error(8, 12), 0.1750);
    EXPECT_LE(error(4, 10), 0.0530);
    // The least that scalar levels can reach on a Gaussian is 0.1175, 0.03454 and 0.009497 (Max, 1960).
    EXPECT_LE(error(1, 2), 0.1200);
    EXPECT_LE(error(1, 3), 0.0355);
    EXPECT_LE(error(1, 4), 0.0099);
    EXPECT_EQ(universal_codebook(2, 12), nullptr);
    EXPECT_EQ(universal_codebook(0, 0), nullptr);
}

// Optimal levels of a scalar quantizer for N(0,1), table I of J. Max, "Quantizing for minimum distortion", 1960.
TEST(Universal, ScalarLevelsAreThePublishedOnes) {
    const std::vector<double> published[] = {
        {0.4528, 1.510}, {0.2451, 0.7560, 1.344, 2.152}, {0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733}};
    for (int bits = 2; bits <= 4; ++bits) {
        const Codebook& codebook = *universal_codebook(1, bits);
        std::vector<float> levels;
        for (int k = 0; k < codebook.num_centroids(); ++k) {
            levels.push_back(codebook.at(k, 0));
        }
        std::sort(levels.begin(), levels.end());
        const std::vector<double>& half = published[bits - 2];
        for (std::size_t i = 0; i < half.size(); ++i) {
            const double tolerance = 0.5 * codebook.scale + 0.01;  // rounding to int8, and k-means on a sample
            EXPECT_NEAR(levels[half.size() + i], half[i], tolerance) << bits;
            EXPECT_NEAR(levels[half.size() - 1 - i], -half[i], tolerance) << bits;
        }
    }
}

TEST(Universal, DataIsWhatTheRecipeGives) {
    // The smallest stands for all: one program and one recipe write them.
    const UniversalRecipe& recipe = kUniversalRecipes[0];
    EXPECT_EQ(train_universal(recipe, 2), *universal_codebook(recipe.sub_dim, recipe.code_bits));
}

}  // namespace
}  // namespace vecinfer
