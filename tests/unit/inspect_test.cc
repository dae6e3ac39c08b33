// Inspection against formulas evaluated here in fp64, and against the calibrator.
#include "vecinfer/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "random.h"

namespace vecinfer {
namespace {

constexpr int kHeads = 2;
constexpr int kGroup = 3;
constexpr int kDim = 12;  // not a power of two
constexpr int kTokens = 77;

/// Rows with a stride of their own; channels of unlike energy with means.
struct Rows {
    int num_heads = kHeads;
    int stride = 0;
    std::vector<float> values;

    float at(int token, int head, int channel) const {
        return values[static_cast<std::size_t>(token * stride + head * kDim + channel)];
    }
};

Rows make_rows(int num_heads, std::uint64_t seed) {
    Random random(seed);
    Rows rows{.num_heads = num_heads, .stride = num_heads * kDim + 5};
    rows.values.assign(static_cast<std::size_t>(kTokens * rows.stride), 1e9F);
    for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < num_heads * kDim; ++i) {
            const double x = random.normal() * (0.2 + 0.3 * (i % 7)) + 0.4 * (i % 5);
            rows.values[static_cast<std::size_t>(t * rows.stride + i)] = static_cast<float>(std::round(64 * x) / 64);
        }
    }
    return rows;
}

KvRows kv(const Rows& rows) {
    return {.layer = 0,
            .num_kv_heads = rows.num_heads,
            .head_dim = kDim,
            .num_tokens = kTokens,
            .rows = rows.values.data(),
            .row_stride = rows.stride};
}

QueryRows queries(const Rows& rows) {
    return {.layer = 0,
            .num_kv_heads = kHeads,
            .num_qo_heads = rows.num_heads,
            .head_dim = kDim,
            .num_tokens = kTokens,
            .queries = rows.values.data(),
            .token_stride = rows.stride,
            .head_stride = kDim};
}

std::vector<HeadTransform> identities() {
    return std::vector<HeadTransform>(kHeads, HeadTransform::create(kDim, {}, {}).value());
}

Codebook codebook(int sub_dim, std::uint64_t seed) {
    Random random(seed);
    Codebook book{.sub_dim = sub_dim, .code_bits = 8, .scale = 0.02F};
    for (int i = 0; i < 256 * sub_dim; ++i) {
        book.centroids.push_back(static_cast<std::int8_t>(std::clamp(40 * random.normal(), -127.0, 127.0)));
    }
    return book;
}

RowCodec codec() {
    return RowCodec::create({.sub_dim = 4, .code_bits = 8}, Norm::vector, kDim, identities(), {codebook(4, 1)}).value();
}

TEST(InspectTest, SpreadMatchesItsDefinition) {
    const Rows rows = make_rows(kHeads, 3);
    const auto spread = measure_spread(kv(rows), identities(), 10);
    ASSERT_TRUE(spread.ok()) << spread.status().message();
    double kurtosis = 0;
    double ratio = 0;
    for (int head = 0; head < kHeads; ++head) {
        for (int t = 0; t < kTokens; ++t) {
            double square = 0;
            double sum = 0;
            double max = 0;
            for (int i = 0; i < kDim; ++i) {
                square += std::pow(rows.at(t, head, i), 2.0);
                sum += std::fabs(rows.at(t, head, i));
                max = std::max(max, std::fabs(static_cast<double>(rows.at(t, head, i))));
            }
            const double rms = std::sqrt(square / kDim);
            for (int i = 0; i < kDim; ++i) {
                kurtosis += std::pow(rows.at(t, head, i) / rms, 4.0) / kDim;
            }
            ratio += max / (sum / kDim);
        }
        for (int i = 0; i < kDim; ++i) {
            double sum = 0;
            double max = 0;
            for (int t = 0; t < kTokens; ++t) {
                sum += std::fabs(rows.at(t, head, i));
                max = std::max(max, std::fabs(static_cast<double>(rows.at(t, head, i))));
            }
            EXPECT_NEAR(spread->channel_mean_abs[static_cast<std::size_t>(head * kDim + i)], sum / kTokens, 1e-5);
            EXPECT_EQ(spread->channel_max_abs[static_cast<std::size_t>(head * kDim + i)], max);
        }
    }
    EXPECT_NEAR(spread->kurtosis, kurtosis / (kHeads * kTokens), 1e-9);
    EXPECT_NEAR(spread->max_over_mean, ratio / (kHeads * kTokens), 1e-9);

    ASSERT_EQ(spread->map_tokens, 10);
    std::map<int, std::pair<double, int>> bins;  // of head 1, channel 4
    for (int t = 0; t < kTokens; ++t) {
        auto& [sum, count] = bins[t * 10 / kTokens];
        sum += std::fabs(rows.at(t, 1, 4));
        ++count;
    }
    for (const auto& [bin, total] : bins) {
        EXPECT_NEAR(spread->map[static_cast<std::size_t>(bin * kHeads * kDim + kDim + 4)], total.first / total.second, 1e-5);
    }
    ASSERT_EQ(spread->token_rms.size(), static_cast<std::size_t>(kTokens));
    double square = 0;
    for (int i = 0; i < kHeads * kDim; ++i) {
        square += std::pow(rows.at(5, 0, i), 2.0);
    }
    EXPECT_NEAR(spread->token_rms[5], std::sqrt(square / (kHeads * kDim)), 1e-5);
}

TEST(InspectTest, KurtosisKnowsNormalFromSpiky) {
    Random random(5);
    std::vector<float> normal(4096 * 64);
    for (float& x : normal) {
        x = static_cast<float>(random.normal());
    }
    std::vector<float> spiky(64 * 64, 0.0F);
    for (int t = 0; t < 64; ++t) {
        spiky[static_cast<std::size_t>(t * 64 + t)] = 3.0F;
    }
    const std::vector<HeadTransform> none = {HeadTransform::create(64, {}, {}).value()};
    const KvRows rows{.num_kv_heads = 1, .head_dim = 64, .num_tokens = 4096, .rows = normal.data(), .row_stride = 64};
    // Dividing by the vector's own norm takes 2/(d+2) of the excess away: E = 3 d / (d + 2).
    EXPECT_NEAR(measure_spread(rows, none)->kurtosis, 3 * 64.0 / 66, 0.03);
    const KvRows spikes{.num_kv_heads = 1, .head_dim = 64, .num_tokens = 64, .rows = spiky.data(), .row_stride = 64};
    EXPECT_NEAR(measure_spread(spikes, none)->kurtosis, 64, 1e-6);
    EXPECT_NEAR(measure_spread(spikes, none)->max_over_mean, 64, 1e-6);
    // Hadamard spreads a spike over all channels evenly.
    const std::vector<HeadTransform> hadamard = {HeadTransform::create(64, {.hadamard = true}, {}).value()};
    EXPECT_NEAR(measure_spread(spikes, hadamard)->kurtosis, 1, 1e-5);
}

TEST(InspectTest, ZeroRowsAreNotDividedBy) {
    const std::vector<float> zeros(3 * 16, 0.0F);
    const std::vector<HeadTransform> none = {HeadTransform::create(16, {}, {}).value()};
    const KvRows rows{.num_kv_heads = 1, .head_dim = 16, .num_tokens = 3, .rows = zeros.data(), .row_stride = 16};
    const auto spread = measure_spread(rows, none);
    ASSERT_TRUE(spread.ok());
    EXPECT_EQ(spread->kurtosis, 0);
    EXPECT_EQ(spread->max_over_mean, 0);
    EXPECT_EQ(relative_mse(rows, rows).value(), std::vector<double>{0.0});
}

// The factors are those that the calibrator learns from the same rows.
TEST(InspectTest, TransformsAreTheCalibrators) {
    Rows keys = make_rows(kHeads, 11);
    const Rows qs = make_rows(kHeads * kGroup, 13);
    for (const char* kt : {"center", "smooth+hadamard", "center+smooth+hadamard", "smooth-opt", "center+smooth-opt+hadamard"}) {
        const Scheme scheme =
            resolve(parse_scheme(std::string("vecinfer:k=d4b8,v=d4b8,vt=none,norm=vector,kt=") + kt).value(), true).value();
        Calibrator calibrator = Calibrator::create({.scheme = scheme, .num_threads = 1}).value();
        ASSERT_TRUE(calibrator.observe_keys(kv(keys)).ok());
        ASSERT_TRUE(calibrator.observe_values(kv(keys)).ok());
        ASSERT_TRUE(calibrator.observe_queries(queries(qs)).ok());
        const LayerCalibration layer = calibrator.finish().value().front();
        const QueryRows q = queries(qs);
        const auto fitted = fit_transforms(scheme.key_transform, kv(keys), &q);
        ASSERT_TRUE(fitted.ok()) << fitted.status().message();
        for (int head = 0; head < kHeads; ++head) {
            const auto part = [&](const std::vector<float>& all) {
                return all.empty() ? std::span<const float>()
                                   : std::span<const float>(all).subspan(static_cast<std::size_t>(head * kDim), kDim);
            };
            const HeadTransform expected =
                HeadTransform::create(kDim, scheme.key_transform, part(layer.smooth_factors), part(layer.key_center)).value();
            std::vector<float> a(kDim);
            std::vector<float> b(kDim);
            fitted.value()[static_cast<std::size_t>(head)].forward(keys.values.data() + head * kDim, a.data());
            expected.forward(keys.values.data() + head * kDim, b.data());
            for (int i = 0; i < kDim; ++i) {
                EXPECT_NEAR(a[static_cast<std::size_t>(i)], b[static_cast<std::size_t>(i)], 1e-5) << kt;
            }
        }
    }
}

TEST(InspectTest, CodeUsageCountsCodes) {
    const Rows rows = make_rows(kHeads, 17);
    const RowCodec row_codec = codec();
    const auto usage = measure_code_usage(row_codec, kv(rows));
    ASSERT_TRUE(usage.ok());
    ASSERT_EQ(usage->size(), static_cast<std::size_t>(kHeads));
    for (int head = 0; head < kHeads; ++head) {
        std::map<int, int> counts;
        for (int t = 0; t < kTokens; ++t) {
            std::vector<std::uint16_t> codes(kDim / 4);
            std::uint8_t norm = 0;
            row_codec.encode(head, rows.values.data() + t * rows.stride + head * kDim, codes.data(), &norm);
            for (const std::uint16_t code : codes) {
                ++counts[code];
            }
        }
        double entropy = 0;
        for (const auto& [code, count] : counts) {
            const double p = count / (kTokens * 3.0);
            entropy -= p * std::log(p) / std::log(2.0);
        }
        const CodeUsage& own = usage.value()[static_cast<std::size_t>(head)];
        EXPECT_EQ(own.num_centroids, 256);
        EXPECT_EQ(own.codes, kTokens * 3);
        EXPECT_EQ(own.dead, 256 - static_cast<int>(counts.size()));
        EXPECT_NEAR(own.entropy_bits, entropy, 1e-9);
    }
}

TEST(InspectTest, ErrorsMatchTheirDefinitions) {
    const Rows keys = make_rows(kHeads, 19);
    const Rows qs = make_rows(kHeads * kGroup, 23);
    const auto decoded = reconstruct(codec(), kv(keys));
    ASSERT_TRUE(decoded.ok());
    const KvRows after{
        .num_kv_heads = kHeads, .head_dim = kDim, .num_tokens = kTokens, .rows = decoded->data(), .row_stride = kHeads * kDim};
    const auto mse = relative_mse(kv(keys), after);
    const auto scores = measure_score_error(kv(keys), after, queries(qs), kTokens);
    ASSERT_TRUE(mse.ok());
    ASSERT_TRUE(scores.ok()) << scores.status().message();
    for (int head = 0; head < kHeads; ++head) {
        double error = 0;
        double energy = 0;
        const auto y = [&](int t, int i) {
            return static_cast<double>(decoded.value()[static_cast<std::size_t>(t * kHeads * kDim + head * kDim + i)]);
        };
        for (int t = 0; t < kTokens; ++t) {
            for (int i = 0; i < kDim; ++i) {
                error += std::pow(keys.at(t, head, i) - y(t, i), 2.0);
                energy += std::pow(keys.at(t, head, i), 2.0);
            }
        }
        EXPECT_NEAR(mse.value()[static_cast<std::size_t>(head)], error / energy, 1e-9);
        EXPECT_GT(error / energy, 0.001);
        EXPECT_LT(error / energy, 1);

        double error_sum = 0;
        double score_sum = 0;
        int count = 0;
        for (int token = 1; token < kTokens; ++token) {
            for (int member = 0; member < kGroup; ++member) {
                std::vector<double> s;
                std::vector<double> e;
                for (int t = 0; t <= token; ++t) {
                    double score = 0;
                    double other = 0;
                    for (int i = 0; i < kDim; ++i) {
                        score +=
                            qs.at(token, head * kGroup + member, i) * static_cast<double>(keys.at(t, head, i)) / std::sqrt(12.0);
                        other += qs.at(token, head * kGroup + member, i) * y(t, i) / std::sqrt(12.0);
                    }
                    s.push_back(score);
                    e.push_back(other - score);
                }
                const auto variance_sum = [](const std::vector<double>& v) {
                    double sum = 0;
                    double square = 0;
                    for (const double x : v) {
                        sum += x;
                        square += x * x;
                    }
                    return square - sum * sum / static_cast<double>(v.size());
                };
                error_sum += variance_sum(e);
                score_sum += variance_sum(s);
                count += token + 1;
            }
        }
        EXPECT_NEAR(scores.value()[static_cast<std::size_t>(head)].rms, std::sqrt(error_sum / count), 1e-7);
        EXPECT_NEAR(scores.value()[static_cast<std::size_t>(head)].score_std, std::sqrt(score_sum / count), 1e-7);
    }
}

TEST(InspectTest, ProductQuantizersAverageTheirCodebooks) {
    const Rows rows = make_rows(kHeads, 41);
    std::vector<Codebook> books;
    for (int i = 0; i < kHeads * kDim / 4; ++i) {
        books.push_back(codebook(4, 50 + static_cast<std::uint64_t>(i)));
    }
    const RowCodec row_codec = RowCodec::create({.sub_dim = 4, .code_bits = 8}, Norm::none, kDim, identities(), books).value();
    const auto usage = measure_code_usage(row_codec, kv(rows));
    ASSERT_TRUE(usage.ok()) << usage.status().message();
    double entropy = 0;
    int dead = 0;
    for (int m = 0; m < 3; ++m) {
        std::map<int, int> counts;
        for (int t = 0; t < kTokens; ++t) {
            std::vector<std::uint16_t> codes(kDim / 4);
            row_codec.encode(1, rows.values.data() + t * rows.stride + kDim, codes.data(), nullptr);
            ++counts[codes[static_cast<std::size_t>(m)]];
        }
        dead += 256 - static_cast<int>(counts.size());
        for (const auto& [code, count] : counts) {
            const double p = count / static_cast<double>(kTokens);
            entropy -= p * std::log2(p) / 3;
        }
    }
    EXPECT_EQ(usage.value()[1].num_centroids, 3 * 256);
    EXPECT_EQ(usage.value()[1].dead, dead);
    EXPECT_NEAR(usage.value()[1].entropy_bits, entropy, 1e-9);
}

// Groups of 32 tokens of one channel share a range: every decoded value lies within half a step of its own, and the last group,
// which is not full, has a range of its own.
TEST(InspectTest, TokenGroupsGoThroughACache) {
    constexpr int kWide = 64;
    constexpr int kN = 77;
    constexpr int kGroupTokens = 32;
    Random random(43);
    std::vector<float> x(kN * kWide);
    for (float& v : x) {
        v = static_cast<float>(std::round(16 * random.normal()) / 16);
    }
    const CodecSpec spec{.kind = CodecKind::scalar,
                         .sub_dim = 1,
                         .code_bits = 4,
                         .group = kGroupTokens,
                         .axis = Axis::token,
                         .levels = Levels::asymmetric};
    const RowCodec row_codec =
        RowCodec::create(spec, Norm::none, kWide, {HeadTransform::create(kWide, {}, {}).value()}, {}).value();
    const KvRows rows{.num_kv_heads = 1, .head_dim = kWide, .num_tokens = kN, .rows = x.data(), .row_stride = kWide};
    const auto decoded = reconstruct(row_codec, rows);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(measure_code_usage(row_codec, rows).status().code(), ErrorCode::unsupported);
    for (int i = 0; i < kWide; ++i) {
        for (int begin = 0; begin < kN; begin += kGroupTokens) {
            const int end = std::min(begin + kGroupTokens, kN);
            float low = 1e9F;
            float high = -1e9F;
            for (int t = begin; t < end; ++t) {
                low = std::min(low, x[static_cast<std::size_t>(t * kWide + i)]);
                high = std::max(high, x[static_cast<std::size_t>(t * kWide + i)]);
            }
            for (int t = begin; t < end; ++t) {
                const auto at = static_cast<std::size_t>(t * kWide + i);
                EXPECT_NEAR(decoded.value()[at], x[at], 0.5 * (high - low) / 15 + 0.02) << t << " " << i;
            }
        }
    }
}

// Softmax does not see what is equal for all keys of a query.
TEST(InspectTest, AConstantShiftOfKeysIsNoScoreError) {
    const Rows keys = make_rows(kHeads, 29);
    Rows shifted = keys;
    for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < kHeads * kDim; ++i) {
            shifted.values[static_cast<std::size_t>(t * shifted.stride + i)] += 0.5F * static_cast<float>(i % 4);
        }
    }
    const Rows qs = make_rows(kHeads * kGroup, 31);
    const auto scores = measure_score_error(kv(keys), kv(shifted), queries(qs));
    ASSERT_TRUE(scores.ok());
    EXPECT_NEAR(scores.value()[0].rms, 0, 1e-5);
    EXPECT_GT(scores.value()[0].score_std, 0.1);
}

TEST(InspectTest, BadInputIsRefused) {
    Rows rows = make_rows(kHeads, 37);
    EXPECT_EQ(measure_spread({}, identities()).status().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(measure_spread(kv(rows), std::span<const HeadTransform>()).status().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(fit_transforms({.smooth = true, .optimal = true}, kv(rows), nullptr).status().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(fit_transforms({.full = true}, kv(rows), nullptr).status().code(), ErrorCode::unsupported);
    const Rows few = make_rows(1, 1);
    EXPECT_EQ(measure_code_usage(codec(), kv(few)).status().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(relative_mse(kv(rows), kv(few)).status().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(measure_score_error(kv(rows), kv(rows), queries(few)).status().code(), ErrorCode::invalid_argument);
    rows.values[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(measure_spread(kv(rows), identities()).status().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(reconstruct(codec(), kv(rows)).status().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace vecinfer
