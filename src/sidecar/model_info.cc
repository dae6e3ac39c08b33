#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sidecar/gguf_reader.h"
#include "sidecar/guard.h"
#include "vecinfer/sidecar.h"

namespace vecinfer {
namespace {

constexpr std::uint64_t kMaxLayers = 4096;
constexpr std::uint64_t kMaxHeads = 65536;
constexpr std::uint64_t kMaxHeadDim = 65536;

// GGUF does not say which pairs of channels RoPE turns; it follows from the architecture. Only the common ones are listed.
constexpr std::array<std::string_view, 11> kNeox = {"falcon", "gemma", "gemma2", "gemma3", "gptneox", "phi2",
                                                    "phi3",   "qwen",  "qwen2",  "qwen3",  "stablelm"};
constexpr std::array<std::string_view, 7> kNorm = {"baichuan", "command-r", "granite", "internlm2", "llama", "minicpm", "olmo"};

std::string rope_of(std::string_view architecture) {
    if (std::find(kNeox.begin(), kNeox.end(), architecture) != kNeox.end()) {
        return "neox";
    }
    return std::find(kNorm.begin(), kNorm.end(), architecture) != kNorm.end() ? "norm" : "unknown";
}

/// Metadata of one model; keys are given without the architecture in front.
class Metadata {
public:
    Metadata(const gguf::File& file, std::string architecture) : file_(file), architecture_(std::move(architecture)) {}

    bool has(std::string_view key) const { return file_.find(full(key)) != nullptr; }

    Result<std::uint64_t> number(std::string_view key, std::uint64_t high) const {
        Result<std::uint64_t> got = file_.unsigned_integer(full(key));
        if (got.ok() && got.value() > high) {
            return argument_error(full(key), fmt::format("{}", got.value()), fmt::format("at most {}", high));
        }
        return got;
    }

    /// One number for all layers, or an array with one for each.
    Result<std::vector<std::uint64_t>> per_layer(std::string_view key, std::size_t layers, std::uint64_t high) const {
        const gguf::Value* value = file_.find(full(key));
        if (value == nullptr || value->type != gguf::ValueType::array) {
            const Result<std::uint64_t> same = number(key, high);
            if (!same.ok()) {
                return same.status();
            }
            return std::vector<std::uint64_t>(layers, same.value());
        }
        if (value->count != layers) {
            return argument_error(full(key), fmt::format("{} entries", value->count),
                                  fmt::format("one for each of {} layers", layers));
        }
        Result<std::vector<std::uint64_t>> each = file_.unsigned_array(full(key));
        if (each.ok()) {
            for (const std::uint64_t entry : each.value()) {
                if (entry > high) {
                    return argument_error(full(key), fmt::format("{}", entry), fmt::format("at most {}", high));
                }
            }
        }
        return each;
    }

private:
    std::string full(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }

    const gguf::File& file_;
    std::string architecture_;
};

/// key_length or value_length, else embedding_length shared out over the query heads; 0 where that is not possible.
Result<std::vector<std::uint64_t>> head_dims(const Metadata& metadata, std::string_view key,
                                             const std::vector<std::uint64_t>& heads) {
    if (metadata.has(key)) {
        const Result<std::uint64_t> length = metadata.number(key, kMaxHeadDim);
        if (!length.ok()) {
            return length.status();
        }
        return std::vector<std::uint64_t>(heads.size(), length.value());
    }
    const Result<std::uint64_t> embedding = metadata.number("embedding_length", kMaxHeads * kMaxHeadDim);
    if (!embedding.ok()) {
        return embedding.status();
    }
    std::vector<std::uint64_t> out;
    for (const std::uint64_t count : heads) {
        out.push_back(count == 0 ? 0 : std::min(embedding.value() / count, kMaxHeadDim));
    }
    return out;
}

Status read_layers(const Metadata& metadata, std::size_t count, std::vector<LayerShape>& out) {
    const Result<std::vector<std::uint64_t>> heads = metadata.per_layer("attention.head_count", count, kMaxHeads);
    if (!heads.ok()) {
        return heads.status();
    }
    const Result<std::vector<std::uint64_t>> kv_heads =
        metadata.has("attention.head_count_kv") ? metadata.per_layer("attention.head_count_kv", count, kMaxHeads) : heads;
    if (!kv_heads.ok()) {
        return kv_heads.status();
    }
    const Result<std::vector<std::uint64_t>> k = head_dims(metadata, "attention.key_length", heads.value());
    if (!k.ok()) {
        return k.status();
    }
    const Result<std::vector<std::uint64_t>> v = head_dims(metadata, "attention.value_length", heads.value());
    if (!v.ok()) {
        return v.status();
    }
    for (std::size_t i = 0; i < count; ++i) {
        // Recurrent layers of hybrid models have no KV heads, hence no KV cache.
        if (kv_heads.value()[i] != 0 && k.value()[i] != 0 && v.value()[i] != 0) {
            out.push_back({static_cast<int>(i), static_cast<int>(kv_heads.value()[i]), static_cast<int>(k.value()[i]),
                           static_cast<int>(v.value()[i])});
        }
    }
    return {};
}

Result<std::vector<std::uint64_t>> hash_layers(const gguf::File& file, std::size_t count) {
    std::vector<std::uint64_t> out(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
        const std::string name = fmt::format("blk.{}.attn_norm.weight", i);
        const gguf::Tensor* tensor = file.find_tensor(name);
        if (tensor == nullptr || gguf::tensor_element_size(tensor->type) == 0) {
            continue;
        }
        if (tensor->elements > kMaxHeads * kMaxHeadDim / 64) {
            return argument_error(name, fmt::format("{} entries", tensor->elements), "one for each channel of a layer's input");
        }
        const Result<std::vector<std::byte>> bytes = file.tensor_bytes(name);
        if (!bytes.ok()) {
            return bytes.status();
        }
        out[i] = hash64(bytes.value());
    }
    return out;
}

Result<ModelInfo> read_info(const gguf::File& file) {
    ModelInfo out;
    const Result<std::string> architecture = file.string("general.architecture");
    if (!architecture.ok()) {
        return architecture.status();
    }
    if (architecture.value() == "vecinfer") {
        return Status(ErrorCode::mismatch, "got a calibration sidecar, expected a model");
    }
    out.identity.architecture = architecture.value();
    out.identity.rope = rope_of(architecture.value());
    if (const gguf::Value* name = file.find("general.name"); name != nullptr && name->type == gguf::ValueType::string) {
        const Result<std::string> text = file.string("general.name");
        if (!text.ok()) {
            return text.status();
        }
        out.identity.name = text.value();
    }
    const Metadata metadata(file, architecture.value());
    const Result<std::uint64_t> blocks = metadata.number("block_count", kMaxLayers);
    if (!blocks.ok()) {
        return blocks.status();
    }
    if (metadata.has("context_length")) {
        const Result<std::uint64_t> context = metadata.number("context_length", std::uint64_t{1} << 62);
        if (!context.ok()) {
            return context.status();
        }
        out.context_length = static_cast<std::int64_t>(context.value());
    }
    if (Status s = read_layers(metadata, blocks.value(), out.layers); !s.ok()) {
        return s;
    }
    Result<std::vector<std::uint64_t>> hashes = hash_layers(file, blocks.value());
    if (!hashes.ok()) {
        return hashes.status();
    }
    out.identity.layer_hashes = std::move(hashes.value());
    return out;
}

}  // namespace

Result<ModelInfo> read_model_info(const std::filesystem::path& path) {
    return guarded("model", [&]() -> Result<ModelInfo> {
        Result<std::shared_ptr<const gguf::ByteSource>> source = gguf::file_source(path);
        if (!source.ok()) {
            return source.status();
        }
        const Result<gguf::File> file = gguf::File::open(std::move(source.value()));
        if (!file.ok()) {
            return with_prefix(path.string(), file.status());
        }
        Result<ModelInfo> info = read_info(file.value());
        if (!info.ok()) {
            return with_prefix(path.string(), info.status());
        }
        return info;
    });
}

}  // namespace vecinfer
