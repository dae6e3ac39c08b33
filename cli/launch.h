// Assembles the command line and environment of a stock llama.cpp tool, and hands over to it.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "process.h"
#include "vecinfer/status.h"

namespace vecinfer::cli {

/// Name of the plugin's device in llama.cpp.
inline constexpr std::string_view kDevice = "VecInfer";

struct LaunchRequest {
    std::filesystem::path program;
    std::string model;                               // empty: the user gave it after "--"
    std::string scheme;                              // any spelling; ignored without a plugin
    std::optional<std::filesystem::path> plugin;     // nullopt: the plain stock tool
    std::optional<std::filesystem::path> codebooks;  // nullopt: data-free
    std::string flash_attention = "on";              // value of -fa
    std::vector<std::string> defaults;               // further switches that the verb adds
    std::vector<std::string> passthrough;            // what the user gave after "--"
    bool value_lists = false;                        // the tool runs every value of "0,1" and of repeated options (llama-bench)
};

struct Launch {
    std::filesystem::path program;
    std::vector<std::string> argv;  // argv[0] is the program
    Environment environment;        // changes to this process's environment
};

/// Adds `-m`, `-dev VecInfer` (with a plugin) and `-fa`, each unless the user gave it, before the arguments of the user. With the
/// plugin's device LLAMA_ARG_FIT=off too, unless the user has an opinion: llama.cpp would rather move layers that do not fit into
/// memory to an f16 cache than say so. A variable, as llama.cpp's releases differ in whether they know the option.
Launch build_launch(const LaunchRequest& request);

/// Whether `arguments` hold an option under one of `names`. Values of prompt options are not taken for options.
bool has_option(std::span<const std::string> arguments, std::span<const std::string_view> names);
/// Values of every occurrence.
std::vector<std::string> option_values(std::span<const std::string> arguments, std::span<const std::string_view> names);

/// Models that the user gave after "--". `comma_separated`: one option may name several, as llama-bench allows.
std::vector<std::string> passthrough_models(std::span<const std::string> arguments, bool comma_separated);

/// One line for everything in the user's arguments that keeps the cache from being compressed.
std::vector<std::string> passthrough_warnings(const LaunchRequest& request);

/// One line for everything else that may surprise: a context that lies in the window as a whole, layers that may be moved.
std::vector<std::string> passthrough_notes(const LaunchRequest& request);

/// An error for arguments of the user, or variables of llama.cpp, under which a compressed cache cannot run: flash attention off,
/// cache types other than f16. ok() if the cache is not compressed anyway.
Status check_passthrough(const LaunchRequest& request);

/// A line that a POSIX shell runs to the same effect, e.g. `env VECINFER_SCHEME=f16 llama-cli -m 'my model.gguf'`.
std::string shell_line(const Launch& launch);

/// Replaces this process; returns only on failure.
Status hand_over(const Launch& launch);

}  // namespace vecinfer::cli
