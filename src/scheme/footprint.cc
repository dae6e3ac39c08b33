#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "cache/layout.h"
#include "vecinfer/cache.h"
#include "vecinfer/scheme.h"

namespace vecinfer {
namespace {

constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 4096;

Status check_range(std::string_view argument, std::int64_t got, std::int64_t low, std::int64_t high) {
    if (got < low || got > high) {
        return argument_error(fmt::format("footprint: {}", argument), fmt::format("{}", got), fmt::format("{} to {}", low, high));
    }
    return {};
}

Status check_side(const LayerShape& shape, std::string_view side, int head_dim, const CodecSpec& spec) {
    const std::string name = fmt::format("layer {} head_dim_{}", shape.layer, side);
    if (Status s = check_range(name, head_dim, 1, kMaxHeadDim); !s.ok()) {
        return s;
    }
    if (head_dim % spec.channel_step() != 0) {
        return argument_error(fmt::format("footprint: {}", name), fmt::format("{}", head_dim),
                              fmt::format("a multiple of {}, the scheme's {}", spec.channel_step(),
                                          spec.kind == CodecKind::scalar ? "group of channels" : "sub_dim"));
    }
    return {};
}

std::size_t codebook_bytes(const CodecSpec& spec) {
    return spec.kind == CodecKind::scalar
               ? 0
               : (std::size_t{1} << spec.code_bits) * static_cast<std::size_t>(spec.sub_dim) + sizeof(float);
}

struct Totals {
    double code_bytes_per_token = 0;
    std::size_t values_per_token = 0;
    std::size_t code_bits_per_token = 0;
    std::size_t cache_bytes = 0;
    std::size_t window_bytes = 0;
    std::size_t codebook_bytes = 0;
};

void add_side(const Scheme& scheme, const CodecSpec& spec, int num_heads, int head_dim, std::int64_t context, Totals& totals) {
    const CacheGeometry geometry{.row_dim = num_heads * head_dim,
                                 .codec = spec,
                                 .num_heads = num_heads,
                                 .norm = scheme.norm == Norm::vector && spec.kind == CodecKind::vq,
                                 .num_cells = static_cast<int>(context),
                                 .num_streams = 1,
                                 .window = scheme.window};
    const auto row_dim = static_cast<std::size_t>(geometry.row_dim);
    totals.values_per_token += row_dim;
    totals.code_bits_per_token += row_dim / static_cast<std::size_t>(spec.sub_dim) * static_cast<std::size_t>(spec.code_bits);
    totals.code_bytes_per_token += geometry.row_bytes();
    totals.window_bytes +=
        static_cast<std::size_t>(geometry.window_rows()) * (sizeof(std::uint16_t) * row_dim + sizeof(layout::Slot));
    totals.cache_bytes += geometry.total_bytes();
}

Totals sum_layers(const Scheme& scheme, std::span<const LayerShape> layers, std::int64_t context, bool calibrated) {
    Totals totals;
    std::vector<CodecSpec> universal;  // each counted once
    for (const LayerShape& shape : layers) {
        const Scheme at = scheme_of_layer(scheme, shape.layer);
        if (at.is_f16()) {
            const auto values =
                static_cast<std::size_t>(shape.num_kv_heads) * static_cast<std::size_t>(shape.head_dim_k + shape.head_dim_v);
            totals.values_per_token += values;
            totals.code_bits_per_token += 16 * values;
            totals.code_bytes_per_token += 2 * static_cast<double>(values);
            totals.cache_bytes += 2 * values * static_cast<std::size_t>(context);
            continue;
        }
        add_side(at, at.key, shape.num_kv_heads, shape.head_dim_k, context, totals);
        add_side(at, at.value, shape.num_kv_heads, shape.head_dim_v, context, totals);
        if (!calibrated) {
            for (const CodecSpec& spec : {at.key, at.value}) {
                if (std::find(universal.begin(), universal.end(), spec) == universal.end()) {
                    universal.push_back(spec);
                    totals.codebook_bytes += codebook_bytes(spec);
                }
            }
            continue;
        }
        totals.codebook_bytes +=
            codebook_count(at.key, at.scope, shape.num_kv_heads, shape.head_dim_k) * codebook_bytes(at.key) +
            codebook_count(at.value, at.scope, shape.num_kv_heads, shape.head_dim_v) * codebook_bytes(at.value);
        const std::size_t per_channel = static_cast<std::size_t>(shape.num_kv_heads) * sizeof(float);
        totals.codebook_bytes += per_channel * shape.head_dim_k * (at.key_transform.smooth + at.key_transform.center) +
                                 per_channel * shape.head_dim_v * at.value_transform.center +
                                 per_channel * shape.head_dim_k * shape.head_dim_k * at.key_transform.full +
                                 per_channel * shape.head_dim_v * shape.head_dim_v * at.value_transform.full +
                                 (shapes_keys(at) ? per_channel / 2 * shape.head_dim_k * shaping_rank(shape.head_dim_k) : 0);
    }
    return totals;
}

}  // namespace

Result<Footprint> footprint(const Scheme& scheme, std::span<const LayerShape> layers, std::int64_t context, bool calibrated) {
    const Result<Scheme> resolved = resolve(scheme, calibrated);
    if (!resolved.ok()) {
        return resolved.status();
    }
    if (Status s = check_range("context", context, 1, std::numeric_limits<std::int32_t>::max()); !s.ok()) {
        return s;
    }
    if (layers.empty()) {
        return argument_error("footprint: layers", "none", "at least one layer");
    }
    std::size_t values_per_token = 0;
    for (const LayerShape& shape : layers) {
        if (Status s = check_range(fmt::format("layer {} num_kv_heads", shape.layer), shape.num_kv_heads, 1, kMaxHeads);
            !s.ok()) {
            return s;
        }
        const Scheme at = scheme_of_layer(resolved.value(), shape.layer);
        if (Status s = check_side(shape, "k", shape.head_dim_k, at.key); !s.ok()) {
            return s;
        }
        if (Status s = check_side(shape, "v", shape.head_dim_v, at.value); !s.ok()) {
            return s;
        }
        values_per_token += static_cast<std::size_t>(shape.num_kv_heads) * (shape.head_dim_k + shape.head_dim_v);
    }

    Footprint out;
    const double tokens = static_cast<double>(context);
    const double values = static_cast<double>(values_per_token);
    out.f16_bytes_per_token = 2 * values;
    if (resolved->is_f16()) {
        out.code_bytes_per_token = out.total_bytes_per_token = out.f16_bytes_per_token;
        out.code_bits_per_value = out.effective_bits_per_value = 16;
        return out;
    }
    const Totals totals = sum_layers(resolved.value(), layers, context, calibrated);
    const double total_bytes = static_cast<double>(totals.cache_bytes + totals.codebook_bytes);
    out.code_bytes_per_token = totals.code_bytes_per_token;
    out.total_bytes_per_token = total_bytes / tokens;
    out.code_bits_per_value = static_cast<double>(totals.code_bits_per_token) / values;
    out.effective_bits_per_value = 8 * total_bytes / tokens / values;
    out.window_bytes = totals.window_bytes;
    out.codebook_bytes = totals.codebook_bytes;
    return out;
}

}  // namespace vecinfer
