#include "vecinfer/transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "random.h"
#include "transform/hadamard.h"

namespace vecinfer {
namespace {

using Matrix = std::vector<std::vector<double>>;

const std::vector<int> kHeadDims = {64, 80, 96, 112, 128, 192, 256, 2, 48, 576, 1024, 6, 130};

/// Rows of the transform, read off by sending unit vectors through it.
Matrix matrix_of(Status (*apply)(float*, int), int n) {
    Matrix rows;
    for (int i = 0; i < n; ++i) {
        std::vector<float> x(static_cast<std::size_t>(n), 0.0f);
        x[static_cast<std::size_t>(i)] = 1.0f;
        EXPECT_TRUE(apply(x.data(), n).ok());
        rows.emplace_back(x.begin(), x.end());
    }
    return rows;
}

std::vector<float> random_vector(int n, Random& random) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& v : x) {
        v = static_cast<float>(random.normal());
    }
    return x;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        sum += static_cast<double>(a[i]) * b[i];
    }
    return sum;
}

class HeadDims : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Transform, HeadDims, testing::ValuesIn(kHeadDims), testing::PrintToStringParamName());

TEST_P(HeadDims, MatrixIsOrthonormal) {
    const int n = GetParam();
    const Matrix h = matrix_of(hadamard, n);
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j <= i; ++j) {
            double sum = 0;
            for (int c = 0; c < n; ++c) {
                sum += h[i][c] * h[j][c];
            }
            ASSERT_NEAR(sum, i == j ? 1.0 : 0.0, 1e-6) << i << ' ' << j;
        }
    }
}

TEST_P(HeadDims, InverseIsTheTransposedMatrix) {
    const int n = GetParam();
    const Matrix h = matrix_of(hadamard, n);
    const Matrix inverse = matrix_of(hadamard_inverse, n);
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            ASSERT_EQ(h[i][j], inverse[j][i]) << i << ' ' << j;
        }
    }
}

TEST_P(HeadDims, VectorsAgreeWithTheNaiveProduct) {
    const int n = GetParam();
    const Matrix h = matrix_of(hadamard, n);
    Random random(7);
    const std::vector<float> x = random_vector(n, random);
    std::vector<float> y = x;
    ASSERT_TRUE(hadamard(y.data(), n).ok());
    for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int i = 0; i < n; ++i) {
            sum += x[i] * h[i][j];
        }
        ASSERT_NEAR(y[j], sum, 1e-5) << j;
    }
    ASSERT_TRUE(hadamard_inverse(y.data(), n).ok());
    for (int i = 0; i < n; ++i) {
        ASSERT_NEAR(y[i], x[i], 4e-6) << i;
    }
}

TEST_P(HeadDims, SmoothedScoresAreUnchanged) {
    const int n = GetParam();
    Random random(11);
    std::vector<float> factors(static_cast<std::size_t>(n));
    for (float& f : factors) {
        f = static_cast<float>(std::exp(2.0 * random.normal()));
    }
    for (const bool smooth : {false, true}) {
        for (const bool rotate : {false, true}) {
            const TransformSpec spec{.smooth = smooth, .hadamard = rotate};
            const Result<HeadTransform> transform =
                HeadTransform::create(n, spec, smooth ? std::span<const float>(factors) : std::span<const float>());
            ASSERT_TRUE(transform.ok()) << transform.status().message();
            EXPECT_EQ(transform.value().is_identity(), !smooth && !rotate);
            const std::vector<float> q = random_vector(n, random);
            const std::vector<float> k = random_vector(n, random);
            std::vector<float> tq(q.size());
            std::vector<float> tk(k.size());
            std::vector<float> back(k.size());
            transform.value().forward_query(q.data(), tq.data());
            transform.value().forward(k.data(), tk.data());
            transform.value().inverse(tk.data(), back.data());
            EXPECT_NEAR(dot(tq, tk), dot(q, k), 1e-6 * std::sqrt(dot(tq, tq) * dot(tk, tk)) + 1e-5);
            for (int i = 0; i < n; ++i) {
                const double spread = smooth ? factors[i] * std::sqrt(dot(tk, tk)) : std::sqrt(dot(k, k));
                ASSERT_NEAR(back[i], k[i], 2e-6 * spread) << i;
            }
            std::vector<float> in_place = k;
            transform.value().forward(in_place.data(), in_place.data());
            EXPECT_EQ(in_place, tk);
            transform.value().inverse(in_place.data(), in_place.data());
            EXPECT_EQ(in_place, back);
        }
    }
}

/// Invertible: the eigenvalues of a random matrix with entries of variance 1/n lie in the unit disc.
std::vector<float> random_matrix(int n, Random& random) {
    std::vector<float> matrix = random_vector(n * n, random);
    for (int i = 0; i < n * n; ++i) {
        matrix[i] = matrix[i] / std::sqrt(static_cast<float>(n)) + (i % (n + 1) == 0 ? 3.0f : 0.0f);
    }
    return matrix;
}

double length(const std::vector<float>& a) {
    return std::sqrt(dot(a, a));
}

struct NamedTransform {
    const char* name;
    HeadTransform transform;
    double gain;  // bounds |inverse| for the tolerances
};

/// Everything that needs a mean or a matrix. Matrices are inverted in n^3 steps, so not for the largest heads.
std::vector<NamedTransform> centered_and_full(int n, std::span<const float> center, std::span<const float> matrix) {
    std::vector<float> factors;
    for (int i = 0; i < n; ++i) {
        factors.push_back(0.5f + static_cast<float>(i % 5));
    }
    std::vector<NamedTransform> out;
    const auto add = [&](const char* name, const TransformSpec& spec) {
        Result<HeadTransform> t =
            HeadTransform::create(n, spec, spec.smooth ? factors : std::span<const float>(),
                                  spec.center ? center : std::span<const float>(), spec.full ? matrix : std::span<const float>());
        ASSERT_TRUE(t.ok()) << name << ": " << t.status().message();
        out.push_back({name, std::move(t.value()), spec.smooth ? 4.5 : 1.0});
    };
    add("center", {.center = true});
    add("center+hadamard", {.hadamard = true, .center = true});
    add("center+smooth", {.smooth = true, .center = true});
    add("center+smooth-opt+hadamard", {.smooth = true, .hadamard = true, .center = true, .optimal = true});
    if (n <= 256) {
        add("full", {.full = true});
        add("center+full", {.center = true, .full = true});
    }
    return out;
}

TEST_P(HeadDims, CenteredAndFullScoresAreUnchanged) {
    const int n = GetParam();
    Random random(17);
    const std::vector<float> center = random_vector(n, random);
    for (const auto& [name, transform, gain] : centered_and_full(n, center, random_matrix(n, random))) {
        EXPECT_FALSE(transform.is_identity()) << name;
        const std::vector<float> q = random_vector(n, random);
        const std::vector<float> x = random_vector(n, random);
        std::vector<float> tq(q.size());
        std::vector<float> tx(x.size());
        transform.forward_query(q.data(), tq.data());
        transform.forward(x.data(), tx.data());
        const double bias = std::string(name).starts_with("center") ? dot(q, center) : 0.0;
        EXPECT_NEAR(transform.query_bias(q.data()), bias, 1e-6 * length(q) * length(center) + 1e-6) << name;
        EXPECT_NEAR(dot(tq, tx) + transform.query_bias(q.data()), dot(q, x), 4e-6 * (length(tq) * length(tx) + length(q)))
            << name;

        std::vector<float> in_place = q;
        transform.forward_query(in_place.data(), in_place.data());
        EXPECT_EQ(in_place, tq) << name;
        in_place = x;
        transform.forward(in_place.data(), in_place.data());
        EXPECT_EQ(in_place, tx) << name;

        std::vector<float> back(x.size());
        transform.inverse(tx.data(), back.data());
        for (int i = 0; i < n; ++i) {
            ASSERT_NEAR(back[i], x[i], 4e-6 * (gain * length(tx) + length(x))) << name << ' ' << i;
        }
        transform.inverse(in_place.data(), in_place.data());
        EXPECT_EQ(in_place, back) << name;
    }
}

TEST_P(HeadDims, InverseOfASumWeighsTheMean) {
    const int n = GetParam();
    Random random(19);
    const std::vector<float> center = random_vector(n, random);
    for (const auto& [name, transform, gain] : centered_and_full(n, center, random_matrix(n, random))) {
        // Softmax weights add up to 1, less where an attention sink takes a share, and to 0 for no tokens at all.
        for (const std::vector<float>& weights :
             {std::vector<float>{0.5f, 0.25f, 0.25f}, {0.125f, 0.0625f, 0.25f}, {1.0f, -3.0f, 2.0f}, {0.0f, 0.0f, 0.0f}}) {
            std::vector<double> expected(center.size(), 0.0);
            std::vector<float> sum(center.size(), 0.0f);
            float total = 0;
            for (const float w : weights) {
                const std::vector<float> x = random_vector(n, random);
                std::vector<float> y(x.size());
                transform.forward(x.data(), y.data());
                for (int i = 0; i < n; ++i) {
                    expected[i] += static_cast<double>(w) * x[i];
                    sum[i] += w * y[i];
                }
                total += w;
            }
            std::vector<float> got(center.size());
            transform.inverse_sum(sum.data(), total, got.data());
            for (int i = 0; i < n; ++i) {
                ASSERT_NEAR(got[i], expected[i], 2e-5 * (gain + 1) * std::sqrt(n)) << name << ' ' << i << ' ' << total;
            }
        }
    }
}

TEST(Transform, FullIsTheMatrixAfterTheMean) {
    constexpr int n = 48;
    Random random(23);
    const std::vector<float> center = random_vector(n, random);
    const std::vector<float> matrix = random_matrix(n, random);
    const HeadTransform transform = HeadTransform::create(n, {.center = true, .full = true}, {}, center, matrix).value();
    const std::vector<float> x = random_vector(n, random);
    std::vector<float> y(n);
    std::vector<float> q(n);
    transform.forward(x.data(), y.data());
    transform.forward_query(x.data(), q.data());
    for (int j = 0; j < n; ++j) {
        double forward = 0;  // ((x - m) A)_j
        double query = 0;    // (q A^-T) A^T = q
        for (int i = 0; i < n; ++i) {
            forward += (static_cast<double>(x[i]) - center[i]) * matrix[i * n + j];
            query += static_cast<double>(q[i]) * matrix[j * n + i];
        }
        ASSERT_NEAR(y[j], forward, 2e-5) << j;
        ASSERT_NEAR(query, x[j], 2e-5) << j;
    }
}

TEST(Transform, MatricesThatNeedPivotsAreInverted) {
    const std::vector<float> swap = {0, 2, 0, 0, 0, 0, 0.5f, 0, 0, 0, 0, -4, 8, 0, 0, 0};
    const HeadTransform transform = HeadTransform::create(4, {.full = true}, {}, {}, swap).value();
    const float x[4] = {1, 2, 3, 4};
    float y[4];
    transform.forward(x, y);
    EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{32.0f, 2.0f, 1.0f, -12.0f}));
    transform.forward_query(x, y);
    EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{0.5f, 0.5f, 4.0f, -0.75f}));
    transform.inverse(x, y);
    EXPECT_EQ(std::vector<float>(y, y + 4), (std::vector<float>{1.0f, 6.0f, -1.0f, 0.125f}));
}

TEST(Transform, PowersOfTwoAreTheSylvesterMatrix) {
    for (int n : {2, 8, 64, 256}) {
        const Matrix h = matrix_of(hadamard, n);
        for (int i = 0; i < n; ++i) {
            for (int j = 0; j < n; ++j) {
                const double sign = __builtin_parity(static_cast<unsigned>(i & j)) ? -1 : 1;
                ASSERT_NEAR(h[i][j], sign / std::sqrt(n), 1e-7) << n << ' ' << i << ' ' << j;
            }
        }
    }
}

TEST(Transform, SpikesSpreadFlatOverTheWholeVector) {
    for (int n : {2, 12, 20, 28, 48, 64, 80, 96, 112, 128, 192, 224, 256, 448, 640, 768, 896, 1024}) {
        for (const auto& row : matrix_of(hadamard, n)) {
            for (double v : row) {
                ASSERT_NEAR(std::abs(v), 1 / std::sqrt(n), 1e-6) << n;
            }
        }
    }
}

TEST(Transform, OtherSizesSpreadOverTheirBlock) {
    std::vector<float> x(576, 0.0f);
    x[3] = 1.0f;
    x[512] = 2.0f;
    ASSERT_TRUE(hadamard(x.data(), 576).ok());
    for (int i = 0; i < 576; ++i) {
        ASSERT_NEAR(std::abs(x[i]), i < 512 ? 1 / std::sqrt(512.0) : 2 / 8.0, 1e-6) << i;
    }
}

TEST(Transform, FactorsBelowTheFloorAreRaisedToIt) {
    const std::vector<float> factors = {1e-6f, 2.0f};
    const Result<HeadTransform> transform = HeadTransform::create(2, {.smooth = true}, factors);
    ASSERT_TRUE(transform.ok());
    const float x[2] = {1.0f, 1.0f};
    float y[2];
    transform.value().forward(x, y);
    EXPECT_FLOAT_EQ(y[0], 1.0f / kMinSmoothFactor);
    EXPECT_FLOAT_EQ(y[1], 0.5f);
}

TEST(Transform, HashTellsTransformsApart) {
    const std::vector<float> ones(64, 1.0f);
    std::vector<float> other = ones;
    other[63] = std::nextafter(1.0f, 2.0f);
    const auto hash = [](int n, TransformSpec spec, std::span<const float> factors) {
        return HeadTransform::create(n, spec, factors).value().hash();
    };
    const std::uint64_t base = hash(64, {.smooth = true, .hadamard = true}, ones);
    EXPECT_EQ(base, hash(64, {.smooth = true, .hadamard = true}, ones));
    EXPECT_NE(base, hash(64, {.smooth = true, .hadamard = true}, other));
    EXPECT_NE(base, hash(64, {.smooth = true}, ones));
    EXPECT_NE(base, hash(64, {.hadamard = true}, {}));
    EXPECT_NE(hash(64, {.hadamard = true}, {}), hash(128, {.hadamard = true}, {}));

    std::vector<float> identity(16, 0.0f);
    identity[0] = identity[5] = identity[10] = identity[15] = 1.0f;
    std::vector<float> sheared = identity;
    sheared[1] = 1e-30f;
    const std::vector<float> zeros(4, 0.0f);
    const std::vector<float> small = {0, 0, 0, 1e-30f};
    const auto full_hash = [](std::span<const float> center, std::span<const float> matrix) {
        const TransformSpec spec{.center = !center.empty(), .full = !matrix.empty()};
        return HeadTransform::create(4, spec, {}, center, matrix).value().hash();
    };
    const std::set<std::uint64_t> hashes = {full_hash({}, {}),          full_hash(zeros, {}),     full_hash(small, {}),
                                            full_hash({}, identity),    full_hash({}, sheared),   full_hash(zeros, identity),
                                            full_hash(small, identity), full_hash(zeros, sheared)};
    EXPECT_EQ(hashes.size(), 8u);
    EXPECT_EQ(full_hash(small, sheared), full_hash(small, sheared));
}

TEST(Transform, BadArgumentsAreNamed) {
    float x[8] = {};
    for (int n : {-2, 0, 1, 3, 65, 1026, 4096}) {
        for (const Status& status : {hadamard(x, n), hadamard_inverse(x, n), HeadTransform::create(n, {}, {}).status()}) {
            EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << n;
            EXPECT_NE(status.message().find("head_dim: got " + std::to_string(n)), std::string::npos) << status.message();
        }
    }
    const auto message = [](const TransformSpec& spec, std::vector<float> factors) {
        const Status status = HeadTransform::create(4, spec, factors).status();
        EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
        return status.message();
    };
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_NE(message({.smooth = true}, {1, 1, 0, 1}).find("smooth_factors[2]: got 0"), std::string::npos);
    EXPECT_NE(message({.smooth = true}, {1, 1, 1, -1}).find("smooth_factors[3]: got -1"), std::string::npos);
    EXPECT_NE(message({.smooth = true}, {infinity, 1, 1, 1}).find("smooth_factors[0]: got inf"), std::string::npos);
    EXPECT_NE(message({.smooth = true}, {1, nan, 1, 1}).find("smooth_factors[1]: got nan"), std::string::npos);
    EXPECT_NE(message({.smooth = true}, {1, 1, 1}).find("smooth_factors: got 3 values, expected 4"), std::string::npos);
    EXPECT_NE(message({.smooth = false}, {1, 1, 1, 1}).find("smooth_factors: got 4 values, expected none"), std::string::npos);
    EXPECT_NE(message({.automatic = true}, {}).find("transform: got automatic"), std::string::npos);
}

TEST(Transform, BadMeansAndMatricesAreNamed) {
    using Values = std::vector<float>;
    const auto message = [](const TransformSpec& spec, const Values& factors, const Values& center, const Values& matrix) {
        const Status status = HeadTransform::create(2, spec, factors, center, matrix).status();
        EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
        return status.message();
    };
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Values unit = {1, 0, 0, 1};
    EXPECT_EQ(message({.center = true}, {}, {1}, {}), "center: got 1 values, expected 2, one per channel");
    EXPECT_EQ(message({.center = true}, {}, {}, {}), "center: got 0 values, expected 2, one per channel");
    EXPECT_EQ(message({}, {}, {1, 2}, {}), "center: got 2 values, expected none for a transform without center");
    EXPECT_EQ(message({.center = true}, {}, {1, nan}, {}), "center[1]: got nan, expected a finite number");
    EXPECT_EQ(message({.center = true}, {}, {-infinity, 1}, {}), "center[0]: got -inf, expected a finite number");
    EXPECT_EQ(message({.full = true}, {}, {}, {}), "matrix: got 0 values, expected 4");
    EXPECT_EQ(message({.full = true}, {}, {}, {1, 0, 0}), "matrix: got 3 values, expected 4");
    EXPECT_EQ(message({}, {}, {}, unit), "matrix: got 4 values, expected none for a transform without full");
    EXPECT_EQ(message({.full = true}, {}, {}, {1, 0, nan, 1}), "matrix: got nan, expected finite numbers");
    EXPECT_EQ(message({.full = true}, {}, {}, {1, infinity, 0, 1}), "matrix: got inf, expected finite numbers");
    EXPECT_EQ(message({.smooth = true, .full = true}, {1, 1}, {}, unit),
              "transform: got full with smooth or hadamard, expected full alone or after center");
    EXPECT_EQ(message({.hadamard = true, .full = true}, {}, {}, unit),
              "transform: got full with smooth or hadamard, expected full alone or after center");
    const std::string singular = "matrix: got a singular or nearly singular one, expected an invertible one";
    for (const Values& matrix : {Values{0, 0, 0, 0}, Values{1, 0, 0, 0}, Values{0, 0, 1, 1}, Values{1, 2, 2, 4},
                                 Values{1e20f, 0, 0, 1}, Values{1, 1, 1, 1}}) {
        EXPECT_EQ(message({.full = true}, {}, {}, matrix), singular);
    }
    // Small or large is not singular.
    EXPECT_TRUE(HeadTransform::create(2, {.full = true}, {}, {}, Values{1e-20f, 0, 0, 1e-20f}).ok());
    EXPECT_TRUE(HeadTransform::create(2, {.full = true}, {}, {}, Values{1e20f, 0, 0, -1e20f}).ok());
}

}  // namespace
}  // namespace vecinfer
