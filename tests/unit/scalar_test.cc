// Scalar codecs (KIVI, InnerQ) against their definition, written down a second time here, and groups of tokens in a cache that is
// written in any order.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "cache/row_rounding.h"
#include "cache_fixture.h"
#include "codec/f16.h"
#include "scheme/spelling.h"

namespace vecinfer::testing {
namespace {

CodecSpec codec_of(const std::string& name) {
    CodecSpec spec;
    EXPECT_TRUE(spelling::find_codec(name, spec)) << name;
    return spec;
}

/// One group by the definition.
struct Group {
    std::uint16_t scale = 0;  // as stored
    std::uint16_t zero = 0;
    std::vector<int> codes;
    std::vector<float> decoded;
};

Group symmetric(const std::vector<float>& x, int bits) {
    float most = 0;
    for (const float v : x) {
        most = std::max(most, std::fabs(v));
    }
    const int m = (1 << (bits - 1)) - 1;
    Group g{.scale = f32_to_f16(most / static_cast<float>(m)), .zero = 0, .codes = {}, .decoded = {}};
    const float scale = f16_to_f32(g.scale);
    for (const float v : x) {
        int q = -m;  // without extent every code means zero, and the first is stored
        if (scale > 0) {
            q = std::clamp(static_cast<int>(std::floor((v + static_cast<float>(m) * scale) / scale + 0.5f)) - m, -m, m);
        }
        g.codes.push_back(q + m);
        g.decoded.push_back(static_cast<float>(q) * scale);
    }
    return g;
}

Group asymmetric(const std::vector<float>& x, int bits) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const int most = (1 << bits) - 1;
    Group g{.scale = f32_to_f16((*high - *low) / static_cast<float>(most)), .zero = f32_to_f16(*low), .codes = {}, .decoded = {}};
    const float scale = f16_to_f32(g.scale);
    const float zero = f16_to_f32(g.zero);
    for (const float v : x) {
        const int q = scale > 0 ? std::clamp(static_cast<int>(std::floor((v - zero) / scale + 0.5f)), 0, most) : 0;
        g.codes.push_back(q);
        g.decoded.push_back(zero + static_cast<float>(q) * scale);
    }
    return g;
}

double absolute_error(const Group& g, const std::vector<float>& x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        sum += std::fabs(static_cast<double>(g.decoded[i]) - x[i]);
    }
    return sum;
}

Group encode_group(const CodecSpec& spec, const std::vector<float>& x) {
    if (spec.levels == Levels::symmetric) {
        return symmetric(x, spec.code_bits);
    }
    if (spec.levels == Levels::asymmetric) {
        return asymmetric(x, spec.code_bits);
    }
    const Group a = symmetric(x, spec.code_bits);
    Group b = asymmetric(x, spec.code_bits - 1);
    b.scale |= 0x8000;
    return absolute_error(b, x) < absolute_error(a, x) ? b : a;
}

/// What a cache makes of a row before it encodes it.
std::vector<float> rounded(const float* rows, int n, int row_dim) {
    std::vector<float> out;
    for (int i = 0; i < n * row_dim; ++i) {
        out.push_back(f16_to_f32(round_channel(rows[i], i % row_dim)));
    }
    return out;
}

/// Rows with a large offset on some channels, as keys with biases have, and a different spread on each.
std::vector<float> key_rows(int n, int row_dim, unsigned seed) {
    std::vector<float> x = normal_rows(n, row_dim, seed);
    for (int i = 0; i < n * row_dim; ++i) {
        const int channel = i % row_dim;
        x[i] = x[i] * std::exp2(static_cast<float>(channel % 7 - 3)) + (channel % 9 == 0 ? 30.0f : 0.0f);
    }
    return x;
}

/// Bytes of one head's block by docs/cache_format.md. x: the block's 64 rows of that head, in code space.
std::vector<std::uint8_t> block_bytes(const CodecSpec& spec, int head_dim, const std::vector<float>& x) {
    std::vector<std::vector<int>> codes(head_dim, std::vector<int>(64));
    std::vector<std::uint16_t> scales;
    std::vector<std::uint16_t> zeros;
    const int steps = spec.groups_tokens() ? head_dim : head_dim / spec.group;  // groups side by side
    const int blocks = 64 * head_dim / spec.group / steps;
    for (int b = 0; b < blocks; ++b) {
        for (int s = 0; s < steps; ++s) {
            std::vector<float> values;
            const auto place = [&](int i) {
                return spec.groups_tokens() ? std::pair(b * spec.group + i, s) : std::pair(b, s * spec.group + i);
            };
            for (int i = 0; i < spec.group; ++i) {
                values.push_back(x[place(i).first * head_dim + place(i).second]);
            }
            const Group g = encode_group(spec, values);
            for (int i = 0; i < spec.group; ++i) {
                codes[place(i).second][place(i).first] = g.codes[i];
            }
            scales.push_back(g.scale);
            zeros.push_back(g.zero);
        }
    }
    std::vector<std::uint8_t> bytes;
    for (int channel = 0; channel < head_dim; ++channel) {
        int low = 0;
        for (const int width : {8, 4, 2, 1}) {
            for (int j = 0; (spec.code_bits & width) != 0 && j < 8 * width; ++j) {
                int byte = 0;
                for (int i = 0; i < 8 / width; ++i) {
                    byte |= (codes[channel][j + 8 * width * i] >> low & ((1 << width) - 1)) << (width * i);
                }
                bytes.push_back(static_cast<std::uint8_t>(byte));
            }
            low += (spec.code_bits & width);
        }
    }
    // Groups of tokens: numbers of a group side by side; groups of channels: those of the 64 cells side by side.
    for (const std::vector<std::uint16_t>* numbers : {&scales, &zeros}) {
        if (numbers == &zeros && spec.levels == Levels::symmetric) {
            continue;
        }
        for (std::size_t i = 0; i < numbers->size(); ++i) {
            const std::size_t at = spec.groups_tokens() ? i : i % 64 * steps + i / 64;
            bytes.push_back(static_cast<std::uint8_t>((*numbers)[at]));
            bytes.push_back(static_cast<std::uint8_t>((*numbers)[at] >> 8));
        }
    }
    if (spec.groups_tokens()) {
        bytes.insert(bytes.end(), 8, 0xff);
    }
    return bytes;
}

class Scalar : public ::testing::TestWithParam<std::tuple<std::string, int>> {
protected:
    CodecSpec spec = codec_of(std::get<0>(GetParam()));
    int head_dim = std::get<1>(GetParam());

    Shape shape(int num_cells, int recent = 64) const {
        return {.num_kv_heads = 2,
                .head_dim = head_dim,
                .transform = {},
                .scalar = spec,
                .num_cells = num_cells,
                .window = {recent, 0}};
    }
    int row_dim() const { return 2 * head_dim; }
    std::vector<std::uint8_t> codes(const OwnedCache& owned, int stream = 0) const {
        std::vector<std::uint8_t> all;
        const std::size_t bytes = owned.cache.geometry().block_bytes() / 2;
        for (int head = 0; head < 2; ++head) {
            for (int block = 0; block * 64 < owned.cache.geometry().num_cells; ++block) {
                const std::uint8_t* p = owned.cache.code_block(stream, head, block);
                all.insert(all.end(), p, p + bytes);
            }
        }
        return all;
    }
};

TEST_P(Scalar, BlocksHaveTheBytesOfTheDefinition) {
    OwnedCache owned(shape(128));
    const std::vector<float> rows = key_rows(128, row_dim(), 1);
    owned.write(0, iota(0, 128), iota(0, 128), rows.data(), 3);
    const std::vector<float> x = rounded(rows.data(), 128, row_dim());
    for (int head = 0; head < 2; ++head) {
        for (int block = 0; block < 2; ++block) {
            std::vector<float> part;
            for (int cell = block * 64; cell < block * 64 + 64; ++cell) {
                const float* from = &x[cell * row_dim() + head * head_dim];
                part.insert(part.end(), from, from + head_dim);
            }
            const std::vector<std::uint8_t> expected = block_bytes(spec, head_dim, part);
            const std::uint8_t* got = owned.cache.code_block(0, head, block);
            ASSERT_EQ(expected.size(), owned.cache.geometry().block_bytes() / 2);
            ASSERT_EQ(expected, std::vector<std::uint8_t>(got, got + expected.size())) << head << ' ' << block;
        }
    }
}

TEST_P(Scalar, DecodedValuesAreThoseOfTheDefinition) {
    OwnedCache owned(shape(64));
    const std::vector<float> rows = key_rows(64, row_dim(), 2);
    owned.write(0, iota(0, 64), iota(0, 64), rows.data());
    const std::vector<float> x = rounded(rows.data(), 64, row_dim());
    std::vector<float> decoded(64 * head_dim);
    owned.cache.decode(0, 1, 0, 64, decoded.data());
    for (int first = 0; first < 64 * head_dim; first += spec.group) {
        std::vector<std::size_t> at;
        for (int i = first; i < first + spec.group; ++i) {  // groups along tokens run through a column
            at.push_back(spec.groups_tokens() ? i % 64 * head_dim + i / 64 : i);
        }
        std::vector<float> values;
        for (const std::size_t i : at) {
            values.push_back(x[i / head_dim * row_dim() + head_dim + i % head_dim]);
        }
        const Group g = encode_group(spec, values);
        const float step = f16_to_f32(g.scale & 0x7fff);
        for (int i = 0; i < spec.group; ++i) {
            ASSERT_EQ(g.decoded[i], decoded[at[i]]);
            if (spec.levels != Levels::hybrid) {
                // Half a step, and what rounding the numbers to f16 leaves at the ends.
                ASSERT_LE(std::fabs(decoded[at[i]] - values[i]), 0.5f * step + 0x1p-10f * (std::fabs(values[i]) + 256 * step));
            }
        }
    }
}

TEST_P(Scalar, CodesDoNotDependOnBatchSplitOrThreads) {
    const int n = 640;
    const std::vector<float> rows = key_rows(n, row_dim(), 3);
    OwnedCache whole(shape(n));
    whole.write(0, iota(0, n), iota(0, n), rows.data());
    for (const int split : {1, 7, 64, 100, 512}) {
        OwnedCache parts(shape(n));
        for (int i = 0; i < n; i += split) {
            const int end = std::min(i + split, n);
            parts.write(0, iota(i, end), iota(i, end), rows.data() + i * row_dim(), 1 + split % 4);
        }
        ASSERT_EQ(codes(whole), codes(parts)) << split;
    }
}

// Draft tokens are rejected and written anew; their cells held rows of an earlier, longer sequence.
TEST_P(Scalar, RollbackAndReuseOfCellsLeaveNoTrace) {
    const int n = 256;
    const std::vector<float> rows = key_rows(n, row_dim(), 4);
    OwnedCache plain(shape(n));
    plain.write(0, iota(0, n), iota(0, n), rows.data());
    OwnedCache reused(shape(n));
    const std::vector<float> huge = normal_rows(n, row_dim(), 5, 1e4f);
    reused.write(0, iota(0, n), iota(1000, 1000 + n), huge.data());
    for (int i = 0; i < n;) {
        const int draft = std::min(kRollbackRows, n - i);
        reused.write(0, iota(i, i + draft), iota(i, i + draft), huge.data());
        const int accepted = std::min(1 + i % 5, draft);
        reused.write(0, iota(i, i + accepted), iota(i, i + accepted), rows.data() + i * row_dim());
        i += accepted;
    }
    EXPECT_EQ(codes(plain), codes(reused));
}

TEST_P(Scalar, CellsMayBeWrittenInAnyOrder) {
    const std::vector<float> rows = key_rows(64, row_dim(), 6);
    OwnedCache plain(shape(64));
    plain.write(0, iota(0, 64), iota(0, 64), rows.data());
    OwnedCache scattered(shape(64));
    for (int i = 0; i < 64; ++i) {
        const int cell = i * 27 % 64;
        scattered.write(0, {cell}, {i}, rows.data() + cell * row_dim());
    }
    EXPECT_EQ(codes(plain), codes(scattered));
}

TEST_P(Scalar, SavedRowsComeBack) {
    const int n = 200;
    OwnedCache from(shape(n));
    const std::vector<float> rows = normal_rows(n, row_dim(), 7);
    for (int i = 0; i < n; i += 10) {
        from.write(0, iota(i, i + 10), iota(i, i + 10), rows.data() + i * row_dim());
    }
    const std::size_t row_bytes = 2 * row_dim();
    std::vector<std::byte> saved(n * row_bytes);
    for (int i = 0; i < n; ++i) {
        from.cache.export_row(0, i, &saved[i * row_bytes]);
        ASSERT_TRUE(from.cache.check_row(&saved[i * row_bytes]).ok());
    }
    OwnedCache to(shape(n));
    ASSERT_TRUE(to.cache.import_rows(0, iota(0, n), saved.data()).ok());
    if (!spec.groups_tokens()) {
        EXPECT_EQ(codes(from), codes(to));
    }
    std::vector<float> a(n * head_dim);
    std::vector<float> b(n * head_dim);
    float largest = 0;
    for (const float v : rows) {
        largest = std::max(largest, std::fabs(v));
    }
    for (int head = 0; head < 2; ++head) {
        from.cache.decode(0, head, 0, n, a.data());
        to.cache.decode(0, head, 0, n, b.data());
        for (std::size_t i = 0; i < a.size(); ++i) {
            // One f16 rounding in each of three numbers. A row that is in the window while others of its group are not may get
            // the neighbouring level, no farther from the row itself.
            const int cell = static_cast<int>(i) / head_dim;
            const float x = f16_to_f32(round_channel(rows[cell * row_dim() + head * head_dim + i % head_dim],
                                                     head * head_dim + static_cast<int>(i) % head_dim));
            const float tolerance = 0x1p-8f * largest;
            ASSERT_TRUE(std::fabs(a[i] - b[i]) <= tolerance ||
                        (cell >= n - 80 && std::fabs(b[i] - x) <= std::fabs(a[i] - x) + tolerance))
                << i;
        }
    }
    const std::vector<ExactRow> before = from.cache.window(0);
    std::vector<ExactRow> after = to.cache.window(0);
    ASSERT_EQ(before.size(), after.size());
    for (const ExactRow& x : before) {
        const auto y = std::find_if(after.begin(), after.end(), [&](const ExactRow& r) { return r.cell == x.cell; });
        ASSERT_NE(after.end(), y);
        EXPECT_EQ(x.position, y->position);
        EXPECT_EQ(0, std::memcmp(x.row, y->row, row_bytes));
    }
    // Another codec refuses them and is not changed.
    Shape other = shape(n);
    other.scalar = codec_of(spec.code_bits == 4 ? "b3-channel32-sym" : "b4-channel32-sym");
    OwnedCache refuses(other);
    const std::vector<std::byte> untouched(refuses.memory(), refuses.memory() + refuses.bytes());
    for (const int cell : {0, n - 1}) {
        EXPECT_EQ(ErrorCode::mismatch, refuses.cache.import_row(0, cell, &saved[cell * row_bytes]).code());
    }
    EXPECT_EQ(0, std::memcmp(untouched.data(), refuses.memory(), untouched.size()));
}

// K-shift.
TEST_P(Scalar, RewrittenRowsAreEncodedAsIfWrittenAnew) {
    const int n = 192;
    const std::vector<float> rows = key_rows(n, row_dim(), 8);
    const std::vector<float> changed = key_rows(n, row_dim(), 9);
    OwnedCache owned(shape(n));
    OwnedCache fresh(shape(n));
    owned.write(0, iota(0, n), iota(0, n), rows.data());
    fresh.write(0, iota(0, n), iota(0, n), changed.data());
    for (int begin = 0; begin < n; begin += 64) {
        owned.cache.rewrite_rows(0, iota(begin, begin + 64), changed.data() + begin * row_dim());
    }
    EXPECT_EQ(codes(fresh), codes(owned));
    std::vector<float> a(row_dim());
    std::vector<float> b(row_dim());
    for (int i = 0; i < n; ++i) {
        owned.cache.read_row(0, i, a.data());
        fresh.cache.read_row(0, i, b.data());
        ASSERT_EQ(a, b) << i;
    }
}

TEST_P(Scalar, ConstantsZerosDenormalsAndExtremesAreHarmless) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    const std::pair<const char*, std::function<float(int, int)>> contents[] = {
        {"zeros", [](int, int) { return 0.0f; }},
        {"constant", [](int, int) { return -3.25f; }},
        {"constant per token", [](int t, int) { return 0.5f * static_cast<float>(t); }},
        {"constant per channel", [](int, int c) { return 4.0f - static_cast<float>(c); }},
        {"denormals", [](int t, int c) { return 6e-8f * static_cast<float>((t + c) % 5 - 2); }},
        {"below f16", [](int t, int c) { return (t + c) % 2 ? 1e-12f : -1e-38f; }},
        {"extremes", [](int t, int c) { return (t * 7 + c) % 3 ? 65504.0f : -65504.0f; }},
        {"beyond f16", [](int t, int c) { return (t * 7 + c) % 3 ? 3e38f : -1e30f; }},
        {"non-finite",
         [&](int t, int c) {
             return (t + c) % 4 == 0 ? nan : (t + c) % 4 == 1 ? infinity : (t + c) % 4 == 2 ? -infinity : 1.0f;
         }},
    };
    for (const auto& [name, value] : contents) {
        OwnedCache owned(shape(64));
        std::vector<float> rows;
        for (int t = 0; t < 64; ++t) {
            for (int c = 0; c < row_dim(); ++c) {
                rows.push_back(value(t, c));
            }
        }
        owned.write(0, iota(0, 64), iota(0, 64), rows.data());
        const std::vector<float> x = rounded(rows.data(), 64, row_dim());
        std::vector<float> decoded(64 * head_dim);
        owned.cache.decode(0, 0, 0, 64, decoded.data());
        for (int i = 0; i < 64 * head_dim; ++i) {
            const float expected = x[i / head_dim * row_dim() + i % head_dim];
            ASSERT_TRUE(std::isfinite(decoded[i])) << name;
            const bool along = std::strcmp(name, spec.groups_tokens() ? "constant per channel" : "constant per token") == 0;
            if (expected == 0 && std::strcmp(name, "zeros") == 0) {
                ASSERT_EQ(0.0f, decoded[i]);
            } else if ((along || std::strcmp(name, "constant") == 0)) {
                ASSERT_NEAR(expected, decoded[i], 0x1p-9f * std::fabs(expected)) << name;
            } else if (spec.levels == Levels::asymmetric && std::strcmp(name, "extremes") == 0) {
                ASSERT_NEAR(expected, decoded[i], 64.0f) << name;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Scalar,
                         ::testing::Combine(::testing::Values("b2-token32-asym", "b2-channel32-asym", "b4-token32-asym",
                                                              "b4-channel32-asym", "b3-channel32-sym", "b3-token32-sym",
                                                              "b2-token32-sym", "b2-token32-hybrid", "b3-channel32-hybrid",
                                                              "b4-channel64-sym", "b4-token64-sym", "b8-channel16-sym",
                                                              "b3-token16-asym", "b8-token64-hybrid"),
                                            ::testing::Values(64, 128)));

TEST(ScalarGroups, OddHeadSizesWorkAlongTokensAndAreNamedAlongChannels) {
    OwnedCache owned({.num_kv_heads = 3,
                      .head_dim = 80,
                      .transform = {false, true},
                      .scalar = codec_of("b3-token32-sym"),
                      .num_cells = 64,
                      .window = {32, 0}});
    const std::vector<float> rows = normal_rows(64, 240, 3);
    owned.write(0, iota(0, 64), iota(0, 64), rows.data(), 2);
    std::vector<float> x(80);
    owned.cache.decode_original(0, 2, 17, 18, x.data());
    double error = 0;
    for (int d = 0; d < 80; ++d) {
        error += std::pow(static_cast<double>(x[d]) - rows[17 * 240 + 160 + d], 2) / 80;
    }
    EXPECT_LT(error, 0.2);
    const HeadTransform none = HeadTransform::create(80, {}, {}).value();
    EXPECT_EQ(RowCodec::create(codec_of("b3-channel32-sym"), Norm::none, 80, {none}, {}).status().message(),
              "head_dim: got 80, expected a multiple of 32 channels, the group");
    EXPECT_TRUE(RowCodec::create(codec_of("b3-channel16-sym"), Norm::none, 80, {none}, {}).ok());
}

// Rows that have left the window when a neighbour's cell is reused.
TEST(ScalarGroups, RowsNoLongerAtHandKeepTheirCodesOrAreRoundedOnceMore) {
    const Shape s{.num_kv_heads = 1,
                  .head_dim = 64,
                  .transform = {},
                  .scalar = codec_of("b4-token32-asym"),
                  .num_cells = 256,
                  .window = {32, 0}};
    OwnedCache owned(s);
    const std::vector<float> rows = normal_rows(256, 64, 10);
    owned.write(0, iota(0, 256), iota(0, 256), rows.data());
    std::vector<float> before(32 * 64);
    owned.cache.decode(0, 0, 0, 32, before.data());
    std::vector<float> after(32 * 64);

    const std::vector<float> inside(64, 0.0f);
    owned.write(0, {5}, {256}, inside.data());
    owned.cache.decode(0, 0, 0, 32, after.data());
    for (int i = 0; i < 32 * 64; ++i) {
        if (i / 64 != 5) {
            ASSERT_EQ(before[i], after[i]) << "fits: nothing else changes";
        } else {
            ASSERT_NEAR(0.0f, after[i], 0.3f);
        }
    }
    const std::vector<float> beyond(64, 15.0f);
    owned.write(0, {6}, {257}, beyond.data());
    owned.cache.decode(0, 0, 0, 32, after.data());
    for (int i = 0; i < 32 * 64; ++i) {
        const float step = (15.0f + 4.5f) / 15.0f;  // ends of a normal sample and the new value, 15 steps
        if (i / 64 == 6) {
            ASSERT_NEAR(15.0f, after[i], 0.02f);
        } else if (i / 64 != 5) {
            ASSERT_LE(std::fabs(before[i] - after[i]), 0.5f * step + 0.02f);
        }
    }
}

TEST(ScalarGroups, TheWindowMustCoverAGroup) {
    OwnedCache owned(
        {.num_kv_heads = 1, .head_dim = 64, .transform = {}, .scalar = codec_of("b2-token32-asym"), .window = {32, 0}});
    CacheGeometry g = owned.cache.geometry();
    g.window.recent = 31;
    alignas(64) std::byte memory[64];
    EXPECT_EQ(PackedCache::create(g, &owned.codec(), memory).status().message(),
              "window.recent: got 31, expected at least 32, the tokens of a group");
}

TEST(ScalarGroups, StreamsAreCopiedWhole) {
    OwnedCache owned({.num_kv_heads = 1,
                      .head_dim = 64,
                      .transform = {},
                      .scalar = codec_of("b2-token32-asym"),
                      .num_cells = 96,
                      .num_streams = 2,
                      .window = {32, 0}});
    const std::vector<float> rows = normal_rows(96, 64, 11);
    owned.write(0, iota(0, 80), iota(0, 80), rows.data());
    owned.cache.copy_stream(0, 1);
    // Both go on alike: the state of an incomplete group is in the copied bytes.
    for (const int stream : {0, 1}) {
        owned.write(stream, iota(80, 96), iota(80, 96), rows.data() + 80 * 64);
    }
    const std::size_t n = owned.cache.geometry().stream_bytes();
    EXPECT_EQ(0, std::memcmp(owned.memory(), owned.memory() + n, n));
}

}  // namespace
}  // namespace vecinfer::testing
