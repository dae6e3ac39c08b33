#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "info/costs.h"
#include "scheme_option.h"
#include "sidecar_choice.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kDefaultContext = 32768;
constexpr std::string_view kExamples = R"(
Examples:
  vecinfer info model.vecinfer.gguf                        what is in a sidecar
  vecinfer info model.vecinfer.gguf -m model.gguf          and does it belong to this model?
  vecinfer info --scheme vecinfer:k4v2                     a scheme spelled out, its bits
  vecinfer info --scheme vecinfer:k2v2 -m model.gguf --ctx 131072 --json
  vecinfer info --scheme vecinfer:k2v2 --calibrated        the same with codebooks of its own, not the universal one

Total bytes and effective bits count everything at the context length: codes, norms, window and codebooks. Families, widths and
options of schemes are listed by `vecinfer --help`.
)";

struct Options {
    std::string sidecar;
    SchemeOption scheme;
    std::string model;
    std::int64_t context = 0;
    bool calibrated = false;
    bool json = false;
};

struct Subject {
    Scheme asked;   // as the user or the sidecar spells it
    Scheme scheme;  // resolved
    bool calibrated = false;
    std::optional<Sidecar> sidecar;
    std::optional<ModelInfo> model;
    std::vector<LayerShape> layers;
    std::string layers_from;
    std::int64_t context = 0;
};

std::string bytes_text(double bytes) {
    constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) {
        bytes /= 1024;
    }
    return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

struct StepNames {
    std::string_view center;
    std::string_view full;
    std::string_view smooth;
    std::string_view optimal;
    std::string_view hadamard;
    std::string_view separator;
};
constexpr StepNames kStepTexts{.center = "subtract the mean",
                               .full = "calibrated matrix",
                               .smooth = "smooth factors",
                               .optimal = "smooth factors balanced against queries",
                               .hadamard = "Hadamard",
                               .separator = ", then "};
constexpr StepNames kStepWords{
    .center = "center", .full = "full", .smooth = "smooth", .optimal = "smooth-opt", .hadamard = "hadamard", .separator = "+"};

// The steps in the order they are applied.
std::string transform_name(const TransformSpec& transform, const StepNames& names) {
    std::vector<std::string_view> steps;
    if (transform.center) {
        steps.push_back(names.center);
    }
    if (transform.full) {
        steps.push_back(names.full);
    }
    if (transform.smooth) {
        steps.push_back(transform.optimal ? names.optimal : names.smooth);
    }
    if (transform.hadamard) {
        steps.push_back(names.hadamard);
    }
    return steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, names.separator));
}

std::string codec_text(const CodecSpec& codec) {
    if (codec.kind == CodecKind::f16) {
        return "f16";
    }
    if (codec.kind == CodecKind::scalar) {
        return fmt::format("{}-bit codes in groups of {} {}, {}", codec.code_bits, codec.group,
                           codec.groups_tokens() ? "tokens of a channel" : "channels of a token",
                           codec.levels == Levels::symmetric    ? "symmetric: an f16 scale per group"
                           : codec.levels == Levels::asymmetric ? "asymmetric: an f16 scale and zero per group"
                                                                : "hybrid: an f16 scale and zero per group");
    }
    return fmt::format("one {}-bit code for {} channels ({} bits per value), {} centroids", codec.code_bits, codec.sub_dim,
                       static_cast<double>(codec.code_bits) / codec.sub_dim, 1 << codec.code_bits);
}

Json codec_json(const CodecSpec& codec, const TransformSpec& transform) {
    if (codec.kind == CodecKind::scalar) {
        return {{"code_bits", codec.code_bits},
                {"group", codec.group},
                {"axis", codec.groups_tokens() ? "token" : "channel"},
                {"levels", codec.levels == Levels::symmetric    ? "symmetric"
                           : codec.levels == Levels::asymmetric ? "asymmetric"
                                                                : "hybrid"},
                {"bits_per_value", static_cast<double>(codec.code_bits)},
                {"transform", transform_name(transform, kStepWords)}};
    }
    return {{"sub_dim", codec.sub_dim},
            {"code_bits", codec.code_bits},
            {"bits_per_value", static_cast<double>(codec.code_bits) / codec.sub_dim},
            {"transform", transform_name(transform, kStepWords)}};
}

Json scheme_json(const Scheme& asked, const Scheme& scheme) {
    Json json = {{"scheme", to_string(asked)}, {"scheme_long", to_long_string(scheme)}, {"family", scheme.family}};
    if (scheme.is_f16()) {
        return json;
    }
    json["key"] = codec_json(scheme.key, scheme.key_transform);
    json["value"] = codec_json(scheme.value, scheme.value_transform);
    if (!scheme.layers.empty()) {
        const std::string text = to_string(scheme);
        json["layers"] = text.substr(text.find(",layers=") + 8);
    }
    json["norm"] = scheme.norm == Norm::vector ? "vector" : "none";
    json["scope"] = scheme.scope == Scope::subspace ? "subspace" : scheme.scope == Scope::head ? "head" : "layer";
    json["encode"] = scheme.encode == Encode::shaped ? "shaped" : scheme.encode == Encode::unbiased ? "unbiased" : "nearest";
    json["recent"] = scheme.window.recent;
    json["sink"] = scheme.window.sink;
    json["prefill"] = scheme.prefill == Prefill::exact ? "exact" : "windowed";
    return json;
}

Json cost_json(const Cost& cost, std::int64_t context) {
    return {{"code_bits", cost.code_bits},
            {"kv_bytes_per_token", cost.code_bytes_per_token},
            {"kv_bytes_per_token_total", cost.total_bytes_per_token},
            {"effective_bits", cost.effective_bits},
            {"window_bytes", cost.window_bytes},
            {"codebook_bytes", cost.codebook_bytes},
            {"cache_bytes", cost.total_bytes_per_token * static_cast<double>(context)}};
}

std::string hash_text(std::uint64_t hash) {
    return fmt::format("{:016x}", hash);
}

Json sidecar_json(const Sidecar& sidecar, const std::string& path) {
    Json layers = Json::array();
    for (const LayerCalibration& layer : sidecar.layers) {
        layers.push_back({{"layer", layer.shape.layer},
                          {"num_kv_heads", layer.shape.num_kv_heads},
                          {"head_dim_k", layer.shape.head_dim_k},
                          {"head_dim_v", layer.shape.head_dim_v},
                          {"smooth_factors", layer.smooth_factors.size()},
                          {"key_center", layer.key_center.size()},
                          {"value_center", layer.value_center.size()},
                          {"key_matrix", layer.key_matrix.size()},
                          {"value_matrix", layer.value_matrix.size()},
                          {"key_shaping", layer.key_shaping.size()},
                          {"key_codebooks", layer.key_codebooks.size()},
                          {"value_codebooks", layer.value_codebooks.size()}});
    }
    return {{"path", path},
            {"model", {{"architecture", sidecar.model.architecture}, {"name", sidecar.model.name}, {"rope", sidecar.model.rope}}},
            {"calibration",
             {{"tokens", sidecar.facts.tokens},
              {"seed", sidecar.facts.seed},
              {"text_hash", hash_text(sidecar.facts.text_hash)},
              {"tool", sidecar.facts.tool}}},
            {"layers", layers}};
}

void print_sidecar(const Sidecar& sidecar, const std::string& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    fmt::print("sidecar      {} ({})\n", path, bytes_text(error ? 0.0 : static_cast<double>(size)));
    fmt::print("calibrated   {} tokens, seed {}, text {}, by {}\n", sidecar.facts.tokens, sidecar.facts.seed,
               hash_text(sidecar.facts.text_hash), sidecar.facts.tool);
    fmt::print("for model    {} '{}', rope {}, {} layers with a cache\n", sidecar.model.architecture, sidecar.model.name,
               sidecar.model.rope.empty() ? "unknown" : sidecar.model.rope, sidecar.layers.size());
    std::size_t centroids = 0;
    for (const LayerCalibration& layer : sidecar.layers) {
        centroids += layer.key_codebooks.size() + layer.value_codebooks.size();
    }
    fmt::print("codebooks    {} in all, {} for keys and {} for values in the first layer\n", centroids,
               sidecar.layers.empty() ? 0 : sidecar.layers.front().key_codebooks.size(),
               sidecar.layers.empty() ? 0 : sidecar.layers.front().value_codebooks.size());
}

void print_scheme(const Subject& subject) {
    const Scheme& scheme = subject.scheme;
    fmt::print("scheme       {}\n", to_string(subject.asked));
    if (scheme.is_f16()) {
        return;
    }
    fmt::print("spelled out  {}\n", to_long_string(scheme));
    fmt::print("keys         {}; transform: {}\n", codec_text(scheme.key), transform_name(scheme.key_transform, kStepTexts));
    fmt::print("values       {}; transform: {}\n", codec_text(scheme.value), transform_name(scheme.value_transform, kStepTexts));
    if (!scheme.layers.empty()) {
        const std::string text = to_string(scheme);
        fmt::print("layers       {}\n", text.substr(text.find(",layers=") + 8));
    }
    fmt::print("norm         {}\n", scheme.norm == Norm::vector ? "one byte per head and token" : "none");
    fmt::print("encoding     {}\n", scheme.encode == Encode::shaped
                                        ? "errors of keys fall where queries do not look; unbiased norms"
                                    : scheme.encode == Encode::unbiased ? "nearest centroids, unbiased norms"
                                                                        : "nearest");
    const bool codebooks = scheme.key.kind == CodecKind::vq || scheme.value.kind == CodecKind::vq;
    fmt::print("codebooks    {}\n", !codebooks                        ? "none"
                                    : !subject.calibrated             ? "data-free: one universal codebook"
                                    : scheme.scope == Scope::subspace ? "calibrated, one per layer, KV head and subspace"
                                    : scheme.scope == Scope::head     ? "calibrated, one per layer and KV head"
                                                                      : "calibrated, one per layer");
    fmt::print("window       latest {} and first {} tokens in f16\n", scheme.window.recent, scheme.window.sink);
    fmt::print("prefill      {}\n", scheme.prefill == Prefill::exact ? "a batch reads its own keys exactly"
                                                                     : "a batch reads keys older than the window from codes");
}

void print_costs(const Subject& subject, const Costs& costs) {
    fmt::print("\n{} tokens of one sequence, {}{}:\n", subject.context, subject.layers_from,
               costs.is_whole ? "" : " (totals of a cache need a model: -m MODEL)");
    std::vector<Cost> all = costs.own;
    std::copy_if(costs.peers.begin(), costs.peers.end(), std::back_inserter(all),
                 [&](const Cost& peer) { return peer.name != all.front().name; });
    std::size_t width = 12;
    for (const Cost& cost : all) {
        width = std::max(width, cost.name.size());
    }
    fmt::print("  {:<{}}  {:>12}  {:>12}  {:>10}  {:>11}\n", "", width, "bytes/token", "total/token", "bits/value", "cache");
    for (const Cost& cost : all) {
        fmt::print("  {:<{}}  {:>12.1f}  {:>12.1f}  {:>10.3f}  {:>11}\n", cost.name, width, cost.code_bytes_per_token,
                   cost.total_bytes_per_token, cost.effective_bits,
                   bytes_text(cost.total_bytes_per_token * static_cast<double>(subject.context)));
    }
    if (costs.is_whole) {
        const Cost& own = costs.own.front();
        fmt::print("  window {}, codebooks {}, code bits per value {:.3f}\n", bytes_text(static_cast<double>(own.window_bytes)),
                   bytes_text(static_cast<double>(own.codebook_bytes)), own.code_bits);
    }
}

// Costs of the whole cache at the top, or null there and those of one layer of each kind in `layer_kinds`.
void add_costs(Json& json, const Costs& costs, std::int64_t context) {
    const Json whole = cost_json(costs.own.front(), context);
    for (const auto& [name, value] : whole.items()) {
        json[name] = costs.is_whole ? value : Json(nullptr);
    }
    if (!costs.is_whole) {
        json["layer_kinds"] = Json::array();
        for (const Cost& kind : costs.own) {
            Json entry = {{"layers", kind.name}};
            entry.update(cost_json(kind, context));
            json["layer_kinds"].push_back(entry);
        }
    }
    for (const Cost& peer : costs.peers) {
        json[peer.name] = cost_json(peer, context);
    }
}

Json subject_json(const Options& options, const Subject& subject, const Costs& costs) {
    Json json = scheme_json(subject.asked, subject.scheme);
    json["calibrated"] = subject.calibrated;
    json["context"] = subject.context;
    json["layers_from"] = subject.layers_from;
    json["num_layers"] = subject.layers.size();
    add_costs(json, costs, subject.context);
    if (subject.sidecar) {
        json["sidecar"] = sidecar_json(*subject.sidecar, options.sidecar);
    }
    if (subject.model) {
        json["model"] = {{"path", options.model},
                         {"architecture", subject.model->identity.architecture},
                         {"name", subject.model->identity.name},
                         {"context_length", subject.model->context_length}};
    }
    return json;
}

Status set_scheme(const Options& options, Subject& subject) {
    if (subject.sidecar) {
        const Result<Scheme> resolved = resolve(subject.sidecar->scheme, true);
        if (!resolved.ok()) {
            return resolved.status();
        }
        subject.asked = subject.sidecar->scheme;
        subject.scheme = resolved.value();
        subject.calibrated = true;
        return {};
    }
    const Result<std::optional<Scheme>> asked = options.scheme.asked();
    if (!asked.ok()) {
        return asked.status();
    }
    subject.asked = asked.value().value_or(parse_scheme(kDefaultScheme).value());
    Result<Scheme> resolved = resolve(subject.asked, options.calibrated);
    subject.calibrated = options.calibrated;
    if (!resolved.ok() && !options.calibrated) {  // only to be had calibrated
        resolved = resolve(subject.asked, true);
        subject.calibrated = true;
    }
    if (!resolved.ok()) {
        return resolved.status();
    }
    subject.scheme = resolved.value();
    return subject.model ? check_layers(subject.scheme, static_cast<int>(subject.model->identity.layer_hashes.size())) : Status();
}

Status load_files(const Options& options, Subject& subject) {
    if (!options.sidecar.empty()) {
        Result<Sidecar> sidecar = load_sidecar(options.sidecar);
        if (!sidecar.ok()) {
            return sidecar.status();
        }
        subject.sidecar = std::move(sidecar).value();
    }
    if (!options.model.empty()) {
        if (const Status status = check_gguf(options.model, "model"); !status.ok()) {
            return status;
        }
        Result<ModelInfo> info = read_model_info(options.model);
        if (!info.ok()) {
            return Status(info.status().code(), "model: " + info.status().message());
        }
        subject.model = std::move(info).value();
    }
    if (subject.sidecar && subject.model) {
        return check_model(*subject.sidecar, options.sidecar, *subject.model, options.model);
    }
    return {};
}

void set_layers(const Options& options, Subject& subject) {
    if (subject.model) {
        subject.layers = subject.model->layers;
        subject.layers_from = fmt::format("{} layers of {}", subject.layers.size(), fs::path(options.model).filename().string());
    } else if (subject.sidecar) {
        for (const LayerCalibration& layer : subject.sidecar->layers) {
            subject.layers.push_back(layer.shape);
        }
        subject.layers_from = fmt::format("{} layers of the sidecar", subject.layers.size());
    } else {
        subject.layers = {{.layer = 0, .num_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128}};
        subject.layers_from = subject.scheme.layers.empty() ? "one layer of 8 KV heads, head_dim 128"
                                                            : "one layer of each kind, 8 KV heads, head_dim 128";
    }
    subject.context = options.context > 0 ? options.context : kDefaultContext;
    if (options.context == 0 && subject.model && subject.model->context_length > 0) {
        subject.context = subject.model->context_length;
    }
}

}  // namespace

int run_info(const VerbCall& call) {
    Options options;
    CLI::App app{"Explains a sidecar or a scheme, and what a cache of that kind takes.", "vecinfer info"};
    CLI::Option* sidecar = app.add_option("sidecar", options.sidecar, "file written by `vecinfer calibrate`")->type_name("FILE");
    options.scheme.add_to(app, fmt::format("scheme to explain (default {})", kDefaultScheme))->excludes(sidecar);
    app.add_flag("--calibrated", options.calibrated, "the scheme as it would be with a calibration")->excludes(sidecar);
    app.add_option("-m,--model", options.model, "GGUF model, for its layers and context length")->type_name("MODEL");
    app.add_option("--ctx", options.context,
                   fmt::format("tokens in the cache (default: the model's context, else {})", kDefaultContext))
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{std::numeric_limits<std::int32_t>::max()}))
        ->type_name("N");
    app.add_flag("--json", options.json, "print JSON");
    set_up_help(app, "[FILE | --scheme SCHEME] [OPTIONS]", kExamples);
    int exit_code = kExitOk;
    if (parse_args(app, "info", call, "", exit_code) == Parsed::finished) {
        return exit_code;
    }
    if (options.sidecar.empty() && !options.scheme.given() && options.model.empty()) {
        return usage_error("info", "nothing to explain: give a sidecar file, --scheme or -m");
    }

    Subject subject;
    if (const Status status = load_files(options, subject); !status.ok()) {
        return fail(status.message());
    }
    if (const Status status = set_scheme(options, subject); !status.ok()) {
        return subject.sidecar ? fail(status.message()) : scheme_error(status.message());
    }
    set_layers(options, subject);
    const bool is_whole = subject.model || subject.sidecar || subject.scheme.layers.empty();
    const Result<Costs> costs =
        is_whole ? whole_costs(to_string(subject.asked), subject.scheme, subject.layers, subject.context, subject.calibrated)
                 : costs_by_kind(subject.scheme, subject.layers.front(), subject.context, subject.calibrated);
    if (!costs.ok()) {
        return fail(costs.status().message());
    }

    if (options.json) {
        const Json json = subject_json(options, subject, costs.value());
        // Names inside files may hold any bytes.
        fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
        return kExitOk;
    }
    if (subject.sidecar) {
        print_sidecar(*subject.sidecar, options.sidecar);
    }
    if (subject.model) {
        fmt::print("model        {} ({} '{}')\n", options.model, subject.model->identity.architecture,
                   subject.model->identity.name);
    }
    print_scheme(subject);
    print_costs(subject, costs.value());
    return kExitOk;
}

}  // namespace vecinfer::cli
