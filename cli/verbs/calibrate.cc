#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "environment.h"
#include "launch.h"
#include "locate.h"
#include "output.h"
#include "scheme_option.h"
#include "sidecar_choice.h"
#include "text_file.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kExamples = R"(
Examples:
  vecinfer calibrate -m model.gguf -f text.txt                    writes model.vecinfer.gguf beside the model
  vecinfer calibrate -m model.gguf -f a.txt -f b.txt --scheme vecinfer:k4v4 -o model.k4v4.vecinfer.gguf
  vecinfer calibrate -m model.gguf -f text.txt --chunks 16        a quick try
  vecinfer calibrate -m model.gguf -f text.txt --target-bits 2.25 -o model.mixed.vecinfer.gguf
                                                                  widths per layer, 2.25 bits per value on average

The text is plain UTF-8, of the kind that the model is used for; about 600 kB of English fill 128 chunks of 1024 tokens. Do not
measure perplexity on the same text. The other verbs find <model>.vecinfer.gguf and <model>.<anything>.vecinfer.gguf beside
the model by themselves.

It takes about as long as reading --chunks x --ctx tokens as a prompt, plus the training of the codebooks, which grows with the
number of layers and of centroids: 256 at widths 1, 2 and 4, 1024 at 2.5, 4096 at 1.5 and 3. An interrupt writes nothing.

--target-bits measures what each width does to the model's predictions, layer by layer for keys and values apart, on text
behind the calibrated one and on questions about numbers in a made-up text, which a few layers answer that prose does not show
(--no-recall leaves them out). It takes the best choice that stays within the target. --measure-chunks of text and one chunk
with numbers are run (2 x widths - 1) x layers more times. The scheme with its layers is written to the sidecar. Without
--scheme the other verbs take the scheme of <model>.vecinfer.gguf; a file of another name has to be named (--codebooks).
)";

struct Options {
    std::string model;
    std::vector<std::string> texts;
    std::string out;
    SchemeOption scheme;
    std::string tools_dir;
    std::int64_t chunks = 128;
    std::int64_t context = 0;  // 0: calibration_context
    std::uint64_t seed = 0;
    int threads = 0;
    double target_bits = 0;
    std::string width_list = "1,2,4";
    std::vector<std::string> widths;  // of width_list
    int measure_chunks = 1;
    bool measure_recall = true;
    bool json = false;
    bool dry_run = false;
};

Status split_widths(Options& options) {
    for (std::size_t begin = 0; begin <= options.width_list.size();) {
        const std::size_t end = std::min(options.width_list.find(',', begin), options.width_list.size());
        options.widths.push_back(options.width_list.substr(begin, end - begin));
        if (options.widths.back().empty()) {
            return argument_error("--widths", options.width_list.empty() ? "nothing" : options.width_list,
                                  "widths with one comma between them, e.g. 1,2,4");
        }
        begin = end + 1;
    }
    return {};
}

// Each width must be one of the scheme's family with a codebook, and the target between the narrowest and the widest.
Status check_widths(const Options& options, const Scheme& scheme) {
    if (!scheme.layers.empty()) {
        return argument_error("scheme", to_string(scheme), "one without layers=, which --target-bits chooses");
    }
    double least = 16;
    double most = 0;
    for (const std::string& width : options.widths) {
        const Result<Scheme> parsed = parse_scheme(fmt::format("{}:k{}v{}", scheme.family, width, width));
        if (!parsed.ok()) {
            return {parsed.status().code(), fmt::format("--widths: {}", parsed.status().message())};
        }
        if (parsed->key.kind != CodecKind::vq) {
            return argument_error("--widths", fmt::format("{} of {}", width, scheme.family), "widths of a family with codebooks");
        }
        const double bits = static_cast<double>(parsed->key.code_bits) / parsed->key.sub_dim;
        least = std::min(least, bits);
        most = std::max(most, bits);
    }
    if (options.target_bits < least || options.target_bits > most) {
        return argument_error("--target-bits", fmt::format("{}", options.target_bits),
                              fmt::format("{} to {}, as the widths {} allow", least, most, fmt::join(options.widths, ",")));
    }
    return {};
}

Status check_output(const fs::path& out) {
    const fs::path folder = out.has_parent_path() ? out.parent_path() : fs::path(".");
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
        return Status(ErrorCode::not_found, fmt::format("out: folder {} does not exist", folder.string()));
    }
    if (fs::is_directory(out, error)) {
        return Status(ErrorCode::io_error, fmt::format("out: {} is a folder, expected a file name", out.string()));
    }
    if (fs::exists(out, error) && !fs::is_regular_file(out, error)) {
        return Status(ErrorCode::io_error, fmt::format("out: {} is a device or pipe, expected a file name", out.string()));
    }
    return check_writable(folder);
}

Status check_files(Options& options, const fs::path& out, const Scheme& scheme) {
    if (const Status status = check_gguf(options.model, "model"); !status.ok()) {
        return status;
    }
    const Result<ModelInfo> info = read_model_info(options.model);
    if (!info.ok()) {
        return Status(info.status().code(), "model: " + info.status().message());
    }
    if (const Status status = check_layers(scheme, static_cast<int>(info->identity.layer_hashes.size())); !status.ok()) {
        return status;
    }
    if (options.context == 0) {
        options.context = calibration_context(info.value());
    }
    if (const Status status = check_context(options.context, info.value()); !status.ok()) {
        return status;
    }
    for (const std::string& text : options.texts) {
        if (const Status status = check_text(text); !status.ok()) {
            return status;
        }
    }
    std::error_code error;
    if (fs::equivalent(out, options.model, error)) {
        return Status(ErrorCode::mismatch, fmt::format("out: {} is the model itself", out.string()));
    }
    for (const std::string& text : options.texts) {
        if (fs::equivalent(out, text, error)) {
            return Status(ErrorCode::mismatch, fmt::format("out: {} is also given as text", out.string()));
        }
    }
    return check_output(out);
}

Launch build_calibration(const Options& options, const fs::path& out, const Scheme& scheme, const fs::path& helper,
                         const fs::path& plugin) {
    Launch launch{.program = helper, .argv = {helper.string(), "--model", options.model}};
    const auto add = [&](std::initializer_list<std::string> words) { launch.argv.insert(launch.argv.end(), words); };
    for (const std::string& text : options.texts) {
        add({"--text", text});
    }
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    add({"--out", out.string(), "--scheme", to_long_string(scheme), "--chunks", std::to_string(options.chunks), "--ctx",
         std::to_string(options.context), "--seed", std::to_string(options.seed), "--threads",
         std::to_string(options.threads > 0 ? options.threads : cores)});
    if (options.target_bits > 0) {
        add({"--target-bits", fmt::format("{}", options.target_bits), "--widths",
             fmt::format("{}", fmt::join(options.widths, ",")), "--measure-chunks", std::to_string(options.measure_chunks)});
        if (!options.measure_recall) {
            add({"--no-recall"});
        }
    }
    if (options.json) {
        add({"--json"});
    }
    launch.environment.emplace_back("GGML_BACKEND_PATH", plugin.string());
    // What the shell asks of other runs must not reach this one.
    launch.environment.emplace_back("VECINFER_SCHEME", std::nullopt);
    launch.environment.emplace_back("VECINFER_CODEBOOKS", std::nullopt);
    return launch;
}

void add_options(CLI::App& app, Options& options) {
    app.add_option("-m,--model", options.model, "GGUF model")->required()->type_name("MODEL");
    app.add_option("-f,--file", options.texts, "text to calibrate on; may be given several times")
        ->required()
        ->allow_extra_args(false)
        ->type_name("TEXT");
    app.add_option("-o,--out", options.out, "sidecar to write (default: <model>.vecinfer.gguf beside the model)")
        ->type_name("FILE");
    options.scheme.add_to(app, fmt::format("scheme to calibrate for, see `vecinfer --help` (default {})", kDefaultScheme));
    app.add_option("--chunks", options.chunks, "pieces of text to run (default 128)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
        ->type_name("N");
    app.add_option("--ctx", options.context, "tokens of a piece (default 1024, or the model's context if that is less)")
        ->check(CLI::Range(std::int64_t{16}, std::int64_t{1} << 20))
        ->type_name("N");
    // strtoull, which converts it, takes -1 for the largest number.
    const auto is_natural = [](const std::string& text) {
        return text.find_first_not_of("0123456789") == std::string::npos ? ""
                                                                         : "--seed: got " + text + ", expected a whole number";
    };
    app.add_option("--seed", options.seed, "seed of the codebook training (default 0)")->check(is_natural)->type_name("N");
    app.add_option("-t,--threads", options.threads, "threads (default: all cores)")->check(CLI::Range(1, 4096))->type_name("N");
    CLI::Option* target =
        app.add_option("--target-bits", options.target_bits, "choose widths per layer, this many code bits per value on average")
            ->check([](const std::string& text) {
                const double bits = std::strtod(text.c_str(), nullptr);
                return bits >= 0.5 && bits <= 16 ? "" : "--target-bits: got " + text + ", expected 0.5 to 16";
            });
    target->type_name("BITS");
    app.add_option("--widths", options.width_list, "with --target-bits: widths to choose from (default 1,2,4)")
        ->needs(target)
        ->type_name("A,B,...");
    app.add_option("--measure-chunks", options.measure_chunks, "with --target-bits: pieces of text to measure on (default 1)")
        ->check(CLI::Range(1, 1000))
        ->needs(target)
        ->type_name("N");
    app.add_flag("!--no-recall", options.measure_recall, "with --target-bits: measure on text alone")->needs(target);
    app.add_option("--tools-dir", options.tools_dir,
                   fmt::format("folder of {} (default: where it was built or installed)", kCalibrateHelper))
        ->type_name("DIR");
    app.add_flag("--json", options.json, "print what was calibrated as JSON");
    app.add_flag("--dry-run", options.dry_run, "check everything and print the command line instead of running it");
    set_up_help(app, "-m MODEL -f TEXT [OPTIONS]", kExamples);
}

}  // namespace

int run_calibrate(const VerbCall& call) {
    Options options;
    CLI::App app{"Learns smooth factors and codebooks of a model from text, and writes them to a sidecar file.",
                 "vecinfer calibrate"};
    add_options(app, options);
    int exit_code = kExitOk;
    if (parse_args(app, "calibrate", call, "", exit_code) == Parsed::finished) {
        return exit_code;
    }

    const Result<std::optional<Scheme>> asked = options.scheme.asked();
    if (!asked.ok()) {
        return scheme_error(asked.status().message());
    }
    const Scheme wanted = asked.value().value_or(parse_scheme(kDefaultScheme).value());
    if (wanted.is_f16()) {
        return usage_error("calibrate", "scheme: got f16, expected one with codebooks, e.g. vecinfer:k2v2");
    }
    const Result<Scheme> scheme = resolve(wanted, true);
    if (!scheme.ok()) {
        return scheme_error(scheme.status().message());
    }
    if (!learns(scheme.value())) {
        return usage_error("calibrate",
                           fmt::format("scheme: got {}, which needs no calibration: use it as it is", to_string(wanted)));
    }

    if (options.target_bits > 0) {
        Status status = split_widths(options);
        if (status.ok()) {
            status = check_widths(options, scheme.value());
        }
        if (!status.ok()) {
            return usage_error("calibrate", status.message());
        }
    }
    if (const Status status = check_environment({.tools = options.tools_dir.empty()}); !status.ok()) {
        return fail(status.message());
    }

    const fs::path out = behind_links(options.out.empty() ? default_sidecar(options.model) : fs::path(options.out));
    if (const Status status = check_files(options, out, scheme.value()); !status.ok()) {
        return fail(status.message());
    }
    const Result<fs::path> helper = find_helper(kCalibrateHelper, options.tools_dir);
    if (!helper.ok()) {
        return fail(helper.status().message());
    }
    const Result<fs::path> plugin = find_plugin();
    if (!plugin.ok()) {
        return fail(plugin.status().message());
    }

    const Launch launch = build_calibration(options, out, scheme.value(), helper.value(), plugin.value());
    if (options.dry_run) {
        fmt::print("{}\n", shell_line(launch));
        return kExitOk;
    }
    return fail(hand_over(launch).message());
}

}  // namespace vecinfer::cli
