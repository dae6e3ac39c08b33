// The numbers that caches store: f16 and one-byte norms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/f16.h"
#include "unit/half_by_definition.h"
#include "vecinfer/codec.h"

namespace vecinfer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(F16, EveryHalfConvertsExactlyAndBack) {
    for (int i = 0; i < 65536; ++i) {
        const auto half = static_cast<std::uint16_t>(i);
        const double expected = half_by_definition(half);
        const float got = f16_to_f32(half);
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(got)) << i;
            ASSERT_EQ(f32_to_f16(got), 0) << i;
            continue;
        }
        ASSERT_EQ(got, expected) << i;
        ASSERT_EQ(std::signbit(got), (half & 0x8000) != 0) << i;
        ASSERT_EQ(f32_to_f16(got), std::isinf(expected) ? 0 : half) << i;
    }
}

TEST(F16, RoundsToNearestEvenBetweenNeighbours) {
    for (int i = 0; i < 0x7bff; ++i) {
        const auto low = static_cast<std::uint16_t>(i);
        const auto high = static_cast<std::uint16_t>(i + 1);
        const double middle = (half_by_definition(low) + half_by_definition(high)) / 2;  // exact in float
        const auto at = static_cast<float>(middle);
        ASSERT_EQ(at, middle);
        const std::uint16_t even = i % 2 == 0 ? low : high;
        for (const auto& [x, expected] :
             {std::pair{at, even}, std::pair{std::nextafter(at, 0.0f), low}, std::pair{std::nextafter(at, kInfinity), high}}) {
            ASSERT_EQ(f32_to_f16(x), expected) << i;
            ASSERT_EQ(f32_to_f16(-x), expected | 0x8000) << i;
            ASSERT_EQ(round_to_f16(x), half_by_definition(expected)) << i;
            ASSERT_EQ(round_to_f16(-x), -half_by_definition(expected)) << i;
        }
    }
}

TEST(F16, ClampsLargeAndDropsNonFinite) {
    for (float x : {65504.0f, 65519.0f, 65520.0f, 1e6f, std::numeric_limits<float>::max()}) {
        EXPECT_EQ(round_to_f16(x), 65504.0f);
        EXPECT_EQ(f32_to_f16(-x), 0xfbff);
    }
    for (float x : {kInfinity, -kInfinity, kNan, -kNan}) {
        EXPECT_EQ(round_to_f16(x), 0.0f);
        EXPECT_EQ(f32_to_f16(x), 0);
    }
    EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
    EXPECT_EQ(f32_to_f16(0x1p-25f), 0);
    EXPECT_EQ(f32_to_f16(std::nextafter(0x1p-25f, 1.0f)), 1);
}

TEST(Norm, CodesAreTheNearestStepOfTheLogarithm) {
    EXPECT_EQ(encode_norm(0.0f), 0);
    EXPECT_EQ(decode_norm(0), 0.0f);
    EXPECT_EQ(decode_norm(128), 1.0f);
    EXPECT_EQ(decode_norm(136), 2.0f);
    for (int code = 1; code < 256; ++code) {
        const auto byte = static_cast<std::uint8_t>(code);
        const double expected = std::exp2((code - 128) / 8.0);
        EXPECT_NEAR(decode_norm(byte), expected, 1e-7 * expected);
        EXPECT_EQ(encode_norm(decode_norm(byte)), byte);
        EXPECT_EQ(encode_norm(static_cast<float>(expected * 1.043)), byte);
        EXPECT_EQ(encode_norm(static_cast<float>(expected / 1.043)), byte);
        EXPECT_EQ(encode_norm(static_cast<float>(expected * 1.046)), std::min(code + 1, 255));
    }
}

TEST(Norm, ExtremesSaturate) {
    for (float tiny : {1e-6f, 1e-20f, std::numeric_limits<float>::denorm_min()}) {
        EXPECT_EQ(encode_norm(tiny), 1);
    }
    for (float large : {65504.0f, 1e10f, std::numeric_limits<float>::max(), kInfinity}) {
        EXPECT_EQ(encode_norm(large), 255);
    }
    EXPECT_EQ(encode_norm(kNan), 0);
    EXPECT_EQ(encode_norm(-1.0f), 0);
}

}  // namespace
}  // namespace vecinfer
