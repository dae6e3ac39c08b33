// vecinfer-inspect: runs one piece of text through a model and reports, as JSON, what its keys and values look like and what a
// scheme makes of them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "capture.h"
#include "model_session.h"
#include "standard_streams.h"
#include "vecinfer/inspect.h"
#include "vecinfer/sidecar.h"

namespace {

using Json = nlohmann::ordered_json;
using vecinfer::ErrorCode;
using vecinfer::HeadTransform;
using vecinfer::KvRows;
using vecinfer::QueryRows;
using vecinfer::Result;
using vecinfer::Scheme;
using vecinfer::Status;
using vecinfer::TransformSpec;
using vecinfer::plugin::ModelSession;

struct Options {
    std::string model;
    std::vector<std::string> texts;
    std::string scheme;
    std::string codebooks;
    int layer = -1;
    int ctx = 512;
    int threads = 2;
};

// One side of one layer, or its queries.
struct Sample {
    int num_heads = 0;
    int head_dim = 0;
    std::int64_t num_tokens = 0;
    std::vector<float> values;  // layout (num_tokens, num_heads, head_dim)

    int row_dim() const { return num_heads * head_dim; }
    KvRows rows(int layer) const { return {layer, num_heads, head_dim, num_tokens, values.data(), row_dim()}; }
    QueryRows queries(int layer, int num_kv_heads) const {
        return {layer, num_kv_heads, num_heads, head_dim, num_tokens, values.data(), row_dim(), head_dim};
    }
};

struct LayerSample {
    Sample keys;
    Sample values;
    Sample queries;
};
using Samples = std::map<int, LayerSample>;

void append(Sample& sample, int num_heads, int head_dim, std::int64_t tokens, const float* x, std::ptrdiff_t token_stride,
            std::ptrdiff_t head_stride) {
    sample.num_heads = num_heads;
    sample.head_dim = head_dim;
    sample.num_tokens += tokens;
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (int h = 0; h < num_heads; ++h) {
            const float* head = x + t * token_stride + h * head_stride;
            sample.values.insert(sample.values.end(), head, head + head_dim);
        }
    }
}

void observe(void* user_data, const vecinfer_capture* c) {
    LayerSample& layer = (*static_cast<Samples*>(user_data))[c->layer];
    append(c->side == 0 ? layer.keys : layer.values, c->num_kv_heads, c->head_dim, c->num_tokens, c->rows, c->row_stride,
           c->head_dim);
    if (c->num_qo_heads > 0) {
        append(layer.queries, c->num_qo_heads, c->head_dim, c->num_tokens, c->queries, c->q_token_stride, c->q_head_stride);
    }
}

// The transforms that keys are looked at through, and how they are spelled.
const std::vector<std::pair<std::string, TransformSpec>>& looks() {
    static const std::vector<std::pair<std::string, TransformSpec>> kLooks = {
        {"none", {}},
        {"center", {.center = true}},
        {"smooth", {.smooth = true}},
        {"smooth-opt", {.smooth = true, .optimal = true}},
        {"hadamard", {.hadamard = true}},
        {"center+hadamard", {.hadamard = true, .center = true}},
        {"smooth+hadamard", {.smooth = true, .hadamard = true}},
        {"center+smooth+hadamard", {.smooth = true, .hadamard = true, .center = true}},
        {"center+smooth-opt+hadamard", {.smooth = true, .hadamard = true, .center = true, .optimal = true}},
    };
    return kLooks;
}

Result<Json> spread_json(const KvRows& rows, const QueryRows* queries, const std::string& name, const TransformSpec& spec,
                         bool detail) {
    const Result<std::vector<HeadTransform>> transforms = vecinfer::fit_transforms(spec, rows, queries);
    if (!transforms.ok()) {
        return transforms.status();
    }
    const Result<vecinfer::Spread> spread = vecinfer::measure_spread(rows, transforms.value());
    if (!spread.ok()) {
        return spread.status();
    }
    Json json = {{"transform", name}, {"kurtosis", spread->kurtosis}, {"max_over_mean", spread->max_over_mean}};
    if (detail) {
        json["channel_mean_abs"] = spread->channel_mean_abs;
        json["channel_max_abs"] = spread->channel_max_abs;
        json["token_rms"] = spread->token_rms;
        json["map_tokens"] = spread->map_tokens;
        json["map"] = spread->map;
    }
    return json;
}

Result<Json> spreads_json(const Sample& sample, const QueryRows* queries, int layer, bool keys, bool detail) {
    Json all = Json::array();
    for (const auto& [name, spec] : looks()) {
        if ((!keys && spec.smooth) || (spec.optimal && queries == nullptr)) {
            continue;
        }
        const Result<Json> one = spread_json(sample.rows(layer), queries, name, spec, detail);
        if (!one.ok()) {
            return one.status();
        }
        all.push_back(one.value());
    }
    return all;
}

Json usage_json(const std::vector<vecinfer::CodeUsage>& usage) {
    Json all = Json::array();
    for (const vecinfer::CodeUsage& own : usage) {
        all.push_back(
            {{"num_centroids", own.num_centroids}, {"codes", own.codes}, {"dead", own.dead}, {"entropy_bits", own.entropy_bits}});
    }
    return all;
}

// Codes and errors of one side; of keys the scores too.
Status add_side(Json& json, const std::string& side, const vecinfer::RowCodec& codec, const Sample& sample,
                const QueryRows* queries, int layer) {
    const KvRows rows = sample.rows(layer);
    const auto usage = vecinfer::measure_code_usage(codec, rows);
    if (!usage.ok() && usage.status().code() != ErrorCode::unsupported) {
        return usage.status();
    }
    const auto decoded = vecinfer::reconstruct(codec, rows);
    if (!decoded.ok()) {
        return decoded.status();
    }
    const KvRows after{layer, sample.num_heads, sample.head_dim, sample.num_tokens, decoded->data(), sample.row_dim()};
    const auto mse = vecinfer::relative_mse(rows, after);
    if (!mse.ok()) {
        return mse.status();
    }
    json[side]["code_usage"] = usage.ok() ? usage_json(usage.value()) : Json(nullptr);
    json[side]["relative_mse"] = mse.value();
    if (queries != nullptr) {
        const auto scores = vecinfer::measure_score_error(rows, after, *queries);
        if (!scores.ok()) {
            return scores.status();
        }
        json[side]["score_rms"] = Json::array();
        json[side]["score_std"] = Json::array();
        for (const vecinfer::ScoreError& error : scores.value()) {
            json[side]["score_rms"].push_back(error.rms);
            json[side]["score_std"].push_back(error.score_std);
        }
    }
    return {};
}

struct Codebooks {
    Scheme scheme;  // resolved
    std::optional<vecinfer::Sidecar> sidecar;
};

Result<Codebooks> load_codebooks(const Options& options) {
    Result<Scheme> scheme = vecinfer::parse_scheme(options.scheme);
    if (!scheme.ok()) {
        return scheme.status();
    }
    Codebooks books;
    if (options.codebooks != "none") {
        Result<vecinfer::Sidecar> sidecar = vecinfer::load_sidecar(options.codebooks);
        if (!sidecar.ok()) {
            return sidecar.status();
        }
        books.sidecar = std::move(sidecar).value();
    }
    scheme = vecinfer::resolve(scheme.value(), books.sidecar.has_value());
    if (!scheme.ok()) {
        return scheme.status();
    }
    books.scheme = scheme.value();
    return books;
}

Result<Json> layer_json(const Codebooks& books, int layer, const LayerSample& sample) {
    const Sample& keys = sample.keys;
    const Sample& values = sample.values;
    Json json = {{"layer", layer},
                 {"num_kv_heads", keys.num_heads},
                 {"num_qo_heads", sample.queries.num_heads},
                 {"head_dim_k", keys.head_dim},
                 {"head_dim_v", values.head_dim}};
    QueryRows queries = sample.queries.queries(layer, keys.num_heads);
    const QueryRows* seen = sample.queries.num_tokens == keys.num_tokens && keys.num_tokens > 0 ? &queries : nullptr;
    Result<Json> spreads = spreads_json(keys, seen, layer, true, false);
    if (spreads.ok()) {
        json["keys"]["spread"] = spreads.value();
        spreads = spreads_json(values, nullptr, layer, false, false);
    }
    if (!spreads.ok()) {
        return spreads.status();
    }
    json["values"]["spread"] = spreads.value();
    if (books.scheme.is_f16(layer)) {
        return json;  // nothing is lost there
    }

    const vecinfer::LayerShape shape{layer, keys.num_heads, keys.head_dim, values.head_dim};
    const vecinfer::LayerCalibration* calibration = nullptr;
    if (books.sidecar) {
        for (const vecinfer::LayerCalibration& own : books.sidecar->layers) {
            calibration = own.shape.layer == layer ? &own : calibration;
        }
        if (calibration == nullptr) {
            return Status(ErrorCode::mismatch, fmt::format("codebooks: none for layer {}", layer));
        }
    }
    const auto key_codec = vecinfer::make_key_codec(books.scheme, shape, calibration);
    if (!key_codec.ok()) {
        return key_codec.status();
    }
    const auto value_codec = vecinfer::make_value_codec(books.scheme, shape, calibration);
    if (!value_codec.ok()) {
        return value_codec.status();
    }
    if (Status status = add_side(json, "keys", key_codec.value(), keys, seen, layer); !status.ok()) {
        return status;
    }
    if (Status status = add_side(json, "values", value_codec.value(), values, nullptr, layer); !status.ok()) {
        return status;
    }
    return json;
}

// The layer whose scores suffer most.
int worst_layer(const Json& layers) {
    int worst = layers.front()["layer"];
    double most = -1;
    for (const Json& layer : layers) {
        for (const double error : layer["keys"].value("score_rms", layer["keys"].value("relative_mse", std::vector<double>()))) {
            if (error > most) {
                most = error;
                worst = layer["layer"];
            }
        }
    }
    return worst;
}

Result<Samples> capture(const Options& options) {
    const Result<std::string> text = vecinfer::plugin::read_texts(options.texts);
    if (!text.ok()) {
        return text.status();
    }
    setenv("VECINFER_SCHEME", "f16", 1);
    setenv("VECINFER_QUIET", "1", 1);
    unsetenv("VECINFER_CODEBOOKS");
    const Result<ModelSession> session =
        ModelSession::open({.model = options.model, .ctx = options.ctx, .ubatch = options.ctx, .threads = options.threads});
    if (!session.ok()) {
        return session.status();
    }
    const std::vector<llama_token> tokens = session->tokenize(text.value());
    if (tokens.size() < static_cast<std::size_t>(options.ctx)) {
        return vecinfer::argument_error("text", fmt::format("{} tokens", tokens.size()),
                                        fmt::format("at least the {} of --ctx", options.ctx));
    }
    Samples samples;
    if (Status status = session->set_capture(observe, &samples); !status.ok()) {
        return status;
    }
    Status status = session->run_chunks(tokens, options.ctx, 1, options.ctx, [](int) { return Status(); });
    if (const Status stopped = session->set_capture(nullptr, nullptr); status.ok()) {
        status = stopped;
    }
    if (!status.ok()) {
        return status;
    }
    std::erase_if(samples,
                  [](const auto& entry) { return entry.second.keys.num_tokens < 2 || entry.second.values.num_tokens < 2; });
    if (samples.empty()) {
        return Status(ErrorCode::unsupported, "the model wrote no keys and values into a cache that the plugin sees");
    }
    return samples;
}

Result<Json> inspect(const Options& options) {
    const Result<Codebooks> books = load_codebooks(options);
    if (!books.ok()) {
        return books.status();
    }
    const Result<Samples> samples = capture(options);
    if (!samples.ok()) {
        return samples.status();
    }
    if (options.layer >= 0 && !samples->contains(options.layer)) {
        return vecinfer::argument_error("layer", std::to_string(options.layer),
                                        fmt::format("one of the {} layers with a cache, {} to {}", samples->size(),
                                                    samples->begin()->first, samples->rbegin()->first));
    }
    Json json = {{"format", "vecinfer-inspect"},
                 {"version", 1},
                 {"scheme", vecinfer::to_string(books->scheme)},
                 {"codebooks", options.codebooks == "none" ? Json(nullptr) : Json(options.codebooks)},
                 {"tokens", options.ctx}};
    json["layers"] = Json::array();
    for (const auto& [layer, sample] : samples.value()) {
        const Result<Json> one = layer_json(books.value(), layer, sample);
        if (!one.ok()) {
            return Status(one.status().code(), fmt::format("layer {}: {}", layer, one.status().message()));
        }
        json["layers"].push_back(one.value());
    }
    const int layer = options.layer >= 0 ? options.layer : worst_layer(json["layers"]);
    const LayerSample& sample = samples->at(layer);
    const QueryRows queries = sample.queries.queries(layer, sample.keys.num_heads);
    const Result<Json> detail =
        spreads_json(sample.keys, sample.queries.num_tokens == sample.keys.num_tokens ? &queries : nullptr, layer, true, true);
    if (!detail.ok()) {
        return detail.status();
    }
    json["detail"] = {
        {"layer", layer}, {"chosen", options.layer >= 0 ? "asked for" : "largest score error"}, {"keys", detail.value()}};
    return json;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Look at a model's keys and values; normally started by `vecinfer inspect`.");
    app.add_option("--model", options.model, "Model (GGUF)")->required();
    app.add_option("--text", options.texts, "Plain text, may be repeated")->required();
    app.add_option("--scheme", options.scheme, "Scheme whose errors are shown")->required();
    app.add_option("--codebooks", options.codebooks, "Sidecar, or none")->required();
    app.add_option("--layer", options.layer, "Layer shown in detail; -1: the one with the largest score error");
    app.add_option("--ctx", options.ctx, "Tokens of text")->check(CLI::Range(16, 1 << 20));
    app.add_option("--threads", options.threads, "Threads")->check(CLI::PositiveNumber);
    return vecinfer::cli::run_program([&] {
        CLI11_PARSE(app, argc, argv);
        const Result<Json> json = inspect(options);
        if (!json.ok()) {
            vecinfer::cli::write_error_line("error: " + json.status().message());
            return 1;
        }
        std::cout << json.value().dump() << '\n';
        return 0;
    });
}
