#include "vecinfer/transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
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

}  // namespace
}  // namespace vecinfer
