// What widths are measured on besides text: questions about numbers, with a real model.
#include "recall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "divergence.h"

namespace vecinfer::plugin {
namespace {

class Recall : public testing::Test {
protected:
    void SetUp() override {
        const char* model = std::getenv("VECINFER_MODEL_SMOLLM2");
        if (model == nullptr || !std::filesystem::exists(model)) {
            GTEST_SKIP() << "no model: VECINFER_MODEL_SMOLLM2";
        }
        setenv("GGML_BACKEND_PATH", VECINFER_PLUGIN_FILE, 1);
        setenv("VECINFER_QUIET", "1", 1);
        setenv("VECINFER_SCHEME", "f16", 1);
        model_ = model;
    }

    Result<ModelSession> open(bool vocab_only) const {
        return ModelSession::open({.model = model_, .ctx = 1024, .ubatch = 1024, .vocab_only = vocab_only});
    }

    std::string model_;
};

TEST_F(Recall, APassageFitsIntoTheContextAndScoresWholeAnswers) {
    const Result<ModelSession> session = open(true);
    ASSERT_TRUE(session.ok()) << session.status().message();
    const Result<Passage> passage = recall_passage(session.value(), 1024, 3);
    ASSERT_TRUE(passage.ok()) << passage.status().message();
    const Reading& text = passage->text;
    EXPECT_EQ(text.first_scored, text.tokens.size());
    std::string all;
    for (const llama_token token : text.tokens) {
        all += session->text_of(token);
    }
    ASSERT_EQ(passage->continuations.size(), 10u);
    for (const Reading& reading : passage->continuations) {
        EXPECT_LE(text.tokens.size() + reading.tokens.size(), 1024u);
        // From the last token of the question on; SmolLM2 has a token for each digit, and one for the blank before them.
        std::string scored;
        for (std::size_t i = reading.first_scored; i < reading.tokens.size(); ++i) {
            scored += session->text_of(reading.tokens[i]);
        }
        ASSERT_TRUE(scored.starts_with(" is ")) << scored;
        const std::string digits = scored.substr(4);  // all but the last, behind which nothing is asked
        EXPECT_THAT(digits.size(), testing::AllOf(testing::Ge(4u), testing::Le(6u)));
        EXPECT_NE(all.find(" is " + digits), std::string::npos) << digits;
    }
}

TEST_F(Recall, ShortContextsHaveNoQuestions) {
    const Result<ModelSession> session = open(true);
    ASSERT_TRUE(session.ok()) << session.status().message();
    const Result<Passage> passage = recall_passage(session.value(), 512, 3);
    ASSERT_TRUE(passage.ok());
    EXPECT_TRUE(passage->continuations.empty());
}

TEST_F(Recall, TheDivergenceOfAnswersIsZeroForF16AndGrowsAsWidthsFall) {
    Result<ModelSession> session = open(false);
    ASSERT_TRUE(session.ok()) << session.status().message();
    Result<Passage> passage = recall_passage(session.value(), 1024, 3);
    ASSERT_TRUE(passage.ok());
    Result<Divergence> divergence = Divergence::create(session.value(), {passage.value()});
    ASSERT_TRUE(divergence.ok()) << divergence.status().message();
    EXPECT_GE(divergence->predictions(), 10u * 6);
    const auto kld = [&](const std::string& scheme) { return divergence->measure(scheme, "none").value(); };
    EXPECT_NEAR(kld("f16"), 0.0, 1e-8);  // the questions before it left nothing behind
    const double four = kld("vecinfer:k4v4,recent=16");
    const double one = kld("vecinfer:k1v1,recent=16");
    EXPECT_GT(four, 0.0);
    EXPECT_GT(one, 4 * four);
}

TEST(Divergence, ChunksAreScoredInTheirSecondHalf) {
    const std::vector<Passage> passages = chunk_passages({0, 1, 2, 3, 4, 5, 6}, 3);
    ASSERT_EQ(passages.size(), 2u);
    EXPECT_THAT(passages[1].text.tokens, testing::ElementsAre(3, 4, 5));
    EXPECT_EQ(passages[1].text.first_scored, 1u);
}

}  // namespace
}  // namespace vecinfer::plugin
