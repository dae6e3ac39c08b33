// Sidecar file, a GGUF container:
//   general.architecture        "vecinfer"
//   general.alignment           u32
//   vecinfer.version            u32, kSidecarVersion
//   vecinfer.scheme             string, every part spelled out
//   vecinfer.model.*            architecture, name, rope (strings), layer_hashes (u64 array)
//   vecinfer.calibration.*      text_hash (u64), tokens (i64), seed (u64), tool (string)
//   vecinfer.layers.*           index, num_kv_heads, head_dim_k, head_dim_v: u32 arrays, one entry per layer
//   vecinfer.file_hash          u64, hash64 of the file with this value as zeros: a flipped bit would go unseen otherwise
// and per layer the tensors (fastest dimension first)
//   blk.<index>.k.smooth        F32 (head_dim_k, num_kv_heads), only if the scheme smooths
//   blk.<index>.[kv].center     F32 (head_dim, num_kv_heads), only if that side is centered
//   blk.<index>.[kv].matrix     F32 (head_dim, head_dim, num_kv_heads), row-major, only with full
//   blk.<index>.k.shaping       F16 (head_dim_k, rank, num_kv_heads), only with encode=shaped
//   blk.<index>.[kv].centroids  I8 (sub_dim, num_centroids, codebooks), only of vq codecs, as the scales
//   blk.<index>.[kv].scale      F32 (codebooks)
// Readers ignore keys and tensors that they do not know, so additions do not need a new version.
#include "vecinfer/sidecar.h"

#include <fmt/format.h>

#include <cstring>

#include "codec/f16.h"
#include "scheme/spelling.h"
#include "sidecar/check_sidecar.h"
#include "sidecar/gguf_reader.h"
#include "sidecar/gguf_writer.h"
#include "sidecar/guard.h"
#include "sidecar/parse_sidecar.h"

namespace vecinfer {
namespace {

constexpr std::string_view kArchitecture = "vecinfer";
constexpr std::string_view kHashKey = "vecinfer.file_hash";
constexpr std::uint32_t kAlignment = 32;

Status corrupt(std::string message) {
    return {ErrorCode::corrupt_data, "sidecar: " + std::move(message)};
}

/// Reads values and tensors of one file; the first failure sticks, so that a run of reads needs one check at its end.
class Reader {
public:
    explicit Reader(const gguf::File& file) : file_(file), data_left_(file.data_size()) {}

    const Status& status() const noexcept { return status_; }

    void read(std::string_view key, std::string& out) { keep(file_.string(key), out); }
    void read(std::string_view key, std::uint64_t& out) { keep(file_.unsigned_integer(key), out); }
    void read(std::string_view key, std::int64_t& out) { keep(file_.integer(key), out); }
    void read(std::string_view key, std::vector<std::uint64_t>& out) { keep(file_.unsigned_array(key), out); }

    /// Second dimension of a tensor, 1 if it has none.
    std::uint64_t second_dimension(const std::string& name) const {
        const gguf::Tensor* info = file_.find_tensor(name);
        return info != nullptr && info->shape.size() > 1 ? info->shape[1] : 1;
    }

    /// A tensor that must have this type and shape, as an array of T.
    template <class T>
    std::vector<T> tensor(const std::string& name, std::uint32_t type, std::vector<std::uint64_t> shape) {
        if (!status_.ok()) {
            return {};
        }
        const gguf::Tensor* info = file_.find_tensor(name);
        if (info != nullptr && (info->type != type || info->shape != shape)) {
            status_ = corrupt(fmt::format("tensor {}: got type {} shape ({}), expected type {} shape ({})", name, info->type,
                                          fmt::join(info->shape, ", "), type, fmt::join(shape, ", ")));
            return {};
        }
        // Tensors that share bytes would let a small file ask for any amount of memory.
        if (info != nullptr && info->elements > data_left_ / sizeof(T)) {
            status_ = corrupt(fmt::format("tensor {}: all tensors together are larger than the data section", name));
            return {};
        }
        const Result<std::vector<std::byte>> bytes = file_.tensor_bytes(name);
        if (!bytes.ok()) {
            status_ = with_prefix("sidecar", bytes.status());
            return {};
        }
        data_left_ -= bytes->size();
        std::vector<T> out(bytes->size() / sizeof(T));
        std::memcpy(out.data(), bytes->data(), bytes->size());
        return out;
    }

private:
    template <class T>
    void keep(Result<T> result, T& out) {
        if (!status_.ok()) {
            return;
        }
        if (!result.ok()) {
            status_ = with_prefix("sidecar", result.status());
            return;
        }
        out = std::move(result.value());
    }

    const gguf::File& file_;
    std::uint64_t data_left_;
    Status status_;
};

/// Is this a sidecar at all, and one of a version that is known here?
Status check_kind(const gguf::File& file) {
    const Result<std::string> architecture = file.string("general.architecture");
    if (!architecture.ok()) {
        return corrupt("the GGUF file is no sidecar: it has no general.architecture");
    }
    if (architecture.value() != kArchitecture) {
        return {ErrorCode::mismatch, fmt::format("sidecar: got a model of architecture {}, expected a calibration sidecar",
                                                 spelling::shown(architecture.value()))};
    }
    const Result<std::uint64_t> version = file.unsigned_integer("vecinfer.version");
    if (!version.ok()) {
        return with_prefix("sidecar", version.status());
    }
    if (version.value() == 0 || version.value() > kSidecarVersion) {
        return {ErrorCode::unsupported,
                fmt::format("sidecar: version: got {}, expected {} or older; a newer vecinfer wrote this file", version.value(),
                            kSidecarVersion)};
    }
    return {};
}

std::vector<Codebook> read_codebooks(Reader& reader, int layer, char side, const CodecSpec& spec, std::uint64_t count) {
    if (count == 0) {
        return {};
    }
    const std::uint64_t centroids = std::uint64_t{1} << spec.code_bits;
    const auto sub_dim = static_cast<std::uint64_t>(spec.sub_dim);
    const std::vector<float> scales =
        reader.tensor<float>(fmt::format("blk.{}.{}.scale", layer, side), gguf::kTensorF32, {count});
    const std::vector<std::int8_t> all =
        reader.tensor<std::int8_t>(fmt::format("blk.{}.{}.centroids", layer, side), gguf::kTensorI8, {sub_dim, centroids, count});
    if (!reader.status().ok()) {
        return {};
    }
    std::vector<Codebook> out;
    out.reserve(static_cast<std::size_t>(count));
    const auto size = static_cast<std::ptrdiff_t>(sub_dim * centroids);
    for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(count); ++i) {
        out.push_back({.sub_dim = spec.sub_dim,
                       .code_bits = spec.code_bits,
                       .scale = scales[static_cast<std::size_t>(i)],
                       .centroids = {all.begin() + i * size, all.begin() + (i + 1) * size}});
    }
    return out;
}

Status read_shapes(Reader& reader, std::vector<LayerShape>& out) {
    std::vector<std::uint64_t> index;
    std::vector<std::uint64_t> heads;
    std::vector<std::uint64_t> head_dim_k;
    std::vector<std::uint64_t> head_dim_v;
    reader.read("vecinfer.layers.index", index);
    reader.read("vecinfer.layers.num_kv_heads", heads);
    reader.read("vecinfer.layers.head_dim_k", head_dim_k);
    reader.read("vecinfer.layers.head_dim_v", head_dim_v);
    if (!reader.status().ok()) {
        return reader.status();
    }
    if (heads.size() != index.size() || head_dim_k.size() != index.size() || head_dim_v.size() != index.size()) {
        return corrupt(fmt::format("vecinfer.layers: got arrays of {}, {}, {} and {} entries, expected equal lengths",
                                   index.size(), heads.size(), head_dim_k.size(), head_dim_v.size()));
    }
    constexpr std::uint64_t kLimit = 1u << 20;
    for (std::size_t i = 0; i < index.size(); ++i) {
        if (index[i] > kLimit || heads[i] > kLimit || head_dim_k[i] > kLimit || head_dim_v[i] > kLimit) {
            return corrupt(fmt::format("vecinfer.layers: entry {} has a number above {}", i, kLimit));
        }
        out.push_back({static_cast<int>(index[i]), static_cast<int>(heads[i]), static_cast<int>(head_dim_k[i]),
                       static_cast<int>(head_dim_v[i])});
    }
    return {};
}

Status read_scheme(Reader& reader, Scheme& out) {
    std::string text;
    reader.read("vecinfer.scheme", text);
    if (!reader.status().ok()) {
        return reader.status();
    }
    Result<Scheme> parsed = parse_scheme(text);
    if (!parsed.ok()) {
        return corrupt(parsed.status().message());
    }
    if (parsed->encode == Encode::automatic) {
        parsed->encode = Encode::nearest;  // files from before the option
    }
    const Result<Scheme> resolved = resolve(parsed.value(), true);
    if (!resolved.ok() || resolved->is_f16()) {
        return corrupt(fmt::format("scheme: got {}, expected one with codebooks", spelling::shown(text)));
    }
    out = resolved.value();
    return {};
}

Status read_layers(Reader& reader, Sidecar& out) {
    std::vector<LayerShape> shapes;
    if (Status s = read_shapes(reader, shapes); !s.ok()) {
        return s;
    }
    for (const LayerShape& shape : shapes) {
        LayerCalibration layer;
        layer.shape = shape;
        const Scheme scheme = scheme_of_layer(out.scheme, shape.layer);
        if (scheme.is_f16()) {
            return corrupt(fmt::format("layer {}: got a calibration, but the scheme keeps this layer in f16", shape.layer));
        }
        const auto heads = static_cast<std::uint64_t>(shape.num_kv_heads);
        if (scheme.key_transform.smooth) {
            layer.smooth_factors = reader.tensor<float>(fmt::format("blk.{}.k.smooth", shape.layer), gguf::kTensorF32,
                                                        {static_cast<std::uint64_t>(shape.head_dim_k), heads});
        }
        if (scheme.key_transform.center) {
            layer.key_center = reader.tensor<float>(fmt::format("blk.{}.k.center", shape.layer), gguf::kTensorF32,
                                                    {static_cast<std::uint64_t>(shape.head_dim_k), heads});
        }
        if (scheme.value_transform.center) {
            layer.value_center = reader.tensor<float>(fmt::format("blk.{}.v.center", shape.layer), gguf::kTensorF32,
                                                      {static_cast<std::uint64_t>(shape.head_dim_v), heads});
        }
        const auto read_matrix = [&](bool full, char side, int head_dim) {
            const auto dim = static_cast<std::uint64_t>(head_dim);
            return full ? reader.tensor<float>(fmt::format("blk.{}.{}.matrix", shape.layer, side), gguf::kTensorF32,
                                               {dim, dim, heads})
                        : std::vector<float>();
        };
        layer.key_matrix = read_matrix(scheme.key_transform.full, 'k', shape.head_dim_k);
        layer.value_matrix = read_matrix(scheme.value_transform.full, 'v', shape.head_dim_v);
        if (shapes_keys(scheme)) {
            const std::string name = fmt::format("blk.{}.k.shaping", shape.layer);
            for (const std::uint16_t half : reader.tensor<std::uint16_t>(
                     name, gguf::kTensorF16,
                     {static_cast<std::uint64_t>(shape.head_dim_k), reader.second_dimension(name), heads})) {
                layer.key_shaping.push_back(f16_to_f32(half));
            }
        }
        const auto books = [&](const CodecSpec& spec, int head_dim) {
            return codebook_count(spec, scheme.scope, shape.num_kv_heads, head_dim);
        };
        const CodecSpec& key = scheme.key;
        const CodecSpec& value = scheme.value;
        layer.key_codebooks = read_codebooks(reader, shape.layer, 'k', key, books(key, shape.head_dim_k));
        layer.value_codebooks = read_codebooks(reader, shape.layer, 'v', value, books(value, shape.head_dim_v));
        if (!reader.status().ok()) {
            return reader.status();
        }
        out.layers.push_back(std::move(layer));
    }
    return {};
}

Status check_hash(const gguf::File& file) {
    const Result<std::uint64_t> expected = file.unsigned_integer(kHashKey);
    if (!expected.ok()) {
        return with_prefix("sidecar", expected.status());
    }
    const Result<std::uint64_t> got = file.hash_without(kHashKey);
    if (!got.ok()) {
        return with_prefix("sidecar", got.status());
    }
    if (got.value() != expected.value()) {
        return corrupt(
            fmt::format("file hash: got {:016x}, expected {:016x}; the file is damaged", got.value(), expected.value()));
    }
    return {};
}

void add_codebooks(gguf::Writer& writer, int layer, char side, const std::vector<Codebook>& codebooks) {
    if (codebooks.empty()) {
        return;
    }
    std::vector<float> scales;
    std::vector<std::int8_t> centroids;
    for (const Codebook& codebook : codebooks) {
        scales.push_back(codebook.scale);
        centroids.insert(centroids.end(), codebook.centroids.begin(), codebook.centroids.end());
    }
    const std::uint64_t count = codebooks.size();
    const std::uint64_t shape[] = {static_cast<std::uint64_t>(codebooks[0].sub_dim), std::uint64_t{1} << codebooks[0].code_bits,
                                   count};
    writer.add_tensor(fmt::format("blk.{}.{}.scale", layer, side), {&count, 1}, gguf::kTensorF32,
                      std::as_bytes(std::span(scales)));
    writer.add_tensor(fmt::format("blk.{}.{}.centroids", layer, side), shape, gguf::kTensorI8,
                      std::as_bytes(std::span(centroids)));
}

// One value per head and channel; nothing is written for a step that the scheme does not have.
void add_channels(gguf::Writer& writer, const LayerShape& shape, std::string_view name, int head_dim,
                  const std::vector<float>& values) {
    if (!values.empty()) {
        const std::uint64_t dims[] = {static_cast<std::uint64_t>(head_dim), static_cast<std::uint64_t>(shape.num_kv_heads)};
        writer.add_tensor(fmt::format("blk.{}.{}", shape.layer, name), dims, gguf::kTensorF32, std::as_bytes(std::span(values)));
    }
}

void add_matrices(gguf::Writer& writer, const LayerShape& shape, char side, int head_dim, const std::vector<float>& values) {
    if (!values.empty()) {
        const auto dim = static_cast<std::uint64_t>(head_dim);
        const std::uint64_t dims[] = {dim, dim, static_cast<std::uint64_t>(shape.num_kv_heads)};
        writer.add_tensor(fmt::format("blk.{}.{}.matrix", shape.layer, side), dims, gguf::kTensorF32,
                          std::as_bytes(std::span(values)));
    }
}

void add_layers(gguf::Writer& writer, const std::vector<LayerCalibration>& layers) {
    std::vector<std::uint32_t> columns[4];
    for (const LayerCalibration& layer : layers) {
        const int row[] = {layer.shape.layer, layer.shape.num_kv_heads, layer.shape.head_dim_k, layer.shape.head_dim_v};
        for (int i = 0; i < 4; ++i) {
            columns[i].push_back(static_cast<std::uint32_t>(row[i]));
        }
        add_channels(writer, layer.shape, "k.smooth", layer.shape.head_dim_k, layer.smooth_factors);
        add_channels(writer, layer.shape, "k.center", layer.shape.head_dim_k, layer.key_center);
        add_channels(writer, layer.shape, "v.center", layer.shape.head_dim_v, layer.value_center);
        add_matrices(writer, layer.shape, 'k', layer.shape.head_dim_k, layer.key_matrix);
        add_matrices(writer, layer.shape, 'v', layer.shape.head_dim_v, layer.value_matrix);
        if (!layer.key_shaping.empty()) {
            const auto dim = static_cast<std::uint64_t>(layer.shape.head_dim_k);
            const auto heads = static_cast<std::uint64_t>(layer.shape.num_kv_heads);
            const std::uint64_t dims[] = {dim, layer.key_shaping.size() / (dim * heads), heads};
            std::vector<std::uint16_t> halves;
            for (const float u : layer.key_shaping) {
                halves.push_back(f32_to_f16(u));
            }
            writer.add_tensor(fmt::format("blk.{}.k.shaping", layer.shape.layer), dims, gguf::kTensorF16,
                              std::as_bytes(std::span(halves)));
        }
        add_codebooks(writer, layer.shape.layer, 'k', layer.key_codebooks);
        add_codebooks(writer, layer.shape.layer, 'v', layer.value_codebooks);
    }
    writer.add_u32_array("vecinfer.layers.index", columns[0]);
    writer.add_u32_array("vecinfer.layers.num_kv_heads", columns[1]);
    writer.add_u32_array("vecinfer.layers.head_dim_k", columns[2]);
    writer.add_u32_array("vecinfer.layers.head_dim_v", columns[3]);
}

}  // namespace

Result<Sidecar> parse_sidecar_source(std::shared_ptr<const gguf::ByteSource> source) {
    const Result<gguf::File> file = gguf::File::open(std::move(source));
    if (!file.ok()) {
        return with_prefix("sidecar", file.status());
    }
    if (Status s = check_kind(file.value()); !s.ok()) {
        return s;
    }
    Sidecar out;
    Reader reader(file.value());
    if (Status s = read_scheme(reader, out.scheme); !s.ok()) {
        return s;
    }
    reader.read("vecinfer.model.architecture", out.model.architecture);
    reader.read("vecinfer.model.name", out.model.name);
    reader.read("vecinfer.model.rope", out.model.rope);
    reader.read("vecinfer.model.layer_hashes", out.model.layer_hashes);
    reader.read("vecinfer.calibration.text_hash", out.facts.text_hash);
    reader.read("vecinfer.calibration.tokens", out.facts.tokens);
    reader.read("vecinfer.calibration.seed", out.facts.seed);
    reader.read("vecinfer.calibration.tool", out.facts.tool);
    if (Status s = read_layers(reader, out); !s.ok()) {
        return s;
    }
    if (Status s = check_sidecar(out); !s.ok()) {
        return Status(ErrorCode::corrupt_data, s.message());
    }
    if (Status s = check_hash(file.value()); !s.ok()) {
        return s;
    }
    return out;
}

Result<Sidecar> parse_sidecar(std::span<const std::byte> bytes) {
    return guarded("sidecar", [&] { return parse_sidecar_source(gguf::memory_source(bytes)); });
}

Result<std::vector<std::byte>> serialize_sidecar(const Sidecar& sidecar) {
    return guarded("sidecar", [&]() -> Result<std::vector<std::byte>> {
        const Result<Scheme> scheme = resolve(sidecar.scheme, true);
        if (!scheme.ok()) {
            return with_prefix("sidecar", scheme.status());
        }
        if (scheme.value() != sidecar.scheme) {
            return argument_error("sidecar: scheme", to_string(sidecar.scheme), "a resolved scheme, without automatic parts");
        }
        if (Status s = check_sidecar(sidecar); !s.ok()) {
            return s;
        }
        gguf::Writer writer(kAlignment);
        writer.add_string("general.architecture", kArchitecture);
        writer.add_u32("general.alignment", kAlignment);
        writer.add_u32("vecinfer.version", kSidecarVersion);
        writer.add_string("vecinfer.scheme", to_long_string(sidecar.scheme));
        writer.add_string("vecinfer.model.architecture", sidecar.model.architecture);
        writer.add_string("vecinfer.model.name", sidecar.model.name);
        writer.add_string("vecinfer.model.rope", sidecar.model.rope);
        writer.add_u64_array("vecinfer.model.layer_hashes", sidecar.model.layer_hashes);
        writer.add_u64("vecinfer.calibration.text_hash", sidecar.facts.text_hash);
        writer.add_i64("vecinfer.calibration.tokens", sidecar.facts.tokens);
        writer.add_u64("vecinfer.calibration.seed", sidecar.facts.seed);
        writer.add_string("vecinfer.calibration.tool", sidecar.facts.tool);
        add_layers(writer, sidecar.layers);
        return writer.finish(kHashKey);
    });
}

}  // namespace vecinfer
