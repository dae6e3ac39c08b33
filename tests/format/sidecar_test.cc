#include "vecinfer/sidecar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "format/allocation_meter.h"
#include "format/format_test_util.h"

namespace vecinfer {
namespace {

const std::filesystem::path kGolden = VECINFER_TEST_DATA "/golden.vecinfer.gguf";

TEST(Sidecar, GoldenFileParses) {
    const Result<Sidecar> got = load_sidecar(kGolden);
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(got.value(), golden_sidecar());
}

TEST(Sidecar, GoldenFileIsWrittenByteForByte) {
    const Result<Bytes> bytes = serialize_sidecar(golden_sidecar());
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    EXPECT_EQ(bytes.value(), read_bytes(kGolden));
}

TEST(Sidecar, RoundTripsEveryKindOfContent) {
    for (const char* text :
         {"vecinfer:k2v2", "vecinfer:k4v2,kt=hadamard,vt=hadamard,norm=none,recent=0,sink=0", "vecinfer:k2v2,kt=smooth",
          "vecinfer:k2v2,kt=center+smooth-opt+hadamard,vt=center+hadamard", "vecinfer:k2v4,kt=center,vt=center,scope=layer",
          "vecinfer:k2v2,kt=full,vt=center+full,norm=none", "vecinfer:k4v2,kt=center+full,vt=full", "million:k2v4",
          "vecinfer:k=b3-token32-sym,v=d4b8,kt=smooth", "vecinfer:k2v2,layers=1:f16/2:k4v1"}) {
        Sidecar sidecar = golden_sidecar();
        sidecar.scheme = resolve(parse_scheme(text).value(), true).value();
        sidecar.model.layer_hashes.clear();
        sidecar.model.name = std::string("n\0\xff", 3);
        for (LayerCalibration& layer : sidecar.layers) {
            layer.shape.head_dim_v = 16;  // unlike the keys'
            fill_for_scheme(sidecar.scheme, layer);
        }
        const Result<Bytes> bytes = serialize_sidecar(sidecar);
        ASSERT_TRUE(bytes.ok()) << bytes.status().message();
        const Result<Sidecar> back = parse_sidecar(bytes.value());
        ASSERT_TRUE(back.ok()) << back.status().message();
        EXPECT_EQ(back.value(), sidecar) << text;
        EXPECT_TRUE(make_key_codec(back->scheme, back->layers[1].shape, &back->layers[1]).ok()) << text;
        EXPECT_TRUE(make_value_codec(back->scheme, back->layers[1].shape, &back->layers[1]).ok()) << text;
    }
}

TEST(Sidecar, EveryTruncationIsAnError) {
    const Bytes bytes = read_bytes(kGolden);
    ASSERT_GT(bytes.size(), 4000u);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        reset_allocation_meter();
        const Result<Sidecar> got = parse_sidecar(std::span(bytes).first(length));
        EXPECT_FALSE(got.ok()) << length;
        EXPECT_LT(peak_allocation(), 2 * length + 16384) << length;
    }
}

TEST(Sidecar, NoFlippedBitPassesUnseen) {
    const Bytes golden = read_bytes(kGolden);
    std::mt19937_64 rng(2024);
    for (int round = 0; round < 20000; ++round) {
        Bytes bytes = golden;
        const int flips = 1 + static_cast<int>(rng() % 3);
        for (int i = 0; i < flips; ++i) {
            // Half of them in the header, where the structure is.
            const std::size_t at = rng() % (round % 2 ? bytes.size() : 1500);
            bytes[at] ^= static_cast<std::byte>(1u << (rng() % 8));
        }
        if (bytes == golden) {
            continue;
        }
        reset_allocation_meter();
        const bool accepted = parse_sidecar(bytes).ok();
        EXPECT_FALSE(accepted) << round;
        EXPECT_LT(peak_allocation(), 2 * bytes.size() + 16384) << round;
    }
}

TEST(Sidecar, FilesThatAreNoSidecarSayWhatTheyAre) {
    const auto message = [](const Bytes& bytes) { return parse_sidecar(bytes).status().message(); };
    EXPECT_EQ(message(RawGguf().text("hello world").bytes()),
              "sidecar: gguf: not a GGUF file: it starts with bytes 0b 00 00 00, expected \"GGUF\"");
    EXPECT_EQ(message({}), "sidecar: gguf: not a GGUF file: it has 0 bytes");
    EXPECT_EQ(message(RawGguf().header(0, 0, 1).bytes()), "sidecar: gguf: container version: got 1, expected 2 or 3");
    EXPECT_EQ(message(RawGguf().header(0, 0, 0x03000000).bytes()),
              "sidecar: gguf: the file is big-endian, expected little-endian");
    EXPECT_EQ(message(RawGguf().header(0, 0).bytes()), "sidecar: the GGUF file is no sidecar: it has no general.architecture");
    EXPECT_EQ(message(RawGguf().header(0, 1).string_value("general.architecture", "qwen2").bytes()),
              "sidecar: got a model of architecture qwen2, expected a calibration sidecar");
    const Bytes newer =
        RawGguf().header(0, 2).string_value("general.architecture", "vecinfer").u32_value("vecinfer.version", 7).bytes();
    EXPECT_EQ(message(newer), "sidecar: version: got 7, expected 1 or older; a newer vecinfer wrote this file");
    EXPECT_EQ(parse_sidecar(newer).status().code(), ErrorCode::unsupported);
}

TEST(Sidecar, HostileHeadersAreRefused) {
    constexpr std::uint64_t kHuge = ~std::uint64_t{0};
    const RawGguf cases[] = {
        RawGguf().header(kHuge, 0),
        RawGguf().header(0, kHuge),
        RawGguf().header(0, 1 << 20),
        RawGguf().header(0, 1).put<std::uint64_t>(kHuge),                                            // key length
        RawGguf().header(0, 1).key("a", 8).put<std::uint64_t>(kHuge),                                // string length
        RawGguf().header(0, 1).key("a", 9).put<std::uint32_t>(4).put<std::uint64_t>(kHuge / 4 + 2),  // count * 4 wraps to 4
        RawGguf().header(0, 1).key("a", 9).put<std::uint32_t>(8).put<std::uint64_t>(kHuge),
        RawGguf().header(0, 1).key("a", 9).put<std::uint32_t>(13).put<std::uint64_t>(1),
        RawGguf().header(0, 1).key("a", 99).put<std::uint32_t>(0),
        RawGguf().header(0, 2).u32_value("a", 1).u32_value("a", 2),
        RawGguf().header(0, 1).u32_value("general.alignment", 0),
        RawGguf().header(0, 1).u32_value("general.alignment", 24),
        RawGguf().header(0, 1).u32_value("general.alignment", 1u << 30),
        RawGguf().header(1, 0).text("t").put<std::uint32_t>(5),
        RawGguf()
            .header(1, 0)
            .text("t")
            .put<std::uint32_t>(2)
            .put(kHuge / 2)
            .put<std::uint64_t>(3)
            .put<std::uint32_t>(0)
            .put<std::uint64_t>(0),
    };
    for (std::size_t i = 0; i < std::size(cases); ++i) {
        reset_allocation_meter();
        const Status status = parse_sidecar(cases[i].bytes()).status();
        EXPECT_EQ(status.code(), ErrorCode::corrupt_data) << i << ": " << status.message();
        EXPECT_EQ(status.message().find("general.architecture"), std::string::npos) << i << ": " << status.message();
        EXPECT_LT(peak_allocation(), 16384u) << i;
    }
    RawGguf nested;
    nested.header(0, 1).key("a", 9);
    for (int depth = 0; depth < 10000; ++depth) {
        nested.put<std::uint32_t>(9).put<std::uint64_t>(1);
    }
    EXPECT_NE(parse_sidecar(nested.bytes()).status().message().find("nested"), std::string::npos);
}

TEST(Sidecar, TensorsThatShareBytesCannotMultiplyMemory) {
    // The second layer points at the bytes of the first one: with enough such layers a small file would need any amount of
    // memory.
    Bytes bytes = read_bytes(kGolden);
    const std::pair<std::string_view, std::size_t> tensors[] = {
        {"blk.2.k.smooth", 2}, {"blk.2.k.scale", 1}, {"blk.2.k.centroids", 3}, {"blk.2.v.scale", 1}, {"blk.2.v.centroids", 3}};
    for (const auto& [name, dimensions] : tensors) {
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        const std::size_t offset_at = text.find(name) + name.size() + 4 + 8 * dimensions + 4;
        std::memset(bytes.data() + offset_at, 0, 8);
    }
    constexpr std::size_t kLayerBytes = 64 + 32 + 512 + 32 + 1024;  // with padding
    bytes.resize(bytes.size() - kLayerBytes);
    EXPECT_EQ(parse_sidecar(bytes).status().message(),
              "sidecar: tensor blk.2.k.smooth: all tensors together are larger than the data section");
}

template <class Change>
std::string serialize_error(Change change) {
    Sidecar sidecar = golden_sidecar();
    change(sidecar);
    const Result<Bytes> bytes = serialize_sidecar(sidecar);
    return bytes.ok() ? "accepted" : bytes.status().message();
}

TEST(Sidecar, BadContentIsNotWritten) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(serialize_error([](Sidecar&) {}), "accepted");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.layers[1].smooth_factors[3] = kNan; }),
              "sidecar: layer 2 smooth factor 3: got nan, expected a finite number above 0");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.layers[1].smooth_factors[3] = 0; }),
              "sidecar: layer 2 smooth factor 3: got 0, expected a finite number above 0");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.layers[0].smooth_factors.pop_back(); }),
              "sidecar: layer 0 smooth factors: got 15, expected 16");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.layers[0].key_codebooks.clear(); }),
              "sidecar: layer 0 k codebooks: got 0, expected 1");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.layers[0].value_codebooks[0].sub_dim = 2; }),
              "sidecar: layer 0 v codebook: got d2b8, expected d4b8 as the scheme says");
    EXPECT_EQ(serialize_error([](Sidecar& s) { std::swap(s.layers[0], s.layers[1]); }),
              "sidecar: layer index: got 0 after 2, expected rising indices from 0 to 65535");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.layers.clear(); }), "sidecar: layers: got none, expected at least one layer");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.layers[0].shape.head_dim_v = 6; }),
              "sidecar: layer 0 head_dim_v: got 6, expected a multiple of 4 up to 1024");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.scheme = parse_scheme("f16").value(); }),
              "sidecar: scheme: got f16, expected a scheme with codebooks");
    EXPECT_EQ(serialize_error([](Sidecar& s) { s.scheme = parse_scheme("vecinfer:k4v2").value(); }),
              "sidecar: scheme: got vecinfer:k4v2, expected a resolved scheme, without automatic parts");
    EXPECT_NE(serialize_error([](Sidecar& s) { s.layers[0].key_codebooks[0].scale = kNan; }).find("scale"), std::string::npos);
    EXPECT_NE(serialize_error([](Sidecar& s) { s.layers[0].key_codebooks[0].centroids.pop_back(); }), "accepted");
}

TEST(Sidecar, BadMeansAndMatricesAreNotWritten) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const auto error = [](const char* scheme, auto change) {
        return serialize_error([&](Sidecar& s) {
            s.scheme = resolve(parse_scheme(scheme).value(), true).value();
            for (LayerCalibration& layer : s.layers) {
                fill_for_scheme(s.scheme, layer);
            }
            change(s.layers[1]);
        });
    };
    const char* full = "vecinfer:k2v2,kt=center+full,vt=center+full";
    EXPECT_EQ(error(full, [](LayerCalibration&) {}), "accepted");
    EXPECT_EQ(error(full, [](LayerCalibration& l) { l.key_center.clear(); }), "sidecar: layer 2 k center: got 0, expected 16");
    EXPECT_EQ(error(full, [](LayerCalibration& l) { l.value_center[15] = kInfinity; }),
              "sidecar: layer 2 v center 15: got inf, expected a finite number");
    EXPECT_EQ(error(full, [](LayerCalibration& l) { l.key_matrix.pop_back(); }),
              "sidecar: layer 2 k matrix: got 127, expected 128");
    EXPECT_EQ(error(full, [](LayerCalibration& l) { l.value_matrix[100] = -kInfinity; }),
              "sidecar: layer 2 v matrix 100: got -inf, expected a finite number");
    EXPECT_EQ(error("vecinfer:k2v2,kt=smooth", [](LayerCalibration& l) { l.key_center.resize(16); }),
              "sidecar: layer 2 k center: got 16, expected 0");
    EXPECT_EQ(error("vecinfer:k2v2,kt=smooth", [](LayerCalibration& l) { l.value_matrix.resize(128); }),
              "sidecar: layer 2 v matrix: got 128, expected 0");
}

TEST(Sidecar, NanFactorsInAFileAreRefused) {
    Bytes bytes = read_bytes(kGolden);
    // The first tensor of the data section is blk.0.k.smooth: 1.25f at index 4 occurs there first.
    const float needle[] = {1.25f, 1.5f};
    const auto* begin = reinterpret_cast<const char*>(bytes.data());
    const std::size_t at = std::string_view(begin, bytes.size()).find(std::string_view(reinterpret_cast<const char*>(needle), 8));
    ASSERT_NE(at, std::string_view::npos);
    const float nan = std::nanf("");
    std::memcpy(bytes.data() + at, &nan, sizeof(nan));
    const Status status = parse_sidecar(bytes).status();
    EXPECT_EQ(status.code(), ErrorCode::corrupt_data);
    EXPECT_EQ(status.message(), "sidecar: layer 0 smooth factor 4: got nan, expected a finite number above 0");
}

TEST(Sidecar, SchemesThatCanShareASidecar) {
    const auto check = [](const char* have, const char* wanted) {
        return check_scheme(parse_scheme(have).value(), parse_scheme(wanted).value());
    };
    EXPECT_TRUE(check("vecinfer:k2v2", "vecinfer:k2v2").ok());
    EXPECT_TRUE(check("vecinfer:k2v2,recent=64", "vecinfer:k2v2,sink=0,prefill=exact").ok());
    EXPECT_TRUE(check("vecinfer:k2v2,kt=center+smooth-opt+hadamard,vt=hadamard,norm=vector,encode=shaped", "vecinfer:k2v2").ok());
    EXPECT_TRUE(check("vecinfer:k2v2,kt=center+full,vt=full", "vecinfer:k2v2,vt=full,kt=center+full").ok());
    EXPECT_TRUE(check("f16", "f16").ok());
    for (const char* wanted :
         {"vecinfer:k4v2", "vecinfer:k2v2,kt=hadamard", "vecinfer:k2v2,kt=smooth+hadamard",
          "vecinfer:k2v2,kt=center+smooth+hadamard", "vecinfer:k2v2,kt=center+full", "vecinfer:k2v2,vt=center+hadamard",
          "vecinfer:k2v2,scope=head", "vecinfer:k2v2,norm=none", "f16", "vecinfer:k2v2,layers=0:f16"}) {
        const Status status = check("vecinfer:k2v2", wanted);
        EXPECT_EQ(status.code(), ErrorCode::mismatch) << wanted;
    }
    EXPECT_EQ(check("vecinfer:k2v2", "vecinfer:k4v2").message(), "scheme: got k=d2b8, but the sidecar was calibrated for k=d4b8");
    EXPECT_EQ(check("vecinfer:k2v2", "vecinfer:k2v2,recent=1,vt=none,layers=0:f16/3:k4v2").message(),
              "scheme: got vt=none,layers=0:f16/3:d2b8+d4b8, but the sidecar was calibrated for vt=hadamard,no layers");
    EXPECT_EQ(check("rotated:k2v2", "f16").message(), "scheme: got f16, but the sidecar was calibrated for " +
                                                          to_string(resolve(parse_scheme("rotated:k2v2").value(), true).value()));
}

TEST(Sidecar, EncodingsShareCodebooksUnlessTheyNeedDirections) {
    const auto check = [](const char* have, const char* wanted) {
        return check_scheme(parse_scheme(have).value(), parse_scheme(wanted).value());
    };
    for (const char* have : {"vecinfer:k2v2", "vecinfer:k2v2,encode=nearest", "vecinfer:k2v2,encode=unbiased"}) {
        EXPECT_TRUE(check(have, "vecinfer:k2v2,encode=nearest").ok()) << have;
        EXPECT_TRUE(check(have, "vecinfer:k2v2,encode=unbiased").ok()) << have;
    }
    EXPECT_EQ(check("vecinfer:k2v2,encode=unbiased", "vecinfer:k2v2").message(),
              "scheme: got encode=shaped, but the sidecar was calibrated for encode=unbiased");
    EXPECT_EQ(check("vecinfer:k2v2", "vecinfer:k4v2,encode=nearest").message(),
              "scheme: got k=d2b8, but the sidecar was calibrated for k=d4b8");
}

}  // namespace
}  // namespace vecinfer
