#include <algorithm>
#include <limits>

#include "codec/cuda/pack.h"
#include "codec/f16.h"
#include "cuda/device_fixture.h"
#include "unit/cache_fixture.h"
#include "vecinfer/cuda.h"

namespace vecinfer::testing {
namespace {

struct ScalarEncodeCase {
    std::string name;
    CodecSpec k;
    CodecSpec v;
    int head_dim = 128;
    int page_size = 64;
    TransformSpec key;
    std::vector<int> calls{150};  // tokens of every sequence in each call
    WindowSpec window{64, 4};
    float magnitude = 1.0f;
    bool bad_numbers = false;
};

constexpr CodecSpec spec(int bits, Axis axis, int group, Levels levels) {
    return {CodecKind::scalar, 1, bits, group, axis, levels};
}

std::vector<ScalarEncodeCase> cases() {
    const CodecSpec kivi_key = spec(2, Axis::token, 32, Levels::asymmetric);
    const CodecSpec kivi_value = spec(2, Axis::channel, 32, Levels::asymmetric);
    const CodecSpec innerq_key = spec(3, Axis::channel, 32, Levels::symmetric);
    const CodecSpec innerq_value = spec(2, Axis::token, 32, Levels::hybrid);
    std::vector<ScalarEncodeCase> all;
    for (const int head_dim : {64, 128, 256}) {
        const std::string dim = "dim" + std::to_string(head_dim);
        all.push_back({.name = "kivi2_" + dim, .k = kivi_key, .v = kivi_value, .head_dim = head_dim});
        all.push_back({.name = "kivi4_" + dim,
                       .k = spec(4, Axis::token, 32, Levels::asymmetric),
                       .v = spec(4, Axis::channel, 32, Levels::asymmetric),
                       .head_dim = head_dim});
        all.push_back({.name = "innerq3v2h_" + dim, .k = innerq_key, .v = innerq_value, .head_dim = head_dim});
        all.push_back({.name = "innerq3v3_" + dim,
                       .k = innerq_key,
                       .v = spec(3, Axis::token, 32, Levels::symmetric),
                       .head_dim = head_dim});
        all.push_back({.name = "innerq4v4_" + dim,
                       .k = spec(4, Axis::channel, 64, Levels::symmetric),
                       .v = spec(4, Axis::token, 64, Levels::symmetric),
                       .head_dim = head_dim});
    }
    // Three bits of values share words with other cells; hybrid keys.
    all.push_back({.name = "mixed",
                   .k = spec(3, Axis::channel, 32, Levels::hybrid),
                   .v = spec(3, Axis::channel, 32, Levels::asymmetric),
                   .head_dim = 64});
    std::vector<int> one_by_one(70, 1);
    for (const ScalarEncodeCase& plain : std::vector<ScalarEncodeCase>(all.begin(), all.begin() + 3)) {
        ScalarEncodeCase c = plain;
        c.name += "_steps";
        c.calls = one_by_one;
        all.push_back(c);
        c.name = plain.name + "_parts";
        c.calls = {5, 30, 1, 1, 90, 3, 1, 64};
        c.page_size = 128;
        all.push_back(c);
    }
    all.push_back({.name = "innerq_steps", .k = innerq_key, .v = innerq_value, .calls = one_by_one});
    all.push_back(
        {.name = "transforms", .k = innerq_key, .v = innerq_value, .key = {.smooth = true, .hadamard = true, .center = true}});
    all.push_back({.name = "zeros", .k = kivi_key, .v = innerq_value, .magnitude = 0.0f});
    all.push_back({.name = "huge", .k = kivi_key, .v = kivi_value, .magnitude = 3e4f});
    all.push_back({.name = "tiny", .k = innerq_key, .v = innerq_value, .magnitude = 1e-6f});
    all.push_back({.name = "bad_numbers", .k = kivi_key, .v = kivi_value, .bad_numbers = true});
    return all;
}

RowCodec make_codec(const ScalarEncodeCase& c, bool value, int num_heads) {
    std::vector<HeadTransform> transforms;
    std::mt19937 rng(value ? 8 : 7);
    std::uniform_real_distribution<float> u(0.3f, 3.0f);
    for (int h = 0; h < num_heads; ++h) {
        const TransformSpec transform = value ? TransformSpec{} : c.key;
        std::vector<float> factors;
        std::vector<float> center;
        for (int i = 0; i < c.head_dim; ++i) {
            if (transform.smooth) {
                factors.push_back(u(rng));
            }
            if (transform.center) {
                center.push_back(u(rng) - 1.5f);
            }
        }
        Result<HeadTransform> made = HeadTransform::create(c.head_dim, transform, factors, center);
        EXPECT_TRUE(made.ok()) << made.status().message();
        transforms.push_back(std::move(made).value());
    }
    Result<RowCodec> codec = RowCodec::create(value ? c.v : c.k, Norm::none, c.head_dim, transforms, {});
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    return std::move(codec).value();
}

class ScalarEncodeTest : public CudaTest, public ::testing::WithParamInterface<ScalarEncodeCase> {};

// Codes and numbers of every complete group, however the tokens came.
TEST_P(ScalarEncodeTest, GivesTheCodesOfTheHost) {
    const ScalarEncodeCase& c = GetParam();
    constexpr int kHeads = 2;
    constexpr int kSequences = 2;
    const RowCodec codecs[2] = {make_codec(c, false, kHeads), make_codec(c, true, kHeads)};
    const Result<cuda::LayerCodec> made = cuda::LayerCodec::create(codecs[0], codecs[1]);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const cuda::LayerCodec& codec = made.value();
    int len = 0;
    for (const int call : c.calls) {
        len += call;
    }
    const int row_dim = kHeads * c.head_dim;
    std::vector<float> rows[2];  // layout (len, sequence, row_dim)
    for (int side = 0; side < 2; ++side) {
        rows[side] = normal_rows(len * kSequences, row_dim, 3 + side, c.magnitude);
        if (c.bad_numbers) {
            rows[side][5] = std::numeric_limits<float>::quiet_NaN();
            rows[side][row_dim] = std::numeric_limits<float>::infinity();
            rows[side][row_dim + 1] = -1e30f;
        }
    }
    const int pages_per_seq = (len + c.page_size - 1) / c.page_size;
    const std::size_t page_bytes = codec.page_bytes(c.page_size);
    const DeviceBuffer<std::uint8_t> pages(page_bytes * pages_per_seq * kSequences);
    const int window_rows = c.window.sink + c.window.recent + 1;
    const DeviceBuffer<std::uint16_t> window_k(static_cast<std::size_t>(kSequences) * window_rows * row_dim);
    const DeviceBuffer<std::uint16_t> window_v(static_cast<std::size_t>(kSequences) * window_rows * row_dim);
    const DeviceBuffer<std::int32_t> table(std::vector<std::int32_t>{0});
    cuda::CacheView cache;
    cache.pages = pages.data();
    cache.num_pages = pages_per_seq * kSequences;
    cache.page_size = c.page_size;
    cache.block_table = table.data();
    cache.table_stride = 1;
    cache.window = c.window;
    cache.window_k = window_k.data();
    cache.window_v = window_v.data();
    cache.window_rows = window_rows;
    cache.num_slots = kSequences;

    int first = 0;
    for (const int call : c.calls) {
        std::vector<float> x[2];
        std::vector<std::int64_t> slots;
        std::vector<std::int32_t> positions;
        std::vector<std::int32_t> sequences;
        for (int seq = 0; seq < kSequences; ++seq) {
            for (int pos = first; pos < first + call; ++pos) {
                for (int side = 0; side < 2; ++side) {
                    const auto row = rows[side].begin() + (static_cast<std::ptrdiff_t>(pos) * kSequences + seq) * row_dim;
                    x[side].insert(x[side].end(), row, row + row_dim);
                }
                slots.push_back(static_cast<std::int64_t>(seq * pages_per_seq + pos / c.page_size) * c.page_size +
                                pos % c.page_size);
                positions.push_back(pos);
                sequences.push_back(seq);
            }
        }
        first += call;
        const DeviceBuffer<float> k(x[0]);
        const DeviceBuffer<float> v(x[1]);
        const DeviceBuffer<std::int64_t> device_slots(slots);
        const DeviceBuffer<std::int32_t> device_positions(positions);
        const DeviceBuffer<std::int32_t> device_sequences(sequences);
        const DeviceBuffer<std::int32_t> kv_lens(std::vector<std::int32_t>(kSequences, first));
        cuda::EncodeParams p;
        p.num_tokens = static_cast<int>(slots.size());
        p.k = k.data();
        p.v = v.data();
        p.type = cuda::Number::f32;
        p.k_token_stride = p.v_token_stride = row_dim;
        p.k_head_stride = p.v_head_stride = c.head_dim;
        p.slots = device_slots.data();
        p.positions = device_positions.data();
        p.sequences = device_sequences.data();
        p.kv_lens = kv_lens.data();
        const Status status = cuda::encode(codec, cache, p, nullptr);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }

    std::vector<std::uint8_t> bytes = pages.get();
    int compared = 0;
    for (int seq = 0; seq < kSequences; ++seq) {
        for (int head = 0; head < kHeads; ++head) {
            for (int side = 0; side < 2; ++side) {
                const CodecSpec& own = codecs[side].spec();
                std::vector<float> y(static_cast<std::size_t>(len) * c.head_dim);
                for (int pos = 0; pos < len; ++pos) {
                    std::vector<float> x(c.head_dim);
                    for (int i = 0; i < c.head_dim; ++i) {
                        x[i] = round_to_f16(
                            rows[side][(static_cast<std::size_t>(pos) * kSequences + seq) * row_dim + head * c.head_dim + i]);
                    }
                    codecs[side].transform(head).forward(x.data(), &y[static_cast<std::size_t>(pos) * c.head_dim]);
                }
                const bool by_tokens = own.groups_tokens();
                for (int pos = 0; pos < (by_tokens ? len / own.group * own.group : len); ++pos) {
                    cuda::ScalarHostHeadPage page(
                        bytes.data() + page_bytes * (seq * pages_per_seq + pos / c.page_size) + page_bytes / kHeads * head,
                        c.head_dim, c.k, c.v, c.page_size);
                    for (int i = 0; i < c.head_dim; ++i) {
                        std::vector<float> group(own.group);
                        for (int j = 0; j < own.group; ++j) {
                            group[j] = by_tokens ? y[static_cast<std::size_t>(pos / own.group * own.group + j) * c.head_dim + i]
                                                 : y[static_cast<std::size_t>(pos) * c.head_dim + i / own.group * own.group + j];
                        }
                        const scalar::Stored expected = scalar::fit(own, group.data(), own.group);
                        const scalar::Stored got = page.numbers(pos % c.page_size, i, side == 1);
                        ASSERT_EQ(got.scale, expected.scale) << "side " << side << " token " << pos << " channel " << i;
                        ASSERT_EQ(got.zero, expected.zero) << "side " << side << " token " << pos << " channel " << i;
                        ASSERT_EQ(page.code(pos % c.page_size, i, side == 1),
                                  scalar::encode(scalar::range(own, expected), y[static_cast<std::size_t>(pos) * c.head_dim + i]))
                            << "side " << side << " token " << pos << " channel " << i;
                        ++compared;
                    }
                }
            }
        }
    }
    EXPECT_GT(compared, kSequences * kHeads * c.head_dim * 64);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ScalarEncodeTest, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return each.param.name; });

using ScalarCacheTest = CudaTest;

TEST_F(ScalarCacheTest, NeedsAWindowForIncompleteGroups) {
    const ScalarEncodeCase c{
        .name = "", .k = spec(2, Axis::token, 32, Levels::asymmetric), .v = spec(2, Axis::channel, 32, Levels::asymmetric)};
    const RowCodec codecs[2] = {make_codec(c, false, 1), make_codec(c, true, 1)};
    const Result<cuda::LayerCodec> codec = cuda::LayerCodec::create(codecs[0], codecs[1]);
    ASSERT_TRUE(codec.ok()) << codec.status().message();
    EXPECT_EQ(codec->page_step(), 32);
    const DeviceBuffer<std::uint8_t> pages(codec->page_bytes(64));
    cuda::CacheView cache;
    cache.pages = pages.data();
    cache.num_pages = 1;
    cache.page_size = 64;
    cache.window = {.recent = 31, .sink = 0};
    cuda::EncodeParams p;
    p.num_tokens = 1;
    p.k = p.v = pages.data();
    p.slots = reinterpret_cast<const std::int64_t*>(pages.data());
    EXPECT_EQ(cuda::encode(codec.value(), cache, p, nullptr).message(), "recent: got 31, expected 32 to 4096");
}

}  // namespace
}  // namespace vecinfer::testing
