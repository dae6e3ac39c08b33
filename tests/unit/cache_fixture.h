// Small packed caches with random codebooks and rows, shared by the cache and attention tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "vecinfer/cache.h"

namespace vecinfer::testing {

struct Shape {
    int num_kv_heads = 2;
    int head_dim = 64;
    int sub_dim = 4;
    int code_bits = 8;
    Norm norm = Norm::vector;
    bool per_subspace = false;  // a codebook for each subspace
    TransformSpec transform{false, true};
    CodecSpec scalar{};  // if its kind is scalar: instead of sub_dim, code_bits and norm
    int num_cells = 256;
    int num_streams = 1;
    WindowSpec window{0, 0};
};

inline std::vector<float> normal_rows(int n, int dim, unsigned seed, float sigma = 1.0f) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0f, sigma);
    std::vector<float> x(static_cast<std::size_t>(n) * dim);
    for (float& v : x) {
        v = normal(rng);
    }
    return x;
}

inline Codebook random_codebook(int sub_dim, int code_bits, unsigned seed) {
    Codebook book;
    book.sub_dim = sub_dim;
    book.code_bits = code_bits;
    book.scale = 3.0f / 127.0f;
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (int i = 0; i < (1 << code_bits) * sub_dim; ++i) {
        book.centroids.push_back(static_cast<std::int8_t>(std::lround(std::clamp(normal(rng) / book.scale, -127.0f, 127.0f))));
    }
    return book;
}

/// A cache with memory and codec of its own.
class OwnedCache {
public:
    explicit OwnedCache(const Shape& s, unsigned seed = 1) {
        std::vector<HeadTransform> transforms;
        std::vector<Codebook> books;
        for (int h = 0; h < s.num_kv_heads; ++h) {
            std::vector<float> factors;
            if (s.transform.smooth) {
                std::mt19937 rng(seed + 77 * h);
                std::uniform_real_distribution<float> u(0.3f, 3.0f);
                for (int i = 0; i < s.head_dim; ++i) {
                    factors.push_back(u(rng));
                }
            }
            Result<HeadTransform> t = HeadTransform::create(s.head_dim, s.transform, factors);
            EXPECT_TRUE(t.ok()) << t.status().message();
            transforms.push_back(std::move(t).value());
            for (int m = 0; s.scalar.kind != CodecKind::scalar && m < (s.per_subspace ? s.head_dim / s.sub_dim : 1); ++m) {
                books.push_back(random_codebook(s.sub_dim, s.code_bits, seed + h + 100 * m));
            }
        }
        const bool scalar = s.scalar.kind == CodecKind::scalar;
        Result<RowCodec> codec = RowCodec::create(scalar ? s.scalar : CodecSpec{CodecKind::vq, s.sub_dim, s.code_bits},
                                                  scalar ? Norm::none : s.norm, s.head_dim, transforms, books);
        EXPECT_TRUE(codec.ok()) << codec.status().message();
        codec_ = std::make_unique<RowCodec>(std::move(codec).value());
        CacheGeometry g;
        g.row_dim = s.num_kv_heads * s.head_dim;
        g.codec = codec_->spec();
        g.num_heads = s.num_kv_heads;
        g.norm = codec_->has_norm();
        g.num_cells = s.num_cells;
        g.num_streams = s.num_streams;
        g.window = s.window;
        memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, g.total_bytes())));
        std::fill_n(memory_.get(), g.total_bytes(), std::byte{0});
        Result<PackedCache> made = PackedCache::create(g, codec_.get(), memory_.get());
        EXPECT_TRUE(made.ok()) << made.status().message();
        cache = made.value();
    }

    PackedCache cache;

    std::byte* memory() { return memory_.get(); }
    const RowCodec& codec() const { return *codec_; }
    std::size_t bytes() const { return cache.geometry().total_bytes(); }

    /// Writes rows with `num_threads` shares carried out one after another; returns the plan with its staging kept alive.
    WritePlan write(int stream, const std::vector<std::int32_t>& cells, const std::vector<std::int32_t>& positions,
                    const float* rows, int num_threads = 1) {
        Result<WritePlan> plan = cache.plan_write(stream, cells, positions);
        EXPECT_TRUE(plan.ok()) << plan.status().message();
        const int row_dim = cache.geometry().row_dim;
        staging_.emplace_back(static_cast<std::size_t>(plan->staging_rows) * row_dim);
        plan->bind_staging(staging_.back().data(), row_dim);
        for (int i = 0; i < num_threads; ++i) {
            cache.write_rows(plan.value(), rows, row_dim, i, num_threads);
        }
        return std::move(plan).value();
    }

private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::unique_ptr<RowCodec> codec_;
    std::unique_ptr<std::byte, Free> memory_;
    std::vector<std::vector<std::uint16_t>> staging_;
};

inline std::vector<std::int32_t> iota(int begin, int end) {
    std::vector<std::int32_t> v;
    for (int i = begin; i < end; ++i) {
        v.push_back(i);
    }
    return v;
}

}  // namespace vecinfer::testing
