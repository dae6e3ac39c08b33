#include <gtest/gtest.h>

#include "format/format_test_util.h"

namespace vecinfer {
namespace {

constexpr LayerShape kShape{3, 2, 16, 8};

/// Codebooks that can spell small integers exactly: centroid i of head h is (i - 8h, i - 8h, ...) for i < 16, else far away.
LayerCalibration integer_calibration() {
    LayerCalibration out;
    out.shape = kShape;
    for (int head = 0; head < 2; ++head) {
        Codebook book{.sub_dim = 4, .code_bits = 8, .scale = 1.0f, .centroids = {}};
        for (int i = 0; i < 256; ++i) {
            book.centroids.insert(book.centroids.end(), 4, static_cast<std::int8_t>(i < 16 ? i - 8 * head : 127));
        }
        out.key_codebooks.push_back(book);
        out.value_codebooks.push_back(book);
    }
    return out;
}

Scheme scheme_of(const char* text) {
    return parse_scheme(text).value();
}

TEST(LayerCodecs, EachHeadUsesItsOwnCodebookAndFactors) {
    LayerCalibration calibration = integer_calibration();
    for (int i = 0; i < 32; ++i) {
        calibration.smooth_factors.push_back(i < 16 ? 1.0f : 2.0f);
    }
    const Result<RowCodec> codec =
        make_key_codec(scheme_of("vecinfer:k2v2,kt=smooth,norm=none,scope=head,encode=nearest"), kShape, &calibration);
    ASSERT_TRUE(codec.ok()) << codec.status().message();
    EXPECT_EQ(codec->num_heads(), 2);
    EXPECT_EQ(codec->head_dim(), 16);
    // Head 0 stores x itself, 0 to 15; head 1 stores x / 2, -8 to 7: both exactly, so decoding gives x back.
    for (const auto& [head, low, factor] : {std::tuple(0, 0, 1), std::tuple(1, -8, 2)}) {
        std::vector<float> x;
        for (int i = 0; i < 16; ++i) {
            x.push_back(static_cast<float>(factor * (low + (5 * (i / 4) + 3) % 16)));
        }
        std::vector<std::uint16_t> codes(4);
        std::uint8_t norm = 0;
        std::vector<float> y(16);
        codec->encode(head, x.data(), codes.data(), &norm);
        codec->decode_original(head, codes.data(), &norm, y.data());
        EXPECT_EQ(x, y) << head;
        for (int m = 0; m < 4; ++m) {
            EXPECT_EQ(codes[static_cast<std::size_t>(m)], (5 * m + 3) % 16) << head;
        }
    }
    EXPECT_EQ(make_value_codec(scheme_of("vecinfer:k2v2,kt=smooth,norm=none,scope=head,encode=nearest"), kShape, &calibration)
                  ->head_dim(),
              8);
}

TEST(LayerCodecs, EveryWidthWorksWithoutCalibration) {
    for (const char* spelling : {"vecinfer:k4v4", "vecinfer:k3v3", "vecinfer:k2.5v2.5", "vecinfer:k2v2", "vecinfer:k1.5v1.5",
                                 "vecinfer:k1v1", "rotated:k4v4", "rotated:k3v3", "rotated:k2v2"}) {
        const std::string text = spelling;
        const Result<RowCodec> key = make_key_codec(scheme_of(text.c_str()), kShape, nullptr);
        ASSERT_TRUE(key.ok()) << text << ": " << key.status().message();
        EXPECT_TRUE(key->has_norm());
        EXPECT_EQ(key->sub_dim(), scheme_of(text.c_str()).key.sub_dim);
        EXPECT_TRUE(make_value_codec(scheme_of(text.c_str()), kShape, nullptr).ok()) << text;
    }
}

TEST(LayerCodecs, ScalarSchemesNeedNoCodebooks) {
    for (const char* text : {"kivi:k2v4", "innerq:k3v2h,recent=96", "vecinfer:k=b3-channel16-asym,v=d4b8"}) {
        LayerShape shape = kShape;
        shape.head_dim_k = shape.head_dim_v = 64;
        const Result<RowCodec> key = make_key_codec(scheme_of(text), shape, nullptr);
        ASSERT_TRUE(key.ok()) << text << ": " << key.status().message();
        EXPECT_EQ(key->spec(), scheme_of(text).key);
        EXPECT_TRUE(make_value_codec(scheme_of(text), shape, nullptr).ok()) << text;
    }
}

TEST(LayerCodecs, LayersGetTheirOwnCodec) {
    const Scheme scheme = scheme_of("vecinfer:k2v2,layers=2:f16/3:k4v1");
    EXPECT_EQ(make_key_codec(scheme, kShape, nullptr)->sub_dim(), 2);
    EXPECT_EQ(make_value_codec(scheme, kShape, nullptr)->sub_dim(), 8);
    LayerShape other = kShape;
    other.layer = 4;
    EXPECT_EQ(make_key_codec(scheme, other, nullptr)->sub_dim(), 4);
    other.layer = 2;
    EXPECT_EQ(make_key_codec(scheme, other, nullptr).status().message(), "scheme: got f16, expected a scheme with codes");
}

TEST(LayerCodecs, SameInputsGiveTheSameHash) {
    const LayerCalibration calibration = integer_calibration();
    const Scheme scheme = scheme_of("vecinfer:k2v2,kt=hadamard,scope=head,encode=nearest");
    const std::uint64_t hash = make_key_codec(scheme, kShape, &calibration)->hash();
    EXPECT_EQ(make_key_codec(resolve(scheme, true).value(), kShape, &calibration)->hash(), hash);
    LayerCalibration other = calibration;
    other.key_codebooks[1].centroids[5] ^= 1;
    EXPECT_NE(make_key_codec(scheme, kShape, &other)->hash(), hash);
    EXPECT_NE(make_key_codec(scheme, kShape, nullptr)->hash(), hash);
}

TEST(LayerCodecs, MismatchesAreNamed) {
    const LayerCalibration calibration = integer_calibration();
    const auto error = [&](const char* scheme, const LayerShape& shape, const LayerCalibration* c) {
        return make_key_codec(scheme_of(scheme), shape, c).status();
    };
    EXPECT_EQ(error("vecinfer:k2v2,kt=hadamard", {3, 4, 16, 8}, &calibration).message(),
              "layer 3: calibration: got layer 3 with 2 KV heads of 16 (K) and 8 (V), expected 4 KV heads of 16 (K) and 8 (V)");
    EXPECT_EQ(error("vecinfer:k2v2", kShape, &calibration).message(), "layer 3: smooth factors: got 0, expected 32");
    EXPECT_EQ(error("vecinfer:k2v2,kt=none,encode=nearest", kShape, &calibration).message(),
              "layer 3: codebooks: got 2, expected 1");
    EXPECT_EQ(error("vecinfer:k2v2", kShape, &calibration).code(), ErrorCode::mismatch);
    EXPECT_EQ(error("vecinfer:k2v2,kt=none", kShape, &calibration).message(),
              "layer 3: shaping directions: got none, expected those of encode=shaped");
    EXPECT_EQ(error("vecinfer:k2v2,kt=center", kShape, &calibration).message(), "layer 3: key center: got 0, expected 32");
    EXPECT_EQ(error("vecinfer:k2v2,kt=full", kShape, &calibration).message(), "layer 3: key matrix: got 0, expected 512");
    EXPECT_EQ(error("vecinfer:k2v2,kt=none,vt=center", kShape, &calibration).message(),
              "layer 3: value center: got 0, expected 16");
    EXPECT_EQ(error("vecinfer:k2v2,kt=none,vt=full", kShape, &calibration).message(),
              "layer 3: value matrix: got 0, expected 128");
    LayerCalibration singular = calibration;
    singular.key_matrix.assign(512, 1.0f);
    EXPECT_EQ(error("vecinfer:k2v2,kt=full,scope=head,encode=nearest", kShape, &singular).message(),
              "layer 3: matrix: got a singular or nearly singular one, expected an invertible one");
    EXPECT_FALSE(error("vecinfer:k4v2,kt=none", kShape, &calibration).ok());
    EXPECT_EQ(error("vecinfer:k2v2,kt=smooth", kShape, nullptr).code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error("f16", kShape, nullptr).message(), "scheme: got f16, expected a scheme with codes");
    EXPECT_FALSE(error("vecinfer:k2v2", {3, 0, 16, 8}, nullptr).ok());
    EXPECT_FALSE(error("vecinfer:k1v1", {3, 1, 12, 8}, nullptr).ok());
}

}  // namespace
}  // namespace vecinfer
