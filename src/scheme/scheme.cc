#include "vecinfer/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "scheme/family.h"
#include "scheme/spelling.h"

namespace vecinfer {
namespace {

constexpr CodecSpec kF16Spec{CodecKind::f16, 1, 16};

constexpr std::array<std::string_view, 7> kFamilies = {"f16",    "vecinfer", "vecinfer-paper", "million",
                                                       "innerq", "kivi",     "rotated"};

constexpr std::array<CodecSpec, 9> kVqSpecs = {{{CodecKind::vq, 2, 8},
                                                {CodecKind::vq, 4, 8},
                                                {CodecKind::vq, 8, 8},
                                                {CodecKind::vq, 4, 10},
                                                {CodecKind::vq, 4, 12},
                                                {CodecKind::vq, 8, 12},
                                                {CodecKind::vq, 1, 2},
                                                {CodecKind::vq, 1, 3},
                                                {CodecKind::vq, 1, 4}}};

Status check_spec(std::string_view side, const CodecSpec& spec) {
    CodecSpec same;
    if (spelling::find_codec(spelling::codec_name(spec), same) && same == spec) {
        return {};
    }
    return argument_error(fmt::format("scheme: {}", side), spelling::codec_name(spec),
                          fmt::format("one of {}", spelling::codec_names()));
}

bool has_codebooks(const Scheme& scheme) noexcept {
    bool any = scheme.key.kind == CodecKind::vq || scheme.value.kind == CodecKind::vq;
    for (const LayerOverride& o : scheme.layers) {
        any = any || o.key.kind == CodecKind::vq || o.value.kind == CodecKind::vq;
    }
    return any;
}

Status check_range(std::string_view name, int got, int low, int high) {
    if (got < low || got > high) {
        return argument_error(fmt::format("scheme: {}", name), fmt::format("{}", got), fmt::format("{} to {}", low, high));
    }
    return {};
}

}  // namespace

std::span<const CodecSpec> supported_vq_specs() noexcept {
    return kVqSpecs;
}

std::size_t codebook_count(const CodecSpec& spec, Scope scope, int num_kv_heads, int head_dim) noexcept {
    if (spec.kind != CodecKind::vq || scope == Scope::layer) {
        return spec.kind == CodecKind::vq ? 1 : 0;
    }
    return static_cast<std::size_t>(num_kv_heads) *
           (scope == Scope::head ? 1 : static_cast<std::size_t>(head_dim / spec.sub_dim));
}

bool learns(const Scheme& scheme) noexcept {
    const auto calibrated = [](const TransformSpec& t) { return t.center || t.smooth || t.full; };
    return has_codebooks(scheme) || calibrated(scheme.key_transform) || calibrated(scheme.value_transform);
}

std::span<const std::string_view> scheme_families() noexcept {
    return kFamilies;
}

Scheme f16_scheme() {
    return Scheme{.family = "f16",
                  .key = kF16Spec,
                  .value = kF16Spec,
                  .key_transform = {},
                  .value_transform = {},
                  .norm = Norm::none,
                  .window = {.recent = 0, .sink = 0}};
}

bool Scheme::is_f16(int layer) const noexcept {
    for (const LayerOverride& o : layers) {
        if (o.first <= layer && layer <= o.last) {
            return o.f16;
        }
    }
    return is_f16();
}

Scheme scheme_of_layer(const Scheme& scheme, int layer) {
    Scheme out = scheme;
    out.layers.clear();
    for (const LayerOverride& o : scheme.layers) {
        if (o.first <= layer && layer <= o.last) {
            if (o.f16) {
                return f16_scheme();
            }
            out.key = o.key;
            out.value = o.value;
        }
    }
    if (!scheme.is_f16() && !has_codebooks(out) && out.norm == Norm::vector) {
        out.norm = Norm::none;
    }
    return out;
}

Status validate(const Scheme& scheme) {
    if (scheme.is_f16()) {
        return {};
    }
    if (find_family(scheme.family) == nullptr) {
        return argument_error("scheme: family", spelling::shown(scheme.family),
                              fmt::format("one of {}", fmt::join(kFamilies, ", ")));
    }
    if (Status s = check_spec("k", scheme.key); !s.ok()) {
        return s;
    }
    if (Status s = check_spec("v", scheme.value); !s.ok()) {
        return s;
    }
    if (!scheme.value_transform.automatic && scheme.value_transform.smooth) {
        return argument_error("scheme: vt", spelling::transform_name(scheme.value_transform),
                              "auto, none, or center, hadamard joined by + (only keys can be smoothed)");
    }
    for (const auto& [option, spec] : {std::pair("kt", scheme.key_transform), std::pair("vt", scheme.value_transform)}) {
        if ((spec.full && (spec.smooth || spec.hadamard)) || (spec.optimal && !spec.smooth)) {
            return argument_error(fmt::format("scheme: {}", option), spelling::transform_name(spec),
                                  "full without smooth and hadamard, optimal only with smooth");
        }
    }
    if (Status s = check_range("recent", scheme.window.recent, 0, spelling::kMaxRecent); !s.ok()) {
        return s;
    }
    const LayerOverride* previous = nullptr;
    for (const LayerOverride& o : scheme.layers) {
        if (o.first < 0 || o.last < o.first || o.last > spelling::kMaxLayer) {
            return argument_error("scheme: layers", fmt::format("{}-{}", o.first, o.last),
                                  fmt::format("first-last, rising, within 0 to {}", spelling::kMaxLayer));
        }
        if (previous != nullptr && o.first <= previous->last) {
            return argument_error("scheme: layers",
                                  fmt::format("{} after {}", spelling::range_name(o), spelling::range_name(*previous)),
                                  "rising ranges that do not overlap");
        }
        previous = &o;
        if (o.f16 ? o.key != kF16Spec || o.value != kF16Spec : false) {
            return argument_error("scheme: layers", "codecs with f16", "those of f16_scheme()");
        }
        for (const CodecSpec& spec : {o.key, o.value}) {
            if (Status s = o.f16 ? Status() : check_spec("layers", spec); !s.ok()) {
                return s;
            }
        }
    }
    std::vector<CodecSpec> specs = {scheme.key, scheme.value};
    for (const LayerOverride& o : scheme.layers) {
        specs.insert(specs.end(), {o.key, o.value});
    }
    // Until its group is complete, a token must be read from f16.
    for (const CodecSpec& spec : specs) {
        if (spec.groups_tokens() && scheme.window.recent < spec.group) {
            return argument_error(
                "scheme: recent", fmt::format("{}", scheme.window.recent),
                fmt::format("at least {}, the tokens of a group of {}", spec.group, spelling::codec_name(spec)));
        }
    }
    if (scheme.norm == Norm::vector && !has_codebooks(scheme)) {
        return argument_error("scheme: norm", "vector", "none or auto with scalar codecs, which have scales of their own");
    }
    return check_range("sink", scheme.window.sink, 0, spelling::kMaxSink);
}

Status check_layers(const Scheme& scheme, int num_layers) {
    for (const LayerOverride& o : scheme.layers) {
        if (o.last >= num_layers) {
            return argument_error("scheme: layers", spelling::range_name(o),
                                  fmt::format("layers 0 to {}: the model has {}", num_layers - 1, num_layers));
        }
    }
    return {};
}

int shaping_rank(int head_dim) noexcept {
    return std::clamp(head_dim / 4, 1, 32);
}

bool shapes_keys(const Scheme& scheme) noexcept {
    return scheme.encode == Encode::shaped && scheme.key.kind == CodecKind::vq && scheme.key.sub_dim > 1;
}

Result<Scheme> resolve(const Scheme& scheme, bool calibrated) {
    if (Status s = validate(scheme); !s.ok()) {
        return s;
    }
    if (scheme.is_f16()) {
        return f16_scheme();
    }
    const Family& family = *find_family(scheme.family);
    const AutomaticParts& automatic = calibrated ? family.calibrated : family.data_free;
    Scheme out = scheme;
    if (out.key_transform.automatic) {
        out.key_transform = automatic.key_transform;
    }
    if (out.value_transform.automatic) {
        out.value_transform = automatic.value_transform;
    }
    if (out.norm == Norm::automatic) {
        out.norm = automatic.norm;
    }
    const bool codebooks = has_codebooks(out);
    if (!codebooks) {
        out.norm = Norm::none;
        out.scope = Scope::layer;
    }
    if (out.encode == Encode::automatic) {
        const bool can_shape = out.key.kind == CodecKind::vq && out.key.sub_dim > 1 && out.scope != Scope::subspace;
        const bool wanted = automatic.encode == Encode::unbiased ? out.norm == Norm::vector : can_shape;
        out.encode = wanted ? automatic.encode : Encode::nearest;
    }
    if (out.encode == Encode::unbiased && out.norm != Norm::vector) {
        return argument_error("scheme: encode", "unbiased", "nearest or shaped with norm=none (it is the norm that is adjusted)");
    }
    if (out.encode == Encode::shaped && (out.key.kind != CodecKind::vq || out.key.sub_dim == 1 || out.scope == Scope::subspace)) {
        return argument_error(
            "scheme: encode", "shaped",
            "nearest or unbiased, or keys as vectors of 2 or more channels with codebooks that subspaces share");
    }
    if (calibrated) {
        return out;
    }
    if (out.scope == Scope::subspace) {
        return argument_error("scheme: scope", "subspace",
                              "layer or head without a calibration (there is no universal codebook of a subspace)");
    }
    if (out.encode == Encode::shaped) {
        return argument_error("scheme: encode", "shaped",
                              "nearest or unbiased without a calibration (where queries look comes from a sidecar)");
    }
    for (const auto& [option, spec] : {std::pair("kt", out.key_transform), std::pair("vt", out.value_transform)}) {
        if (spec.smooth || spec.center || spec.full) {
            return argument_error(
                fmt::format("scheme: {}", option), spelling::transform_name(spec),
                "none or hadamard without a calibration (means, smooth factors and matrices come from a sidecar)");
        }
    }
    if (codebooks && out.norm != Norm::vector) {
        return argument_error("scheme: norm", "none", "vector without a calibration (the universal codebook has unit scale)");
    }
    out.scope = Scope::layer;
    return out;
}

}  // namespace vecinfer
