// Attention-weighted calibration against the definition in loops and double.
#include <gtest/gtest.h>

#include <cmath>

#include "random.h"
#include "vecinfer/calibrate.h"

namespace vecinfer {
namespace {

constexpr int kTokens = 60;  // of which a quarter is taken as recent
constexpr int kHeads = 2;
constexpr int kGroup = 3;
constexpr int kDim = 16;
constexpr float kScale = 0.3f;

struct Batch {
    std::vector<float> keys;     // (kTokens, kHeads, kDim)
    std::vector<float> queries;  // (kTokens, kHeads * kGroup, kDim)

    double k(int t, int head, int d) const { return keys[(t * kHeads + head) * kDim + d]; }
    double q(int t, int head, int d) const { return queries[(t * kHeads * kGroup + head) * kDim + d]; }
    KvRows key_rows() const { return {0, kHeads, kDim, kTokens, keys.data(), kHeads * kDim}; }
    QueryRows query_rows() const {
        return {0, kHeads, kHeads * kGroup, kDim, kTokens, queries.data(), kHeads * kGroup * kDim, kDim};
    }
};

Batch make_batch(std::uint64_t seed) {
    Random random(seed);
    Batch out;
    for (int i = 0; i < kTokens * kHeads * kDim; ++i) {
        out.keys.push_back(static_cast<float>(random.normal() * (1 + i % kDim % 4) + 0.5 * (i % 3)));
    }
    for (int i = 0; i < kTokens * kHeads * kGroup * kDim; ++i) {
        out.queries.push_back(static_cast<float>(random.normal() + (i % kDim == 2 ? 2.0 : 0.0)));
    }
    return out;
}

struct Expected {
    double key_weight = 0;
    std::vector<double> mean = std::vector<double>(kDim);
    std::vector<double> square = std::vector<double>(kDim);
    double query_weight = 0;
    std::vector<double> moment = std::vector<double>(kDim * kDim);
};

// Scheme window recent=128, sink=4: of 60 tokens, 15 count as recent and 4 as sinks.
Expected expect(const std::vector<Batch>& batches, int head) {
    Expected out;
    for (const Batch& b : batches) {
        for (int t = 19; t < kTokens; ++t) {
            for (int g = 0; g < kGroup; ++g) {
                const int qo = head * kGroup + g;
                std::vector<double> p(t + 1);
                double sum = 0;
                double q_square = 0;
                for (int d = 0; d < kDim; ++d) {
                    q_square += b.q(t, qo, d) * b.q(t, qo, d);
                }
                for (int i = 0; i <= t; ++i) {
                    double s = 0;
                    for (int d = 0; d < kDim; ++d) {
                        s += b.q(t, qo, d) * b.k(i, head, d);
                    }
                    sum += p[i] = std::exp(kScale * s);
                }
                double weight = 0;
                for (int i = 4; i <= t - 15; ++i) {
                    const double f = p[i] / sum * (1 - p[i] / sum);
                    weight += f;
                    out.key_weight += f * q_square;
                    for (int d = 0; d < kDim; ++d) {
                        out.mean[d] += f * q_square * b.k(i, head, d);
                        out.square[d] += f * q_square * b.k(i, head, d) * b.k(i, head, d);
                    }
                }
                out.query_weight += weight;
                for (int i = 0; i < kDim * kDim; ++i) {
                    out.moment[i] += weight * b.q(t, qo, i / kDim) * b.q(t, qo, i % kDim);
                }
            }
        }
    }
    for (int d = 0; d < kDim; ++d) {
        out.mean[d] /= out.key_weight;
        out.square[d] /= out.key_weight;
    }
    for (double& m : out.moment) {
        m /= out.query_weight;
    }
    return out;
}

LayerCalibration calibrate(const char* scheme, const std::vector<Batch>& batches) {
    Calibrator c = Calibrator::create({.scheme = parse_scheme(scheme).value(), .num_threads = 1}).value();
    for (const Batch& b : batches) {
        EXPECT_TRUE(c.observe_attention(b.key_rows(), b.query_rows(), kScale).ok());
        EXPECT_TRUE(c.observe_values(b.key_rows()).ok());
    }
    const Result<std::vector<LayerCalibration>> layers = c.finish();
    EXPECT_TRUE(layers.ok()) << layers.status().message();
    return layers.value().at(0);
}

TEST(Relevance, CenterAndSmoothFactorsAreWeightedByAttention) {
    const std::vector<Batch> batches = {make_batch(1), make_batch(2)};
    const LayerCalibration layer = calibrate("vecinfer:k2v2,kt=center+smooth-opt+hadamard", batches);
    for (int head = 0; head < kHeads; ++head) {
        const Expected e = expect(batches, head);
        for (int d = 0; d < kDim; ++d) {
            EXPECT_NEAR(layer.key_center[head * kDim + d], e.mean[d], 1e-4 * (1 + std::fabs(e.mean[d])));
            const double k = e.square[d] - e.mean[d] * e.mean[d];
            EXPECT_NEAR(layer.smooth_factors[head * kDim + d], std::pow(k / e.moment[d * kDim + d], 0.25), 1e-3);
        }
    }
}

// The directions are eigenvectors of E[q q^T] in code space, the strongest first, each with its excess over the mean of the rest.
TEST(Relevance, ShapingDirectionsAreTheStrongestOfTheQueries) {
    const std::vector<Batch> batches = {make_batch(3)};
    const LayerCalibration layer = calibrate("vecinfer:k2v2,kt=none,vt=none", batches);
    constexpr int kRank = kDim / 4;
    ASSERT_EQ(layer.key_shaping.size(), static_cast<std::size_t>(kHeads * kRank * kDim));
    for (int head = 0; head < kHeads; ++head) {
        const Expected e = expect(batches, head);
        double trace = 0;
        for (int d = 0; d < kDim; ++d) {
            trace += e.moment[d * kDim + d];
        }
        std::vector<double> values;
        std::vector<double> lengths;
        double strongest = 0;
        for (int r = 0; r < kRank; ++r) {
            const float* u = layer.key_shaping.data() + (head * kRank + r) * kDim;
            double length = 0;
            double along = 0;
            std::vector<double> image(kDim);
            for (int i = 0; i < kDim; ++i) {
                length += static_cast<double>(u[i]) * u[i];
                for (int j = 0; j < kDim; ++j) {
                    image[i] += e.moment[i * kDim + j] * (kDim / trace) * u[j];
                }
                along += image[i] * u[i];
            }
            ASSERT_GT(length, 0);
            const double value = along / length;
            for (int i = 0; i < kDim; ++i) {
                EXPECT_NEAR(image[i], value * u[i], 2e-3 * value);
            }
            values.push_back(value);
            lengths.push_back(length);
            strongest += value;
        }
        EXPECT_TRUE(std::is_sorted(values.rbegin(), values.rend()));
        const double rest = (kDim - strongest) / (kDim - kRank);
        for (int r = 0; r < kRank; ++r) {
            EXPECT_GE(values[r], rest);
            EXPECT_NEAR(lengths[r], (values[r] - rest) / (rest + 10.0), 1e-3);
        }
    }
}

TEST(Relevance, NothingReadFromCodesFallsBackToEveryRowAlike) {
    Batch b = make_batch(4);
    // Every query gives all its attention to itself, which is always recent.
    for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < kHeads * kDim; ++i) {
            b.keys[t * kHeads * kDim + i] = i % kDim == 0 ? 1000.0f * static_cast<float>(t) : 0.0f;
        }
        for (int i = 0; i < kHeads * kGroup * kDim; ++i) {
            b.queries[t * kHeads * kGroup * kDim + i] = i % kDim == 0 ? 1000.0f : 0.0f;
        }
    }
    const LayerCalibration layer = calibrate("vecinfer:k2v2,kt=center+hadamard", {b});
    EXPECT_NEAR(layer.key_center[0], 1000.0 * (kTokens - 1) / 2, 1.0);
}

TEST(Relevance, KeysAndQueriesMustMatch) {
    const Batch b = make_batch(5);
    Calibrator c = Calibrator::create({.scheme = parse_scheme("vecinfer").value()}).value();
    QueryRows fewer = b.query_rows();
    fewer.num_tokens = 10;
    EXPECT_EQ(
        c.observe_attention(b.key_rows(), fewer, kScale).message(),
        "layer 0 queries: got 10 tokens for 2 KV heads of 16, expected 60 tokens for 2 KV heads of 16, as the keys of layer 0");
    EXPECT_FALSE(c.observe_attention(b.key_rows(), b.query_rows(), 0.0f).ok());
    EXPECT_FALSE(c.observe_attention(b.key_rows(), b.query_rows(), NAN).ok());
}

}  // namespace
}  // namespace vecinfer
