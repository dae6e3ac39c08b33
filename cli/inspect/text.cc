#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "inspect/inspection.h"
#include "inspect/tables.h"
#include "report/text_table.h"

namespace vecinfer::cli {
namespace {

// Of one figure over heads, as text; "-" where a layer has none: it stays in f16, or its codec has no such thing.
struct OverHeads {
    std::string mean = "-";
    std::string most = "-";
};

OverHeads over_heads(const std::vector<double>& values, std::string_view format) {
    if (values.empty()) {
        return {};
    }
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    return {fmt::format(fmt::runtime(format), sum / static_cast<double>(values.size())),
            fmt::format(fmt::runtime(format), *std::max_element(values.begin(), values.end()))};
}

OverHeads errors_of(const Json& side, const char* key, std::string_view format) {
    return over_heads(side.value(key, std::vector<double>()), format);
}

std::string usage_of(const Json& side, const char* key, std::string_view format) {
    std::vector<double> values;
    if (side.contains("code_usage")) {
        for (const Json& usage : side["code_usage"]) {
            values.push_back(usage[key].get<double>());
        }
    }
    return over_heads(values, format).mean;
}

const Json& spread_of(const Json& side, const std::string& transform) {
    for (const Json& spread : side["spread"]) {
        if (spread["transform"] == transform) {
            return spread;
        }
    }
    return side["spread"].front();
}

}  // namespace

std::string codebooks_text(const Json& inspection) {
    if (inspection["codebooks"].is_string()) {
        return "codebooks " + inspection["codebooks"].get<std::string>();
    }
    const auto has_codes = [](const Json& side) { return side.contains("code_usage") && !side["code_usage"].is_null(); };
    const Json& layers = inspection["layers"];
    const bool any = std::any_of(layers.begin(), layers.end(),
                                 [&](const Json& layer) { return has_codes(layer["keys"]) || has_codes(layer["values"]); });
    return any ? "data-free codebooks" : "no codebooks";
}

Table layer_table(const Json& inspection) {
    Table table = {{"layer", "K kurtosis", "hadamard", "K max/mean", "hadamard", "K error", "worst head", "score error",
                    "worst head", "V error", "worst head", "K bits used", "K dead", "V bits used", "V dead"}};
    for (const Json& layer : inspection["layers"]) {
        const Json& keys = layer["keys"];
        const Json& values = layer["values"];
        const Json& plain = spread_of(keys, "none");
        const Json& rotated = spread_of(keys, "hadamard");
        const OverHeads key_error = errors_of(keys, "relative_mse", "{:.4f}");
        const OverHeads score_error = errors_of(keys, "score_rms", "{:.3f}");
        const OverHeads value_error = errors_of(values, "relative_mse", "{:.4f}");
        table.push_back({std::to_string(layer["layer"].get<int>()), fmt::format("{:.1f}", plain["kurtosis"].get<double>()),
                         fmt::format("{:.1f}", rotated["kurtosis"].get<double>()),
                         fmt::format("{:.1f}", plain["max_over_mean"].get<double>()),
                         fmt::format("{:.1f}", rotated["max_over_mean"].get<double>()), key_error.mean, key_error.most,
                         score_error.mean, score_error.most, value_error.mean, value_error.most,
                         usage_of(keys, "entropy_bits", "{:.2f}"), usage_of(keys, "dead", "{:.0f}"),
                         usage_of(values, "entropy_bits", "{:.2f}"), usage_of(values, "dead", "{:.0f}")});
    }
    return table;
}

Table detail_table(const Json& inspection) {
    Table table = {{"transform", "kurtosis", "max/mean", "largest channel", "its mean |k|", "mean |k|", "ratio"}};
    const Json& detail = inspection["detail"];
    const auto found = std::find_if(inspection["layers"].begin(), inspection["layers"].end(),
                                    [&](const Json& layer) { return layer["layer"] == detail["layer"]; });
    const int head_dim = found == inspection["layers"].end() ? 1 : (*found)["head_dim_k"].get<int>();
    for (const Json& spread : detail["keys"]) {
        const auto channels = spread["channel_mean_abs"].get<std::vector<double>>();
        const auto largest_channel = std::max_element(channels.begin(), channels.end());
        const double average = std::accumulate(channels.begin(), channels.end(), 0.0) / static_cast<double>(channels.size());
        const auto index = static_cast<int>(largest_channel - channels.begin());
        table.push_back({spread["transform"].get<std::string>(), fmt::format("{:.2f}", spread["kurtosis"].get<double>()),
                         fmt::format("{:.2f}", spread["max_over_mean"].get<double>()),
                         fmt::format("head {} ch. {}", index / head_dim, index % head_dim),
                         fmt::format("{:.3g}", *largest_channel), fmt::format("{:.3g}", average),
                         fmt::format("{:.1f}", average > 0 ? *largest_channel / average : 0)});
    }
    return table;
}

std::string inspection_text(const Json& inspection) {
    return fmt::format(
        "scheme {}, {}, {} tokens\n\n{}\nkurtosis: 3 for normal entries, more with outliers. Errors are relative squared errors; "
        "score "
        "error is what they do\nto the softmax's input (root mean square), which is what counts for keys. bits used: entropy of "
        "the codes.\n\n"
        "Keys of layer {} ({}) through each transform:\n{}",
        inspection["scheme"].get<std::string>(), codebooks_text(inspection), inspection["tokens"].get<int>(),
        aligned(layer_table(inspection)), inspection["detail"]["layer"].get<int>(),
        inspection["detail"]["chosen"].get<std::string>(), aligned(detail_table(inspection)));
}

}  // namespace vecinfer::cli
