// The haystack of retrieval and the scoring of answers.
#include "retrieval/passkey.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace vecinfer::retrieval {
namespace {

// One token per word: enough to check where needles lie.
int count_words(std::string_view text) {
    int words = 0;
    bool in_word = false;
    for (const char c : text) {
        words += c != ' ' && !in_word ? 1 : 0;
        in_word = c != ' ';
    }
    return words;
}

PasskeyOptions options() {
    return {.lengths = {600, 300, 1500}, .depths = {0, 0.25, 0.5, 1}, .keys_per_cell = 2, .seed = 7};
}

TEST(PasskeyTest, SameSeedSameText) {
    const auto a = make_haystack(options(), count_words);
    const auto b = make_haystack(options(), count_words);
    ASSERT_TRUE(a.ok()) << a.status().message();
    ASSERT_EQ(a->size(), b->size());
    for (std::size_t i = 0; i < a->size(); ++i) {
        EXPECT_EQ(a.value()[i].text, b.value()[i].text);
    }
    PasskeyOptions other = options();
    other.seed = 8;
    EXPECT_NE(make_haystack(other, count_words).value()[0].text, a.value()[0].text);
}

TEST(PasskeyTest, EveryCellHasItsKeysWhereTheyBelong) {
    const auto haystack = make_haystack(options(), count_words);
    ASSERT_TRUE(haystack.ok()) << haystack.status().message();
    ASSERT_EQ(haystack->size(), 3u);
    std::string read;
    std::set<std::string> names;
    std::set<std::string> keys;
    const int lengths[] = {300, 600, 1500};
    for (std::size_t i = 0; i < 3; ++i) {
        const Stretch& stretch = haystack.value()[i];
        read += stretch.text;
        EXPECT_LE(count_words(read), lengths[i]);
        EXPECT_GT(count_words(read), lengths[i] - 30);
        EXPECT_EQ(stretch.questions.size(), 8u);
        for (const Question& question : stretch.questions) {
            EXPECT_EQ(question.length, lengths[i]);
            EXPECT_TRUE(names.insert(question.name).second) << question.name;
            EXPECT_TRUE(keys.insert(question.key).second) << question.key;
            EXPECT_GE(question.key.size(), 5u);
            EXPECT_LE(question.key.size(), 7u);
            EXPECT_EQ(question.key.find_first_not_of("0123456789"), std::string::npos);
            EXPECT_EQ(question.prompt.find(question.key), std::string::npos);
            EXPECT_NE(question.prompt.find(question.name), std::string::npos);
            const std::size_t at = read.find(question.name + " is " + question.key);
            ASSERT_NE(at, std::string::npos) << question.name;
            const double place = static_cast<double>(count_words(read.substr(0, at))) / lengths[i];
            EXPECT_NEAR(place, question.depth, 0.25) << question.length << " " << question.depth;
        }
    }
}

TEST(PasskeyTest, WhatIsReservedStaysFree) {
    PasskeyOptions reserved = options();
    reserved.reserve = 60;
    const auto haystack = make_haystack(reserved, count_words);
    ASSERT_TRUE(haystack.ok()) << haystack.status().message();
    PasskeyOptions shorter = options();
    for (int& length : shorter.lengths) {
        length -= 60;
    }
    const auto same = make_haystack(shorter, count_words);
    ASSERT_TRUE(same.ok()) << same.status().message();
    for (std::size_t i = 0; i < same->size(); ++i) {
        EXPECT_EQ(haystack.value()[i].text, same.value()[i].text);
        EXPECT_EQ(haystack.value()[i].questions.front().length, same.value()[i].questions.front().length + 60);
    }
}

TEST(PasskeyTest, ImpossibleRequestsAreErrors) {
    PasskeyOptions short_text = options();
    short_text.lengths = {40};
    EXPECT_EQ(make_haystack(short_text, count_words).status().code(), ErrorCode::invalid_argument);
    PasskeyOptions no_room = options();
    no_room.reserve = 260;
    EXPECT_THAT(make_haystack(no_room, count_words).status().message(),
                testing::StartsWith("lengths: got 300, expected at least "));
    PasskeyOptions many = options();
    many.keys_per_cell = 1000;
    EXPECT_EQ(make_haystack(many, count_words).status().code(), ErrorCode::invalid_argument);
    PasskeyOptions nothing = options();
    nothing.depths.clear();
    EXPECT_EQ(make_haystack(nothing, count_words).status().code(), ErrorCode::invalid_argument);
    PasskeyOptions outside = options();
    outside.depths = {1.5};
    EXPECT_EQ(make_haystack(outside, count_words).status().code(), ErrorCode::invalid_argument);
}

TEST(PasskeyTest, OnlyTheWholeKeyCounts) {
    EXPECT_TRUE(is_exact("48213", "48213"));
    EXPECT_TRUE(is_exact(" 48213.\nAnd so on", "48213"));
    EXPECT_TRUE(is_exact("  48213 ", "48213"));
    EXPECT_FALSE(is_exact(" 482135", "48213"));
    EXPECT_FALSE(is_exact(" 4821", "48213"));
    EXPECT_FALSE(is_exact(" 48214", "48213"));
    EXPECT_FALSE(is_exact(" the number 48213", "48213"));
    EXPECT_FALSE(is_exact("\n48213", "48213"));
    EXPECT_FALSE(is_exact("", "48213"));
    EXPECT_FALSE(is_exact("48213", ""));
}

TEST(PasskeyTest, GeneratingStopsBehindTheNumber) {
    EXPECT_FALSE(is_finished(""));
    EXPECT_FALSE(is_finished(" "));
    EXPECT_FALSE(is_finished(" 482"));
    EXPECT_TRUE(is_finished(" 482."));
    EXPECT_TRUE(is_finished("not a number"));
}

}  // namespace
}  // namespace vecinfer::retrieval
