// What the plugin says, or refuses, when the first graph of a process comes. ctest gives each test a process of its own.

#include "graph_tokens.h"

namespace vecinfer::plugin_test {

namespace {

TEST(StartLine, ComesWithTheFirstRowsAndTellsWhatTheyTake) {
    const Shape shape;
    const Tokens tokens(shape, 8, 21);
    testing::internal::CaptureStderr();
    CachePair pair(shape);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "nothing is known yet";
    testing::internal::CaptureStderr();
    ASSERT_EQ(pair.run(tokens.write(0, 4)), GGML_STATUS_SUCCESS);
    const std::string line = testing::internal::GetCapturedStderr();
    // Keys and values of 2 heads of 64 channels: 2 bits; with codebooks a byte of norm, else an f16 scale and zero per 32 values.
    const bool scalar = scheme() == "kivi:k2v2";
    const int bytes = 2 * 2 * (64 * 2 / 8 + (scalar ? 2 * 4 : 1));
    EXPECT_EQ(line, "vecinfer: " + scheme() + (scalar ? ", no codebooks needed, " : ", data-free codebooks, ") +
                        std::to_string(bytes) + " bytes per token in 1 layer (f16: 512)\n");
    testing::internal::CaptureStderr();
    ASSERT_EQ(pair.run(tokens.write(4, 4)), GGML_STATUS_SUCCESS);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "once";
}

// The scheme names layers 1 and 2; the only cache is that of layer 0.
TEST(LayerRange, LayersThatTheModelDoesNotHaveAreRefused) {
    const Shape shape;
    CachePair pair(shape);
    testing::internal::CaptureStderr();
    EXPECT_EQ(pair.run(Tokens(shape, 4, 22).write(0, 4)), GGML_STATUS_FAILED);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "vecinfer: error: VECINFER_SCHEME: scheme: layers: got 1-2, expected layers 0 to 0: the model has 1\n");
}

}  // namespace

}  // namespace vecinfer::plugin_test
