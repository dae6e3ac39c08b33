#include <gtest/gtest.h>

#include "format/format_test_util.h"

namespace vecinfer {
namespace {

/// Header of a small llama-like model: `extra` adds `extra_values` further values.
RawGguf model_header(std::uint64_t tensors, std::uint64_t extra_values) {
    RawGguf out;
    out.header(tensors, 6 + extra_values)
        .string_value("general.architecture", "llama")
        .string_value("general.name", "Tiny")
        .u32_value("llama.block_count", 3)
        .u32_value("llama.context_length", 8192)
        .u32_value("llama.embedding_length", 576)
        .u32_value("llama.attention.head_count", 9);
    return out;
}

Result<ModelInfo> info_of(const RawGguf& file) {
    TemporaryFolder folder;
    write_bytes(folder / "model.gguf", file.bytes());
    return read_model_info(folder / "model.gguf");
}

TEST(ModelInfo, ScalarsAndDefaults) {
    const Result<ModelInfo> info = info_of(model_header(0, 1).u32_value("llama.attention.head_count_kv", 3));
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->identity.architecture, "llama");
    EXPECT_EQ(info->identity.name, "Tiny");
    EXPECT_EQ(info->identity.rope, "norm");
    EXPECT_EQ(info->context_length, 8192);
    EXPECT_EQ(info->layers, (std::vector<LayerShape>{{0, 3, 64, 64}, {1, 3, 64, 64}, {2, 3, 64, 64}}));
    EXPECT_EQ(info->identity.layer_hashes, (std::vector<std::uint64_t>{0, 0, 0}));
}

TEST(ModelInfo, HeadCountWithoutKvHeadsIsMultiHeadAttention) {
    EXPECT_EQ(info_of(model_header(0, 0))->layers[0], (LayerShape{0, 9, 64, 64}));
}

TEST(ModelInfo, PerLayerKvHeadsSkipLayersWithoutACache) {
    RawGguf file = model_header(0, 3);
    file.u32_value("llama.attention.key_length", 192).u32_value("llama.attention.value_length", 128);
    file.key("llama.attention.head_count_kv", 9).put<std::uint32_t>(5).put<std::uint64_t>(3);  // array of i32
    file.put<std::int32_t>(8).put<std::int32_t>(0).put<std::int32_t>(2);
    const Result<ModelInfo> info = info_of(file);
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->layers, (std::vector<LayerShape>{{0, 8, 192, 128}, {2, 2, 192, 128}}));
}

TEST(ModelInfo, HashesAttentionNormsAndIgnoresQuantizedWeights) {
    RawGguf file = model_header(2, 0);
    file.text("blk.1.attn_norm.weight").put<std::uint32_t>(1).put<std::uint64_t>(2).put<std::uint32_t>(0).put<std::uint64_t>(32);
    // A block-quantized tensor far outside the file: weights are never read.
    file.text("blk.0.attn_q.weight")
        .put<std::uint32_t>(1)
        .put<std::uint64_t>(1u << 30)
        .put<std::uint32_t>(3)
        .put<std::uint64_t>(1u << 30);
    file.pad().put<std::uint64_t>(0).pad();
    file.put(1.0f).put(2.0f);
    const Result<ModelInfo> info = info_of(file);
    ASSERT_TRUE(info.ok()) << info.status().message();
    const float weights[] = {1.0f, 2.0f};
    EXPECT_EQ(info->identity.layer_hashes, (std::vector<std::uint64_t>{0, hash64(std::as_bytes(std::span(weights))), 0}));
}

TEST(ModelInfo, BadModelsAreNamed) {
    const auto message = [](const RawGguf& file) {
        const std::string text = info_of(file).status().message();
        return text.substr(text.find("model.gguf") + 12);
    };
    EXPECT_EQ(message(RawGguf().text("not a model")),
              "gguf: not a GGUF file: it starts with bytes 0b 00 00 00, expected \"GGUF\"");
    EXPECT_EQ(message(RawGguf().header(0, 1).string_value("general.architecture", "llama")),
              "gguf: llama.block_count: it is missing, expected an integer");
    EXPECT_EQ(message(RawGguf().header(0, 1).string_value("general.architecture", "vecinfer")),
              "got a calibration sidecar, expected a model");
    EXPECT_EQ(
        message(RawGguf().header(0, 2).string_value("general.architecture", "llama").u32_value("llama.block_count", 1u << 31)),
        "llama.block_count: got 2147483648, expected at most 4096");
    EXPECT_EQ(
        message(model_header(0, 1).key("llama.attention.head_count_kv", 9).put<std::uint32_t>(4).put<std::uint64_t>(1).put(3u)),
        "llama.attention.head_count_kv: got 1 entries, expected one for each of 3 layers");
    EXPECT_EQ(message(model_header(0, 1).string_value("llama.attention.head_count_kv", "3")),
              "gguf: llama.attention.head_count_kv: it has another type, expected an integer");
    EXPECT_EQ(read_model_info("/nonexistent/model.gguf").status().code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace vecinfer
