#include "launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "vecinfer/scheme.h"

namespace vecinfer::cli {
namespace {

using namespace std::string_view_literals;

constexpr std::array kModelOptions = {"-m"sv, "--model"sv};
constexpr std::array kDeviceOptions = {"-dev"sv, "--device"sv};
constexpr std::array kFlashOptions = {"-fa"sv, "--flash-attn"sv};
constexpr std::array kOff = {"off"sv, "0"sv, "false"sv, "disabled"sv};
constexpr std::array kKeyTypeOptions = {"-ctk"sv, "--cache-type-k"sv};
constexpr std::array kValueTypeOptions = {"-ctv"sv, "--cache-type-v"sv};
constexpr std::array kLayerOptions = {"-ngl"sv, "--gpu-layers"sv, "--n-gpu-layers"sv};
constexpr std::array kContextOptions = {"-c"sv, "--ctx-size"sv};
constexpr std::array kFitOptions = {"-fit"sv, "--fit"sv, "-fitt"sv, "--fit-target"sv, "-fitc"sv, "--fit-ctx"sv};
constexpr std::array kFitSwitches = {"-fit"sv, "--fit"sv};
constexpr const char* kFitVariable = "LLAMA_ARG_FIT";
constexpr std::array kOffloadOptions = {"-nkvo"sv, "--no-kv-offload"sv};
// Their values are free text, which may look like an option.
constexpr std::array kTextOptions = {"-p"sv, "--prompt"sv, "-sys"sv, "--system-prompt"sv, "-r"sv, "--reverse-prompt"sv};

// llama.cpp takes underscores for hyphens in long options.
std::string spelled(const std::string& argument) {
    std::string name = argument;
    if (name.starts_with("--")) {
        std::replace(name.begin(), name.end(), '_', '-');
    }
    return name;
}

bool contains(std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::size_t> occurrences(std::span<const std::string> arguments, std::span<const std::string_view> names) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const std::string name = spelled(arguments[i]);
        if (contains(names, name)) {
            found.push_back(i);
        }
        if (contains(kTextOptions, name)) {
            ++i;
        }
    }
    return found;
}

std::vector<std::string> split_at_commas(const std::string& list) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        parts.push_back(list.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

bool all_in(std::span<const std::string> values, std::span<const std::string_view> wanted) {
    return !values.empty() &&
           std::all_of(values.begin(), values.end(), [&](const std::string& v) { return contains(wanted, v); });
}

// The values of an option that the tool will use: the last one, or all of all lists.
std::vector<std::string> values_in_force(const LaunchRequest& request, std::span<const std::string_view> names) {
    const std::vector<std::string> given = option_values(request.passthrough, names);
    if (request.value_lists) {
        std::vector<std::string> all;
        for (const std::string& list : given) {
            for (const std::string& value : split_at_commas(list)) {
                all.push_back(value);
            }
        }
        return all;
    }
    return given.empty() ? given : std::vector<std::string>{given.back()};
}

bool leaves_out_plugin(const LaunchRequest& request) {
    const auto devices = option_values(request.passthrough, kDeviceOptions);
    return !request.plugin || (!devices.empty() && std::none_of(devices.begin(), devices.end(), [](const std::string& d) {
        return d.find(kDevice) != std::string::npos;
    }));
}

std::string quoted(const std::string& word) {
    constexpr auto kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%"sv;
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
        return word;
    }
    std::string text = "'";
    for (const char c : word) {
        if (c == '\'') {
            text += "'\\''";
        } else {
            text += c;
        }
    }
    return text + "'";
}

}  // namespace

bool has_option(std::span<const std::string> arguments, std::span<const std::string_view> names) {
    return !occurrences(arguments, names).empty();
}

std::vector<std::string> option_values(std::span<const std::string> arguments, std::span<const std::string_view> names) {
    std::vector<std::string> values;
    for (const std::size_t i : occurrences(arguments, names)) {
        if (i + 1 < arguments.size()) {
            values.push_back(arguments[i + 1]);
        }
    }
    return values;
}

std::vector<std::string> passthrough_models(std::span<const std::string> arguments, bool comma_separated) {
    if (!comma_separated) {
        return option_values(arguments, kModelOptions);
    }
    std::vector<std::string> models;
    for (const std::string& value : option_values(arguments, kModelOptions)) {
        const std::vector<std::string> parts = split_at_commas(value);
        models.insert(models.end(), parts.begin(), parts.end());
    }
    return models;
}

Launch build_launch(const LaunchRequest& request) {
    Launch launch{.program = request.program, .argv = {request.program.string()}};
    const auto add = [&](std::initializer_list<std::string> words) { launch.argv.insert(launch.argv.end(), words); };

    if (!request.model.empty()) {
        add({"-m", request.model});
    }
    if (request.plugin && !has_option(request.passthrough, kDeviceOptions)) {
        add({"-dev", std::string(kDevice)});
    }
    if (!has_option(request.passthrough, kFlashOptions)) {
        add({"-fa", request.flash_attention});
    }
    launch.argv.insert(launch.argv.end(), request.defaults.begin(), request.defaults.end());
    launch.argv.insert(launch.argv.end(), request.passthrough.begin(), request.passthrough.end());

    // llama-bench, which takes lists of values, moves layers only if it is asked to.
    const bool fit_is_given = has_option(request.passthrough, kFitOptions) || environment_value(kFitVariable);
    if (!leaves_out_plugin(request) && !request.value_lists && !fit_is_given) {
        launch.environment.emplace_back(kFitVariable, "off");
    }
    if (request.plugin) {
        launch.environment.emplace_back("GGML_BACKEND_PATH", request.plugin->string());
        launch.environment.emplace_back("VECINFER_SCHEME", request.scheme);
        launch.environment.emplace_back("VECINFER_CODEBOOKS", request.codebooks ? request.codebooks->string() : "none");
    } else {
        for (const char* name : {"GGML_BACKEND_PATH", "VECINFER_SCHEME", "VECINFER_CODEBOOKS"}) {
            launch.environment.emplace_back(name, std::nullopt);
        }
    }
    return launch;
}

std::vector<std::string> passthrough_warnings(const LaunchRequest& request) {
    std::vector<std::string> warnings;
    if (!request.plugin) {
        return warnings;
    }
    const std::span<const std::string> arguments = request.passthrough;
    if (leaves_out_plugin(request)) {
        warnings.push_back(fmt::format("warning: -dev {} leaves out {}, so the cache will not be compressed",
                                       option_values(arguments, kDeviceOptions).back(), kDevice));
    }
    const auto layers = option_values(arguments, kLayerOptions);
    if (all_in(layers, std::array{"0"sv})) {
        warnings.push_back("warning: -ngl 0 keeps the cache on the stock CPU device, so it will not be compressed");
    }
    const auto offload = occurrences(arguments, kOffloadOptions);
    // llama-bench's -nkvo takes a value, the other tools' does not.
    if (!offload.empty() && !all_in(option_values(arguments, kOffloadOptions), std::array{"0"sv})) {
        warnings.push_back("warning: -nkvo keeps the cache on the stock CPU device, so it will not be compressed");
    }
    return warnings;
}

std::vector<std::string> passthrough_notes(const LaunchRequest& request) {
    std::vector<std::string> notes;
    const Result<Scheme> scheme = parse_scheme(request.scheme);
    if (!request.plugin || !scheme.ok() || scheme->is_f16() || !passthrough_warnings(request).empty()) {
        return notes;
    }
    const std::vector<std::string> contexts = option_values(request.passthrough, kContextOptions);
    const long context = contexts.empty() ? 0 : std::strtol(contexts.back().c_str(), nullptr, 10);
    const WindowSpec& window = scheme->window;
    if (context > 0 && context <= window.recent + window.sink) {
        notes.push_back(
            fmt::format("note: with -c {} nothing is read from codes: the window of {} keeps the latest {} and the first {} "
                        "tokens in f16",
                        context, request.scheme, window.recent, window.sink));
    }

    std::vector<std::string> fits = option_values(request.passthrough, kFitSwitches);
    if (fits.empty() && has_option(request.passthrough, kFitOptions)) {
        fits.emplace_back("on");
    } else if (const auto value = environment_value(kFitVariable); fits.empty() && value && !request.value_lists) {
        fits.push_back(*value);
    }
    if (!fits.empty() && !contains(kOff, fits.back())) {
        notes.push_back(
            "note: -fit on: layers whose cache does not fit into memory may move to the stock CPU device, where they are not "
            "compressed");
    }
    return notes;
}

Status check_passthrough(const LaunchRequest& request) {
    if (!request.plugin || request.scheme == "f16" || !passthrough_warnings(request).empty()) {
        return {};
    }
    const auto refused = [&](std::string_view argument, std::string_view got, std::string_view expected) {
        return argument_error(
            argument, got, fmt::format("{} with scheme {}; --no-plugin runs the stock tool as it is", expected, request.scheme));
    };
    for (const std::string& value : values_in_force(request, kFlashOptions)) {
        if (contains(kOff, value)) {
            return refused(kFlashOptions[0], value, "on, as only flash attention reads a compressed cache,");
        }
    }
    for (const auto& [options, variable] :
         {std::pair(std::span<const std::string_view>(kKeyTypeOptions), "LLAMA_ARG_CACHE_TYPE_K"),
          {std::span<const std::string_view>(kValueTypeOptions), "LLAMA_ARG_CACHE_TYPE_V"}}) {
        std::vector<std::string> values = values_in_force(request, options);
        std::string_view argument = options[0];
        if (const auto value = environment_value(variable); values.empty() && value && !request.value_lists) {
            values.push_back(*value);
            argument = variable;
        }
        for (const std::string& value : values) {
            if (value != "f16") {
                return refused(argument, value, "f16, which is what the plugin compresses,");
            }
        }
    }
    return {};
}

std::string shell_line(const Launch& launch) {
    std::string unset;
    std::string set;
    for (const auto& [name, value] : launch.environment) {
        if (value) {
            set += fmt::format(" {}={}", name, quoted(*value));
        } else if (environment_value(name.c_str())) {
            unset += fmt::format(" -u {}", name);
        }
    }
    std::string line = unset.empty() && set.empty() ? "" : fmt::format("env{}{} ", unset, set);
    for (std::size_t i = 0; i < launch.argv.size(); ++i) {
        line += i ? " " : "";
        line += quoted(launch.argv[i]);
    }
    return line;
}

Status hand_over(const Launch& launch) {
    apply(launch.environment);
    std::vector<char*> pointers;
    pointers.reserve(launch.argv.size() + 1);
    for (const std::string& argument : launch.argv) {
        pointers.push_back(const_cast<char*>(argument.c_str()));
    }
    pointers.push_back(nullptr);
    std::fflush(nullptr);
    execv(launch.program.c_str(), pointers.data());
    return Status(ErrorCode::io_error, fmt::format("cannot start {}: {}", launch.program.string(), std::strerror(errno)));
}

}  // namespace vecinfer::cli
