#include "compare/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "compare/machine.h"
#include "report/text_table.h"
#include "vecinfer/version.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

std::string_view kind_name(SubjectKind kind) {
    switch (kind) {
        case SubjectKind::base: return "base";
        case SubjectKind::scheme: return "scheme";
        case SubjectKind::peer: return "peer";
    }
    return "";
}

Json codebooks_json(const Subject& subject) {
    switch (subject.codebooks) {
        case Codebooks::none: return nullptr;
        case Codebooks::data_free: return "data-free";
        case Codebooks::made: return "calibrated";
        case Codebooks::file: return subject.sidecar;
    }
    return nullptr;
}

Json without_seconds(Json json) {
    if (json.is_object()) {
        json.erase("seconds");
    }
    return json;
}

Json row_json(const Row& row) {
    const Subject& subject = row.subject;
    Json json = {{"name", subject.name}, {"kind", kind_name(subject.kind)}};
    json["scheme"] = subject.kind == SubjectKind::scheme ? Json(to_long_string(subject.resolved)) : Json(nullptr);
    json["codebooks"] = codebooks_json(subject);
    json["status"] = !subject.problem.empty() ? "unsupported" : row.failures.empty() ? "ok" : "failed";
    json["reason"] = !subject.problem.empty() ? Json(subject.problem)
                     : row.failures.empty()   ? Json(nullptr)
                                              : Json(fmt::format("{}", fmt::join(row.failures, "; ")));
    for (const char* name : {"bits", "bytes_per_token", "effective_bits", "effective_bytes_per_token"}) {
        json[name] = subject.costs.is_object() ? subject.costs[name] : Json(nullptr);
    }
    json["quality"] = without_seconds(row.quality);
    json["retrieval"] = without_seconds(row.retrieval);
    json["speed"] = without_seconds(row.speed);
    json["pareto"] = false;
    return json;
}

std::string figure(const Json& value, std::string_view format) {
    return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

const Json& at(const Json& object, const char* key) {
    static const Json kNull;
    return object.is_object() && object.contains(key) ? object[key] : kNull;
}

std::string csv_field(const Json& value) {
    if (value.is_null()) {
        return "";
    }
    if (!value.is_string()) {
        return value.dump();
    }
    const auto& text = value.get_ref<const std::string&>();
    if (text.find_first_of(",\"\n\r") == std::string::npos) {
        return text;
    }
    std::string quoted = "\"";
    for (const char c : text) {
        quoted += c == '"' ? "\"\"" : std::string(1, c);
    }
    return quoted + "\"";
}

}  // namespace

Json speed_at(const Json& row, const std::string& kind, int depth) {
    const Json& runs = at(row["speed"], "runs");
    if (runs.is_array()) {
        for (const Json& run : runs) {
            if (run["kind"] == kind && run["depth"] == depth) {
                return run;
            }
        }
    }
    return nullptr;
}

std::string sample_note(const Json& result) {
    if (result["settings"]["chunks"].get<int>() >= 2) {
        return "";
    }
    return "Only 1 chunk was measured: all figures of quality have large errors, beyond the +/- of the KLD; use --chunks 10 or "
           "more.\n";
}

std::vector<std::string> pareto_front(const Json& result) {
    struct Point {
        double bits;
        double kld;
        std::string name;
    };
    std::vector<Point> points;
    for (const Json& row : result["rows"]) {
        if (row["kind"] != "base" && row["quality"].is_object() && row["effective_bits"].is_number()) {
            points.push_back({row["effective_bits"], row["quality"]["kld_mean"], row["name"]});
        }
    }
    std::sort(points.begin(), points.end(),
              [](const Point& a, const Point& b) { return a.bits != b.bits ? a.bits < b.bits : a.kld < b.kld; });
    std::vector<std::string> front;
    double best = 0;
    for (const Point& point : points) {
        if (front.empty() || point.kld < best) {
            front.push_back(point.name);
            best = point.kld;
        }
    }
    return front;
}

Json result_json(const CompareOptions& options, const RunFacts& facts, const std::vector<Row>& rows) {
    const auto hash_or_null = [](const std::string& path) {
        const Result<std::string> hash = path.empty() ? Status(ErrorCode::not_found, "") : hash_file(path);
        return hash.ok() ? Json(hash.value()) : Json(nullptr);
    };
    Json json = {{"format", "vecinfer-compare"}, {"version", 1}};
    json["vecinfer"] = {{"version", version()}, {"commit", build_commit()}};
    json["model"] = {{"file", fs::path(options.model).filename().string()},
                     {"name", facts.model_name},
                     {"architecture", facts.architecture},
                     {"context_length", facts.model_context}};
    json["text"] = {{"file", fs::path(options.text).filename().string()}, {"hash", hash_or_null(options.text)}};
    json["calibration_text"] = options.calibration_text.empty()
                                   ? Json(nullptr)
                                   : Json{{"file", fs::path(options.calibration_text).filename().string()},
                                          {"hash", hash_or_null(options.calibration_text)}};
    json["settings"] = {
        {"ctx", options.context},
        {"chunks", options.chunks},
        {"ubatch", 64},
        {"calibration_chunks", options.calibration_chunks},
        {"calibration_ctx", options.calibration_context},
        {"footprint_ctx", facts.footprint_context},
        {"threads", options.threads},
        {"retrieval",
         options.retrieval
             ? Json{{"lengths", options.lengths}, {"depths", options.depths}, {"keys", options.keys}, {"seed", options.seed}}
             : Json(nullptr)},
        {"speed_depths", options.speed ? Json(options.speed_depths) : Json(nullptr)}};
    const Result<std::string_view> isa = selected_isa_name();
    json["machine"] = {{"cpu", cpu_name()}, {"isa", isa.ok() ? Json(isa.value()) : Json(nullptr)}};
    json["seconds"] = facts.seconds;
    json["rows"] = Json::array();
    for (const Row& row : rows) {
        json["rows"].push_back(row_json(row));
    }
    const std::vector<std::string> front = pareto_front(json);
    for (Json& row : json["rows"]) {
        row["pareto"] = std::find(front.begin(), front.end(), row["name"]) != front.end();
    }
    return json;
}

std::string result_table(const Json& result) {
    const Json& settings = result["settings"];
    const bool retrieval = settings["retrieval"].is_object();
    std::vector<std::vector<std::string>> cells = {
        {"", "eff.bits", "bytes/token", "perplexity", "ratio", "KLD mean", "+/-", "99%", "max", "top-1"}};
    if (retrieval) {
        cells[0].emplace_back("retrieval");
    }
    const std::vector<int> depths =
        settings["speed_depths"].is_array() ? settings["speed_depths"].get<std::vector<int>>() : std::vector<int>();
    for (const int depth : depths) {
        cells[0].push_back(fmt::format("prompt@{}", depth));
        cells[0].push_back(fmt::format("decode@{}", depth));
    }
    std::vector<std::string> notes;
    bool disturbed = false;
    for (const Json& row : result["rows"]) {
        const Json& quality = row["quality"];
        const Json top1 = at(quality, "top1");
        const std::string name = row["name"].get<std::string>() + (row["pareto"] == true ? " *" : "");
        std::vector<std::string> line = {name,
                                         figure(row["effective_bits"], "{:.2f}"),
                                         figure(row["effective_bytes_per_token"], "{:.0f}"),
                                         figure(at(quality, "ppl"), "{:.3f}"),
                                         figure(at(quality, "ppl_ratio"), "{:.4f}"),
                                         figure(at(quality, "kld_mean"), "{:.5f}"),
                                         figure(at(quality, "kld_mean_err"), "{:.5f}"),
                                         figure(at(quality, "kld_p99"), "{:.3f}"),
                                         figure(at(quality, "kld_max"), "{:.2f}"),
                                         top1.is_number() ? fmt::format("{:.1f}%", 100 * top1.get<double>()) : "-"};
        if (retrieval) {
            const Json& r = row["retrieval"];
            line.push_back(r.is_object() ? fmt::format("{}/{}", r["exact"].get<int>(), r["total"].get<int>()) : "-");
        }
        for (const int depth : depths) {
            line.push_back(figure(at(speed_at(row, "prompt", depth), "tps"), "{:.0f}"));
            line.push_back(figure(at(speed_at(row, "decode", depth), "tps"), "{:.1f}"));
        }
        disturbed = disturbed || at(row["speed"], "quiet") == false;
        cells.push_back(line);
        if (row["reason"].is_string()) {
            notes.push_back(fmt::format("{}: {}: {}", row["name"].get<std::string>(), row["status"].get<std::string>(),
                                        row["reason"].get<std::string>()));
        }
    }
    std::string text = aligned(cells);
    text += fmt::format(
        "\n* no other has both fewer bits and a lower KLD. Bits and bytes count everything at {} tokens of context.\n",
        settings["footprint_ctx"].get<std::int64_t>());
    text += sample_note(result);
    if (!depths.empty()) {
        text += "prompt@N and decode@N are tokens/s with N tokens in the cache.";
        text += disturbed ? " Other programs were busy during some: do not trust the speeds.\n" : "\n";
    }
    for (const std::string& note : notes) {
        text += note + "\n";
    }
    return text;
}

std::string result_csv(const Json& result) {
    std::vector<std::string> header = {"name",
                                       "kind",
                                       "codebooks",
                                       "status",
                                       "reason",
                                       "bits",
                                       "bytes_per_token",
                                       "effective_bits",
                                       "effective_bytes_per_token",
                                       "ppl",
                                       "ppl_ratio",
                                       "kld_mean",
                                       "kld_mean_err",
                                       "kld_p99",
                                       "kld_max",
                                       "top1",
                                       "retrieval_exact",
                                       "retrieval_total",
                                       "pareto"};
    const Json& depths = result["settings"]["speed_depths"];
    std::string text = fmt::format("{}", fmt::join(header, ","));
    for (const Json& depth : depths.is_array() ? depths : Json::array()) {
        text += fmt::format(",prompt_tps_{0},decode_tps_{0}", depth.get<int>());
    }
    text += "\n";
    for (const Json& row : result["rows"]) {
        std::vector<std::string> fields;
        for (const char* name : {"name", "kind", "codebooks", "status", "reason", "bits", "bytes_per_token", "effective_bits",
                                 "effective_bytes_per_token"}) {
            fields.push_back(csv_field(row[name]));
        }
        for (const char* name : {"ppl", "ppl_ratio", "kld_mean", "kld_mean_err", "kld_p99", "kld_max", "top1"}) {
            fields.push_back(csv_field(at(row["quality"], name)));
        }
        fields.push_back(csv_field(at(row["retrieval"], "exact")));
        fields.push_back(csv_field(at(row["retrieval"], "total")));
        fields.push_back(csv_field(row["pareto"]));
        for (const Json& depth : depths.is_array() ? depths : Json::array()) {
            fields.push_back(csv_field(at(speed_at(row, "prompt", depth), "tps")));
            fields.push_back(csv_field(at(speed_at(row, "decode", depth), "tps")));
        }
        text += fmt::format("{}\n", fmt::join(fields, ","));
    }
    return text;
}

}  // namespace vecinfer::cli
