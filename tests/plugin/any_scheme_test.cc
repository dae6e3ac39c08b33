// Suites AnyScheme, which holds for every scheme, CodeRows, for schemes without a window (recent=0,sink=0), and ScalarScheme, for
// scalar codecs in place of the tests of AnyScheme that groups of tokens cannot meet to the last bit.

#include "graph_tokens.h"

namespace vecinfer::plugin_test {

namespace {

void expect_rows_of_any_split(std::initializer_list<Shape> shapes) {
    for (const Shape& shape : shapes) {
        const int n = 512;
        const Tokens tokens(shape, n, 20);
        const std::vector<float> q = queries_for(shape, 1);
        std::vector<std::uint8_t> k;
        std::vector<std::uint8_t> v;
        std::vector<float> expected;
        for (const int size : {512, 64, 7, 1}) {
            CachePair pair(shape);
            for (int i = 0; i < n; i += size) {
                ASSERT_EQ(pair.run(tokens.write(i, std::min(size, n - i))), GGML_STATUS_SUCCESS);
            }
            const std::vector<float> out = attend(pair, shape, n, q);
            if (size == 512) {
                k = CachePair::save(pair.k(), 0, n);
                v = CachePair::save(pair.v(), 0, n);
                expected = out;
            } else {
                EXPECT_TRUE(CachePair::save(pair.k(), 0, n) == k) << "keys, batches of " << size;
                EXPECT_TRUE(CachePair::save(pair.v(), 0, n) == v) << "values, batches of " << size;
                EXPECT_LT(relative_error(out, expected), 1e-6) << "batches of " << size;
            }
        }
    }
}

TEST(AnyScheme, RowsDoNotDependOnTheBatchSplit) {
    expect_rows_of_any_split({Shape{64, 2, 4}, Shape{128, 1, 2}, Shape{80, 2, 2}});
}

TEST(AnyScheme, SavedRowsContinueBitForBit) {
    for (const Shape& shape : {Shape{64, 2, 4}, Shape{256, 1, 2}}) {
        const int n = 300;
        const Tokens tokens(shape, n + 1, 21);
        const std::vector<float> q = queries_for(shape, 2);
        const std::span<const float> first = std::span(q).first(q.size() / 2);
        CachePair from(shape);
        ASSERT_EQ(from.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
        CachePair fresh(shape);  // has not seen a graph yet
        CachePair used(shape);   // holds something else
        ASSERT_EQ(used.run(Tokens(shape, 200, 22).write(0, 200)), GGML_STATUS_SUCCESS);
        const std::vector<float> expected = attend(from, shape, n, first);
        std::vector<float> next_expected;
        Batch next = tokens.write(n, 1);
        causal(next, shape, first, 1, n);
        for (CachePair* to : {&fresh, &used}) {
            CachePair::load(to->k(), 0, CachePair::save(from.k(), 0, n));
            CachePair::load(to->v(), 0, CachePair::save(from.v(), 0, n));
            EXPECT_EQ(attend(*to, shape, n, first), expected) << (to == &fresh ? "fresh" : "used");
        }
        ASSERT_EQ(from.run(next, &next_expected), GGML_STATUS_SUCCESS);
        for (CachePair* to : {&fresh, &used}) {
            std::vector<float> out;
            ASSERT_EQ(to->run(next, &out), GGML_STATUS_SUCCESS);
            EXPECT_EQ(out, next_expected) << "next token, " << (to == &fresh ? "fresh" : "used");
        }
    }
}

// Cells are reused in any order (sliding windows, shifted contexts), so the order of a saved state says nothing about age.
TEST(AnyScheme, RowsLoadedInAnyOrderContinueBitForBit) {
    const Shape shape;
    const int n = 300;
    const Tokens tokens(shape, n + 1, 27);
    const std::vector<float> q = queries_for(shape, 1);
    CachePair from(shape);
    CachePair to(shape);
    ASSERT_EQ(from.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(to.run(Tokens(shape, 1, 28).write(0, 1)), GGML_STATUS_SUCCESS);
    for (int row = n - 1; row >= 0; --row) {
        CachePair::load(to.k(), row, CachePair::save(from.k(), row, 1));
        CachePair::load(to.v(), row, CachePair::save(from.v(), row, 1));
    }
    Batch next = tokens.write(n, 1);
    causal(next, shape, q, 1, n);
    std::vector<float> expected;
    std::vector<float> out;
    ASSERT_EQ(from.run(next, &expected), GGML_STATUS_SUCCESS);
    ASSERT_EQ(to.run(next, &out), GGML_STATUS_SUCCESS);
    EXPECT_LT(relative_error(out, expected), 1e-5);
}

TEST(AnyScheme, StreamsAreSeparateAndCanBeCopied) {
    const Shape shape{.streams = 3};
    const int n = 200;
    const Tokens a(shape, n, 23);
    const Tokens b(shape, n, 24);
    const std::vector<float> q = queries_for(shape, 3);
    const auto width = static_cast<std::size_t>(shape.qo_heads * shape.head_dim);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(a.write(0, n, 0)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(pair.run(b.write(0, n, shape.cells)), GGML_STATUS_SUCCESS);

    Shape single = shape;
    single.streams = 1;
    CachePair alone(single);
    ASSERT_EQ(alone.run(b.write(0, n)), GGML_STATUS_SUCCESS);
    const std::vector<float> solo = attend(alone, single, n, std::span(q).first(width));

    const auto on_stream = [&](int stream) {
        Batch batch;
        causal(batch, shape, std::span(q).first(width), 1, n - 1);
        batch.first_stream = stream;
        std::vector<float> out;
        EXPECT_EQ(pair.run(batch, &out), GGML_STATUS_SUCCESS);
        return out;
    };
    EXPECT_EQ(on_stream(1), solo);
    const std::vector<float> first = on_stream(0);
    EXPECT_GT(relative_error(first, solo), 0.1) << "streams hold different rows";
    pair.copy_stream(0, 2);
    EXPECT_EQ(on_stream(2), first);
    EXPECT_EQ(on_stream(1), solo) << "a stream that was not copied";

    // All streams in one node, the same query for each.
    std::vector<float> same;
    for (int s = 0; s < 3; ++s) {
        same.insert(same.end(), q.begin(), q.begin() + static_cast<std::ptrdiff_t>(width));
    }
    Batch all;
    all.q = same;
    all.num_streams = 3;
    all.visible.assign(static_cast<std::size_t>(3 * shape.cells), 0);
    for (int s = 0; s < 3; ++s) {
        std::fill_n(all.visible.begin() + static_cast<std::ptrdiff_t>(s) * shape.cells, n, std::uint8_t{1});
    }
    std::vector<float> out;
    ASSERT_EQ(pair.run(all, &out), GGML_STATUS_SUCCESS);
    EXPECT_LT(relative_error(std::span(out).first(width), first), 1e-6);
    EXPECT_LT(relative_error(std::span(out).subspan(width, width), solo), 1e-6);
    EXPECT_LT(relative_error(std::span(out).subspan(2 * width, width), first), 1e-6);
}

// llama-server's unified cache: several sequences take turns in the cells of one stream.
TEST(AnyScheme, SequencesOfOneStreamEqualTheirSoloRuns) {
    const Shape shape;
    const int n = 60;
    const int sequences = 3;
    const std::vector<float> q = queries_for(shape, 1);
    CachePair together(shape);
    for (int i = 0; i < n; ++i) {
        for (int s = 0; s < sequences; ++s) {
            ASSERT_EQ(together.run(Tokens(shape, n, 40 + 2 * static_cast<unsigned>(s)).write(i, 1, i * sequences + s)),
                      GGML_STATUS_SUCCESS);
        }
    }
    for (int s = 0; s < sequences; ++s) {
        const Tokens tokens(shape, n, 40 + 2 * static_cast<unsigned>(s));
        CachePair alone(shape);
        Batch b;
        b.q = q;
        b.visible.assign(static_cast<std::size_t>(shape.cells), 0);
        for (int i = 0; i < n; ++i) {
            ASSERT_EQ(alone.run(tokens.write(i, 1, i * sequences + s)), GGML_STATUS_SUCCESS);
            b.visible[static_cast<std::size_t>(i * sequences + s)] = 1;
        }
        std::vector<float> expected;
        std::vector<float> out;
        ASSERT_EQ(alone.run(b, &expected), GGML_STATUS_SUCCESS);
        ASSERT_EQ(together.run(b, &out), GGML_STATUS_SUCCESS);
        EXPECT_LT(relative_error(out, expected), 1e-3) << "sequence " << s;
    }
}

TEST(AnyScheme, ClearedCachesStartAnew) {
    const Shape shape;
    const int n = 200;
    const Tokens tokens(shape, n, 25);
    const std::vector<float> q = queries_for(shape, 1);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    const std::vector<float> expected = attend(pair, shape, n, q);
    const std::vector<std::uint8_t> saved = CachePair::save(pair.k(), 0, n);
    ASSERT_EQ(pair.run(Tokens(shape, 400, 26).write(0, 400)), GGML_STATUS_SUCCESS);
    pair.clear();
    ASSERT_EQ(pair.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    EXPECT_EQ(attend(pair, shape, n, q), expected);
    EXPECT_TRUE(CachePair::save(pair.k(), 0, n) == saved);
}

// Scores q.k of keys against the key in cell 0, up to what softmax hides: seen together with cell 0, a key's share p of the
// result gives ln(p / (1 - p)). Values only carry p, so their quantization does not matter.
std::vector<double> score_differences(CachePair& pair, const Shape& shape, int n, std::span<const float> q) {
    const auto width = static_cast<std::size_t>(shape.qo_heads * shape.head_dim);
    std::vector<float> queries;
    for (int i = 0; i < n; ++i) {
        queries.insert(queries.end(), q.begin(), q.begin() + static_cast<std::ptrdiff_t>(width));
    }
    Batch alone;
    alone.q = queries;
    alone.visible.assign(static_cast<std::size_t>(n * shape.cells), 0);
    for (int i = 0; i < n; ++i) {
        alone.visible[static_cast<std::size_t>(i * shape.cells + i)] = 1;
    }
    Batch both = alone;
    for (int i = 0; i < n; ++i) {
        both.visible[static_cast<std::size_t>(i * shape.cells)] = 1;
    }
    std::vector<float> value;
    std::vector<float> mixed;
    EXPECT_EQ(pair.run(alone, &value), GGML_STATUS_SUCCESS);
    EXPECT_EQ(pair.run(both, &mixed), GGML_STATUS_SUCCESS);
    std::vector<double> scores;
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    for (std::size_t i = 1; i < static_cast<std::size_t>(n); ++i) {
        for (std::size_t h = 0; h < width; h += dim) {
            double along = 0;
            double length = 0;
            for (std::size_t c = h; c < h + dim; ++c) {
                const double axis = static_cast<double>(value[i * width + c]) - value[c];
                along += (static_cast<double>(mixed[i * width + c]) - value[c]) * axis;
                length += axis * axis;
            }
            const double p = std::clamp(along / length, 1e-6, 1 - 1e-6);
            scores.push_back(std::log(p / (1 - p)));
        }
    }
    return scores;
}

// Restored rows that had left the window are decoded values rounded to f16; they come back as codes of those.
TEST(ScalarScheme, SavedRowsContinueUpToF16Rounding) {
    for (const Shape& shape : {Shape{64, 2, 4}, Shape{256, 1, 2}}) {
        const int n = 300;
        const Tokens tokens(shape, n + 1, 21);
        const std::vector<float> q = queries_for(shape, 2);
        const std::span<const float> first = std::span(q).first(q.size() / 2);
        CachePair from(shape);
        ASSERT_EQ(from.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
        const std::vector<float> expected = attend(from, shape, n, first);
        Batch next = tokens.write(n, 1);
        causal(next, shape, first, 1, n);
        std::vector<float> next_expected;
        const std::vector<std::uint8_t> k = CachePair::save(from.k(), 0, n);
        const std::vector<std::uint8_t> v = CachePair::save(from.v(), 0, n);
        ASSERT_EQ(from.run(next, &next_expected), GGML_STATUS_SUCCESS);
        const std::size_t row = k.size() / n;
        for (const bool one_by_one : {false, true}) {
            for (const bool bound : {false, true}) {
                CachePair to(shape);
                if (bound) {
                    ASSERT_EQ(to.run(Tokens(shape, 200, 22).write(0, 200)), GGML_STATUS_SUCCESS);
                }
                for (int i = n - 1; one_by_one && i >= 0; --i) {
                    const auto at = static_cast<std::ptrdiff_t>(i * row);
                    CachePair::load(to.k(), i, {k.begin() + at, k.begin() + at + static_cast<std::ptrdiff_t>(row)});
                    CachePair::load(to.v(), i, {v.begin() + at, v.begin() + at + static_cast<std::ptrdiff_t>(row)});
                }
                if (!one_by_one) {
                    CachePair::load(to.k(), 0, k);
                    CachePair::load(to.v(), 0, v);
                }
                EXPECT_LT(relative_error(attend(to, shape, n, first), expected), 0.02) << one_by_one << bound;
                std::vector<float> out;
                ASSERT_EQ(to.run(next, &out), GGML_STATUS_SUCCESS);
                EXPECT_LT(relative_error(out, next_expected), 0.02) << one_by_one << bound;
            }
        }
    }
}

TEST(ScalarScheme, RowsDoNotDependOnTheBatchSplit) {
    expect_rows_of_any_split({Shape{64, 2, 4}, Shape{128, 1, 2}});
}

// A shifted key is one more rounding away from the one that was written, and a group of them is encoded as a whole.
TEST(ScalarScheme, ShiftedKeysStayNearTheRotatedOnes) {
    const Shape shape{64, 2, 2, 512};
    const int n = 400;
    const int delta = -10;
    const Tokens tokens(shape, n, 30);
    Tokens rotated = tokens;
    rotate(rotated.k, shape.head_dim, shape.head_dim, delta);
    CachePair shifted(shape);
    CachePair direct(shape);
    ASSERT_EQ(shifted.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(direct.run(rotated.write(0, n)), GGML_STATUS_SUCCESS);
    std::vector<std::int32_t> shift(static_cast<std::size_t>(shape.cells), 0);
    std::fill_n(shift.begin(), n, delta);
    ASSERT_EQ(shifted.shift_keys(shift, shape.head_dim), GGML_STATUS_SUCCESS);
    const std::vector<float> q = queries_for(shape, 1);
    const std::vector<float> exact =
        reference_attention(shape, cache_rows(shape, rotated.k), cache_rows(shape, rotated.v), q, [&] {
            Batch b;
            causal(b, shape, q, 1, n - 1);
            return b.visible;
        }());
    const double once = relative_error(attend(direct, shape, n, q), exact);
    const double twice = relative_error(attend(shifted, shape, n, q), exact);
    EXPECT_LT(twice, 2 * once + 0.05);
}

TEST(CodeRows, ShiftAddsNoMoreThanASecondQuantization) {
    const Shape shape{64, 2, 2, 256};
    const int n = 200;
    const int delta = -10;
    const Tokens tokens(shape, n, 30);
    Tokens rotated = tokens;
    rotate(rotated.k, shape.head_dim, shape.head_dim, delta);
    CachePair shifted(shape);
    CachePair direct(shape);
    ASSERT_EQ(shifted.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    ASSERT_EQ(direct.run(rotated.write(0, n)), GGML_STATUS_SUCCESS);
    std::vector<std::int32_t> shift(static_cast<std::size_t>(shape.cells), 0);
    std::fill_n(shift.begin(), n, delta);
    ASSERT_EQ(shifted.shift_keys(shift, shape.head_dim), GGML_STATUS_SUCCESS);

    const std::vector<float> q = queries_for(shape, 1);
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    const auto row_dim = static_cast<std::size_t>(shape.row_dim());
    std::vector<double> exact;
    for (std::size_t i = 1; i < static_cast<std::size_t>(n); ++i) {
        for (std::size_t h = 0; h < static_cast<std::size_t>(shape.qo_heads); ++h) {
            double score = 0;
            for (std::size_t c = 0; c < dim; ++c) {
                score += static_cast<double>(q[h * dim + c]) * (rotated.k[i * row_dim + h * dim + c] - rotated.k[h * dim + c]);
            }
            exact.push_back(score / std::sqrt(static_cast<double>(dim)));
        }
    }
    const auto rms = [&](const std::vector<double>& scores) {
        double sum = 0;
        for (std::size_t i = 0; i < scores.size(); ++i) {
            sum += (scores[i] - exact[i]) * (scores[i] - exact[i]);
        }
        return std::sqrt(sum / static_cast<double>(scores.size()));
    };
    const double once = rms(score_differences(direct, shape, n, q));
    const double twice = rms(score_differences(shifted, shape, n, q));
    EXPECT_LT(once, 0.7);
    EXPECT_LT(twice, 1.8 * once) << "two independent quantizations would give about 1.4 times the error of one";
}

TEST(CodeRows, LatestRowsAreReadFromCodesToo) {
    const Shape shape;
    const int n = 50;
    const Tokens tokens(shape, n, 31);
    const std::vector<float> q = queries_for(shape, 1);
    CachePair pair(shape);
    ASSERT_EQ(pair.run(tokens.write(0, n)), GGML_STATUS_SUCCESS);
    Batch b;
    causal(b, shape, q, 1, n - 1);
    const double error =
        relative_error(attend(pair, shape, n, q),
                       reference_attention(shape, cache_rows(shape, tokens.k), cache_rows(shape, tokens.v), q, b.visible));
    EXPECT_GT(error, 0.02);
    EXPECT_LT(error, 0.6);
}

}  // namespace

}  // namespace vecinfer::plugin_test
