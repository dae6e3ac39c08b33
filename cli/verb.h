// What every verb of the command shares: its arguments, exit codes and the one way to report.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vecinfer/status.h"

namespace CLI {
class App;
}

namespace vecinfer::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;  // the command line itself is wrong

inline constexpr std::string_view kDefaultScheme = "vecinfer:k2v2";

struct VerbCall {
    std::vector<std::string> args;         // after the verb, before the first "--"
    std::vector<std::string> passthrough;  // after the first "--", untouched
    bool has_separator = false;            // whether there was one
};

struct Verb {
    std::string_view name;
    std::string_view summary;  // one line
    int (*run)(const VerbCall& call);
};

int run_run(const VerbCall& call);
int run_serve(const VerbCall& call);
int run_perplexity(const VerbCall& call);
int run_bench(const VerbCall& call);
int run_bench_kernels(const VerbCall& call);
int run_calibrate(const VerbCall& call);
int run_compare(const VerbCall& call);
int run_inspect(const VerbCall& call);
int run_info(const VerbCall& call);
int run_doctor(const VerbCall& call);

/// Prints "vecinfer: error: <message>" on one line of stderr and returns kExitFailure.
int fail(std::string_view message);
/// The same with kExitUsage, pointing to the help of `verb` (empty: of the command).
int usage_error(std::string_view verb, std::string_view message);
/// Prints "vecinfer: <message>" on one line of stderr.
void note(std::string_view message);

/// Lays out the help of a verb: `usage` follows the verb's name, `examples` ends the text.
void set_up_help(CLI::App& app, std::string_view usage, std::string_view examples);

enum class Parsed { proceed, finished };
/// Parses call.args. `finished`: help was printed or an error reported, and `exit_code` says how to leave. Unless the verb takes
/// arguments after "--" (`passthrough_tool` names who gets them), they are refused.
Parsed parse_args(CLI::App& app, std::string_view verb, const VerbCall& call, std::string_view passthrough_tool, int& exit_code);

/// The candidate that is closest to `word` by edit distance, empty if none is close.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace vecinfer::cli
