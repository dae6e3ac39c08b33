#include "sidecar/check_sidecar.h"

#include <fmt/format.h>

#include <cmath>

namespace vecinfer {
namespace {

constexpr int kMaxLayerIndex = 65535;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 1024;
constexpr std::size_t kMaxTextBytes = 65535;
constexpr std::size_t kMaxLayerHashes = 65536;

Status layer_error(int layer, std::string_view part, std::string_view got, std::string_view expected) {
    return argument_error(fmt::format("sidecar: layer {} {}", layer, part), got, expected);
}

Status check_head_dim(int layer, std::string_view side, int head_dim, int sub_dim) {
    if (head_dim < 1 || head_dim > kMaxHeadDim || head_dim % sub_dim != 0) {
        return layer_error(layer, fmt::format("head_dim_{}", side), fmt::format("{}", head_dim),
                           fmt::format("a multiple of {} up to {}", sub_dim, kMaxHeadDim));
    }
    return {};
}

Status check_codebooks(int layer, std::string_view side, const std::vector<Codebook>& codebooks, const CodecSpec& spec,
                       std::size_t expected) {
    if (codebooks.size() != expected) {
        return layer_error(layer, fmt::format("{} codebooks", side), fmt::format("{}", codebooks.size()),
                           fmt::format("{}", expected));
    }
    for (const Codebook& codebook : codebooks) {
        if (codebook.sub_dim != spec.sub_dim || codebook.code_bits != spec.code_bits) {
            return layer_error(layer, fmt::format("{} codebook", side),
                               fmt::format("d{}b{}", codebook.sub_dim, codebook.code_bits),
                               fmt::format("d{}b{} as the scheme says", spec.sub_dim, spec.code_bits));
        }
        if (Status s = validate(codebook); !s.ok()) {
            return {s.code(), fmt::format("sidecar: layer {} {}: {}", layer, side, s.message())};
        }
    }
    return {};
}

Status check_smooth_factors(const LayerCalibration& layer, bool smooth) {
    const LayerShape& shape = layer.shape;
    const std::size_t expected =
        smooth ? static_cast<std::size_t>(shape.num_kv_heads) * static_cast<std::size_t>(shape.head_dim_k) : 0;
    if (layer.smooth_factors.size() != expected) {
        return layer_error(shape.layer, "smooth factors", fmt::format("{}", layer.smooth_factors.size()),
                           fmt::format("{}", expected));
    }
    for (std::size_t i = 0; i < expected; ++i) {
        const float factor = layer.smooth_factors[i];
        if (!std::isfinite(factor) || factor <= 0) {
            return layer_error(shape.layer, fmt::format("smooth factor {}", i), fmt::format("{}", factor),
                               "a finite number above 0");
        }
    }
    return {};
}

// Values of all heads, `per_head` each, or none if the scheme does not have this step.
Status check_step(const LayerCalibration& layer, std::string_view name, const std::vector<float>& values, int per_head,
                  bool wanted) {
    const std::size_t expected =
        wanted ? static_cast<std::size_t>(layer.shape.num_kv_heads) * static_cast<std::size_t>(per_head) : 0;
    if (values.size() != expected) {
        return layer_error(layer.shape.layer, name, fmt::format("{}", values.size()), fmt::format("{}", expected));
    }
    for (std::size_t i = 0; i < expected; ++i) {
        if (!std::isfinite(values[i])) {
            return layer_error(layer.shape.layer, fmt::format("{} {}", name, i), fmt::format("{}", values[i]), "a finite number");
        }
    }
    return {};
}

Status check_layer(const Scheme& scheme, const LayerCalibration& layer) {
    const LayerShape& shape = layer.shape;
    if (shape.num_kv_heads < 1 || shape.num_kv_heads > kMaxHeads) {
        return layer_error(shape.layer, "num_kv_heads", fmt::format("{}", shape.num_kv_heads), fmt::format("1 to {}", kMaxHeads));
    }
    if (Status s = check_head_dim(shape.layer, "k", shape.head_dim_k, scheme.key.channel_step()); !s.ok()) {
        return s;
    }
    if (Status s = check_head_dim(shape.layer, "v", shape.head_dim_v, scheme.value.channel_step()); !s.ok()) {
        return s;
    }
    if (Status s = check_smooth_factors(layer, scheme.key_transform.smooth); !s.ok()) {
        return s;
    }
    const TransformSpec& kt = scheme.key_transform;
    const TransformSpec& vt = scheme.value_transform;
    const int dk = shape.head_dim_k;
    const int dv = shape.head_dim_v;
    for (const Status& s : {check_step(layer, "k center", layer.key_center, dk, kt.center),
                            check_step(layer, "v center", layer.value_center, dv, vt.center),
                            check_step(layer, "k matrix", layer.key_matrix, dk * dk, kt.full),
                            check_step(layer, "v matrix", layer.value_matrix, dv * dv, vt.full)}) {
        if (!s.ok()) {
            return s;
        }
    }
    if (Status s = check_codebooks(shape.layer, "k", layer.key_codebooks, scheme.key,
                                   codebook_count(scheme.key, scheme.scope, shape.num_kv_heads, dk));
        !s.ok()) {
        return s;
    }
    return check_codebooks(shape.layer, "v", layer.value_codebooks, scheme.value,
                           codebook_count(scheme.value, scheme.scope, shape.num_kv_heads, dv));
}

Status check_text(std::string_view name, const std::string& text) {
    if (text.size() > kMaxTextBytes) {
        return argument_error(fmt::format("sidecar: {}", name), fmt::format("{} bytes", text.size()),
                              fmt::format("at most {} bytes", kMaxTextBytes));
    }
    return {};
}

}  // namespace

Status check_sidecar(const Sidecar& sidecar) {
    if (sidecar.scheme.is_f16()) {
        return argument_error("sidecar: scheme", "f16", "a scheme with codebooks");
    }
    const std::pair<std::string_view, const std::string*> texts[] = {{"model architecture", &sidecar.model.architecture},
                                                                     {"model name", &sidecar.model.name},
                                                                     {"model rope", &sidecar.model.rope},
                                                                     {"calibration tool", &sidecar.facts.tool}};
    for (const auto& [name, text] : texts) {
        if (Status s = check_text(name, *text); !s.ok()) {
            return s;
        }
    }
    if (sidecar.model.layer_hashes.size() > kMaxLayerHashes) {
        return argument_error("sidecar: layer hashes", fmt::format("{}", sidecar.model.layer_hashes.size()),
                              fmt::format("at most {}", kMaxLayerHashes));
    }
    if (sidecar.facts.tokens < 0) {
        return argument_error("sidecar: calibration tokens", fmt::format("{}", sidecar.facts.tokens), "0 or more");
    }
    if (sidecar.layers.empty()) {
        return argument_error("sidecar: layers", "none", "at least one layer");
    }
    int previous = -1;
    for (const LayerCalibration& layer : sidecar.layers) {
        if (layer.shape.layer <= previous || layer.shape.layer > kMaxLayerIndex) {
            return argument_error("sidecar: layer index", fmt::format("{} after {}", layer.shape.layer, previous),
                                  fmt::format("rising indices from 0 to {}", kMaxLayerIndex));
        }
        previous = layer.shape.layer;
        const Scheme scheme = scheme_of_layer(sidecar.scheme, layer.shape.layer);
        if (scheme.is_f16()) {
            return layer_error(layer.shape.layer, "calibration", "one", "none: the scheme keeps this layer in f16");
        }
        if (Status s = check_layer(scheme, layer); !s.ok()) {
            return s;
        }
    }
    return {};
}

}  // namespace vecinfer
