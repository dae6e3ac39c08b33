#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "standard_streams.h"
#include "vecinfer/version.h"
#include "verb.h"

namespace vecinfer::cli {
namespace {

constexpr std::array kVerbs = {
    Verb{"run", "complete a prompt, or chat, with a compressed KV cache", run_run},
    Verb{"serve", "start llama-server with a compressed KV cache", run_serve},
    Verb{"perplexity", "measure a model's perplexity or KL divergence", run_perplexity},
    Verb{"bench", "measure speed at several context lengths", run_bench},
    Verb{"bench-kernels", "measure the attention kernels against ggml's", run_bench_kernels},
    Verb{"calibrate", "learn a model's codebooks from text", run_calibrate},
    Verb{"compare", "compare schemes on a model: bits, quality, retrieval, speed", run_compare},
    Verb{"inspect", "show what a model's keys and values look like", run_inspect},
    Verb{"info", "explain a sidecar or a scheme, and what a cache takes", run_info},
    Verb{"doctor", "show what is installed and what is wrong", run_doctor},
};

constexpr std::string_view kExamples = R"(
Examples:
  vecinfer doctor                                            is everything in place?
  vecinfer run -m model.gguf -- -p "Once upon a time" -n 64   works at once, without calibration
  vecinfer calibrate -m model.gguf -f text.txt               better quality: writes model.vecinfer.gguf
  vecinfer run -m model.gguf -- -p "Once upon a time" -n 64   finds model.vecinfer.gguf by itself
  vecinfer run -m model.gguf --scheme f16 -- -p "Hi" -n 64    the same without compression
  vecinfer bench -m model.gguf -- -p 0 -n 32 -d 0,8192        speed with an empty and a long context
  vecinfer compare -m model.gguf -f test.txt --out cmp       which setting should I run?
  vecinfer info --scheme vecinfer:k4v2 -m model.gguf         what would that cache take?

Schemes: f16 | <family>:k<width>v<width>[,option=value]...
  families and their widths in bits: vecinfer (and vecinfer-paper) 4, 3, 2.5, 2, 1.5, 1; million 4, 3, 2.5, 2;
  innerq 4, 3, 2, 3h, 2h; kivi 4, 3, 2; rotated 4, 3, 2
  options: recent=N and sink=N (tokens in f16), layers=0-1:k4v4/29:f16, prefill=windowed|exact, and for experts k, v (codecs),
  kt, vt (transforms), norm, scope, encode=nearest|unbiased|shaped (docs/data_path.md)
  vecinfer:k2v2 (default)   vecinfer:k4v4   vecinfer:k4v2,recent=256,sink=4

Environment:
  VECINFER_TOOLS      folder of the llama.cpp tools (default: PATH)
  VECINFER_PLUGIN     the plugin libggml-vecinfer.so (default: GGML_BACKEND_PATH, then where it was built or installed)
  VECINFER_SCHEME     default of --scheme
  VECINFER_CODEBOOKS  default of --codebooks
  VECINFER_ISA        scalar, avx2, avx512 or avx512vbmi: limits the kernels
  VECINFER_QUIET      1: the plugin prints no start line

Exit status: 0 done, 1 failed, 2 wrong command line; the llama.cpp tools' own status otherwise.
)";

void print_help() {
    fmt::print(
        "vecinfer {}: vector-quantized KV cache for llama.cpp\n\nUsage: vecinfer VERB [OPTIONS] [-- TOOL ARGUMENTS]\n\nVerbs:\n",
        version());
    for (const Verb& verb : kVerbs) {
        fmt::print("  {:<15}{}\n", verb.name, verb.summary);
    }
    fmt::print("\nOptions:\n  -h,--help     this text; `vecinfer VERB --help` for a verb\n  --version     print the version\n{}",
               kExamples);
}

VerbCall split_call(int argc, char** argv) {
    VerbCall call;
    for (int i = 2; i < argc; ++i) {
        const std::string argument = argv[i];
        if (call.has_separator) {
            call.passthrough.push_back(argument);
        } else if (argument == "--") {
            call.has_separator = true;
        } else {
            call.args.push_back(argument);
        }
    }
    return call;
}

int dispatch(int argc, char** argv) {
    if (argc < 2) {
        return usage_error("",
                           "no verb given, expected one of run, serve, perplexity, bench, bench-kernels, calibrate, compare, "
                           "inspect, info, doctor");
    }
    const std::string_view word = argv[1];
    if (word == "--help" || word == "-h" || (word == "help" && argc == 2)) {
        print_help();
        return kExitOk;
    }
    if (word == "--version") {
        fmt::print("vecinfer {} (commit {})\n", version(), build_commit());
        return kExitOk;
    }
    VerbCall call = split_call(argc, argv);
    std::string_view name = word;
    if (word == "help") {
        name = argv[2];
        call = VerbCall{.args = {"--help"}};
    }
    const auto verb = std::find_if(kVerbs.begin(), kVerbs.end(), [&](const Verb& v) { return v.name == name; });
    if (verb != kVerbs.end()) {
        return verb->run(call);
    }

    if (name.starts_with("-")) {
        return usage_error("", fmt::format("unknown option '{}' before the verb", name));
    }
    std::vector<std::string_view> names;
    names.reserve(kVerbs.size());
    for (const Verb& v : kVerbs) {
        names.push_back(v.name);
    }
    const std::string_view guess = nearest(name, names);
    if (guess.empty()) {
        return usage_error("", fmt::format("unknown verb '{}', expected one of {}", name, fmt::join(names, ", ")));
    }
    return usage_error("", fmt::format("unknown verb '{}', did you mean '{}'?", name, guess));
}

}  // namespace
}  // namespace vecinfer::cli

int main(int argc, char** argv) {
    return vecinfer::cli::run_program([&] { return vecinfer::cli::dispatch(argc, argv); });
}
