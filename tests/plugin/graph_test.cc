// The plugin's backend on small graphs, with the default scheme: 2 bits, recent 128, sink 4. The plugin reads its scheme once per
// process: CMake runs this binary once per scheme, each with the suites that are meant for it.

#include <cstdio>
#include <cstdlib>

#include "graph_tokens.h"

namespace vecinfer::plugin_test {

namespace {

constexpr int kRecent = 128;

class HeadSize : public testing::TestWithParam<Shape> {};

TEST_P(HeadSize, RowsInsideTheWindowAreExact) {
    const Shape shape = GetParam();
    const int n = 100;
    const Tokens tokens(shape, n, 1);
    const std::vector<float> q = queries_for(shape, n);
    CachePair pair(shape);
    ASSERT_TRUE(pair.allocated());
    Batch b = tokens.write(0, n);
    causal(b, shape, q, n, 0);
    std::vector<float> out;
    ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
    EXPECT_LT(
        relative_error(out, reference_attention(shape, cache_rows(shape, tokens.k), cache_rows(shape, tokens.v), q, b.visible)),
        2e-3);
}

TEST_P(HeadSize, OlderRowsAreReadFromCodes) {
    const Shape shape = GetParam();
    const int n = 400;
    const Tokens tokens(shape, n, 2);
    const std::vector<float> q = queries_for(shape, 1);
    CachePair pair(shape);
    ASSERT_TRUE(pair.allocated());
    ASSERT_EQ(pair.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    Batch b;
    causal(b, shape, q, 1, n - kRecent - 20);
    std::vector<float> out;
    ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
    const double error =
        relative_error(out, reference_attention(shape, cache_rows(shape, tokens.k), cache_rows(shape, tokens.v), q, b.visible));
    // Two-bit codes of normal entries keep about 90 % of their energy; an error near 0 would mean that nothing is packed.
    EXPECT_GT(error, 0.02);
    EXPECT_LT(error, 0.6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadSize,
                         testing::Values(Shape{64, 3, 9}, Shape{64, 1, 1}, Shape{80, 2, 4}, Shape{96, 1, 2}, Shape{112, 2, 2},
                                         Shape{128, 2, 8}, Shape{192, 1, 3}, Shape{256, 1, 4}),
                         [](const auto& param) {
                             return "dim" + std::to_string(param.param.head_dim) + "kv" + std::to_string(param.param.kv_heads) +
                                    "qo" + std::to_string(param.param.qo_heads);
                         });

TEST(Window, DecodeSeesPromptAndNewRows) {
    const Shape shape;
    const int prompt = 100;
    const int n = 120;
    const Tokens tokens(shape, n, 3);
    const std::vector<float> q = queries_for(shape, n);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(tokens.write(0, prompt)), GGML_STATUS_SUCCESS);
    for (int i = prompt; i < n; ++i) {
        Batch b = tokens.write(i, 1);
        causal(b, shape,
               std::span(q).subspan(static_cast<std::size_t>(i * shape.qo_heads * shape.head_dim),
                                    static_cast<std::size_t>(shape.qo_heads * shape.head_dim)),
               1, i);
        std::vector<float> out;
        ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
        const std::vector<float> expected =
            reference_attention(shape, cache_rows(shape, tokens.k), cache_rows(shape, tokens.v), b.q, b.visible);
        EXPECT_LT(relative_error(out, expected), 2e-3) << "token " << i;
    }
}

TEST(Window, RejectedRowsAreReplaced) {
    const Shape shape;
    const int n = 60;
    const Tokens draft(shape, n, 4);
    const Tokens right(shape, n, 5);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(draft.write(0, n)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(pair.run(right.write(n - 8, 8)), GGML_STATUS_SUCCESS);
    std::vector<float> k = cache_rows(shape, draft.k);
    std::vector<float> v = cache_rows(shape, draft.v);
    const auto from = static_cast<std::ptrdiff_t>((n - 8) * shape.row_dim());
    std::copy(right.k.begin() + from, right.k.end(), k.begin() + from);
    std::copy(right.v.begin() + from, right.v.end(), v.begin() + from);
    const std::vector<float> q = queries_for(shape, 1);
    Batch b;
    causal(b, shape, q, 1, n - 1);
    EXPECT_LT(relative_error(attend(pair, shape, n, q), reference_attention(shape, k, v, q, b.visible)), 2e-3);
}

// More rows than the rollback reserve are dropped and written anew, as when a chat is edited.
TEST(Window, LongRollbackReadsTheRowsThatAreThere) {
    const Shape shape;
    const Tokens tokens(shape, 300, 6);
    CachePair once(shape);
    CachePair edited(shape);
    ASSERT_EQ(once.run(tokens.write(0, 300)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(edited.run(tokens.write(0, 200)), GGML_STATUS_SUCCESS);
    const Tokens other(shape, 300, 60);
    ASSERT_EQ(edited.run(other.write(200, 100)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(edited.run(tokens.write(200, 100)), GGML_STATUS_SUCCESS);
    const std::vector<float> q = queries_for(shape, 1);
    // The last 100 rows are exact in both; between them and the sink, the edited cache may read codes where the other reads the
    // window.
    Batch b;
    b.q = q;
    b.visible.assign(static_cast<std::size_t>(shape.cells), 0);
    std::fill_n(b.visible.begin() + 200, 100, std::uint8_t{1});
    std::vector<float> expected;
    std::vector<float> out;
    ASSERT_EQ(once.run(b, &expected), GGML_STATUS_SUCCESS);
    ASSERT_EQ(edited.run(b, &out), GGML_STATUS_SUCCESS);
    EXPECT_LT(relative_error(out, expected), 1e-4);
}

TEST(Window, MaskedRowsGiveZeros) {
    const Shape shape;
    const int n = 50;
    const Tokens tokens(shape, n, 7);
    const std::vector<float> q = queries_for(shape, 3);
    CachePair pair(shape);
    Batch b = tokens.write(0, n);
    causal(b, shape, q, 3, n - 3);
    std::fill_n(b.visible.begin() + shape.cells, shape.cells, std::uint8_t{0});
    std::vector<float> out;
    ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
    const std::size_t width = static_cast<std::size_t>(shape.qo_heads * shape.head_dim);
    EXPECT_TRUE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(width),
                            out.begin() + static_cast<std::ptrdiff_t>(2 * width), [](float x) { return x == 0.0f; }));
    EXPECT_LT(
        relative_error(out, reference_attention(shape, cache_rows(shape, tokens.k), cache_rows(shape, tokens.v), q, b.visible)),
        2e-3);
}

TEST(Window, SoftCapAndAttentionSinks) {
    const Shape shape;
    const int n = 100;
    const Tokens tokens(shape, n, 16);
    const std::vector<float> q = queries_for(shape, n, 78, 3.0f);
    CachePair pair(shape);
    Batch b = tokens.write(0, n);
    causal(b, shape, q, n, 0);
    const std::vector<float> k = cache_rows(shape, tokens.k);
    const std::vector<float> v = cache_rows(shape, tokens.v);
    const std::vector<float> plain = reference_attention(shape, k, v, q, b.visible);
    for (const auto& [cap, sinks] : {std::pair{2.0f, std::vector<float>{}}, std::pair{0.0f, std::vector<float>{-1, 0, 2, 5}},
                                     std::pair{3.0f, std::vector<float>{1, 4, -2, 0}}}) {
        b.soft_cap = cap;
        b.sinks = sinks;
        const std::vector<float> expected = reference_attention(shape, k, v, q, b.visible, cap, sinks);
        ASSERT_GT(relative_error(plain, expected), 0.05) << "the case tells nothing";
        std::vector<float> out;
        ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
        EXPECT_LT(relative_error(out, expected), 4e-3) << "soft cap " << cap << ", " << sinks.size() << " sinks";
    }
}

TEST(Window, NonFiniteAndHugeRowsGiveFiniteResults) {
    const Shape shape;
    const int n = 300;
    Tokens tokens(shape, n, 8);
    for (std::size_t i = 0; i < tokens.k.size(); ++i) {
        tokens.k[i] *= i % 3 == 0 ? 2e4f : 1e3f;
    }
    tokens.k[5] = NAN;
    tokens.k[static_cast<std::size_t>(290 * shape.row_dim())] = INFINITY;
    tokens.v[static_cast<std::size_t>(10 * shape.row_dim())] = -INFINITY;
    tokens.v[static_cast<std::size_t>(295 * shape.row_dim() + 3)] = NAN;
    const std::vector<float> q = queries_for(shape, n);
    CachePair pair(shape);
    Batch b = tokens.write(0, n);
    causal(b, shape, q, n, 0);
    std::vector<float> out;
    ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
    EXPECT_TRUE(finite(out));
    EXPECT_TRUE(finite(attend(pair, shape, n, std::span(q).first(static_cast<std::size_t>(shape.qo_heads * shape.head_dim)))));
}

TEST(Window, ShiftedKeysEqualKeysRotatedBeforehand) {
    const Shape shape;
    const int n = 100;
    const int drop = 10;
    const Tokens tokens(shape, n, 9);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    std::vector<std::int32_t> shift(static_cast<std::size_t>(shape.cells), 0);
    std::fill(shift.begin() + drop, shift.begin() + n, -drop);
    ASSERT_EQ(pair.shift_keys(shift, shape.head_dim), GGML_STATUS_SUCCESS);
    std::vector<float> k(tokens.k);
    rotate(k, shape.head_dim, shape.head_dim, -drop);
    const std::vector<float> q = queries_for(shape, 1);
    Batch b;
    causal(b, shape, q, 1, n - 1);
    std::fill_n(b.visible.begin(), drop, std::uint8_t{0});
    std::vector<float> out;
    ASSERT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
    EXPECT_LT(relative_error(out, reference_attention(shape, cache_rows(shape, k), cache_rows(shape, tokens.v), q, b.visible)),
              3e-3);
}

TEST(Window, ShiftOfPartlyRotatedHeads) {
    const Shape shape;
    const int n = 60;
    const int n_rot = 32;
    const Tokens tokens(shape, n, 10);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    std::vector<std::int32_t> shift(static_cast<std::size_t>(shape.cells), 0);
    std::fill_n(shift.begin(), n, 7);
    ASSERT_EQ(pair.shift_keys(shift, n_rot), GGML_STATUS_SUCCESS);
    std::vector<float> k(tokens.k);
    rotate(k, shape.head_dim, n_rot, 7);
    const std::vector<float> q = queries_for(shape, 1);
    Batch b;
    causal(b, shape, q, 1, n - 1);
    EXPECT_LT(relative_error(attend(pair, shape, n, q),
                             reference_attention(shape, cache_rows(shape, k), cache_rows(shape, tokens.v), q, b.visible)),
              3e-3);
}

TEST(Memory, TwoBitsTakeLessThanASixthOfF16) {
    const Shape shape{64, 3, 9, 8192};
    const CachePair pair(shape);
    ASSERT_TRUE(pair.allocated());
    const double f16 = 2.0 * shape.cells * shape.row_dim() * 2;
    EXPECT_GE(f16 / static_cast<double>(pair.buffer_size()), 6.5);
}

}  // namespace

}  // namespace vecinfer::plugin_test

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    setenv("VECINFER_CODEBOOKS", "none", 1);
    unsetenv("VECINFER_QUIET");
    if (!testing::GTEST_FLAG(list_tests) && vecinfer::plugin_test::device() == nullptr) {
        std::fprintf(stderr, "the plugin does not load: %s\n", VECINFER_PLUGIN_FILE);
        return 1;
    }
    return RUN_ALL_TESTS();
}
