#include <gtest/gtest.h>

#include <map>

#include "cache_fixture.h"
#include "codec/f16.h"

namespace vecinfer::testing {
namespace {

// cell -> (position, value of channel 100), channel 100 being outside the marked ones; rows are constant per row.
std::map<int, std::pair<int, float>> content(const std::vector<ExactRow>& rows) {
    std::map<int, std::pair<int, float>> m;
    for (const ExactRow& r : rows) {
        const bool inserted = m.emplace(r.cell, std::pair(r.position, f16_to_f32(r.row[100]))).second;
        EXPECT_TRUE(inserted) << "cell " << r.cell << " is listed twice";
    }
    return m;
}

std::vector<float> constant_rows(int begin, int end) {
    std::vector<float> x;
    for (int i = begin; i < end; ++i) {
        x.insert(x.end(), 128, static_cast<float>(i));
    }
    return x;
}

const Shape kShape{.num_cells = 512, .window = {32, 4}};

class BatchSize : public ::testing::TestWithParam<int> {};

// Whatever the batch size, every query finds the `recent` rows before it and the sinks among the rows at hand.
TEST_P(BatchSize, RecentAndSinkRowsAreAtHand) {
    OwnedCache owned(kShape);
    const int batch = GetParam();
    for (int begin = 0; begin < 300; begin += batch) {
        const int end = std::min(begin + batch, 300);
        const std::vector<float> rows = constant_rows(begin, end);
        const WritePlan plan = owned.write(0, iota(begin, end), iota(begin, end), rows.data(), 2);
        const auto at_hand = content(plan.exact);
        for (int query = begin; query < end; ++query) {
            for (int p = 0; p <= query; ++p) {
                if (p < 4 || query - p < 32) {
                    const auto it = at_hand.find(p);
                    ASSERT_NE(at_hand.end(), it) << "query " << query << " misses " << p;
                    ASSERT_EQ(p, it->second.first);
                    ASSERT_EQ(static_cast<float>(p), it->second.second);
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Splits, BatchSize, ::testing::Values(1, 7, 16, 17, 64, 300));

// Rejected draft tokens leave no trace: the cells are written again and the window is as if they had never been.
TEST(Window, RollbackUpToTheSlackLosesNothing) {
    OwnedCache plain(kShape);
    OwnedCache draft(kShape);
    const std::vector<float> rows = constant_rows(0, 200);
    plain.write(0, iota(0, 200), iota(0, 200), rows.data());
    draft.write(0, iota(0, 150), iota(0, 150), rows.data());
    const std::vector<float> rejected = constant_rows(1000, 1000 + kRollbackRows);
    for (int i = 150; i < 200; ++i) {
        draft.write(0, iota(i, i + kRollbackRows), iota(i, i + kRollbackRows), rejected.data());
        draft.write(0, {i}, {i}, rows.data() + i * 128);
        const auto at_hand = content(draft.cache.window(0));
        for (int p = i - 31; p <= i; ++p) {
            const auto it = at_hand.find(p);
            ASSERT_NE(at_hand.end(), it) << "after " << i << " misses " << p;
            ASSERT_EQ(static_cast<float>(p), it->second.second);
        }
    }
}

TEST(Window, OverwrittenCellHasOneCopy) {
    OwnedCache owned(kShape);
    const std::vector<float> rows = constant_rows(0, 40);
    owned.write(0, iota(0, 40), iota(0, 40), rows.data());
    // The cell of a sink becomes that of a recent token.
    owned.write(0, {2}, {40}, rows.data() + 39 * 128);
    const auto at_hand = content(owned.cache.window(0));
    EXPECT_EQ(40, at_hand.at(2).first);
    EXPECT_EQ(39.0f, at_hand.at(2).second);
}

TEST(Window, SinksOfSeveralSequencesShareTheStream) {
    OwnedCache owned(kShape);
    const std::vector<float> rows = constant_rows(0, 400);
    for (int seq = 0; seq < kSinkSequences; ++seq) {
        owned.write(0, iota(seq * 60, seq * 60 + 60), iota(0, 60), rows.data() + seq * 60 * 128);
    }
    const auto at_hand = content(owned.cache.window(0));
    for (int seq = 0; seq < kSinkSequences; ++seq) {
        for (int p = 0; p < 4; ++p) {
            EXPECT_TRUE(at_hand.contains(seq * 60 + p)) << "sequence " << seq << " position " << p;
        }
    }
}

TEST(Window, WithoutWindowNothingIsAtHand) {
    OwnedCache owned({.num_cells = 64, .window = {0, 0}});
    const std::vector<float> rows = constant_rows(0, 30);
    EXPECT_TRUE(owned.write(0, iota(0, 30), iota(0, 30), rows.data()).exact.empty());
    EXPECT_TRUE(owned.cache.window(0).empty());
}

}  // namespace
}  // namespace vecinfer::testing
