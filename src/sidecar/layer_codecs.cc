#include <fmt/format.h>

#include <algorithm>

#include "sidecar/guard.h"
#include "vecinfer/sidecar.h"

namespace vecinfer {
namespace {

enum class Side { key, value };

Status layer_mismatch(int layer, std::string_view part, std::string_view got, std::string_view expected) {
    return {ErrorCode::mismatch, fmt::format("layer {}: {}: got {}, expected {}", layer, part, got, expected)};
}

std::string shape_text(const LayerShape& shape) {
    return fmt::format("{} KV heads of {} (K) and {} (V)", shape.num_kv_heads, shape.head_dim_k, shape.head_dim_v);
}

Status check_channels(const LayerShape& shape, std::string_view part, bool wanted, int per_head, std::size_t got) {
    const std::size_t expected = static_cast<std::size_t>(shape.num_kv_heads) * static_cast<std::size_t>(per_head);
    return !wanted || got == expected ? Status()
                                      : layer_mismatch(shape.layer, part, fmt::format("{}", got), fmt::format("{}", expected));
}

Status check_calibration(const Scheme& scheme, const LayerShape& shape, const LayerCalibration& calibration) {
    const LayerShape& have = calibration.shape;
    if (have.layer != shape.layer || have.num_kv_heads != shape.num_kv_heads || have.head_dim_k != shape.head_dim_k ||
        have.head_dim_v != shape.head_dim_v) {
        return layer_mismatch(shape.layer, "calibration", fmt::format("layer {} with {}", have.layer, shape_text(have)),
                              shape_text(shape));
    }
    const TransformSpec& kt = scheme.key_transform;
    if (Status s = check_channels(shape, "smooth factors", kt.smooth, shape.head_dim_k, calibration.smooth_factors.size());
        !s.ok()) {
        return s;
    }
    if (Status s = check_channels(shape, "key center", kt.center, shape.head_dim_k, calibration.key_center.size()); !s.ok()) {
        return s;
    }
    const int dk = shape.head_dim_k;
    const int dv = shape.head_dim_v;
    if (Status s = check_channels(shape, "key matrix", kt.full, dk * dk, calibration.key_matrix.size()); !s.ok()) {
        return s;
    }
    if (Status s = check_channels(shape, "value matrix", scheme.value_transform.full, dv * dv, calibration.value_matrix.size());
        !s.ok()) {
        return s;
    }
    if (Status s = check_channels(shape, "value center", scheme.value_transform.center, shape.head_dim_v,
                                  calibration.value_center.size());
        !s.ok()) {
        return s;
    }
    if (shapes_keys(scheme) && calibration.key_shaping.empty()) {
        return layer_mismatch(shape.layer, "shaping directions", "none", "those of encode=shaped");
    }
    const std::size_t keys = codebook_count(scheme.key, scheme.scope, shape.num_kv_heads, dk);
    const std::size_t values = codebook_count(scheme.value, scheme.scope, shape.num_kv_heads, dv);
    for (const auto& [got, expected] :
         {std::pair(calibration.key_codebooks.size(), keys), std::pair(calibration.value_codebooks.size(), values)}) {
        if (got != expected) {
            return layer_mismatch(shape.layer, "codebooks", fmt::format("{}", got), fmt::format("{}", expected));
        }
    }
    return {};
}

Result<std::vector<Codebook>> universal_codebooks(const CodecSpec& spec) {
    if (spec.kind == CodecKind::scalar) {
        return std::vector<Codebook>();
    }
    const Codebook* codebook = universal_codebook(spec.sub_dim, spec.code_bits);
    if (codebook == nullptr) {
        return Status(ErrorCode::unsupported, fmt::format("no universal codebook for d{}b{}: this width needs a calibration",
                                                          spec.sub_dim, spec.code_bits));
    }
    return std::vector<Codebook>{*codebook};
}

Result<std::vector<HeadTransform>> make_transforms(const TransformSpec& spec, int num_heads, int head_dim,
                                                   std::span<const float> smooth_factors, std::span<const float> center,
                                                   std::span<const float> matrix) {
    std::vector<HeadTransform> out;
    for (int head = 0; head < num_heads; ++head) {
        const auto dim = static_cast<std::size_t>(head_dim);
        const auto of_head = [&](bool on, std::span<const float> all, std::size_t n) {
            return on ? all.subspan(static_cast<std::size_t>(head) * n, n) : std::span<const float>();
        };
        Result<HeadTransform> transform =
            HeadTransform::create(head_dim, spec, of_head(spec.smooth, smooth_factors, dim), of_head(spec.center, center, dim),
                                  of_head(spec.full, matrix, dim * dim));
        if (!transform.ok()) {
            return transform.status();
        }
        out.push_back(std::move(transform.value()));
    }
    return out;
}

Result<RowCodec> make_codec(Side side, const Scheme& unresolved, const LayerShape& shape, const LayerCalibration* calibration) {
    const Result<Scheme> resolved = resolve(unresolved, calibration != nullptr);
    if (!resolved.ok()) {
        return resolved.status();
    }
    const Scheme scheme = scheme_of_layer(resolved.value(), shape.layer);
    if (scheme.is_f16()) {
        return argument_error("scheme", "f16", "a scheme with codes");
    }
    if (shape.num_kv_heads < 1) {
        return argument_error("num_kv_heads", fmt::format("{}", shape.num_kv_heads), "1 or more");
    }
    const bool key = side == Side::key;
    const int head_dim = key ? shape.head_dim_k : shape.head_dim_v;
    const CodecSpec& spec = key ? scheme.key : scheme.value;
    std::vector<Codebook> codebooks;
    std::span<const float> smooth_factors;
    std::span<const float> center;
    std::span<const float> matrix;
    std::span<const float> shaping;
    if (calibration != nullptr) {
        if (Status s = check_calibration(scheme, shape, *calibration); !s.ok()) {
            return s;
        }
        codebooks = key ? calibration->key_codebooks : calibration->value_codebooks;
        smooth_factors = calibration->smooth_factors;
        matrix = key ? calibration->key_matrix : calibration->value_matrix;
        center = key ? calibration->key_center : calibration->value_center;
        if (key && shapes_keys(scheme)) {
            shaping = calibration->key_shaping;
        }
    } else {
        Result<std::vector<Codebook>> universal = universal_codebooks(spec);
        if (!universal.ok()) {
            return universal.status();
        }
        codebooks = std::move(universal.value());
    }
    Result<std::vector<HeadTransform>> transforms = make_transforms(key ? scheme.key_transform : scheme.value_transform,
                                                                    shape.num_kv_heads, head_dim, smooth_factors, center, matrix);
    if (!transforms.ok()) {
        return with_prefix(fmt::format("layer {}", shape.layer), transforms.status());
    }
    const Norm norm = spec.kind == CodecKind::vq ? scheme.norm : Norm::none;
    EncodeOptions options;
    // Keys that are not centered share a large part whose exact length no query can tell.
    options.unbiased = scheme.encode != Encode::nearest && norm == Norm::vector && (!key || scheme.key_transform.center);
    options.shaping = shaping;
    Result<RowCodec> codec = RowCodec::create(spec, norm, head_dim, std::move(transforms.value()), std::move(codebooks), options);
    if (!codec.ok()) {
        return with_prefix(fmt::format("layer {}", shape.layer), codec.status());
    }
    return codec;
}

std::vector<std::string_view> parts_of(std::string_view spelling) {
    std::vector<std::string_view> parts;
    for (std::size_t begin = 0; begin <= spelling.size();) {
        const std::size_t end = std::min(spelling.find_first_of(":,", begin), spelling.size());
        // Ranges of layers have colons of their own.
        const bool is_layers = spelling.substr(begin).starts_with("layers=");
        parts.push_back(spelling.substr(begin, is_layers ? std::string_view::npos : end - begin));
        begin = is_layers ? spelling.size() + 1 : end + 1;
    }
    return parts;
}

// What is spelled differently in two schemes, of each: "k=d2b8,norm=none".
std::pair<std::string, std::string> differing_parts(const Scheme& a, const Scheme& b) {
    const std::string a_text = to_long_string(a);
    const std::string b_text = to_long_string(b);
    std::vector<std::string_view> a_parts = parts_of(a_text);
    std::vector<std::string_view> b_parts = parts_of(b_text);
    if (a.is_f16() || b.is_f16()) {
        return {to_string(a), to_string(b)};
    }
    const std::size_t most = std::max(a_parts.size(), b_parts.size());
    a_parts.resize(most, "no layers");
    b_parts.resize(most, "no layers");
    std::vector<std::string_view> only_a;
    std::vector<std::string_view> only_b;
    for (std::size_t i = 0; i < most; ++i) {
        if (a_parts[i] != b_parts[i]) {
            only_a.push_back(a_parts[i]);
            only_b.push_back(b_parts[i]);
        }
    }
    return {fmt::format("{}", fmt::join(only_a, ",")), fmt::format("{}", fmt::join(only_b, ","))};
}

}  // namespace

Result<RowCodec> make_key_codec(const Scheme& scheme, const LayerShape& shape, const LayerCalibration* calibration) {
    return guarded("key codec", [&] { return make_codec(Side::key, scheme, shape, calibration); });
}

Result<RowCodec> make_value_codec(const Scheme& scheme, const LayerShape& shape, const LayerCalibration* calibration) {
    return guarded("value codec", [&] { return make_codec(Side::value, scheme, shape, calibration); });
}

Status check_scheme(const Scheme& have, const Scheme& wanted) {
    return guarded("scheme", [&]() -> Status {
        const Result<Scheme> a = resolve(have, true);
        if (!a.ok()) {
            return a.status();
        }
        const Result<Scheme> b = resolve(wanted, true);
        if (!b.ok()) {
            return b.status();
        }
        Scheme same = b.value();
        same.window = a->window;
        same.prefill = a->prefill;
        // Codebooks do not depend on how vectors will find their codes; shaping needs its directions besides.
        if (same.encode != Encode::shaped) {
            same.encode = a->encode;
        }
        if (same == a.value()) {
            return {};
        }
        const auto [got, calibrated] = differing_parts(same, a.value());
        return {ErrorCode::mismatch, fmt::format("scheme: got {}, but the sidecar was calibrated for {}", got, calibrated)};
    });
}

}  // namespace vecinfer
