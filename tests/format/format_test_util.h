// Sidecars and raw GGUF bytes for the format tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "vecinfer/sidecar.h"

namespace vecinfer {

using Bytes = std::vector<std::byte>;

inline Bytes read_bytes(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    Bytes out(text.size());
    std::memcpy(out.data(), text.data(), text.size());
    return out;
}

inline void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline std::vector<Codebook> golden_codebooks(int layer, int side, int sub_dim, int count = 1) {
    std::vector<Codebook> out;
    for (int c = 0; c < count; ++c) {
        Codebook book{.sub_dim = sub_dim, .code_bits = 8, .scale = 0.5f + static_cast<float>(layer + side + c), .centroids = {}};
        for (int i = 0; i < 256; ++i) {
            for (int j = 0; j < sub_dim; ++j) {
                book.centroids.push_back(static_cast<std::int8_t>((layer * 31 + side * 17 + i * 7 + j * 5) % 255 - 127));
            }
        }
        out.push_back(book);
    }
    return out;
}

/// The content of data/golden.vecinfer.gguf.
inline Sidecar golden_sidecar() {
    Sidecar out;
    out.scheme =
        resolve(parse_scheme("vecinfer:k4v2,kt=smooth+hadamard,vt=none,norm=vector,scope=layer,encode=nearest").value(), true)
            .value();
    out.model = {"llama", "Golden", "norm", {1, (std::uint64_t{1} << 63) + 5, 0}};
    out.facts = {~std::uint64_t{0}, 131072, 42, "vecinfer 0.1.0"};
    for (const int layer : {0, 2}) {
        LayerCalibration calibration;
        calibration.shape = {layer, 2, 8, 8};
        for (int i = 0; i < 16; ++i) {
            calibration.smooth_factors.push_back(0.25f * static_cast<float>(i + 1) + static_cast<float>(layer));
        }
        calibration.key_codebooks = golden_codebooks(layer, 0, 2);
        calibration.value_codebooks = golden_codebooks(layer, 1, 4);
        out.layers.push_back(calibration);
    }
    return out;
}

/// Gives `layer` what `scheme`, resolved, asks for: factors, means and matrices (invertible, no two alike) and codebooks.
inline void fill_for_scheme(const Scheme& whole, LayerCalibration& layer) {
    const Scheme scheme = scheme_of_layer(whole, layer.shape.layer);
    const auto numbers = [&](bool wanted, int per_head, float start) {
        std::vector<float> out;
        for (int i = 0; wanted && i < layer.shape.num_kv_heads * per_head; ++i) {
            out.push_back(start + 0.125f * static_cast<float>(i));
        }
        return out;
    };
    const auto matrices = [&](bool wanted, int dim, float diagonal) {
        std::vector<float> out;
        for (int row = 0; wanted && row < layer.shape.num_kv_heads * dim; ++row) {
            for (int column = 0; column < dim; ++column) {
                out.push_back(column == row % dim ? diagonal : 0.001f * static_cast<float>(row - 3 * column));
            }
        }
        return out;
    };
    const int dk = layer.shape.head_dim_k;
    const int dv = layer.shape.head_dim_v;
    layer.smooth_factors = numbers(scheme.key_transform.smooth, dk, 0.5f);
    layer.key_center = numbers(scheme.key_transform.center, dk, -1.0f);
    layer.value_center = numbers(scheme.value_transform.center, dv, -2.0f);
    layer.key_matrix = matrices(scheme.key_transform.full, dk, 1.5f);
    layer.value_matrix = matrices(scheme.value_transform.full, dv, -0.75f);
    layer.key_shaping = numbers(shapes_keys(scheme), 2 * dk, 0.25f);
    const auto books = [&](const CodecSpec& spec, int head_dim) {
        return static_cast<int>(codebook_count(spec, scheme.scope, layer.shape.num_kv_heads, head_dim));
    };
    layer.key_codebooks = golden_codebooks(1, 0, scheme.key.sub_dim, books(scheme.key, dk));
    layer.value_codebooks = golden_codebooks(1, 1, scheme.value.sub_dim, books(scheme.value, dv));
}

/// Raw GGUF, so that malformed files can be made that no writer would make.
class RawGguf {
public:
    template <class T>
    RawGguf& put(T value) {
        const auto* p = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), p, p + sizeof(T));
        return *this;
    }
    RawGguf& text(std::string_view value) {
        put<std::uint64_t>(value.size());
        const auto* p = reinterpret_cast<const std::byte*>(value.data());
        bytes_.insert(bytes_.end(), p, p + value.size());
        return *this;
    }
    RawGguf& header(std::uint64_t tensors, std::uint64_t values, std::uint32_t version = 3) {
        return put<std::uint32_t>(0x46554747).put(version).put(tensors).put(values);
    }
    RawGguf& key(std::string_view name, std::uint32_t type) { return text(name).put(type); }
    RawGguf& string_value(std::string_view name, std::string_view value) { return key(name, 8).text(value); }
    RawGguf& u32_value(std::string_view name, std::uint32_t value) { return key(name, 4).put(value); }
    RawGguf& pad(std::size_t alignment = 32) {
        bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
        return *this;
    }
    const Bytes& bytes() const { return bytes_; }

private:
    Bytes bytes_;
};

/// A folder of its own for one test, removed at the end.
class TemporaryFolder {
public:
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "vecinfer-test-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
    std::size_t entries() const {
        return static_cast<std::size_t>(
            std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
    }

private:
    std::filesystem::path path_;
};

}  // namespace vecinfer
