// Unbiased norms and noise shaping, against the definitions written out in double.
#include <gtest/gtest.h>

#include <cmath>

#include "codec/vq/nearest.h"
#include "dispatch/isa.h"
#include "random.h"
#include "vecinfer/codec.h"

namespace vecinfer {
namespace {

std::vector<float> normals(int n, std::uint64_t seed, double scale = 1.0) {
    Random random(seed);
    std::vector<float> out;
    for (int i = 0; i < n; ++i) {
        out.push_back(static_cast<float>(scale * random.normal()));
    }
    return out;
}

RowCodec make_codec(const CodecSpec& spec, Norm norm, int head_dim, const EncodeOptions& options, int heads = 1) {
    std::vector<HeadTransform> transforms(heads, HeadTransform::create(head_dim, {.hadamard = true}, {}).value());
    Result<RowCodec> codec = RowCodec::create(spec, norm, head_dim, std::move(transforms),
                                              {*universal_codebook(spec.sub_dim, spec.code_bits)}, options);
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    return std::move(codec).value();
}

struct Coded {
    std::vector<std::uint16_t> codes;
    std::uint8_t norm = 0;
    std::vector<float> original;  // in code space
    std::vector<float> decoded;   // likewise
};

Coded code(const RowCodec& codec, const std::vector<float>& x, int head = 0) {
    Coded out;
    out.codes.resize(codec.num_subspaces());
    out.original.resize(x.size());
    out.decoded.resize(x.size());
    codec.encode(head, x.data(), out.codes.data(), codec.has_norm() ? &out.norm : nullptr);
    codec.transform(head).forward(x.data(), out.original.data());
    codec.decode(head, out.codes.data(), codec.has_norm() ? &out.norm : nullptr, out.decoded.data());
    return out;
}

double dot(std::span<const float> x, std::span<const float> y) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        sum += static_cast<double>(x[i]) * y[i];
    }
    return sum;
}

/// |e|^2 + sum over directions of (u . e)^2.
double cost(const Coded& c, std::span<const float> directions) {
    std::vector<float> e(c.decoded.size());
    for (std::size_t i = 0; i < e.size(); ++i) {
        e[i] = c.decoded[i] - c.original[i];
    }
    double sum = dot(e, e);
    for (std::size_t at = 0; at < directions.size(); at += e.size()) {
        const double along = dot(directions.subspan(at, e.size()), e);
        sum += along * along;
    }
    return sum;
}

std::vector<CodecSpec> vector_specs() {
    std::vector<CodecSpec> out;
    for (const CodecSpec& spec : supported_vq_specs()) {
        if (spec.sub_dim > 1) {
            out.push_back(spec);
        }
    }
    return out;
}

TEST(Unbiased, KeepsTheProjectionToHalfAStep) {
    const double half_step = std::exp2(1.0 / 16) - 1 + 1e-4;
    for (const CodecSpec& spec : vector_specs()) {
        for (int head_dim : {64, 80, 96, 128, 256}) {
            const RowCodec unbiased = make_codec(spec, Norm::vector, head_dim, {.unbiased = true});
            const RowCodec plain = make_codec(spec, Norm::vector, head_dim, {});
            double plain_sum = 0;
            double sum = 0;
            for (int i = 0; i < 40; ++i) {
                const std::vector<float> x = normals(head_dim, 100 + i, std::exp2(i % 13 - 6));
                const Coded c = code(unbiased, x);
                const double kept = dot(c.decoded, c.original) / dot(c.original, c.original);
                EXPECT_NEAR(kept, 1.0, half_step) << spec.sub_dim << " " << spec.code_bits << " " << head_dim;
                sum += kept / 40;
                const Coded p = code(plain, x);
                plain_sum += dot(p.decoded, p.original) / dot(p.original, p.original) / 40;
            }
            EXPECT_NEAR(sum, 1.0, 0.03);
            if (spec.code_bits <= 2 * spec.sub_dim) {
                EXPECT_LT(plain_sum, 0.95) << "what there is to mend";
            }
        }
    }
}

TEST(Unbiased, ZerosAndExtremesAreDefined) {
    const std::vector<float> directions = normals(64, 3);
    for (const EncodeOptions& options : {EncodeOptions{.unbiased = true}, EncodeOptions{true, directions}}) {
        const RowCodec codec = make_codec({}, Norm::vector, 64, options);
        EXPECT_EQ(code(codec, std::vector<float>(64, 0.0f)).norm, 0);
        for (float magnitude : {6e-8f, 1e-4f, 6e4f, 65504.0f}) {
            std::vector<float> x = normals(64, 9);
            for (float& v : x) {
                v = std::copysign(magnitude, v);
            }
            for (const float v : code(codec, x).decoded) {
                EXPECT_TRUE(std::isfinite(v)) << magnitude;
            }
        }
        std::vector<float> broken = normals(64, 4);
        std::vector<float> mended = broken;
        broken[5] = NAN;
        broken[9] = INFINITY;
        mended[5] = mended[9] = 0.0f;
        std::vector<std::uint16_t> a(16);
        std::vector<std::uint16_t> b(16);
        std::uint8_t norm_a;
        std::uint8_t norm_b;
        codec.encode(0, broken.data(), a.data(), &norm_a);
        codec.encode(0, mended.data(), b.data(), &norm_b);
        EXPECT_EQ(a, b);
        EXPECT_EQ(norm_a, norm_b);
    }
}

TEST(Shaping, LowersTheWeightedErrorOfEveryVector) {
    for (const CodecSpec& spec : vector_specs()) {
        for (int head_dim : {64, 96, 128}) {
            for (int rank : {1, 5, 32}) {
                const std::vector<float> directions = normals(rank * head_dim, 7, 1.5 / std::sqrt(head_dim));
                const RowCodec shaped = make_codec(spec, Norm::none, head_dim, {.shaping = directions});
                const RowCodec nearest = make_codec(spec, Norm::none, head_dim, {});
                double with = 0;
                double without = 0;
                for (int i = 0; i < 20; ++i) {
                    const std::vector<float> x = normals(head_dim, 500 + i);
                    const double a = cost(code(shaped, x), directions);
                    const double b = cost(code(nearest, x), directions);
                    EXPECT_LE(a, b * (1 + 1e-5)) << spec.sub_dim << " " << spec.code_bits << " " << head_dim << " " << rank;
                    with += a;
                    without += b;
                }
                EXPECT_LT(with, without);
            }
        }
    }
}

TEST(Shaping, TheLastPieceIsTheBestOneGivenTheOthers) {
    for (int sub_dim : {2, 4, 8}) {
        const int head_dim = 64;
        const std::vector<float> directions = normals(3 * head_dim, 21, 0.4);
        const CodecSpec spec{CodecKind::vq, sub_dim, 8};
        const RowCodec codec = make_codec(spec, Norm::none, head_dim, {.shaping = directions});
        for (int i = 0; i < 10; ++i) {
            Coded c = code(codec, normals(head_dim, 900 + i));
            const double got = cost(c, directions);
            for (int other = 0; other < 256; ++other) {
                c.codes.back() = static_cast<std::uint16_t>(other);
                codec.decode(0, c.codes.data(), nullptr, c.decoded.data());
                EXPECT_GE(cost(c, directions), got * (1 - 1e-5)) << sub_dim;
            }
        }
    }
}

TEST(Shaping, HeadsHaveTheirOwnDirectionsAndNoneMeansNearest) {
    std::vector<float> directions(2 * 64, 0.0f);
    const std::vector<float> strong = normals(64, 5);
    std::copy(strong.begin(), strong.end(), directions.begin() + 64);
    const RowCodec shaped = make_codec({}, Norm::none, 64, {.shaping = directions}, 2);
    const RowCodec nearest = make_codec({}, Norm::none, 64, {}, 2);
    const std::vector<float> x = normals(64, 6);
    EXPECT_EQ(code(shaped, x, 0).codes, code(nearest, x, 0).codes);
    EXPECT_NE(code(shaped, x, 1).codes, code(nearest, x, 1).codes);
    EXPECT_NE(shaped.hash(), nearest.hash());
}

TEST(Shaping, LeastCostIsTheSameOnEveryIsa) {
    for (const Isa isa : available_isas()) {
        for (int sub_dim : {2, 4, 8}) {
            constexpr int kCount = 256;
            alignas(64) float table[8 * kCount];
            alignas(64) float bias[kCount];
            const std::vector<float> numbers = normals(9 * kCount, 40 + sub_dim);
            std::copy_n(numbers.begin(), sub_dim * kCount, table);
            std::copy_n(numbers.begin() + 8 * kCount, kCount, bias);
            bias[17] = bias[200];  // a tie wherever all channels agree
            for (int c = 0; c < sub_dim; ++c) {
                table[c * kCount + 17] = table[c * kCount + 200];
            }
            for (int i = 0; i < 50; ++i) {
                const std::vector<float> x = normals(sub_dim, 60 + i);
                int best = 0;
                float least = INFINITY;
                for (int code = 0; code < kCount; ++code) {
                    volatile float sum = bias[code];  // every step rounded to float
                    for (int c = 0; c < sub_dim; ++c) {
                        volatile float product = x[c] * table[c * kCount + code];
                        sum = sum - product;
                    }
                    if (sum < least) {
                        least = sum;
                        best = code;
                    }
                }
                EXPECT_EQ(least_cost_kernel(isa, sub_dim)(x.data(), table, bias, kCount), best) << isa_name(isa);
            }
        }
    }
}

TEST(EncodeOptions, BadOnesAreNamed) {
    const auto error = [](const CodecSpec& spec, Norm norm, const EncodeOptions& options) {
        std::vector<HeadTransform> transforms(2, HeadTransform::create(64, {.hadamard = true}, {}).value());
        return RowCodec::create(spec, norm, 64, transforms, {*universal_codebook(spec.sub_dim, spec.code_bits)}, options)
            .status()
            .message();
    };
    EXPECT_EQ(error({}, Norm::none, {.unbiased = true}), "unbiased: got no norms, expected norm vector");
    const std::vector<float> odd(100, 1.0f);
    EXPECT_EQ(error({}, Norm::vector, {.shaping = odd}),
              "shaping: got 100 values, expected a multiple of 128, at most 64 directions");
    const std::vector<float> many(128 * 65, 1.0f);
    EXPECT_NE(error({}, Norm::vector, {.shaping = many}), "");
    std::vector<float> nan(128, 1.0f);
    nan[7] = NAN;
    EXPECT_EQ(error({}, Norm::vector, {.shaping = nan}), "shaping: got nan, expected finite directions");
    const std::vector<float> good(128, 1.0f);
    EXPECT_EQ(error({CodecKind::vq, 1, 4}, Norm::vector, {.shaping = good}),
              "shaping: got a codec of single channels or with a codebook per subspace, expected sub_dim 2 or more and shared "
              "codebooks");
}

}  // namespace
}  // namespace vecinfer
