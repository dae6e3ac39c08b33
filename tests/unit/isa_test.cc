#include "dispatch/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

namespace vecinfer {
namespace {

constexpr std::array kScalarAvx2 = {Isa::scalar, Isa::avx2};

TEST(Isa, EmptyChoosesTheFastest) {
    const Result<Isa> isa = choose_isa("", kScalarAvx2);
    ASSERT_TRUE(isa.ok());
    EXPECT_EQ(isa.value(), Isa::avx2);
}

TEST(Isa, NamesChooseThemselves) {
    constexpr std::array all = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vbmi};
    for (const auto& [name, expected] : {std::pair{"scalar", Isa::scalar}, std::pair{"avx2", Isa::avx2},
                                         std::pair{"avx512", Isa::avx512}, std::pair{"avx512vbmi", Isa::avx512vbmi}}) {
        const Result<Isa> isa = choose_isa(name, all);
        ASSERT_TRUE(isa.ok()) << name;
        EXPECT_EQ(isa.value(), expected);
        EXPECT_EQ(isa_name(isa.value()), name);
    }
}

TEST(Isa, WrongValueListsTheRightOnes) {
    for (const char* wrong : {"AVX2", "avx2 ", "sse", "neon", "1"}) {
        const Result<Isa> isa = choose_isa(wrong, kScalarAvx2);
        ASSERT_FALSE(isa.ok()) << wrong;
        EXPECT_EQ(isa.status().code(), ErrorCode::invalid_argument);
        EXPECT_EQ(isa.status().message(), "VECINFER_ISA: got " + std::string(wrong) + ", expected scalar, avx2");
    }
}

TEST(Isa, UnsupportedValueIsToldApartFromAWrongOne) {
    const Result<Isa> isa = choose_isa("avx512", kScalarAvx2);
    ASSERT_FALSE(isa.ok());
    EXPECT_EQ(isa.status().code(), ErrorCode::unsupported);
    EXPECT_NE(isa.status().message().find("avx512"), std::string::npos);
    EXPECT_NE(isa.status().message().find("expected scalar, avx2"), std::string::npos);
}

TEST(Isa, AvailableStartsWithScalarAndIsSorted) {
    const std::span<const Isa> isas = available_isas();
    ASSERT_FALSE(isas.empty());
    EXPECT_EQ(isas.front(), Isa::scalar);
    EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
    EXPECT_EQ(std::adjacent_find(isas.begin(), isas.end()), isas.end());
}

TEST(Isa, ActiveIsWhatTheEnvironmentAsksFor) {
    const char* wanted = std::getenv("VECINFER_ISA");
    const Result<Isa> expected = choose_isa(wanted == nullptr ? "" : wanted, available_isas());
    EXPECT_EQ(active_isa(), expected.ok() ? expected.value() : Isa::scalar);
    EXPECT_EQ(selected_isa().ok(), expected.ok());
}

}  // namespace
}  // namespace vecinfer
