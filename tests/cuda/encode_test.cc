#include <cmath>

#include "codec/cuda/pack.h"
#include "codec/f16.h"
#include "cuda/device_fixture.h"
#include "unit/cache_fixture.h"
#include "vecinfer/cuda.h"

namespace vecinfer::testing {
namespace {

struct EncodeCase {
    std::string name;
    int head_dim = 128;
    CodecSpec k;
    CodecSpec v;
    int num_kv_heads = 2;
    int num_tokens = 70;
    int page_size = 64;
    Norm norm = Norm::vector;
    bool unbiased = false;
    TransformSpec key{.hadamard = true};
    TransformSpec value{.hadamard = true};
    WindowSpec window{0, 0};
    float magnitude = 1.0f;
    bool bad_numbers = false;
    int first_position = 0;
    bool own_books = false;
    int shaping = 0;  // directions of the keys
};

std::vector<EncodeCase> cases() {
    std::vector<EncodeCase> all;
    for (const int head_dim : {64, 128, 256}) {
        for (const bool unbiased : {false, true}) {
            all.push_back({.name = "dim" + std::to_string(head_dim) + (unbiased ? "_unbiased" : ""),
                           .head_dim = head_dim,
                           .unbiased = unbiased});
        }
    }
    for (const int head_dim : {64, 128, 256}) {
        for (const auto& [k, v] : {std::pair(2, 2), std::pair(2, 8), std::pair(8, 2)}) {
            all.push_back({.name = "dim" + std::to_string(head_dim) + "_k" + std::to_string(k) + "v" + std::to_string(v),
                           .head_dim = head_dim,
                           .k = {.sub_dim = k},
                           .v = {.sub_dim = v},
                           .unbiased = true});
        }
    }
    for (const int head_dim : {64, 128, 256}) {
        for (const auto& [k, v] : {std::pair(2, 3), std::pair(3, 4), std::pair(4, 2), std::pair(3, 3)}) {
            if (k != v && head_dim == 256) {
                continue;
            }
            all.push_back({.name = "dim" + std::to_string(head_dim) + "_levels" + std::to_string(k) + std::to_string(v),
                           .head_dim = head_dim,
                           .k = {.sub_dim = 1, .code_bits = k},
                           .v = {.sub_dim = 1, .code_bits = v},
                           .unbiased = k == 3});
        }
    }
    for (const int head_dim : {64, 128, 256}) {
        for (const int sub_dim : {2, 4}) {
            all.push_back({.name = "dim" + std::to_string(head_dim) + "_own" + std::to_string(sub_dim),
                           .head_dim = head_dim,
                           .k = {.sub_dim = sub_dim},
                           .v = {.sub_dim = sub_dim},
                           .norm = Norm::none,
                           .own_books = true});
        }
        for (const int sub_dim : {4, 8}) {
            if (head_dim == 64 && sub_dim == 8) {
                continue;
            }
            all.push_back({.name = "dim" + std::to_string(head_dim) + "_wide" + std::to_string(sub_dim),
                           .head_dim = head_dim,
                           .k = {.sub_dim = sub_dim, .code_bits = 12},
                           .v = {.sub_dim = sub_dim, .code_bits = sub_dim == 8 ? 8 : 12},
                           .num_tokens = 19,
                           .unbiased = true});
        }
    }
    for (const auto& [sub_dim, head_dim, rank] : {std::tuple(4, 128, 32), std::tuple(2, 64, 5), std::tuple(8, 128, 33)}) {
        for (const bool unbiased : {false, true}) {
            all.push_back({.name = "shaped" + std::to_string(sub_dim) + (unbiased ? "_unbiased" : ""),
                           .head_dim = head_dim,
                           .k = {.sub_dim = sub_dim},
                           .num_tokens = unbiased ? 23 : 9,
                           .unbiased = unbiased,
                           .shaping = rank});
        }
    }
    all.push_back({.name = "shaped_dim256", .head_dim = 256, .num_tokens = 3, .unbiased = true, .shaping = 64});
    all.push_back({.name = "shaped_zeros", .num_tokens = 3, .unbiased = true, .magnitude = 0.0f, .shaping = 16});
    all.push_back({.name = "shaped_tiny", .num_tokens = 3, .unbiased = true, .magnitude = 2e-5f, .shaping = 16});
    for (const int tokens : {1, 3, 4, 5, 31, 32, 33, 200}) {
        all.push_back({.name = "tokens" + std::to_string(tokens), .num_tokens = tokens, .window = {16, 2}});
    }
    for (const int page_size : {16, 32, 128}) {
        all.push_back({.name = "page" + std::to_string(page_size), .page_size = page_size});
    }
    all.push_back({.name = "no_norm", .norm = Norm::none});
    all.push_back({.name = "no_transform", .key = {}, .value = {}});
    all.push_back(
        {.name = "smooth_center", .key = {.smooth = true, .hadamard = true, .center = true}, .value = {.center = true}});
    all.push_back({.name = "window", .window = {128, 4}});
    all.push_back({.name = "window_wraps", .num_tokens = 200, .window = {32, 4}, .first_position = 1000});
    all.push_back({.name = "zeros", .magnitude = 0.0f});
    all.push_back({.name = "tiny", .magnitude = 1e-7f});
    all.push_back({.name = "huge", .magnitude = 6e4f});
    all.push_back({.name = "bad_numbers", .window = {16, 2}, .bad_numbers = true});
    return all;
}

constexpr unsigned kKeySeed = 1;

RowCodec make_codec(const EncodeCase& c, const TransformSpec& transform, const CodecSpec& spec, unsigned seed) {
    std::vector<HeadTransform> transforms;
    std::vector<Codebook> books;
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> u(0.3f, 3.0f);
    for (int h = 0; h < c.num_kv_heads; ++h) {
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
        Result<HeadTransform> t = HeadTransform::create(c.head_dim, transform, factors, center);
        EXPECT_TRUE(t.ok()) << t.status().message();
        transforms.push_back(std::move(t).value());
        for (int m = 0; m < (c.own_books ? c.head_dim / spec.sub_dim : 1); ++m) {
            books.push_back(random_codebook(spec.sub_dim, spec.code_bits, seed + h + 100 * m));
            books.back().scale *= 1.0f + 0.1f * static_cast<float>(m % 8);
        }
    }
    std::vector<float> shaping;
    if (seed == kKeySeed && c.shaping > 0) {
        shaping = normal_rows(c.num_kv_heads * c.shaping, c.head_dim, 77, 0.4f);
    }
    Result<RowCodec> codec =
        RowCodec::create(spec, c.norm, c.head_dim, transforms, books, {.unbiased = c.unbiased, .shaping = shaping});
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    return std::move(codec).value();
}

class EncodeTest : public CudaTest, public ::testing::WithParamInterface<EncodeCase> {};

TEST_P(EncodeTest, GivesTheCodesOfTheRowCodec) {
    const EncodeCase& c = GetParam();
    const RowCodec codecs[2] = {make_codec(c, c.key, c.k, kKeySeed), make_codec(c, c.value, c.v, 50)};
    const Result<cuda::LayerCodec> made = cuda::LayerCodec::create(codecs[0], codecs[1]);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const cuda::LayerCodec& codec = made.value();

    const int row_dim = c.num_kv_heads * c.head_dim;
    std::vector<float> rows[2] = {normal_rows(c.num_tokens, row_dim, 3, c.magnitude),
                                  normal_rows(c.num_tokens, row_dim, 4, c.magnitude)};
    if (c.bad_numbers) {
        rows[0][5] = std::numeric_limits<float>::quiet_NaN();
        rows[1][row_dim] = std::numeric_limits<float>::infinity();
        rows[1][row_dim + 1] = -1e30f;
    }
    // Scattered cells; every 7th token is not stored.
    const int num_pages = (2 * c.num_tokens + c.page_size) / c.page_size + 1;
    std::vector<std::int64_t> slots(static_cast<std::size_t>(num_pages) * c.page_size);
    for (std::size_t i = 0; i < slots.size(); ++i) {
        slots[i] = static_cast<std::int64_t>(i);
    }
    std::mt19937 rng(9);
    std::shuffle(slots.begin(), slots.end(), rng);
    slots.resize(c.num_tokens);
    std::vector<std::int32_t> positions;
    for (int i = 0; i < c.num_tokens; ++i) {
        slots[i] = i % 7 == 6 ? -1 : slots[i];
        positions.push_back(c.first_position + i);
    }
    const int window_rows = c.window.sink + c.window.recent + 3;
    const DeviceBuffer<float> k(rows[0]);
    const DeviceBuffer<float> v(rows[1]);
    const DeviceBuffer<std::int64_t> device_slots(slots);
    const DeviceBuffer<std::int32_t> device_positions(positions);
    const DeviceBuffer<std::int32_t> sequences(std::vector<std::int32_t>(c.num_tokens, 0));
    const DeviceBuffer<std::int32_t> kv_lens(std::vector<std::int32_t>{c.first_position + c.num_tokens});
    const std::size_t page_bytes = codec.page_bytes(c.page_size);
    const DeviceBuffer<std::uint8_t> pages(page_bytes * num_pages);
    const DeviceBuffer<std::uint16_t> window_k(static_cast<std::size_t>(window_rows) * row_dim);
    const DeviceBuffer<std::uint16_t> window_v(static_cast<std::size_t>(window_rows) * row_dim);
    const DeviceBuffer<std::int32_t> table(std::vector<std::int32_t>{0});

    cuda::CacheView cache;
    cache.pages = pages.data();
    cache.num_pages = num_pages;
    cache.page_size = c.page_size;
    cache.block_table = table.data();
    cache.table_stride = 1;
    cache.window = c.window;
    cache.window_k = window_k.data();
    cache.window_v = window_v.data();
    cache.window_rows = window_rows;
    cache.num_slots = 1;
    cuda::EncodeParams p;
    p.num_tokens = c.num_tokens;
    p.k = k.data();
    p.v = v.data();
    p.type = cuda::Number::f32;
    p.k_token_stride = p.v_token_stride = row_dim;
    p.k_head_stride = p.v_head_stride = c.head_dim;
    p.slots = device_slots.data();
    p.positions = device_positions.data();
    p.sequences = sequences.data();
    p.kv_lens = kv_lens.data();
    const Status status = cuda::encode(codec, cache, p, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

    std::vector<std::uint8_t> bytes = pages.get();
    const std::vector<std::uint16_t> windows[2] = {window_k.get(), window_v.get()};
    int written = 0;
    for (int token = 0; token < c.num_tokens; ++token) {
        if (slots[token] < 0) {
            continue;
        }
        for (int head = 0; head < c.num_kv_heads; ++head) {
            cuda::HostHeadPage page(bytes.data() + slots[token] / c.page_size * page_bytes + page_bytes / c.num_kv_heads * head,
                                    c.head_dim, c.k, c.v, c.page_size);
            const int cell = static_cast<int>(slots[token] % c.page_size);
            for (int side = 0; side < 2; ++side) {
                const float* x = &rows[side][static_cast<std::size_t>(token) * row_dim + head * c.head_dim];
                const int subspaces = codecs[side].num_subspaces();
                std::vector<std::uint16_t> codes(subspaces);
                std::uint8_t norm = cuda::kUnitNorm;
                codecs[side].encode(head, x, codes.data(), c.norm == Norm::none ? nullptr : &norm);
                for (int m = 0; m < subspaces; ++m) {
                    ASSERT_EQ(page.code(cell, m, side == 1), codes[m])
                        << "token " << token << " head " << head << " subspace " << m;
                }
                ASSERT_EQ(page.norm(cell, side == 1), norm) << "token " << token << " head " << head << " side " << side;
                const int pos = positions[token];
                const int ring = window_rows - c.window.sink;
                const bool kept = pos < c.window.sink || pos >= positions.back() + 1 - ring;
                if (kept && (c.window.recent > 0 || c.window.sink > 0)) {
                    const int row = pos < c.window.sink ? pos : c.window.sink + (pos - c.window.sink) % ring;
                    ++written;
                    for (int i = 0; i < c.head_dim; ++i) {
                        ASSERT_EQ(windows[side][(static_cast<std::size_t>(head) * window_rows + row) * c.head_dim + i],
                                  f32_to_f16(x[i]))
                            << token << " " << i;
                    }
                }
            }
        }
    }
    EXPECT_EQ(written > 0, c.window.recent > 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, EncodeTest, ::testing::ValuesIn(cases()), [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace vecinfer::testing
