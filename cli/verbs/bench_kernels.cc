#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "environment.h"
#include "launch.h"
#include "locate.h"
#include "scheme_option.h"
#include "vecinfer/scheme.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kExamples = R"(
Examples:
  vecinfer bench-kernels                                     both default shapes at 1k, 8k and 32k tokens
  vecinfer bench-kernels --shape 32/8x128 --kv-len 131072
  vecinfer bench-kernels --scheme vecinfer:k4v4 --scheme vecinfer:k1v1 --kv-len 8192
  VECINFER_ISA=avx2 vecinfer bench-kernels                   other kernels on the same machine

One token attends to a packed cache; ggml's f16 flash attention does the same in the same process, in turns. Caches are cold. A
line per measurement goes to stderr, JSON with hardware, instruction set, commit and medians to stdout.
)";

constexpr int kLongest = 1 << 22;       // cells of a cache
constexpr int kShortestDefault = 1024;  // of --kv-len

bool is_shape(const std::string& text) {
    int num_qo_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    int end = 0;
    return std::sscanf(text.c_str(), "%5d/%5dx%5d%n", &num_qo_heads, &num_kv_heads, &head_dim, &end) == 3 &&
           end == static_cast<int>(text.size()) && num_qo_heads > 0 && num_kv_heads > 0 && num_qo_heads % num_kv_heads == 0 &&
           head_dim > 0 && head_dim % 8 == 0;
}

// One that has data-free codebooks.
Status check_measurable(const std::string& text) {
    const Result<Scheme> parsed = parse_scheme(text);
    const Result<Scheme> scheme = parsed.ok() ? resolve(parsed.value(), false) : parsed;
    if (!scheme.ok()) {
        return scheme.status();
    }
    if (scheme->key.kind != CodecKind::vq || scheme->value.kind != CodecKind::vq) {
        return argument_error("scheme", text, "one whose keys and values have codebooks, e.g. vecinfer:k2v2");
    }
    return {};
}

}  // namespace

int run_bench_kernels(const VerbCall& call) {
    std::vector<std::string> shapes;
    std::vector<int> lengths;
    std::vector<std::string> schemes;
    std::string tools_dir;
    int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    int repeats = 7;
    int tokens = 1;
    bool dry_run = false;
    CLI::App app{"Measures the attention kernels against ggml's f16 flash attention on the CPU.", "vecinfer bench-kernels"};
    app.add_option("--shape", shapes, "query heads/KV heads x head_dim (default 9/3x64 and 32/8x128)")
        ->allow_extra_args(false)
        ->check([](const std::string& text) {
            return is_shape(text) ? "" : "got " + text + ", expected query heads/KV heads x head_dim, e.g. 9/3x64";
        })
        ->type_name("Q/KVxD");
    app.add_option("--kv-len", lengths, "tokens in the cache (default 1024, 8192, 32768)")
        ->allow_extra_args(false)
        ->check(CLI::Range(1, kLongest))
        ->type_name("N");
    app.add_option("-s,--scheme", schemes, fmt::format("scheme (default {})", kDefaultScheme))
        ->allow_extra_args(false)
        ->type_name("SCHEME");
    app.add_option("--tokens", tokens, "query tokens of a call, the last of the context (default 1)")
        ->check(CLI::Range(1, 1 << 14))
        ->type_name("N");
    app.add_option("-t,--threads", threads, "threads (default: all cores)")->check(CLI::Range(1, 512))->type_name("N");
    app.add_option("--repeats", repeats, "rounds whose median is taken (default 7)")->check(CLI::Range(1, 1000))->type_name("N");
    app.add_option("--tools-dir", tools_dir,
                   fmt::format("folder of {} (default: where it was built or installed)", kBenchKernelsHelper))
        ->type_name("DIR");
    app.add_flag("--dry-run", dry_run, "print the command line instead of running it");
    set_up_help(app, "[OPTIONS]", kExamples);
    int exit_code = kExitOk;
    if (parse_args(app, "bench-kernels", call, "", exit_code) == Parsed::finished) {
        return exit_code;
    }
    for (const std::string& scheme : schemes) {
        if (const Status status = check_measurable(scheme); !status.ok()) {
            return scheme_error(status.message());
        }
    }
    for (const int length : lengths.empty() ? std::vector<int>{kShortestDefault} : lengths) {
        if (tokens > length) {
            return usage_error(
                "bench-kernels",
                argument_error("--tokens", std::to_string(tokens), fmt::format("at most the {} of --kv-len", length)).message());
        }
    }
    if (const Status status = check_environment({.tools = tools_dir.empty()}); !status.ok()) {
        return fail(status.message());
    }
    const Result<fs::path> helper = find_helper(kBenchKernelsHelper, tools_dir);
    if (!helper.ok()) {
        return fail(helper.status().message());
    }
    Launch launch{.program = helper.value(),
                  .argv = {helper->string(), "--threads", std::to_string(threads), "--repeats", std::to_string(repeats),
                           "--tokens", std::to_string(tokens)}};
    const auto add = [&](const char* option, const std::string& value) {
        launch.argv.insert(launch.argv.end(), {option, value});
    };
    for (const std::string& shape : shapes) {
        add("--shape", shape);
    }
    for (const int length : lengths) {
        add("--kv-len", std::to_string(length));
    }
    for (const std::string& scheme : schemes) {
        add("--scheme", scheme);
    }
    if (dry_run) {
        fmt::print("{}\n", shell_line(launch));
        return kExitOk;
    }
    return fail(hand_over(launch).message());
}

}  // namespace vecinfer::cli
