// What the plugin's backend must not do is refused with a status and a message, and the process goes on.

#include "graph_tokens.h"

namespace vecinfer::plugin_test {

namespace {

TEST(Refusal, ForeignRowsAreNotRead) {
    const Shape shape;
    const int n = 40;
    const Tokens tokens(shape, n, 11);
    const std::vector<float> q = queries_for(shape, 1);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    // Plain f16 rows, as a state that was saved without the plugin holds them.
    std::vector<ggml_fp16_t> plain(static_cast<std::size_t>(3 * shape.row_dim()));
    ggml_fp32_to_fp16_row(tokens.k.data(), plain.data(), static_cast<std::int64_t>(plain.size()));
    CachePair::load(pair.k(), 5, {reinterpret_cast<const std::uint8_t*>(plain.data()), plain.size() * sizeof(ggml_fp16_t)});
    Batch b;
    causal(b, shape, q, 1, n - 1);
    EXPECT_EQ(pair.run(b), GGML_STATUS_FAILED);
    EXPECT_EQ(pair.run(b), GGML_STATUS_FAILED) << "a second time";

    Batch masked = b;
    std::fill_n(masked.visible.begin() + 5, 3, std::uint8_t{0});
    std::vector<float> out;
    ASSERT_EQ(pair.run(masked, &out), GGML_STATUS_SUCCESS);
    const std::vector<float> k = cache_rows(shape, tokens.k);
    const std::vector<float> v = cache_rows(shape, tokens.v);
    EXPECT_LT(relative_error(out, reference_attention(shape, k, v, q, masked.visible)), 2e-3);

    ASSERT_EQ(pair.run(tokens.write(5, 3)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
    EXPECT_LT(relative_error(out, reference_attention(shape, k, v, q, b.visible)), 2e-3);
}

TEST(Refusal, ForeignRowsLoadedBeforeTheFirstGraph) {
    const Shape shape;
    const std::vector<float> q = queries_for(shape, 1);
    CachePair pair(shape);
    std::vector<ggml_fp16_t> plain(static_cast<std::size_t>(3 * shape.row_dim()), ggml_fp32_to_fp16(1.0f));
    CachePair::load(pair.v(), 0, {reinterpret_cast<const std::uint8_t*>(plain.data()), plain.size() * sizeof(ggml_fp16_t)});
    Batch b;
    causal(b, shape, q, 1, 2);
    EXPECT_EQ(pair.run(b), GGML_STATUS_FAILED);
}

// A saved code row opens with a tag and the hash of its codec, 8 bytes each.
TEST(Refusal, RowsOfAnotherCodebook) {
    const Shape shape;
    const int n = 300;
    const std::int64_t row = 100;  // older than the window, not a sink
    const std::vector<float> q = queries_for(shape, 1);
    Batch b;
    causal(b, shape, q, 1, n - 1);
    for (const std::size_t byte : {0, 8, 15}) {
        CachePair pair(shape);
        ASSERT_EQ(pair.run(Tokens(shape, n, 12).write(0, n)), GGML_STATUS_SUCCESS);
        const std::vector<std::uint8_t> good = CachePair::save(pair.k(), row, 1);
        std::vector<std::uint8_t> bad = good;
        bad[byte] ^= 0x01;
        CachePair::load(pair.k(), row, bad);
        EXPECT_EQ(pair.run(b), GGML_STATUS_FAILED) << "byte " << byte;
        CachePair::load(pair.k(), row, good);
        EXPECT_EQ(pair.run(b), GGML_STATUS_SUCCESS) << "byte " << byte;
    }
}

TEST(Refusal, OnlyFlashAttentionReadsTheCache) {
    const Shape shape;
    CachePair pair(shape);
    ASSERT_EQ(pair.run(Tokens(shape, 10, 13).write(0, 10)), GGML_STATUS_SUCCESS);
    testing::internal::CaptureStderr();
    EXPECT_EQ(pair.multiply_keys(), GGML_STATUS_FAILED);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("-fa on"), std::string::npos);
}

TEST(Refusal, ValuesThatAreAViewOfKeys) {
    const Shape shape;
    CachePair pair(shape);
    ASSERT_EQ(pair.run(Tokens(shape, 10, 14).write(0, 10)), GGML_STATUS_SUCCESS);
    testing::internal::CaptureStderr();
    EXPECT_EQ(pair.attend_values_in_keys(), GGML_STATUS_FAILED);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("VECINFER_SCHEME=f16"), std::string::npos);
}

TEST(Refusal, NarrowRowsAreNotAllocated) {
    testing::internal::CaptureStderr();
    const CachePair pair(Shape{32, 1, 1});
    EXPECT_FALSE(pair.allocated());
    const std::string message = testing::internal::GetCapturedStderr();
    EXPECT_NE(message.find("cache_k_l0"), std::string::npos) << message;
    EXPECT_NE(message.find("32"), std::string::npos) << message;
}

TEST(Refusal, SmallHeadsInWideRows) {
    const Shape shape{8, 8, 8};
    CachePair pair(shape);
    ASSERT_TRUE(pair.allocated()) << "the head size is only known when the first graph comes";
    EXPECT_EQ(pair.run(Tokens(shape, 4, 15).write(0, 4)), GGML_STATUS_FAILED);
}

}  // namespace

}  // namespace vecinfer::plugin_test
