#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>

#include "cache/row_rounding.h"
#include "cache_fixture.h"
#include "codec/f16.h"

namespace vecinfer::testing {
namespace {

class EveryWidth : public ::testing::TestWithParam<std::tuple<CodecSpec, int, Norm>> {};

// The packed bytes must give back what the codec itself says, code by code, whatever the width, head size and block edge.
TEST_P(EveryWidth, PackedCellsDecodeToWhatTheCodecEncodes) {
    const auto& [spec, head_dim, norm] = GetParam();
    Shape s{.num_kv_heads = 3,
            .head_dim = head_dim,
            .sub_dim = spec.sub_dim,
            .code_bits = spec.code_bits,
            .norm = norm,
            .num_cells = 200};
    OwnedCache owned(s);
    const int row_dim = 3 * head_dim;
    const std::vector<float> rows = normal_rows(150, row_dim, 5);
    std::vector<std::int32_t> cells;
    for (int i = 0; i < 150; ++i) {
        cells.push_back((i * 67 + 11) % 200);  // scattered over blocks
    }
    owned.write(0, cells, iota(0, 150), rows.data(), 3);
    const RowCodec& codec = owned.codec();
    for (int i = 0; i < 150; ++i) {
        for (int h = 0; h < 3; ++h) {
            // The cache leaves the lowest mantissa bit of the first 64 channels of a row free.
            std::vector<float> x(rows.begin() + i * row_dim + h * head_dim, rows.begin() + i * row_dim + (h + 1) * head_dim);
            for (int d = 0; d < head_dim; ++d) {
                std::uint16_t half = f32_to_f16(x[d]);
                if (h * head_dim + d < 64 && half & 1) {
                    half += half & 2 ? 1 : -1;
                }
                x[d] = f16_to_f32(half);
            }
            std::vector<std::uint16_t> codes(codec.num_subspaces());
            std::uint8_t norm_code = 0;
            codec.encode(h, x.data(), codes.data(), &norm_code);
            std::vector<float> expected(head_dim);
            std::vector<float> got(head_dim);
            codec.decode(h, codes.data(), &norm_code, expected.data());
            owned.cache.decode(0, h, cells[i], cells[i] + 1, got.data());
            ASSERT_EQ(expected, got) << "row " << i << " head " << h;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EveryWidth,
                         ::testing::Combine(::testing::ValuesIn(supported_vq_specs().begin(), supported_vq_specs().end()),
                                            ::testing::Values(64, 80, 128, 256), ::testing::Values(Norm::none, Norm::vector)));

// The bytes of a block by their definition in docs/cache_format.md, for every width.
TEST_P(EveryWidth, PlanesHoldTheBitsOfTheCodes) {
    const auto& [spec, head_dim, norm] = GetParam();
    OwnedCache owned({.num_kv_heads = 1,
                      .head_dim = head_dim,
                      .sub_dim = spec.sub_dim,
                      .code_bits = spec.code_bits,
                      .norm = norm,
                      .num_cells = 64});
    const std::vector<float> rows = normal_rows(64, head_dim, 6);
    owned.write(0, iota(0, 64), iota(0, 64), rows.data());
    const RowCodec& codec = owned.codec();
    std::vector<std::uint8_t> expected;
    std::vector<std::vector<std::uint16_t>> codes(64, std::vector<std::uint16_t>(codec.num_subspaces()));
    std::vector<std::uint8_t> norms(64);
    for (int cell = 0; cell < 64; ++cell) {
        std::vector<float> x(head_dim);
        for (int d = 0; d < head_dim; ++d) {
            x[d] = f16_to_f32(round_channel(rows[cell * head_dim + d], d));
        }
        codec.encode(0, x.data(), codes[cell].data(), &norms[cell]);
    }
    const std::map<int, std::vector<int>> planes = {{8, {8}}, {10, {8, 2}}, {12, {8, 4}}, {2, {2}}, {3, {2, 1}}, {4, {4}}};
    for (int m = 0; m < codec.num_subspaces(); ++m) {
        int low = 0;
        for (const int width : planes.at(spec.code_bits)) {
            for (int j = 0; j < 8 * width; ++j) {
                unsigned byte = 0;
                for (int i = 0; i < 8 / width; ++i) {
                    byte |= (codes[j + 8 * width * i][m] >> low & ((1 << width) - 1)) << (width * i);
                }
                expected.push_back(static_cast<std::uint8_t>(byte));
            }
            low += width;
        }
    }
    if (norm == Norm::vector) {
        expected.insert(expected.end(), norms.begin(), norms.end());
    }
    const std::uint8_t* block = owned.cache.code_block(0, 0, 0);
    EXPECT_EQ(expected, std::vector<std::uint8_t>(block, block + expected.size()));
    EXPECT_EQ(expected.size(), 64 * owned.cache.geometry().row_bytes());
}

class BatchSplit : public ::testing::TestWithParam<CodecSpec> {};

TEST_P(BatchSplit, CodesDoNotDependOnBatchSplitOrThreads) {
    const Shape s{.num_kv_heads = 3,
                  .sub_dim = GetParam().sub_dim,
                  .code_bits = GetParam().code_bits,
                  .num_cells = 1024,
                  .window = {32, 4}};
    const std::vector<float> rows = normal_rows(1000, 192, 9);
    OwnedCache whole(s);
    whole.write(0, iota(0, 1000), iota(0, 1000), rows.data());
    for (const int split : {1, 7, 64, 512}) {
        OwnedCache parts(s);
        for (int i = 0; i < 1000; i += split) {
            const int end = std::min(i + split, 1000);
            parts.write(0, iota(i, end), iota(i, end), rows.data() + i * 192, 1 + split % 3);
        }
        for (int h = 0; h < 3; ++h) {
            for (int block = 0; block < 16; ++block) {
                const std::size_t bytes = static_cast<std::size_t>(64 / s.sub_dim * s.code_bits * 8 + 64);
                ASSERT_EQ(0, std::memcmp(whole.cache.code_block(0, h, block), parts.cache.code_block(0, h, block), bytes))
                    << "split " << split << " head " << h << " block " << block;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Widths, BatchSplit, ::testing::ValuesIn(supported_vq_specs().begin(), supported_vq_specs().end()));

TEST(PackedCache, SizesAreWhatTheLayoutSays) {
    CacheGeometry g{.row_dim = 192, .codec = {}, .num_heads = 3, .norm = true, .num_cells = 8192, .window = {128, 4}};
    EXPECT_EQ(51, g.row_bytes());
    EXPECT_EQ(152, g.window_rows());
    EXPECT_EQ(8192u * 51 + 152 * 192 * 2 + 152 * 16, g.total_bytes());
    g.window = {0, 0};
    EXPECT_EQ(8192u * 51, g.total_bytes());
    g.num_streams = 3;
    EXPECT_EQ(3u * 8192 * 51, g.total_bytes());
    g = {.row_dim = 64, .codec = {CodecKind::vq, 8, 12}, .num_cells = 65, .window = {0, 0}};
    EXPECT_EQ(12, g.row_bytes());
    EXPECT_EQ(2u * 64 * 12, g.total_bytes());
}

TEST(PackedCache, RefusesWhatDoesNotFit) {
    OwnedCache owned({});
    CacheGeometry g = owned.cache.geometry();
    alignas(64) std::byte memory[64];
    g.row_dim = 64;
    EXPECT_EQ("row_dim: got 64, expected 128 as the codec has",
              PackedCache::create(g, &owned.codec(), memory).status().message());
    g = owned.cache.geometry();
    g.codec.code_bits = 12;
    EXPECT_FALSE(PackedCache::create(g, &owned.codec(), memory).ok());
    g = owned.cache.geometry();
    EXPECT_FALSE(PackedCache::create(g, &owned.codec(), memory + 1).ok());
    g.num_heads = 1;
    EXPECT_FALSE(PackedCache::create(g, &owned.codec(), memory).ok());

    const std::int32_t zero[] = {0};
    const std::int32_t high[] = {256};
    EXPECT_EQ("cells: got cell 256, expected 0 to 255", owned.cache.plan_write(0, high, zero).status().message());
    EXPECT_FALSE(owned.cache.plan_write(1, zero, zero).ok());
    EXPECT_FALSE(owned.cache.plan_write(0, zero, {}).ok());
}

TEST(PackedCache, NonFiniteRowsAreStoredAsZerosAndHugeOnesAreClamped) {
    OwnedCache owned({.num_kv_heads = 1, .window = {8, 0}});
    std::vector<float> row(64, 1.0f);
    row[3] = std::numeric_limits<float>::quiet_NaN();
    row[4] = -std::numeric_limits<float>::infinity();
    row[5] = 1e30f;
    const WritePlan plan = owned.write(0, {7}, {0}, row.data());
    ASSERT_EQ(1u, plan.exact.size());
    EXPECT_EQ(0.0f, f16_to_f32(plan.exact[0].row[3]));
    EXPECT_EQ(0.0f, f16_to_f32(plan.exact[0].row[4]));
    EXPECT_NEAR(65504.0f, f16_to_f32(plan.exact[0].row[5]), 64.0f);
    std::vector<float> decoded(64);
    owned.cache.decode_original(0, 0, 7, 8, decoded.data());
    for (const float v : decoded) {
        EXPECT_TRUE(std::isfinite(v));
    }
}

class Transfer : public ::testing::TestWithParam<CodecSpec> {};

// Rows inside and outside the window survive the trip through f16-sized rows byte for byte.
TEST_P(Transfer, ExportAndImportRestoreEverything) {
    const Shape s{
        .num_kv_heads = 2, .sub_dim = GetParam().sub_dim, .code_bits = GetParam().code_bits, .num_cells = 128, .window = {16, 2}};
    OwnedCache from(s);
    const std::vector<float> rows = normal_rows(100, 128, 3);
    for (int i = 0; i < 100; ++i) {
        from.write(0, {i}, {i}, rows.data() + i * 128);
    }
    OwnedCache to(s);
    std::vector<std::byte> row(256);
    for (int i = 0; i < 100; ++i) {
        from.cache.export_row(0, i, row.data());
        ASSERT_TRUE(to.cache.import_row(0, i, row.data()).ok()) << i;
    }
    for (int h = 0; h < 2; ++h) {
        std::vector<float> a(100 * 64);
        std::vector<float> b(100 * 64);
        from.cache.decode(0, h, 0, 100, a.data());
        to.cache.decode(0, h, 0, 100, b.data());
        EXPECT_EQ(a, b);
    }
    const std::vector<ExactRow> before = from.cache.window(0);
    std::vector<ExactRow> after = to.cache.window(0);
    ASSERT_EQ(before.size(), after.size());
    for (const ExactRow& x : before) {
        const auto y = std::find_if(after.begin(), after.end(), [&](const ExactRow& r) { return r.cell == x.cell; });
        ASSERT_NE(after.end(), y);
        EXPECT_EQ(x.position, y->position);
        EXPECT_EQ(0, std::memcmp(x.row, y->row, 256));
    }
}

INSTANTIATE_TEST_SUITE_P(Widths, Transfer, ::testing::ValuesIn(supported_vq_specs().begin(), supported_vq_specs().end()));

TEST(PackedCache, ForeignRowsAreRefusedAndChangeNothing) {
    const Shape s{.num_cells = 64, .window = {8, 0}};
    OwnedCache a(s, 1);
    OwnedCache other_codebook(s, 2);
    const std::vector<float> rows = normal_rows(40, 128, 3);
    a.write(0, iota(0, 40), iota(0, 40), rows.data());
    other_codebook.write(0, iota(0, 40), iota(0, 40), rows.data());
    const std::vector<std::byte> before(other_codebook.memory(), other_codebook.memory() + other_codebook.bytes());
    std::vector<std::byte> row(256);
    for (const int cell : {0, 39}) {  // codes, and a window row
        a.cache.export_row(0, cell, row.data());
        EXPECT_EQ(ErrorCode::mismatch, other_codebook.cache.import_row(0, cell, row.data()).code());
    }
    for (int d = 0; d < 128; ++d) {  // an f16 row as a cache without vecinfer saves it
        const std::uint16_t h = f32_to_f16(rows[d]);
        std::memcpy(row.data() + 2 * d, &h, 2);
    }
    EXPECT_EQ(ErrorCode::mismatch, other_codebook.cache.import_row(0, 5, row.data()).code());
    EXPECT_EQ(0, std::memcmp(before.data(), other_codebook.memory(), before.size()));
}

TEST(PackedCache, StreamsAreIndependentAndCopyWhole) {
    OwnedCache owned({.num_cells = 64, .num_streams = 3, .window = {8, 0}});
    const std::vector<float> rows = normal_rows(20, 128, 3);
    owned.write(1, iota(0, 20), iota(0, 20), rows.data());
    EXPECT_TRUE(owned.cache.window(0).empty());
    EXPECT_TRUE(owned.cache.window(2).empty());
    owned.cache.copy_stream(1, 2);
    std::vector<float> a(20 * 64);
    std::vector<float> b(20 * 64);
    owned.cache.decode(1, 1, 0, 20, a.data());
    owned.cache.decode(2, 1, 0, 20, b.data());
    EXPECT_EQ(a, b);
    EXPECT_EQ(owned.cache.window(1).size(), owned.cache.window(2).size());
    owned.cache.clear();
    EXPECT_TRUE(owned.cache.window(1).empty());
}

TEST(PackedCache, RewriteReplacesCodesAndWindowRow) {
    OwnedCache owned({.num_kv_heads = 1, .num_cells = 64, .window = {4, 0}});
    OwnedCache fresh({.num_kv_heads = 1, .num_cells = 64, .window = {4, 0}});
    const std::vector<float> rows = normal_rows(30, 64, 3);
    const std::vector<float> changed = normal_rows(30, 64, 4);
    owned.write(0, iota(0, 30), iota(0, 30), rows.data());
    fresh.write(0, iota(0, 30), iota(0, 30), changed.data());
    for (int i = 0; i < 30; ++i) {
        owned.cache.rewrite_row(0, i, changed.data() + i * 64);
        owned.cache.move_position(0, i, -5);
    }
    std::vector<float> a(64);
    std::vector<float> b(64);
    for (int i = 0; i < 30; ++i) {
        owned.cache.read_row(0, i, a.data());
        fresh.cache.read_row(0, i, b.data());
        ASSERT_EQ(a, b) << i;
    }
    for (const ExactRow& r : owned.cache.window(0)) {
        EXPECT_EQ(r.cell - 5, r.position);
    }
}

}  // namespace
}  // namespace vecinfer::testing
