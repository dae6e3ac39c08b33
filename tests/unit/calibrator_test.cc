// Calibration against formulas evaluated here in fp64 over the same rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "random.h"
#include "vecinfer/calibrate.h"
#include "vecinfer/transform.h"

namespace vecinfer {
namespace {

constexpr int kLayer = 3;
constexpr int kHeads = 2;
constexpr int kGroup = 3;  // query heads per KV head
constexpr int kDim = 8;
constexpr int kSubDim = 4;

/// Rows of all heads of one side, layout (num_tokens, num_heads * head_dim).
struct Rows {
    int num_heads = kHeads;
    int head_dim = kDim;
    std::vector<float> values;

    std::int64_t num_tokens() const { return static_cast<std::int64_t>(values.size()) / (num_heads * head_dim); }
    double at(std::int64_t token, int head, int channel) const {
        return values[static_cast<std::size_t>((token * num_heads + head) * head_dim + channel)];
    }
};

/// Channels of unlike energy, correlated within a head, with means of their own. Multiples of 1/64 below 16, which f16 holds
/// exactly.
Rows make_rows(int num_tokens, int num_heads, std::uint64_t seed) {
    Random random(seed);
    Rows out{.num_heads = num_heads, .values = {}};
    for (int t = 0; t < num_tokens; ++t) {
        for (int head = 0; head < num_heads; ++head) {
            double previous = 0;
            for (int i = 0; i < kDim; ++i) {
                previous = 0.6 * previous + random.normal();
                const double x = previous * (0.25 + 0.2 * ((3 * i + head) % kDim)) + 0.5 * (i % 3) - 0.25 * head;
                out.values.push_back(static_cast<float>(std::round(64 * x) / 64));
            }
        }
    }
    return out;
}

KvRows kv_rows(const Rows& rows) {
    return {.layer = kLayer,
            .num_kv_heads = rows.num_heads,
            .head_dim = rows.head_dim,
            .num_tokens = rows.num_tokens(),
            .rows = rows.values.data(),
            .row_stride = static_cast<std::int64_t>(rows.num_heads) * rows.head_dim};
}

QueryRows query_rows(const Rows& rows) {
    return {.layer = kLayer,
            .num_kv_heads = kHeads,
            .num_qo_heads = rows.num_heads,
            .head_dim = rows.head_dim,
            .num_tokens = rows.num_tokens(),
            .queries = rows.values.data(),
            .token_stride = static_cast<std::int64_t>(rows.num_heads) * rows.head_dim,
            .head_stride = rows.head_dim};
}

Calibrator calibrator(const std::string& scheme, int tokens_per_layer = 4096, std::uint64_t seed = 0) {
    return Calibrator::create({.scheme = resolve(parse_scheme(scheme).value(), true).value(),
                               .tokens_per_layer = tokens_per_layer,
                               .seed = seed,
                               .num_threads = 1})
        .value();
}

LayerCalibration calibrate(const std::string& scheme, const Rows& keys, const Rows& values, const Rows& queries) {
    Calibrator c = calibrator(scheme);
    EXPECT_TRUE(c.observe_keys(kv_rows(keys)).ok());
    EXPECT_TRUE(c.observe_values(kv_rows(values)).ok());
    EXPECT_TRUE(c.observe_queries(query_rows(queries)).ok());
    const Result<std::vector<LayerCalibration>> layers = c.finish();
    EXPECT_TRUE(layers.ok()) << layers.status().message();
    return layers.ok() && layers->size() == 1 ? layers->front() : LayerCalibration{};
}

double mean_of(const Rows& rows, int head, int channel) {
    double sum = 0;
    for (std::int64_t t = 0; t < rows.num_tokens(); ++t) {
        sum += rows.at(t, head, channel);
    }
    return sum / static_cast<double>(rows.num_tokens());
}

using Square = std::vector<std::vector<double>>;

/// E[(x - m)^T (x - m)] over heads [first, first + count).
Square moment(const Rows& rows, int first, int count, bool centered) {
    Square out(kDim, std::vector<double>(kDim, 0.0));
    for (int head = first; head < first + count; ++head) {
        std::vector<double> mean(kDim, 0.0);
        for (int i = 0; centered && i < kDim; ++i) {
            mean[i] = mean_of(rows, head, i);
        }
        for (std::int64_t t = 0; t < rows.num_tokens(); ++t) {
            for (int i = 0; i < kDim; ++i) {
                for (int j = 0; j < kDim; ++j) {
                    out[i][j] += (rows.at(t, head, i) - mean[i]) * (rows.at(t, head, j) - mean[j]) /
                                 static_cast<double>(rows.num_tokens() * count);
                }
            }
        }
    }
    return out;
}

double trace(const Square& m) {
    double sum = 0;
    for (int i = 0; i < kDim; ++i) {
        sum += m[i][i];
    }
    return sum;
}

Square head_matrix(const std::vector<float>& all, int head) {
    Square out(kDim, std::vector<double>(kDim));
    for (int i = 0; i < kDim; ++i) {
        for (int j = 0; j < kDim; ++j) {
            out[i][j] = all[static_cast<std::size_t>((head * kDim + i) * kDim + j)];
        }
    }
    return out;
}

Square transposed(const Square& m) {
    Square out = m;
    for (int i = 0; i < kDim; ++i) {
        for (int j = 0; j < kDim; ++j) {
            out[i][j] = m[j][i];
        }
    }
    return out;
}

Square product(const Square& a, const Square& b) {
    Square out(kDim, std::vector<double>(kDim, 0.0));
    for (int i = 0; i < kDim; ++i) {
        for (int j = 0; j < kDim; ++j) {
            for (int c = 0; c < kDim; ++c) {
                out[i][j] += a[i][c] * b[c][j];
            }
        }
    }
    return out;
}

/// Code space after full: band b of a subspace (channel b of it) has the same energy in every subspace, energies fall from band
/// to band, and bands are uncorrelated.
void expect_bands(const Square& covariance) {
    const double largest = covariance[0][0];
    for (int i = 0; i < kDim; ++i) {
        EXPECT_NEAR(covariance[i][i], covariance[i % kSubDim][i % kSubDim], 0.01 * largest) << i;
        for (int j = 0; j < kDim; ++j) {
            if (i % kSubDim != j % kSubDim) {
                EXPECT_NEAR(covariance[i][j], 0.0, 0.01 * largest) << i << ' ' << j;
            }
        }
    }
    for (int b = 1; b < kSubDim; ++b) {
        EXPECT_LT(covariance[b][b], covariance[b - 1][b - 1]) << b;
    }
}

TEST(Calibrator, SmoothFactorsAreRootsOfTheLargestMagnitudes) {
    Rows keys{.num_heads = 2,
              .head_dim = 4,
              .values = {4, -1, 0, 0.25f, 1, 0.5f, 100, -16,  //
                         -2, 9, 0, -0.0625f, -49, 2.25f, 3, 1}};
    for (const char* scheme :
         {"vecinfer:k2v2,kt=smooth,encode=nearest", "vecinfer:k2v2,kt=center+smooth+hadamard,encode=nearest"}) {
        Calibrator c = calibrator(scheme, 1);
        ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
        ASSERT_TRUE(c.observe_values(kv_rows(keys)).ok());
        EXPECT_EQ(c.tokens(), 2);
        const LayerCalibration layer = c.finish().value().at(0);
        EXPECT_EQ(layer.shape, (LayerShape{kLayer, 2, 4, 4}));
        EXPECT_EQ(layer.smooth_factors, (std::vector<float>{2, 3, kMinSmoothFactor, 0.5f, 7, 1.5f, 10, 4})) << scheme;
        if (resolve(parse_scheme(scheme).value(), true)->key_transform.center) {
            EXPECT_EQ(layer.key_center, (std::vector<float>{1, 4, 0, 0.09375f, -24, 1.375f, 51.5f, -7.5f}));
        } else {
            EXPECT_TRUE(layer.key_center.empty());
        }
        EXPECT_TRUE(layer.value_center.empty());
        EXPECT_TRUE(layer.key_matrix.empty());
        EXPECT_TRUE(layer.value_matrix.empty());
    }
}

TEST(Calibrator, MeansAreTakenOverAllTokensNotOnlyThoseKept) {
    const Rows keys = make_rows(300, kHeads, 1);
    const Rows values = make_rows(200, kHeads, 2);
    Calibrator c = calibrator("vecinfer:k2v2,kt=center,vt=center,encode=nearest", 16);
    ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
    ASSERT_TRUE(c.observe_values(kv_rows(values)).ok());
    EXPECT_EQ(c.tokens(), 300);
    const LayerCalibration layer = c.finish().value().at(0);
    ASSERT_EQ(layer.key_center.size(), static_cast<std::size_t>(kHeads * kDim));
    ASSERT_EQ(layer.value_center.size(), static_cast<std::size_t>(kHeads * kDim));
    for (int i = 0; i < kHeads * kDim; ++i) {
        EXPECT_NEAR(layer.key_center[i], mean_of(keys, i / kDim, i % kDim), 1e-6) << i;
        EXPECT_NEAR(layer.value_center[i], mean_of(values, i / kDim, i % kDim), 1e-6) << i;
    }
}

TEST(Calibrator, OptimalFactorsBalanceKeysAgainstTheQueriesOfTheirGroup) {
    const Rows keys = make_rows(200, kHeads, 3);
    Rows queries = make_rows(150, kHeads * kGroup, 4);
    for (std::int64_t t = 0; t < queries.num_tokens(); ++t) {
        for (int head = kGroup; head < 2 * kGroup; ++head) {
            queries.values[static_cast<std::size_t>((t * queries.num_heads + head) * kDim + 5)] = 0;  // never asked for
        }
    }
    for (const bool center : {false, true}) {
        const std::string kt = center ? "center+smooth-opt" : "smooth-opt+hadamard";
        const LayerCalibration layer = calibrate("vecinfer:k2v2,kt=" + kt, keys, keys, queries);
        ASSERT_EQ(layer.smooth_factors.size(), static_cast<std::size_t>(kHeads * kDim));
        for (int head = 0; head < kHeads; ++head) {
            const Square k = moment(keys, head, 1, center);
            const Square q = moment(queries, head * kGroup, kGroup, false);
            for (int i = 0; i < kDim; ++i) {
                const bool unasked = head == 1 && i == 5;
                const double expected = unasked ? 1.0 : std::pow(k[i][i] / q[i][i], 0.25);
                EXPECT_NEAR(layer.smooth_factors[head * kDim + i], expected, 1e-5 * expected) << kt << ' ' << head << ' ' << i;
            }
        }
    }
}

TEST(Calibrator, QueriesMayBeStrided) {
    const Rows keys = make_rows(100, kHeads, 5);
    const Rows queries = make_rows(100, kHeads * kGroup, 6);
    constexpr std::int64_t kTokenStride = kDim + 3;
    constexpr std::int64_t kHeadStride = 100 * kTokenStride + 1;
    std::vector<float> spread(kHeads * kGroup * kHeadStride, std::numeric_limits<float>::max());
    for (std::int64_t t = 0; t < 100; ++t) {
        for (int h = 0; h < kHeads * kGroup; ++h) {
            for (int i = 0; i < kDim; ++i) {
                spread[static_cast<std::size_t>(t * kTokenStride + h * kHeadStride + i)] =
                    static_cast<float>(queries.at(t, h, i));
            }
        }
    }
    const std::string scheme = "vecinfer:k2v2,kt=center+smooth-opt";
    Calibrator c = calibrator(scheme);
    ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
    ASSERT_TRUE(c.observe_values(kv_rows(keys)).ok());
    QueryRows rows = query_rows(queries);
    rows.queries = spread.data();
    rows.token_stride = kTokenStride;
    rows.head_stride = kHeadStride;
    ASSERT_TRUE(c.observe_queries(rows).ok());
    EXPECT_EQ(c.finish().value().at(0), calibrate(scheme, keys, keys, queries));
}

TEST(Calibrator, FullMatricesTurnScoreErrorsIntoDistances) {
    const Rows keys = make_rows(400, kHeads, 7);
    const Rows queries = make_rows(300, kHeads * kGroup, 8);
    const LayerCalibration layer = calibrate("vecinfer:k2v2,kt=center+full,vt=none", keys, keys, queries);
    ASSERT_EQ(layer.key_matrix.size(), static_cast<std::size_t>(kHeads * kDim * kDim));
    for (int head = 0; head < kHeads; ++head) {
        // The expected squared score error of a key error e is e E[q q^T] e^T; in code space it is |e A|^2.
        const Square a = head_matrix(layer.key_matrix, head);
        const Square metric = product(a, transposed(a));
        const Square expected = moment(queries, head * kGroup, kGroup, false);
        for (int i = 0; i < kDim; ++i) {
            for (int j = 0; j < kDim; ++j) {
                EXPECT_NEAR(metric[i][j], expected[i][j], 2e-3 * trace(expected) / kDim) << head << ' ' << i << ' ' << j;
            }
        }
        expect_bands(product(transposed(a), product(moment(keys, head, 1, true), a)));

        const std::span<const float> matrix = std::span(layer.key_matrix).subspan(head * kDim * kDim, kDim * kDim);
        const std::span<const float> center = std::span(layer.key_center).subspan(head * kDim, kDim);
        const Result<HeadTransform> transform = HeadTransform::create(kDim, {.center = true, .full = true}, {}, center, matrix);
        ASSERT_TRUE(transform.ok()) << transform.status().message();
        for (int t = 0; t < 20; ++t) {
            const float* q = queries.values.data() + (t * kHeads * kGroup + head * kGroup) * kDim;
            const float* k = keys.values.data() + (t * kHeads + head) * kDim;
            float tq[kDim];
            float tk[kDim];
            transform->forward_query(q, tq);
            transform->forward(k, tk);
            double score = transform->query_bias(q);
            double expected_score = 0;
            for (int i = 0; i < kDim; ++i) {
                score += static_cast<double>(tq[i]) * tk[i];
                expected_score += static_cast<double>(q[i]) * k[i];
            }
            EXPECT_NEAR(score, expected_score, 1e-4) << t;
        }
    }
}

TEST(Calibrator, FullMatricesOfValuesAreOrthonormal) {
    const Rows values = make_rows(400, kHeads, 9);
    const LayerCalibration layer = calibrate("vecinfer:k2v2,kt=none,vt=center+full", values, values, make_rows(1, 2, 1));
    ASSERT_EQ(layer.value_matrix.size(), static_cast<std::size_t>(kHeads * kDim * kDim));
    EXPECT_TRUE(layer.key_matrix.empty());
    for (int head = 0; head < kHeads; ++head) {
        const Square a = head_matrix(layer.value_matrix, head);
        const Square unit = product(a, transposed(a));
        for (int i = 0; i < kDim; ++i) {
            for (int j = 0; j < kDim; ++j) {
                EXPECT_NEAR(unit[i][j], i == j ? 1.0 : 0.0, 1e-6) << head << ' ' << i << ' ' << j;
            }
        }
        expect_bands(product(transposed(a), product(moment(values, head, 1, true), a)));
    }
}

TEST(Calibrator, EqualSeedsAndRowsGiveEqualResults) {
    const Rows keys = make_rows(700, kHeads, 10);
    const Rows queries = make_rows(700, kHeads * kGroup, 11);
    for (const char* scheme : {"vecinfer:k2v2,scope=head", "vecinfer:k2v2,kt=center+full,vt=full"}) {
        // 700 tokens, 300 kept: what is kept depends on the seed alone, not on how tokens come in batches.
        const auto result = [&](std::uint64_t seed, std::int64_t batch) {
            Calibrator c = calibrator(scheme, 300, seed);
            for (std::int64_t begin = 0; begin < 700; begin += batch) {
                KvRows rows = kv_rows(keys);
                QueryRows q = query_rows(queries);
                rows.rows += begin * rows.row_stride;
                q.queries += begin * q.token_stride;
                rows.num_tokens = q.num_tokens = std::min(batch, 700 - begin);
                EXPECT_TRUE(c.observe_keys(rows).ok());
                EXPECT_TRUE(c.observe_values(rows).ok());
                EXPECT_TRUE(c.observe_queries(q).ok());
            }
            return c.finish().value();
        };
        const std::vector<LayerCalibration> once = result(5, 700);
        EXPECT_EQ(once, result(5, 700)) << scheme;
        EXPECT_EQ(once, result(5, 64)) << scheme;
        EXPECT_NE(once, result(6, 700)) << scheme;
    }
}

TEST(Calibrator, ResultsMakeCodecs) {
    const Rows keys = make_rows(200, kHeads, 12);
    const Rows queries = make_rows(200, kHeads * kGroup, 13);
    for (const char* text :
         {"vecinfer:k2v2", "vecinfer:k4v1,kt=full,vt=center+full,scope=head", "vecinfer:k2v2,kt=smooth-opt,norm=none",
          "million:k4v2", "million:k2v2,kt=center+hadamard", "rotated:k2v4"}) {
        const Scheme scheme = resolve(parse_scheme(text).value(), true).value();
        const LayerCalibration layer = calibrate(text, keys, keys, queries);
        const std::size_t per_head = scheme.scope == Scope::subspace ? kDim / scheme.key.sub_dim : 1;
        EXPECT_EQ(layer.key_codebooks.size(), scheme.scope == Scope::layer ? 1u : 2 * per_head) << text;
        EXPECT_TRUE(make_key_codec(scheme, layer.shape, &layer).ok()) << text;
        EXPECT_TRUE(make_value_codec(scheme, layer.shape, &layer).ok()) << text;
    }
}

// Product quantization: with no more distinct pieces than centroids, each subspace of each head has its own pieces exactly, up to
// the int8 rounding of its own codebook.
TEST(Calibrator, SubspacesAreTrainedOnTheirOwnPieces) {
    Rows keys = make_rows(100, kHeads, 16);
    for (std::size_t i = 0; i < keys.values.size(); ++i) {
        keys.values[i] *= std::exp2(static_cast<float>(i % (kHeads * kDim)) - 8.0f);  // every channel has a scale of its own
    }
    const LayerCalibration layer = calibrate("million:k2v4", keys, keys, make_rows(100, kHeads * kGroup, 17));
    ASSERT_EQ(layer.key_codebooks.size(), static_cast<std::size_t>(kHeads * kDim / 4));
    ASSERT_EQ(layer.value_codebooks.size(), static_cast<std::size_t>(kHeads * kDim / 2));
    for (const auto& [books, sub_dim] : {std::pair(&layer.key_codebooks, 4), std::pair(&layer.value_codebooks, 2)}) {
        for (std::size_t b = 0; b < books->size(); ++b) {
            const Codebook& book = (*books)[b];
            for (int token = 0; token < 100; ++token) {
                const float* piece = &keys.values[static_cast<std::size_t>(token * kHeads * kDim) + b * sub_dim];
                float nearest = std::numeric_limits<float>::infinity();
                for (int k = 0; k < book.num_centroids(); ++k) {
                    float worst = 0;
                    for (int c = 0; c < sub_dim; ++c) {
                        worst = std::max(worst, std::fabs(piece[c] - book.at(k, c)));
                    }
                    nearest = std::min(nearest, worst);
                }
                ASSERT_LE(nearest, 0.51f * book.scale + 1e-3f * std::fabs(piece[sub_dim - 1])) << b << ' ' << token;
            }
        }
    }
}

TEST(Calibrator, LayersAreTrainedForTheirOwnCodecs) {
    const Rows rows = make_rows(60, kHeads, 18);
    const auto layer_of = [&](const char* text, int layer) -> std::vector<LayerCalibration> {
        Calibrator c = calibrator(text);
        KvRows kv = kv_rows(rows);
        kv.layer = layer;
        EXPECT_TRUE(c.observe_keys(kv).ok());
        EXPECT_TRUE(c.observe_values(kv).ok());
        Result<std::vector<LayerCalibration>> made = c.finish();
        return made.ok() ? std::move(made).value() : std::vector<LayerCalibration>();
    };
    const char* text = "vecinfer:k2v2,kt=none,encode=nearest,layers=1:k4v1/2:f16/3:b3-channel16-sym+d4b8";
    EXPECT_EQ(layer_of(text, 0).at(0).key_codebooks.at(0).sub_dim, 4);
    EXPECT_EQ(layer_of(text, 1).at(0).key_codebooks.at(0).sub_dim, 2);
    EXPECT_EQ(layer_of(text, 1).at(0).value_codebooks.at(0).sub_dim, 8);
    EXPECT_TRUE(layer_of(text, 2).empty());
    EXPECT_TRUE(layer_of(text, 3).at(0).key_codebooks.empty());
    EXPECT_EQ(layer_of(text, 3).at(0).value_codebooks.size(), 1u);
    EXPECT_EQ(Calibrator::create({.scheme = parse_scheme("kivi").value()}).status().message(),
              "scheme: got kivi:k2v2, expected one with codebooks, center, smooth or full: nothing to learn");
}

// So a sidecar serves every encoding that needs no directions of its own.
TEST(Calibrator, TheEncodingChangesNothingButDirections) {
    const Rows keys = make_rows(300, kHeads, 21);
    const Rows queries = make_rows(300, kHeads * kGroup, 22);
    LayerCalibration shaped = calibrate("vecinfer:k2v2", keys, keys, queries);
    EXPECT_FALSE(shaped.key_shaping.empty());
    shaped.key_shaping.clear();
    EXPECT_EQ(calibrate("vecinfer:k2v2,encode=nearest", keys, keys, queries), shaped);
    EXPECT_EQ(calibrate("vecinfer:k2v2,encode=unbiased", keys, keys, queries), shaped);
}

TEST(Calibrator, HeadsThatAreAlwaysZeroAreNoError) {
    const Rows zeros{.values = std::vector<float>(50 * kHeads * kDim, 0.0f)};
    const Rows no_queries{.num_heads = kHeads * kGroup, .values = std::vector<float>(50 * kHeads * kGroup * kDim, 0.0f)};
    for (const char* scheme : {"vecinfer:k2v2,scope=head", "vecinfer:k2v2,scope=head,kt=smooth-opt",
                               "vecinfer:k2v2,scope=head,kt=center+full,vt=full"}) {
        const LayerCalibration layer = calibrate(scheme, zeros, zeros, no_queries);
        EXPECT_EQ(layer.key_codebooks.size(), 2u) << scheme;
    }
}

TEST(Calibrator, BadRowsAreNamed) {
    const Rows keys = make_rows(4, kHeads, 14);
    Calibrator c = calibrator("vecinfer:k2v2,kt=smooth-opt");
    ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
    ASSERT_TRUE(c.observe_values(kv_rows(keys)).ok());
    KvRows wide = kv_rows(keys);
    wide.num_kv_heads = 1;
    wide.head_dim = 2 * kDim;
    EXPECT_EQ(c.observe_keys(wide).message(), "layer 3 keys: got 1 heads of 16, expected 2 heads of 8 as before");
    EXPECT_EQ(c.observe_values(wide).code(), ErrorCode::invalid_argument);

    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        Rows broken = keys;
        broken.values[kHeads * kDim + 9] = bad;
        const std::string got = std::string(std::isnan(bad) ? "nan" : "-inf") + " in channel 9, expected finite rows";
        EXPECT_EQ(c.observe_keys(kv_rows(broken)).message(), "layer 3 keys: got " + got);
        EXPECT_EQ(c.observe_values(kv_rows(broken)).message(), "layer 3 values: got " + got);
    }

    const Rows queries = make_rows(4, kHeads * kGroup, 15);
    ASSERT_TRUE(c.observe_queries(query_rows(queries)).ok());
    QueryRows fewer = query_rows(queries);
    fewer.num_qo_heads = kHeads;
    EXPECT_EQ(c.observe_queries(fewer).message(), "layer 3 queries: got 2 heads of 8, expected 6 heads of 8 as before");
    QueryRows uneven = query_rows(queries);
    uneven.num_qo_heads = 5;
    EXPECT_EQ(c.observe_queries(uneven).message(), "layer 3 query heads: got 5, expected a multiple of 2 KV heads");
}

TEST(Calibrator, WhatIsMissingIsNamed) {
    const Rows keys = make_rows(50, kHeads, 16);
    for (const char* kt : {"smooth-opt", "center+smooth-opt+hadamard", "full", "center+full"}) {
        Calibrator c = calibrator(std::string("vecinfer:k2v2,kt=") + kt);
        ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
        ASSERT_TRUE(c.observe_values(kv_rows(keys)).ok());
        const Status status = c.finish().status();
        EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << kt;
        EXPECT_EQ(status.message(),
                  "layer 3 queries: got none, expected queries of every layer, which smooth-opt, full and shaped need, for 2 KV "
                  "heads of 8");
    }
    Calibrator c = calibrator("vecinfer:k2v2,kt=smooth+hadamard,encode=nearest");
    EXPECT_EQ(c.tokens(), 0);
    EXPECT_EQ(c.finish().status().message(), "observations: got none, expected keys and values of at least one layer");
    ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
    EXPECT_EQ(c.finish().status().message(), "layer 3: got 50 keys and 0 values, expected keys and values of the same heads");
    ASSERT_TRUE(c.observe_values(kv_rows(keys)).ok());
    EXPECT_TRUE(c.finish().ok()) << "the paper's recipe needs no queries";
}

TEST(Calibrator, BadQueriesAndShapesAreErrors) {
    const Rows keys = make_rows(40, kHeads, 5);
    Rows queries = make_rows(40, 3, 6);
    const auto query_rows = [&](int num_kv_heads, int num_qo_heads) {
        return QueryRows{kLayer, num_kv_heads, num_qo_heads, kDim, queries.num_tokens(), queries.values.data(), 3 * kDim, kDim};
    };
    Calibrator c = calibrator("vecinfer:k2v2,kt=smooth-opt+hadamard");
    EXPECT_FALSE(c.observe_queries(query_rows(1, 0)).ok());
    EXPECT_FALSE(c.observe_queries(query_rows(2, 3)).ok());
    EXPECT_FALSE(c.observe_keys({kLayer, -1, kDim, 1, keys.values.data(), kDim}).ok());
    ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
    ASSERT_TRUE(c.observe_values(kv_rows(keys)).ok());
    // Three query heads cannot be shared by the two heads of the keys.
    ASSERT_TRUE(c.observe_queries(query_rows(1, 3)).ok());
    EXPECT_EQ(c.finish().status().code(), ErrorCode::invalid_argument);
    queries.values[4] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(c.observe_queries(query_rows(1, 3)).ok());
}

TEST(Calibrator, BadOptionsAreNamed) {
    EXPECT_EQ(Calibrator::create({.scheme = f16_scheme()}).status().message(),
              "scheme: got f16, expected a scheme with codebooks");
    EXPECT_EQ(Calibrator::create({.scheme = {}, .tokens_per_layer = 0}).status().message(),
              "tokens_per_layer: got 0, expected at least 1");
    Scheme smoothed_values;
    smoothed_values.value_transform = {.smooth = true};
    EXPECT_FALSE(Calibrator::create({.scheme = smoothed_values}).ok());
}

TEST(Calibrator, ProgressRisesAndCancels) {
    const Rows keys = make_rows(100, kHeads, 17);
    Calibrator c = calibrator("vecinfer:k2v2,kt=hadamard,encode=nearest");
    ASSERT_TRUE(c.observe_keys(kv_rows(keys)).ok());
    ASSERT_TRUE(c.observe_values(kv_rows(keys)).ok());
    double last = 0;
    ASSERT_TRUE(c.finish([&](double share) {
                     EXPECT_GE(share, last);
                     EXPECT_LE(share, 1.0);
                     last = share;
                     return true;
                 }).ok());
    EXPECT_GT(last, 0.5);
    EXPECT_EQ(c.finish([](double share) { return share < 0.5; }).status().code(), ErrorCode::cancelled);
}

}  // namespace
}  // namespace vecinfer
