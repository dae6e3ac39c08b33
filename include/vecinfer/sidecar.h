// Sidecar: the GGUF file that holds what calibration learned about one model: smooth factors and codebooks per layer and KV head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "vecinfer/codebook.h"
#include "vecinfer/codec.h"
#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

inline constexpr std::uint32_t kSidecarVersion = 1;

/// Enough to tell models apart without reading their weights.
struct ModelIdentity {
    std::string architecture;  // GGUF general.architecture
    std::string name;          // GGUF general.name, for messages only
    std::string rope;          // "none", "norm", "neox", ... as the engine names it, for messages only
    /// Per layer, hash64 of the bytes of blk.<layer>.attn_norm.weight (f32 in every quantization of a model), 0 if it has none.
    std::vector<std::uint64_t> layer_hashes;

    bool operator==(const ModelIdentity&) const = default;
};

struct CalibrationFacts {
    std::uint64_t text_hash = 0;  // hash64 of the text bytes, in the order given
    std::int64_t tokens = 0;      // tokens seen
    std::uint64_t seed = 0;
    std::string tool;  // "vecinfer <version>"

    bool operator==(const CalibrationFacts&) const = default;
};

struct LayerCalibration {
    LayerShape shape;
    std::vector<float> smooth_factors;      // layout (num_kv_heads, head_dim_k); empty if the scheme does not smooth
    std::vector<float> key_center;          // layout (num_kv_heads, head_dim_k); empty if keys are not centered
    std::vector<float> value_center;        // layout (num_kv_heads, head_dim_v); likewise
    std::vector<float> key_matrix;          // layout (num_kv_heads, head_dim_k, head_dim_k); empty without full
    std::vector<float> value_matrix;        // likewise
    std::vector<float> key_shaping;         // RowCodec's shaping, layout (num_kv_heads, rank, head_dim_k), f16 in the file; empty
                                            // without encode=shaped
    std::vector<Codebook> key_codebooks;    // 1 (scope layer) or num_kv_heads
    std::vector<Codebook> value_codebooks;  // likewise

    bool operator==(const LayerCalibration&) const = default;
};

struct Sidecar {
    Scheme scheme;
    ModelIdentity model;
    CalibrationFacts facts;
    std::vector<LayerCalibration> layers;  // in layer order; layers may be missing (those without a KV cache)

    bool operator==(const Sidecar&) const = default;
};

/// FNV-1a over bytes, the hash used in sidecars.
std::uint64_t hash64(std::span<const std::byte> bytes) noexcept;

/// Accepts any bytes; checks everything it returns (shapes, finite factors, codebook sizes against the scheme) and the file's own
/// hash. Errors: corrupt_data; mismatch for a model's GGUF; unsupported for a newer version. Takes at most about twice the file's
/// size in memory, whatever the bytes claim.
Result<Sidecar> parse_sidecar(std::span<const std::byte> bytes);
Result<Sidecar> load_sidecar(const std::filesystem::path& path);
/// `sidecar.scheme` must be resolved (calibrated). Equal content gives equal bytes.
Result<std::vector<std::byte>> serialize_sidecar(const Sidecar& sidecar);
/// Writes to a temporary file in the same folder, then renames; an existing file is replaced only on success.
Status save_sidecar(const Sidecar& sidecar, const std::filesystem::path& path);

/// What a model's own GGUF says that matters here, without loading weights.
struct ModelInfo {
    ModelIdentity identity;
    std::vector<LayerShape> layers;  // those that keep a KV cache, as far as the metadata tells
    std::int64_t context_length = 0;
};
/// Reads the header and the attention norms only, so that the size of the model does not matter.
Result<ModelInfo> read_model_info(const std::filesystem::path& path);

/// Codecs of one layer for a resolved scheme. `calibration` null: data-free, the universal codebook.
Result<RowCodec> make_key_codec(const Scheme& scheme, const LayerShape& shape, const LayerCalibration* calibration);
Result<RowCodec> make_value_codec(const Scheme& scheme, const LayerShape& shape, const LayerCalibration* calibration);

/// ok() if `wanted` can be served by a sidecar calibrated for `have`: same codecs, transforms, norm and scope after resolve(),
/// and encode=shaped only by one calibrated for it. Window and prefill may differ. The error names the parts that differ.
Status check_scheme(const Scheme& have, const Scheme& wanted);

}  // namespace VECINFER_API
