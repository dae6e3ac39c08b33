#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>

#include "compare/amounts.h"
#include "compare/machine.h"
#include "compare/report.h"
#include "compare/result.h"
#include "compare/session.h"
#include "environment.h"
#include "interrupt.h"
#include "locate.h"
#include "scheme_option.h"
#include "sidecar_choice.h"
#include "text_file.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kExamples = R"(
Schemes (--schemes a,b,c; default: three widths of vecinfer and one of each other family):
  vecinfer:k2v2            codebooks are calibrated, once per kind, on --calibration-text; data-free without that option
  vecinfer:k2v2@free       data-free codebooks in any case
  vecinfer:k2v2@FILE       codebooks from a sidecar of `vecinfer calibrate`
  vecinfer:k2v2,sink=0     options belong to the scheme before them
  f16                      uncompressed, but through the plugin

Examples:
  vecinfer compare -m model.gguf -f test.txt --calibration-text train.txt --out cmp
  vecinfer compare -m model.gguf -f test.txt --schemes vecinfer:k4v2,vecinfer:k2v2@free --peers q8_0,q4_0 --out cmp
  vecinfer compare -m model.gguf -f test.txt --no-speed --no-retrieval --chunks 8 --out cmp     quality alone, more of it
  vecinfer compare -m model.gguf -f test.txt --lengths 2048,8192 --keys 2 --out cmp             retrieval in longer texts

Columns: eff.bits and bytes/token count codes, scales, norms, window and codebooks at --footprint-ctx tokens. perplexity, its ratio
to f16 and KLD (KL divergence to f16, in nats) are over the second half of each chunk; top-1 is how often the likeliest token is
the same. retrieval is how many hidden numbers were repeated exactly. The first row is the f16 cache of stock llama.cpp, which all
others are compared with; speeds are of llama-bench.

DIR gets compare.json, compare.csv, report.html (pictures need gnuplot) and, in results/, every finished measurement: the same
command goes on after an interrupt, and further schemes can be added later. A scheme that cannot serve the model says why.
Families, widths and options of schemes are listed by `vecinfer --help`.

Exit status: 0 at least one scheme was measured and no measurement failed; 1 an input is wrong (found before any work), a
measurement failed, or no scheme could be measured (results that are there are kept and written); 2 wrong command line; 130 or
143 interrupted.
)";

void add_options(CLI::App& app, CompareOptions& options) {
    app.add_option("-m,--model", options.model, "GGUF model")->required()->type_name("MODEL");
    app.add_option("-f,--file", options.text, "text to measure on; not one that codebooks were calibrated on")
        ->required()
        ->type_name("TEXT");
    app.add_option("-o,--out", options.out, "folder for results; made if needed")->required()->type_name("DIR");
    app.add_option("-s,--schemes", options.schemes, "schemes, comma-separated (see below)")->type_name("LIST");
    app.add_option("--peers", options.peers, "cache types of llama.cpp in the same table, e.g. q8_0,q5_1,q4_0")
        ->delimiter(',')
        ->type_name("LIST");
    app.add_option("--calibration-text", options.calibration_text, "text to calibrate codebooks on; not TEXT")->type_name("FILE");
    app.add_option("--calibration-chunks", options.calibration_chunks,
                   "pieces of it, of 1024 tokens or the model's context if that is less (default 4)")
        ->check(CLI::Range(1, 1000000))
        ->type_name("N");
    app.add_option("--ctx", options.context, "tokens of a chunk of TEXT (default 2048)")
        ->check(CLI::Range(32, 1 << 20))
        ->type_name("N");
    app.add_option("--chunks", options.chunks, "chunks of TEXT (default 2)")->check(CLI::Range(1, 1000000))->type_name("N");
    app.add_option("--footprint-ctx", options.footprint_context,
                   "context at which bits and bytes are counted (default: the model's)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
        ->type_name("N");
    app.add_option("--lengths", options.lengths, "retrieval: tokens read (default 512,1024,2048)")
        ->delimiter(',')
        ->check(CLI::Range(128, 1 << 24))
        ->type_name("LIST");
    app.add_option("--depths", options.depths, "retrieval: where numbers hide, 0 to 1 (default 0.1,0.3,0.5,0.7,0.9)")
        ->delimiter(',')
        ->check(CLI::Range(0.0, 1.0))
        ->type_name("LIST");
    app.add_option("--keys", options.keys, "retrieval: numbers per length and depth (default 1)")
        ->check(CLI::Range(1, 40))
        ->type_name("N");
    app.add_option("--seed", options.seed, "retrieval: seed of the text (default 1)")->type_name("N");
    app.add_option("--speed-depths", options.speed_depths, "speed: tokens in the cache (default 0,2048)")
        ->delimiter(',')
        ->check(CLI::Range(0, 1 << 24))
        ->type_name("LIST");
    app.add_flag_callback(
        "--no-speed", [&options] { options.speed = false; }, "leave out speed");
    app.add_flag_callback(
        "--no-retrieval", [&options] { options.retrieval = false; }, "leave out retrieval");
    app.add_option("-t,--threads", options.threads, "threads (default: all CPUs)")->check(CLI::Range(1, 4096))->type_name("N");
    app.add_option("--tools-dir", options.tools_dir, "folder of the llama.cpp tools (default: VECINFER_TOOLS, then PATH)")
        ->type_name("DIR");
    app.add_flag("--json", options.json, "print compare.json instead of the table");
    set_up_help(app, "-m MODEL -f TEXT --out DIR [OPTIONS]", kExamples);
}

Status check_texts(const CompareOptions& options) {
    Status status = check_text(options.text, "text");
    if (!status.ok() || options.calibration_text.empty()) {
        return status;
    }
    if (status = check_text(options.calibration_text, "calibration text"); !status.ok()) {
        return status;
    }
    if (hash_file(options.text).value() == hash_file(options.calibration_text).value()) {
        return Status(ErrorCode::mismatch,
                      fmt::format("calibration text: {} is the text that is measured; results would flatter the codebooks",
                                  options.calibration_text));
    }
    return {};
}

// The base and every scheme and peer once. kExitOk, or the exit code of an error that was reported.
int make_rows(const CompareOptions& options, std::vector<Row>& rows) {
    rows = {{.subject = base_subject()}};
    std::set<std::string> seen;
    const auto add = [&](const Result<Subject>& subject) {
        if (subject.ok() && seen.insert(subject->name).second) {
            rows.push_back({.subject = subject.value()});
        }
        return subject.ok() ? kExitOk : usage_error("compare", subject.status().message());
    };
    const std::vector<std::string> schemes = options.schemes.empty() ? default_schemes() : split_schemes(options.schemes);
    for (const std::string& text : schemes) {
        const std::size_t at = std::min(text.find('@'), text.size());
        const Result<Scheme> scheme = parse_scheme(std::string_view(text).substr(0, at));
        if (!scheme.ok()) {
            return scheme_error(fmt::format("--schemes: '{}': {}", text, scheme.status().message()));
        }
        const std::optional<std::string> suffix = at < text.size() ? std::optional(text.substr(at + 1)) : std::nullopt;
        if (const int code = add(scheme_subject(scheme.value(), suffix, !options.calibration_text.empty())); code != kExitOk) {
            return code;
        }
    }
    for (const std::string& text : options.peers) {
        if (const int code = add(parse_peer(text)); code != kExitOk) {
            return code;
        }
    }
    return kExitOk;
}

// Everything that can be found out before anything runs: wrong inputs, and schemes that cannot serve the model.
Status examine_rows(const CompareOptions& options, const ModelInfo& model, std::int64_t footprint_context,
                    std::vector<Row>& rows) {
    for (const Row& row : rows) {
        if (const Status status = check_inputs(row.subject, model, options.model); !status.ok()) {
            return status;
        }
    }
    std::vector<std::string> problems;
    for (Row& row : rows) {
        examine_subject(row.subject, model, footprint_context);
        if (!row.subject.problem.empty()) {
            problems.push_back(fmt::format("{}: {}", row.subject.name, row.subject.problem));
        }
    }
    if (problems.size() + 1 >= rows.size()) {
        return Status(ErrorCode::unsupported,
                      fmt::format("nothing can be compared on this model: {}", fmt::join(problems, "; ")));
    }
    return {};
}

Status find_tools(const CompareOptions& options, const std::vector<Row>& rows, CompareTools& tools) {
    const auto any = [&](auto wanted) {
        return std::any_of(rows.begin(), rows.end(),
                           [&](const Row& row) { return row.subject.problem.empty() && wanted(row.subject); });
    };
    const auto set = [](fs::path& path, const Result<fs::path>& found) {
        if (found.ok()) {
            path = found.value();
        }
        return found.status();
    };
    Status status = set(tools.perplexity, find_tool("llama-perplexity", options.tools_dir));
    if (status.ok() && options.speed) {
        status = set(tools.bench, find_tool("llama-bench", options.tools_dir));
    }
    if (status.ok()) {  // it counts tokens too
        status = set(tools.retrieve, find_helper(kRetrieveHelper, options.tools_dir));
    }
    if (status.ok() && any([](const Subject& s) { return s.codebooks == Codebooks::made; })) {
        status = set(tools.calibrate, find_helper(kCalibrateHelper, options.tools_dir));
    }
    if (status.ok() && any([](const Subject& s) { return s.kind == SubjectKind::scheme; })) {
        status = set(tools.plugin, find_plugin());
    }
    return status;
}

// Lengths that the model can read.
Status set_lengths(CompareOptions& options, const ModelInfo& model) {
    if (options.lengths.empty()) {
        for (const int length : {512, 1024, 2048}) {
            if (model.context_length <= 0 || length <= model.context_length) {
                options.lengths.push_back(length);
            }
        }
    }
    for (const int length : options.lengths) {
        if (model.context_length > 0 && length > model.context_length) {
            return argument_error("--lengths", std::to_string(length),
                                  fmt::format("at most the model's context of {}", model.context_length));
        }
    }
    if (options.lengths.empty()) {
        options.lengths.push_back(static_cast<int>(model.context_length));
    }
    return {};
}

Status write_results(const CompareOptions& options, const Json& result) {
    const fs::path folder = options.out;
    Status status = write_file(folder / "compare.json", result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    if (status.ok()) {
        status = write_file(folder / "compare.csv", result_csv(result));
    }
    if (status.ok()) {
        std::string missing;
        const std::string report = compare_report(result, missing);
        if (!missing.empty()) {
            note(fmt::format("report.html has no pictures: {}", missing));
        }
        status = write_file(folder / "report.html", report);
    }
    return status;
}

int finish(const CompareOptions& options, const Json& result) {
    if (const Status status = write_results(options, result); !status.ok()) {
        return fail(status.message());
    }
    if (options.json) {
        fmt::print("{}\n", result.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        fmt::print("{}\nWritten to {}: report.html, compare.json, compare.csv\n", result_table(result), options.out);
    }
    const Json& rows = result["rows"];
    const auto any = [&](auto wanted) { return std::any_of(rows.begin(), rows.end(), wanted); };
    if (!any([](const Json& row) { return row["kind"] != "base" && row["status"] == "ok"; })) {
        return fail(fmt::format("nothing but the base could be measured in full, see above and {}/logs", options.out));
    }
    if (any([](const Json& row) { return row["status"] == "failed"; })) {
        return fail(fmt::format("some measurements failed, see above and {}/logs", options.out));
    }
    return kExitOk;
}

}  // namespace

int run_compare(const VerbCall& call) {
    CompareOptions options;
    CLI::App app{
        "Compares schemes on a model of yours: bits, quality, retrieval and speed, with the f16 cache of stock llama.cpp as "
        "base.",
        "vecinfer compare"};
    add_options(app, options);
    int exit_code = kExitOk;
    if (parse_args(app, "compare", call, "", exit_code) == Parsed::finished) {
        return exit_code;
    }
    const auto begin = std::chrono::steady_clock::now();

    // llama-perplexity gives no statistics of fewer tokens.
    constexpr int kFewestTokens = 100;
    if (options.chunks * (options.context - 1 - options.context / 2) < kFewestTokens) {
        return usage_error("compare",
                           fmt::format("--ctx {} x --chunks {}: too few tokens to compare, expected at least {} in the "
                                       "second halves of the chunks",
                                       options.context, options.chunks, kFewestTokens));
    }
    std::vector<Row> rows;
    if (const int code = make_rows(options, rows); code != kExitOk) {
        return code;
    }
    Status status = check_environment({.tools = options.tools_dir.empty()});
    if (status.ok()) {
        status = check_gguf(options.model, "model");
    }
    if (status.ok()) {
        status = check_texts(options);
    }
    if (!status.ok()) {
        return fail(status.message());
    }
    const Result<ModelInfo> model = read_model_info(options.model);
    if (!model.ok()) {
        return fail("model: " + model.status().message());
    }
    if (status = options.retrieval ? set_lengths(options, model.value()) : Status(); !status.ok()) {
        return usage_error("compare", status.message());
    }
    options.calibration_context = calibration_context(model.value());
    options.threads = options.threads > 0 ? options.threads : usable_cpus();
    constexpr std::int64_t kFallbackContext = 32768;
    RunFacts facts{.model_name = model->identity.name,
                   .architecture = model->identity.architecture,
                   .model_context = model->context_length,
                   .footprint_context = options.footprint_context > 0 ? options.footprint_context
                                        : model->context_length > 0   ? model->context_length
                                                                      : kFallbackContext};
    CompareTools tools;
    status = examine_rows(options, model.value(), facts.footprint_context, rows);
    if (status.ok()) {
        status = find_tools(options, rows, tools);
    }
    if (!status.ok()) {
        return fail(status.message());
    }
    const bool calibrates = !tools.calibrate.empty();
    if (status = check_amounts(options, tools.retrieve, calibrates); !status.ok()) {
        return status.code() == ErrorCode::invalid_argument ? usage_error("compare", status.message()) : fail(status.message());
    }
    const Result<ResultStore> store = ResultStore::open(options.out);
    if (!store.ok()) {
        return fail(store.status().message());
    }

    CompareSession session(options, model.value(), tools, store.value());
    status = session.run(rows);
    if (status.code() == ErrorCode::cancelled) {
        note(fmt::format("interrupted; finished measurements are kept in {}, the same command goes on from there", options.out));
        return kExitSignal + interrupt_signal();
    }
    if (!status.ok()) {
        return fail(status.message());
    }
    facts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return finish(options, result_json(options, facts, rows));
}

}  // namespace vecinfer::cli
