#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>

#include "compare/machine.h"
#include "compare/scrape.h"
#include "environment.h"
#include "inspect/inspection.h"
#include "interrupt.h"
#include "locate.h"
#include "output.h"
#include "process.h"
#include "scheme_option.h"
#include "sidecar_choice.h"
#include "temporary_folder.h"
#include "text_file.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kExamples = R"(
Examples:
  vecinfer inspect -m model.gguf -f text.txt                       which layers need more bits?
  vecinfer inspect -m model.gguf -f text.txt --layer 3 --out look  and what does layer 3 look like? Pictures in look/inspect.html
  vecinfer inspect -m model.gguf -f text.txt --scheme vecinfer:k4v2 --codebooks none --json

Runs one piece of text and shows, per layer: kurtosis (3: normal, what codebooks are made for; more: outliers) and max/mean of keys
before and after a Hadamard transform; errors of keys and values under the scheme; score error, what those of keys do to the
softmax's input; how evenly codes are used (entropy, and centroids never named). For one layer (default: the one with the largest
score error) keys are shown through every transform. Pictures need gnuplot.
)";

struct Options {
    std::string model;
    std::vector<std::string> texts;
    int layer = -1;
    std::string out;
    SchemeOption scheme;
    std::string codebooks;
    int context = 512;
    int threads = 0;
    std::string tools_dir;
    bool json = false;
};

void add_options(CLI::App& app, Options& options) {
    app.add_option("-m,--model", options.model, "GGUF model")->required()->type_name("MODEL");
    app.add_option("-f,--file", options.texts, "text; may be given several times")
        ->required()
        ->allow_extra_args(false)
        ->type_name("TEXT");
    app.add_option("--layer", options.layer, "layer to show in detail (default: the one with the largest score error)")
        ->check(CLI::Range(0, 1 << 16))
        ->type_name("N");
    app.add_option("-o,--out", options.out, "folder for inspect.html and inspect.json; made if needed")->type_name("DIR");
    options.scheme.add_to(app, fmt::format("scheme whose errors are shown, see `vecinfer --help` (default {})", kDefaultScheme));
    add_codebooks_option(app, options.codebooks);
    app.add_option("--ctx", options.context, "tokens of text (default 512)")->check(CLI::Range(16, 1 << 20))->type_name("N");
    app.add_option("-t,--threads", options.threads, "threads (default: all CPUs)")->check(CLI::Range(1, 4096))->type_name("N");
    app.add_option("--tools-dir", options.tools_dir,
                   fmt::format("folder of {} (default: where it was built or installed)", kInspectHelper))
        ->type_name("DIR");
    app.add_flag("--json", options.json, "print JSON instead of tables");
    set_up_help(app, "-m MODEL -f TEXT [OPTIONS]", kExamples);
}

Result<Json> run_helper(const Options& options, const SidecarChoice& choice, const fs::path& helper, const fs::path& plugin) {
    const TemporaryFolder folder;
    if (folder.path().empty()) {
        return Status(ErrorCode::io_error, "cannot make a temporary folder");
    }
    std::vector<std::string> argv = {helper.string(), "--model", options.model};
    for (const std::string& text : options.texts) {
        argv.insert(argv.end(), {"--text", text});
    }
    argv.insert(argv.end(), {"--scheme", to_long_string(choice.scheme), "--codebooks",
                             choice.path ? choice.path->string() : "none", "--ctx", std::to_string(options.context), "--threads",
                             std::to_string(options.threads > 0 ? options.threads : usable_cpus())});
    if (options.layer >= 0) {
        argv.insert(argv.end(), {"--layer", std::to_string(options.layer)});
    }
    const Environment environment = {
        {"GGML_BACKEND_PATH", plugin.string()}, {"VECINFER_SCHEME", std::nullopt}, {"VECINFER_CODEBOOKS", std::nullopt}};
    note_interrupts();
    const Result<int> code =
        run_logged(argv, environment, folder.path() / "out", folder.path() / "err", [] { return interrupt_signal() == 0; });
    if (!code.ok() || interrupt_signal() != 0) {
        return interrupt_signal() != 0 ? Status(ErrorCode::cancelled, "interrupted, nothing written") : code.status();
    }
    const Result<std::string> out = read_file(folder.path() / "out");
    const Result<std::string> err = read_file(folder.path() / "err");
    if (!out.ok() || !err.ok()) {
        return out.ok() ? err.status() : out.status();
    }
    Json json = Json::parse(out.value(), nullptr, false);
    if (code.value() != 0 || !json.is_object()) {
        return Status(ErrorCode::unsupported, failure_of(err.value(), code.value()).reason);
    }
    return json;
}

Status write_results(const Options& options, const Json& inspection) {
    if (options.out.empty()) {
        return {};
    }
    std::string missing;
    Status status =
        write_file(fs::path(options.out) / "inspect.json", inspection.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    if (status.ok()) {
        const std::string page = inspection_report(inspection, missing);
        if (!missing.empty()) {
            note(fmt::format("inspect.html has no pictures: {}", missing));
        }
        status = write_file(fs::path(options.out) / "inspect.html", page);
    }
    return status;
}

Status check_files(const Options& options) {
    Status status = check_gguf(options.model, "model");
    for (const std::string& text : options.texts) {
        if (status.ok()) {
            status = check_text(text);
        }
    }
    if (!status.ok()) {
        return status;
    }
    const Result<ModelInfo> info = read_model_info(options.model);
    return info.ok() ? check_context(options.context, info.value())
                     : Status(info.status().code(), "model: " + info.status().message());
}

}  // namespace

int run_inspect(const VerbCall& call) {
    Options options;
    CLI::App app{"Shows what a model's keys and values look like, what transforms do to them, and which layers need more bits.",
                 "vecinfer inspect"};
    add_options(app, options);
    int exit_code = kExitOk;
    if (parse_args(app, "inspect", call, "", exit_code) == Parsed::finished) {
        return exit_code;
    }
    const Result<std::optional<Scheme>> scheme = options.scheme.asked();
    if (!scheme.ok()) {
        return scheme_error(scheme.status().message());
    }
    if (scheme.value() && scheme.value()->is_f16()) {
        return usage_error("inspect", "scheme: got f16, expected one that compresses, e.g. vecinfer:k2v2");
    }
    const EnvironmentUse use = {.tools = options.tools_dir.empty(), .codebooks = options.codebooks.empty()};
    Status status = check_environment(use);
    if (status.ok()) {
        status = check_files(options);
    }
    if (!status.ok()) {
        return fail(status.message());
    }
    if (options.codebooks.empty()) {
        options.codebooks = environment_value("VECINFER_CODEBOOKS").value_or("");
    }
    const Result<SidecarChoice> choice = choose_sidecar(
        options.model, scheme.value(), options.codebooks.empty() ? std::nullopt : std::optional(options.codebooks));
    if (!choice.ok()) {
        return fail(choice.status().message());
    }
    const Result<fs::path> helper = find_helper(kInspectHelper, options.tools_dir);
    if (!helper.ok()) {
        return fail(helper.status().message());
    }
    const Result<fs::path> plugin = find_plugin();
    if (!plugin.ok()) {
        return fail(plugin.status().message());
    }
    std::optional<OutputFolder> folder;
    if (!options.out.empty()) {
        Result<OutputFolder> opened = OutputFolder::open(options.out);
        if (!opened.ok()) {
            return fail(opened.status().message());
        }
        folder.emplace(std::move(opened).value());
    }
    Result<Json> inspection = run_helper(options, choice.value(), helper.value(), plugin.value());
    if (inspection.status().code() == ErrorCode::cancelled) {
        note(inspection.status().message());
        return kExitSignal + interrupt_signal();
    }
    if (!inspection.ok()) {
        return fail(inspection.status().message());
    }
    inspection.value()["model"] = {{"file", fs::path(options.model).filename().string()}};
    if (status = write_results(options, inspection.value()); !status.ok()) {
        return fail(status.message());
    }
    if (options.json) {
        fmt::print("{}\n", inspection->dump(1, ' ', false, Json::error_handler_t::replace));
    } else {
        fmt::print("{}", inspection_text(inspection.value()));
        if (!options.out.empty()) {
            fmt::print("\nWritten to {}: inspect.html, inspect.json\n", options.out);
        }
    }
    return kExitOk;
}

}  // namespace vecinfer::cli
