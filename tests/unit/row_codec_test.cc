#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "codec/f16.h"
#include "codec/vq/nearest.h"
#include "random.h"
#include "unit/half_by_definition.h"
#include "vecinfer/codec.h"

namespace vecinfer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normals(int count, std::uint64_t seed, float scale = 1.0f) {
    Random random(seed);
    std::vector<float> x(static_cast<std::size_t>(count));
    for (float& v : x) {
        v = scale * static_cast<float>(random.normal());
    }
    return x;
}

struct AlignedDelete {
    void operator()(float* p) const { ::operator delete (p, std::align_val_t{64}); }
};
using Table = std::unique_ptr<float[], AlignedDelete>;

/// centroids: layout (count, sub_dim).
Table channel_major(const std::vector<float>& centroids, int sub_dim) {
    const std::size_t count = centroids.size() / sub_dim;
    Table table(static_cast<float*>(::operator new (centroids.size() * sizeof(float), std::align_val_t{64})));
    for (std::size_t i = 0; i < count; ++i) {
        for (int c = 0; c < sub_dim; ++c) {
            table[static_cast<std::size_t>(c) * count + i] = centroids[i * sub_dim + c];
        }
    }
    return table;
}

/// The contract of the kernels in plain code. `volatile` keeps every operation rounded by itself.
std::pair<std::uint16_t, float> nearest_oracle(const float* x, const std::vector<float>& centroids, int sub_dim) {
    std::pair<std::uint16_t, float> best{0, kInfinity};
    for (std::size_t k = 0; k * sub_dim < centroids.size(); ++k) {
        volatile float sum = 0.0f;
        for (int c = 0; c < sub_dim; ++c) {
            volatile float difference = x[c] - centroids[k * sub_dim + c];
            volatile float square = difference * difference;
            sum = sum + square;
        }
        if (sum < best.second) {
            best = {static_cast<std::uint16_t>(k), sum};
        }
    }
    return best;
}

class Kernels : public testing::TestWithParam<Isa> {
protected:
    void SetUp() override {
        const std::span<const Isa> isas = available_isas();
        if (std::find(isas.begin(), isas.end(), GetParam()) == isas.end()) {
            GTEST_SKIP() << "this CPU lacks " << isa_name(GetParam());
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Nearest, Kernels, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

TEST_P(Kernels, AgreeWithTheOracleBitForBit) {
    for (int sub_dim : {1, 2, 4, 8}) {
        const NearestFn nearest = nearest_kernel(GetParam(), sub_dim);
        for (int count : {64, 256, 4096}) {
            const int n = count == 4096 ? 37 : 203;
            // On a coarse grid, so that exact ties are common.
            for (bool grid : {false, true}) {
                std::vector<float> centroids = normals(count * sub_dim, 1);
                std::vector<float> x = normals(n * sub_dim, 2);
                if (grid) {
                    for (std::vector<float>* values : {&centroids, &x}) {
                        for (float& v : *values) {
                            v = std::round(v);
                        }
                    }
                }
                const Table table = channel_major(centroids, sub_dim);
                std::vector<std::uint16_t> codes(static_cast<std::size_t>(n) + 1, 0xffff);
                std::vector<float> distances(static_cast<std::size_t>(n) + 1, -1.0f);
                nearest(x.data(), n, table.get(), count, codes.data(), distances.data());
                std::vector<std::uint16_t> codes_alone(static_cast<std::size_t>(n));
                nearest(x.data(), n, table.get(), count, codes_alone.data(), nullptr);
                for (int i = 0; i < n; ++i) {
                    const auto [code, distance] = nearest_oracle(&x[static_cast<std::size_t>(i * sub_dim)], centroids, sub_dim);
                    ASSERT_EQ(codes[i], code) << sub_dim << ' ' << count << ' ' << i;
                    ASSERT_EQ(distances[i], distance) << sub_dim << ' ' << count << ' ' << i;
                    ASSERT_EQ(codes_alone[i], code);
                }
                EXPECT_EQ(codes[n], 0xffff);
                EXPECT_EQ(distances[n], -1.0f);
            }
        }
    }
}

TEST_P(Kernels, EveryTailLengthAndPositionOfTheWinner) {
    const int sub_dim = 4;
    const NearestFn nearest = nearest_kernel(GetParam(), sub_dim);
    std::vector<float> centroids;
    for (int k = 0; k < 256; ++k) {
        centroids.insert(centroids.end(), {static_cast<float>(k), 0.0f, 0.0f, static_cast<float>(-k)});
    }
    const Table table = channel_major(centroids, sub_dim);
    for (int n = 0; n <= 9; ++n) {
        for (int k = 0; k + n <= 256; ++k) {
            std::vector<std::uint16_t> codes(static_cast<std::size_t>(n) + 1, 0xffff);
            nearest(&centroids[static_cast<std::size_t>(4 * k) % 1024], n, table.get(), 256, codes.data(), nullptr);
            for (int i = 0; i < n; ++i) {
                ASSERT_EQ(codes[i], k + i) << n;
            }
            ASSERT_EQ(codes[n], 0xffff);
        }
    }
}

TEST_P(Kernels, HopelessInputHasADefinedCode) {
    for (int sub_dim : {1, 2, 4, 8}) {
        const Table table = channel_major(normals(256 * sub_dim, 3), sub_dim);
        for (float bad : {kNan, kInfinity, 3e38f}) {
            std::vector<float> x(static_cast<std::size_t>(sub_dim) * 3, bad);
            std::vector<std::uint16_t> codes(3, 0xffff);
            nearest_kernel(GetParam(), sub_dim)(x.data(), 3, table.get(), 256, codes.data(), nullptr);
            EXPECT_EQ(codes, std::vector<std::uint16_t>(3, 0)) << bad;
        }
    }
}

TEST(Nearest, WinnersAreNearestInDoubleUpToRounding) {
    for (int sub_dim : {1, 2, 4, 8}) {
        const std::vector<float> centroids = normals(256 * sub_dim, 4);
        const std::vector<float> x = normals(500 * sub_dim, 5);
        const Table table = channel_major(centroids, sub_dim);
        std::vector<std::uint16_t> codes(500);
        nearest_kernel(sub_dim)(x.data(), 500, table.get(), 256, codes.data(), nullptr);
        for (std::size_t i = 0; i < 500; ++i) {
            const auto distance = [&](std::size_t k) {
                double sum = 0;
                for (int c = 0; c < sub_dim; ++c) {
                    sum += std::pow(static_cast<double>(x[i * sub_dim + c]) - centroids[k * sub_dim + c], 2);
                }
                return sum;
            };
            double least = kInfinity;
            for (std::size_t k = 0; k < 256; ++k) {
                least = std::min(least, distance(k));
            }
            EXPECT_LE(distance(codes[i]), least * (1 + 1e-5)) << sub_dim << ' ' << i;
        }
    }
}

HeadTransform make_transform(int head_dim, bool smooth, bool hadamard, std::uint64_t seed = 77) {
    std::vector<float> factors;
    if (smooth) {
        factors = normals(head_dim, seed);
        for (float& f : factors) {
            f = std::exp(f);
        }
    }
    return HeadTransform::create(head_dim, {.smooth = smooth, .hadamard = hadamard}, factors).value();
}

RowCodec make_codec(const CodecSpec& spec, Norm norm, int head_dim, int heads = 1, bool smooth = false, bool hadamard = true) {
    std::vector<HeadTransform> transforms;
    for (int head = 0; head < heads; ++head) {
        transforms.push_back(make_transform(head_dim, smooth, hadamard, 77 + static_cast<std::uint64_t>(head)));
    }
    Result<RowCodec> codec =
        RowCodec::create(spec, norm, head_dim, transforms, {*universal_codebook(spec.sub_dim, spec.code_bits)});
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    return std::move(codec).value();
}

struct Encoded {
    std::vector<std::uint16_t> codes;
    std::uint8_t norm = 0;
    bool operator==(const Encoded&) const = default;
};

Encoded encode(const RowCodec& codec, const std::vector<float>& x, int head = 0) {
    Encoded result;
    result.codes.resize(static_cast<std::size_t>(codec.num_subspaces()), 0xffff);
    codec.encode(head, x.data(), result.codes.data(), &result.norm);
    return result;
}

TEST(RowCodec, GoldenCodesOfATinyCodebook) {
    // Four corners at centroids 5, 9, 200 and 255; all others far away.
    Codebook codebook{.sub_dim = 2, .code_bits = 8, .scale = 0.5f, .centroids = std::vector<std::int8_t>(512, 100)};
    const auto set = [&](std::size_t k, std::int8_t a, std::int8_t b) {
        codebook.centroids[2 * k] = a;
        codebook.centroids[2 * k + 1] = b;
    };
    set(5, 2, 2);
    set(9, -2, 2);
    set(200, 2, -2);
    set(255, -2, -2);
    const RowCodec codec = RowCodec::create({.sub_dim = 2}, Norm::none, 8, {make_transform(8, false, false)}, {codebook}).value();
    const std::vector<float> x = {0.9f, 1.2f, -3.0f, 0.1f, 0.0f, -0.5f, -0.1f, -0.1f};
    const Encoded encoded = encode(codec, x);
    EXPECT_EQ(encoded.codes, (std::vector<std::uint16_t>{5, 9, 200, 255}));  // the third is a tie of 200 and 255
    EXPECT_EQ(encoded.norm, 0);
    std::vector<float> y(8);
    codec.decode(0, encoded.codes.data(), &encoded.norm, y.data());
    EXPECT_EQ(y, (std::vector<float>{1, 1, -1, 1, 1, -1, -1, -1}));

    const RowCodec with_norm =
        RowCodec::create({.sub_dim = 2}, Norm::vector, 8, {make_transform(8, false, false)}, {codebook}).value();
    const std::vector<float> fours = {4, 4, -4, 4, 4, -4, -4, -4};
    const Encoded scaled = encode(with_norm, fours);
    EXPECT_EQ(scaled.codes, (std::vector<std::uint16_t>{5, 9, 200, 255}));
    EXPECT_EQ(scaled.norm, 144);  // 2^((144 - 128) / 8) = 4
    with_norm.decode_original(0, scaled.codes.data(), &scaled.norm, y.data());
    EXPECT_EQ(y, fours);
}

TEST(RowCodec, EncodesTheNearestCentroidsOfTheTransformedVector) {
    for (const CodecSpec& spec : supported_vq_specs()) {
        for (int head_dim : {64, 80, 96, 112, 128, 192, 256}) {
            for (Norm norm : {Norm::none, Norm::vector}) {
                for (bool smooth : {false, true}) {
                    const RowCodec codec = make_codec(spec, norm, head_dim, 1, smooth);
                    const std::vector<float> x = normals(head_dim, 8, norm == Norm::vector ? 37.0f : 1.0f);
                    const Encoded encoded = encode(codec, x);
                    std::vector<float> y(x.size());
                    for (std::size_t i = 0; i < x.size(); ++i) {
                        y[i] = static_cast<float>(half_by_definition(f32_to_f16(x[i])));
                    }
                    codec.transform(0).forward(y.data(), y.data());
                    double squares = 0;
                    for (float v : y) {
                        squares += static_cast<double>(v) * v;
                    }
                    const float factor =
                        norm == Norm::vector ? decode_norm(encode_norm(static_cast<float>(std::sqrt(squares / head_dim)))) : 1.0f;
                    EXPECT_EQ(decode_norm(encoded.norm), norm == Norm::vector ? factor : 0.0f);
                    const float* table = codec.centroids(0);
                    const std::vector<float> centroids(table, table + (spec.sub_dim << spec.code_bits));
                    std::vector<float> decoded(x.size());
                    codec.decode(0, encoded.codes.data(), &encoded.norm, decoded.data());
                    for (int s = 0; s < codec.num_subspaces(); ++s) {
                        const std::size_t begin = static_cast<std::size_t>(s * spec.sub_dim);
                        for (int c = 0; c < spec.sub_dim; ++c) {
                            y[begin + c] /= factor;
                        }
                        const auto [code, distance] = nearest_oracle(&y[begin], centroids, spec.sub_dim);
                        ASSERT_EQ(encoded.codes[s], code) << head_dim << ' ' << s;
                        for (int c = 0; c < spec.sub_dim; ++c) {
                            ASSERT_EQ(centroids[static_cast<std::size_t>(code * spec.sub_dim + c)],
                                      codec.codebook(0).at(code, c));
                            ASSERT_EQ(decoded[begin + c], factor * codec.codebook(0).at(code, c));
                        }
                    }
                }
            }
        }
    }
}

TEST(RowCodec, RoundTripErrorIsThatOfTheCodebook) {
    const std::vector<std::pair<CodecSpec, double>> bounds = {
        {{.sub_dim = 2, .code_bits = 8}, 0.012},  {{.sub_dim = 4, .code_bits = 8}, 0.105},
        {{.sub_dim = 8, .code_bits = 8}, 0.34},   {{.sub_dim = 4, .code_bits = 12}, 0.031},
        {{.sub_dim = 8, .code_bits = 12}, 0.185}, {{.sub_dim = 4, .code_bits = 10}, 0.058},
        {{.sub_dim = 1, .code_bits = 2}, 0.13},   {{.sub_dim = 1, .code_bits = 3}, 0.040},
        {{.sub_dim = 1, .code_bits = 4}, 0.0125}};
    for (const auto& [spec, bound] : bounds) {
        for (int head_dim : {64, 80, 128, 256}) {
            for (float scale : {1e-3f, 1.0f, 300.0f}) {
                const RowCodec codec = make_codec(spec, Norm::vector, head_dim);
                double error = 0;
                double energy = 0;
                for (std::uint64_t seed = 0; seed < 20; ++seed) {
                    const std::vector<float> x = normals(head_dim, 100 + seed, scale);
                    std::vector<float> back(x.size());
                    const Encoded encoded = encode(codec, x);
                    codec.decode_original(0, encoded.codes.data(), &encoded.norm, back.data());
                    for (std::size_t i = 0; i < x.size(); ++i) {
                        error += std::pow(static_cast<double>(x[i]) - back[i], 2);
                        energy += static_cast<double>(x[i]) * x[i];
                    }
                }
                EXPECT_LT(error / energy, bound) << spec.sub_dim << ' ' << spec.code_bits << ' ' << head_dim << ' ' << scale;
            }
        }
    }
}

TEST(RowCodec, ARowAndItsF16CopyHaveTheSameCodes) {
    for (const CodecSpec& spec : supported_vq_specs()) {
        for (Norm norm : {Norm::none, Norm::vector}) {
            const RowCodec codec = make_codec(spec, norm, 64, 1, true);
            for (std::uint64_t seed = 0; seed < 50; ++seed) {
                std::vector<float> x = normals(64, 300 + seed, std::exp2(static_cast<float>(seed) - 25.0f));
                x[seed] = seed % 3 == 0 ? 1e9f : seed % 3 == 1 ? kNan : kInfinity;
                std::vector<float> copy;
                for (float v : x) {
                    copy.push_back(f16_to_f32(f32_to_f16(v)));
                }
                EXPECT_EQ(encode(codec, x), encode(codec, copy)) << seed;
            }
        }
    }
}

TEST(RowCodec, ZerosBecomeExactZerosWithNorms) {
    const RowCodec codec = make_codec({}, Norm::vector, 128);
    const std::vector<float> zeros(128, 0.0f);
    const Encoded encoded = encode(codec, zeros);
    EXPECT_EQ(encoded.norm, 0);
    const float* table = codec.centroids(0);
    const auto [code, distance] = nearest_oracle(zeros.data(), {table, table + 1024}, 4);
    EXPECT_EQ(encoded.codes, std::vector<std::uint16_t>(32, code));
    std::vector<float> y(128, 1.0f);
    codec.decode_original(0, encoded.codes.data(), &encoded.norm, y.data());
    EXPECT_EQ(y, zeros);
    // What f16 rounds to zero is zero.
    EXPECT_EQ(encode(codec, std::vector<float>(128, 1e-9f)), encoded);
    EXPECT_EQ(encode(codec, std::vector<float>(128, kNan)), encoded);
}

TEST(RowCodec, NonFiniteEntriesCountAsZero) {
    for (Norm norm : {Norm::none, Norm::vector}) {
        const RowCodec codec = make_codec({}, norm, 64, 1, true);
        std::vector<float> x = normals(64, 9);
        x[3] = x[17] = x[63] = 0.0f;
        const Encoded expected = encode(codec, x);
        x[3] = kNan;
        x[17] = kInfinity;
        x[63] = -kInfinity;
        EXPECT_EQ(encode(codec, x), expected);
    }
}

TEST(RowCodec, ExtremeMagnitudesStayFinite) {
    for (const CodecSpec& spec : supported_vq_specs()) {
        for (Norm norm : {Norm::none, Norm::vector}) {
            const RowCodec codec = make_codec(spec, norm, 128);
            for (float magnitude : {6e4f, -6e4f, 3e38f, 6e-8f, 1e-40f}) {
                std::vector<float> x = normals(128, 10);
                for (float& v : x) {
                    v = std::copysign(magnitude, v);
                }
                const Encoded encoded = encode(codec, x);
                std::vector<float> back(128);
                codec.decode_original(0, encoded.codes.data(), &encoded.norm, back.data());
                for (std::uint16_t code : encoded.codes) {
                    ASSERT_LT(code, 1 << spec.code_bits);
                }
                for (float v : back) {
                    ASSERT_TRUE(std::isfinite(v));
                }
            }
            if (norm == Norm::vector) {
                // Within the range of the norms the error is relative.
                std::vector<float> x = normals(128, 11, 1.2e4f);
                const Encoded encoded = encode(codec, x);
                std::vector<float> back(128);
                codec.decode_original(0, encoded.codes.data(), &encoded.norm, back.data());
                double error = 0;
                double energy = 0;
                for (std::size_t i = 0; i < 128; ++i) {
                    error += std::pow(static_cast<double>(x[i]) - back[i], 2);
                    energy += static_cast<double>(x[i]) * x[i];
                }
                EXPECT_LT(error, 0.5 * energy);
            }
        }
    }
}

TEST(RowCodec, HeadsUseTheirOwnTransformAndCodebook) {
    std::vector<Codebook> codebooks = {*universal_codebook(4, 8), *universal_codebook(4, 8)};
    codebooks[1].scale *= 2.0f;
    const std::vector<HeadTransform> transforms = {make_transform(64, true, true, 1), make_transform(64, false, true)};
    const RowCodec codec = RowCodec::create({}, Norm::none, 64, transforms, codebooks).value();
    EXPECT_EQ(codec.num_heads(), 2);
    EXPECT_EQ(codec.row_dim(), 128);
    EXPECT_EQ(codec.num_subspaces(), 16);
    const std::vector<float> x = normals(64, 12, 2.0f);
    for (int head = 0; head < 2; ++head) {
        const RowCodec alone = RowCodec::create({}, Norm::none, 64, {transforms[head]}, {codebooks[head]}).value();
        EXPECT_EQ(encode(codec, x, head), encode(alone, x));
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(codec.centroids(head)) % 64, 0u);
        EXPECT_EQ(codec.centroids(head)[5], codebooks[head].at(1, 1));
    }
    EXPECT_NE(encode(codec, x, 0), encode(codec, x, 1));
    const RowCodec shared = RowCodec::create({}, Norm::none, 64, transforms, {codebooks[0]}).value();
    EXPECT_EQ(shared.centroids(0), shared.centroids(1));
}

TEST(RowCodec, SubspacesUseTheirOwnCodebooks) {
    for (const CodecSpec& spec : supported_vq_specs()) {
        const int head_dim = 64;
        const int subspaces = head_dim / spec.sub_dim;
        std::vector<Codebook> codebooks;
        for (int i = 0; i < 2 * subspaces; ++i) {
            codebooks.push_back(*universal_codebook(spec.sub_dim, spec.code_bits));
            codebooks.back().scale *= 0.5f + 0.1f * static_cast<float>(i % 11);
        }
        const HeadTransform none = make_transform(head_dim, false, false);
        const RowCodec codec = RowCodec::create(spec, Norm::none, head_dim, {none, none}, codebooks).value();
        EXPECT_GT(codec.centroid_stride(), 0);
        const std::vector<float> x = normals(head_dim, 15);
        for (int head = 0; head < 2; ++head) {
            const Encoded encoded = encode(codec, x, head);
            std::vector<float> decoded(x.size());
            codec.decode(head, encoded.codes.data(), &encoded.norm, decoded.data());
            for (int s = 0; s < subspaces; ++s) {
                const Codebook& book = codebooks[static_cast<std::size_t>(head * subspaces + s)];
                EXPECT_EQ(codec.codebook(head, s), book);
                const float* table = codec.centroids(head, s);
                EXPECT_EQ(table, codec.centroids(head) + s * codec.centroid_stride());
                const std::vector<float> centroids(table, table + (spec.sub_dim << spec.code_bits));
                float piece[8];
                for (int c = 0; c < spec.sub_dim; ++c) {
                    piece[c] =
                        static_cast<float>(half_by_definition(f32_to_f16(x[static_cast<std::size_t>(s * spec.sub_dim + c)])));
                }
                const auto [code, distance] = nearest_oracle(piece, centroids, spec.sub_dim);
                ASSERT_EQ(encoded.codes[static_cast<std::size_t>(s)], code);
                for (int c = 0; c < spec.sub_dim; ++c) {
                    ASSERT_EQ(decoded[static_cast<std::size_t>(s * spec.sub_dim + c)], book.at(code, c));
                }
            }
        }
        codebooks[1].scale *= 2;
        EXPECT_NE(RowCodec::create(spec, Norm::none, head_dim, {none, none}, codebooks)->hash(), codec.hash());
    }
}

TEST(RowCodec, HashCoversWhatChangesTheMeaningOfCodes) {
    const Codebook base = *universal_codebook(4, 8);
    Codebook other = base;
    other.centroids[9] = static_cast<std::int8_t>(other.centroids[9] ^ 1);
    const HeadTransform rotate = make_transform(64, false, true);
    const HeadTransform smooth = make_transform(64, true, true);
    const auto hash = [](Norm norm, int head_dim, std::vector<HeadTransform> transforms, std::vector<Codebook> codebooks,
                         CodecSpec spec = {}) {
        return RowCodec::create(spec, norm, head_dim, std::move(transforms), std::move(codebooks)).value().hash();
    };
    const std::uint64_t reference = hash(Norm::none, 64, {rotate, rotate}, {base});
    EXPECT_EQ(reference, hash(Norm::none, 64, {rotate, rotate}, {base}));
    EXPECT_EQ(reference, hash(Norm::none, 64, {rotate, rotate}, {base, base}));
    const std::set<std::uint64_t> hashes = {
        reference,
        hash(Norm::vector, 64, {rotate, rotate}, {base}),
        hash(Norm::none, 64, {rotate}, {base}),
        hash(Norm::none, 64, {rotate, smooth}, {base}),
        hash(Norm::none, 64, {smooth, rotate}, {base}),
        hash(Norm::none, 64, {rotate, rotate}, {other}),
        hash(Norm::none, 64, {rotate, rotate}, {base, other}),
        hash(Norm::none, 64, {rotate, rotate}, {other, base}),
        hash(Norm::none, 128, {make_transform(128, false, true), make_transform(128, false, true)}, {base}),
        hash(Norm::none, 64, {rotate, rotate}, {*universal_codebook(8, 8)}, {.sub_dim = 8}),
    };
    EXPECT_EQ(hashes.size(), 10u);
}

TEST(RowCodec, BadArgumentsAreNamed) {
    const HeadTransform good = make_transform(64, false, true);
    const Codebook codebook = *universal_codebook(4, 8);
    const auto status = [](const CodecSpec& spec, Norm norm, int head_dim, std::vector<HeadTransform> transforms,
                           std::vector<Codebook> codebooks) {
        return RowCodec::create(spec, norm, head_dim, std::move(transforms), std::move(codebooks)).status();
    };
    const auto contains = [](const Status& got, ErrorCode code, const std::string& text) {
        EXPECT_EQ(got.code(), code) << got.message();
        EXPECT_NE(got.message().find(text), std::string::npos) << got.message();
    };
    const ErrorCode invalid = ErrorCode::invalid_argument;
    contains(status({.kind = CodecKind::f16}, Norm::none, 64, {good}, {codebook}), invalid, "spec: got f16");
    contains(status({}, Norm::automatic, 64, {good}, {codebook}), invalid, "norm: got automatic");
    contains(status({}, Norm::none, 63, {good}, {codebook}), invalid, "head_dim: got 63");
    contains(status({}, Norm::none, 128, {good}, {codebook}), invalid, "transforms[0]: got head_dim 64");
    contains(status({}, Norm::none, 64, {}, {codebook}), invalid, "transforms: got none");
    contains(status({}, Norm::none, 64, {good, good, good}, {codebook, codebook}), invalid,
             "codebooks: got 2, expected 1, 3 or 48");
    contains(status({}, Norm::none, 64, {good}, {}), invalid, "codebooks: got 0");
    contains(status({}, Norm::none, 64, {good}, {*universal_codebook(2, 8)}), ErrorCode::mismatch,
             "codebooks[0]: got d2b8, expected d4b8");
    contains(status({}, Norm::none, 66, {make_transform(66, false, true)}, {codebook}), invalid, "a multiple of sub_dim 4");
    Codebook broken = codebook;
    broken.scale = 0;
    contains(status({}, Norm::none, 64, {good}, {broken}), invalid, "codebooks[0]: scale: got 0");
}

}  // namespace
}  // namespace vecinfer
