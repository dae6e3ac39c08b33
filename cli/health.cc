#include "health.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "environment.h"
#include "launch.h"
#include "locate.h"
#include "process.h"
#include "sidecar_choice.h"
#include "vecinfer/scheme.h"
#include "vecinfer/version.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

using namespace std::string_view_literals;

constexpr std::array kTools = {"llama-completion"sv, "llama-cli"sv, "llama-server"sv, "llama-perplexity"sv, "llama-bench"sv};
constexpr int kTimeoutSeconds = 20;
constexpr std::string_view kPrefix = "VECINFER_";

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        lines.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return lines;
}

// "version: 0.5.0-dev (build 0, commit unknown)" without its first word.
std::string version_of(const std::string& program) {
    const Result<Captured> ran = capture({program, "--version"}, {}, kTimeoutSeconds);
    if (!ran.ok() || ran->exit_code != 0) {
        return "";
    }
    constexpr std::string_view kLabel = "version: ";
    for (const std::string& line : lines_of(ran->output)) {
        if (line.starts_with(kLabel)) {
            return line.substr(kLabel.size());
        }
    }
    return "";
}

// libggml-base.so as the dynamic loader finds it for `program`, which is not run.
std::string ggml_library_of(const std::string& program) {
    const Result<Captured> traced = capture({program}, {{"LD_TRACE_LOADED_OBJECTS", "1"}}, kTimeoutSeconds);
    if (!traced.ok()) {
        return "";
    }
    for (const std::string& line : lines_of(traced->output)) {
        const std::size_t arrow = line.find(" => ");
        if (line.find("libggml-base.so") == std::string::npos || arrow == std::string::npos) {
            continue;
        }
        const std::string path = line.substr(arrow + 4, line.rfind(" (") - arrow - 4);
        std::error_code error;
        const fs::path real = fs::canonical(path, error);
        return error ? path : real.string();
    }
    return "";
}

bool is_elf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::array<char, 4> magic{};
    file.read(magic.data(), magic.size());
    return file.gcount() == 4 && std::string_view(magic.data(), 4) ==
                                     "\x7f"
                                     "ELF";
}

// "0.25.3" of ".../libggml-base.so.0.25.3"; empty if the file name carries no full version.
std::string library_version(const std::string& library) {
    const std::size_t begin = library.rfind(".so.");
    const std::string version = begin == std::string::npos ? "" : library.substr(begin + 4);
    return std::count(version.begin(), version.end(), '.') == 2 ? version : "";
}

Result<Scheme> default_scheme() {
    return parse_scheme(kDefaultScheme);
}

void add(Health& health, bool is_error, std::string what, std::string remedy) {
    health.problems.push_back({is_error, std::move(what), std::move(remedy)});
}

void examine_tools(const std::string& tools_dir, Health& health) {
    std::string last_error;
    std::vector<std::string> missing;
    for (const std::string_view name : kTools) {
        ToolHealth tool{.name = std::string(name)};
        const Result<fs::path> found = find_tool(name, tools_dir);
        if (found.ok()) {
            tool.path = found.value().string();
            tool.version = version_of(tool.path);
            tool.ggml_library = ggml_library_of(tool.path);
            tool.ggml_version = library_version(tool.ggml_library);
            if (tool.version.empty()) {
                add(health, true, fmt::format("{} does not run: {} --version fails", name, tool.path),
                    "run it by hand; a missing shared library means that llama.cpp moved after it was built");
            } else if (tool.ggml_library.empty() && is_elf(tool.path)) {
                add(health, true, fmt::format("{} is linked statically, so it cannot load a plugin", tool.path),
                    "build llama.cpp with -DBUILD_SHARED_LIBS=ON");
            }
        } else {
            missing.push_back(tool.name);
            last_error = found.status().message();
        }
        health.tools.push_back(tool);
    }
    if (missing.size() == kTools.size()) {
        add(health, true, fmt::format("no llama.cpp tool found ({})", last_error),
            "build llama.cpp and name its build/bin folder in VECINFER_TOOLS or --tools-dir");
    } else if (!missing.empty()) {
        add(health, false, fmt::format("not found: {}", fmt::join(missing, ", ")),
            "build all of llama.cpp's tools if you need these verbs");
    }
}

// Loads the plugin in a child: a tool that triggers loading prints the devices.
std::optional<bool> loads(const Health& health, std::string& output) {
    for (const std::string_view name : {"llama-bench"sv, "llama-server"sv}) {
        const auto tool =
            std::find_if(health.tools.begin(), health.tools.end(), [&](const ToolHealth& t) { return t.name == name; });
        if (tool == health.tools.end() || tool->version.empty()) {
            continue;
        }
        const Environment environment = {{"GGML_BACKEND_PATH", health.plugin},
                                         {"VECINFER_SCHEME", std::string(kDefaultScheme)},
                                         {"VECINFER_CODEBOOKS", "none"}};
        const Result<Captured> ran = capture({tool->path, "--list-devices"}, environment, kTimeoutSeconds);
        if (!ran.ok()) {
            output = ran.status().message();
            return false;
        }
        output = ran->output;
        return ran->exit_code == 0 && ran->output.find(std::string(kDevice) + ":") != std::string::npos;
    }
    return std::nullopt;
}

void examine_plugin(Health& health) {
    const std::string rebuild = "rebuild it with -DVECINFER_LLAMA_CPP=<source tree of the llama.cpp whose tools are used>";
    const Result<fs::path> plugin = find_plugin();
    if (!plugin.ok()) {
        add(health, true, plugin.status().message(), "build the plugin, or correct the variable");
        return;
    }
    health.plugin = plugin.value().string();
    health.plugin_built_for = plugin_built_for(plugin.value()).value_or("");
    if (health.plugin_built_for.empty()) {
        add(health, true,
            fmt::format("{} does not say which llama.cpp it was built for, so it is not VecInfer's plugin or is damaged",
                        health.plugin),
            "name the right file in VECINFER_PLUGIN");
        return;
    }
    const std::string wanted = health.plugin_built_for.substr(0, health.plugin_built_for.find(' '));
    bool mismatch = false;
    for (const ToolHealth& tool : health.tools) {
        if (tool.ggml_version.empty() || tool.ggml_version == wanted) {
            continue;
        }
        mismatch = true;
        add(health, true,
            fmt::format("{} uses ggml {}, the plugin was built for ggml {}", tool.name, tool.ggml_version,
                        health.plugin_built_for),
            rebuild);
    }
    std::string output;
    health.plugin_loads = loads(health, output);
    if (health.plugin_loads == false && !mismatch) {
        const std::vector<std::string> lines = lines_of(output);
        const auto telling = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
            return line.find("vecinfer") != std::string::npos || line.find("failed") != std::string::npos;
        });
        add(health, true,
            fmt::format("the plugin {} does not load{}", health.plugin, telling == lines.end() ? "" : ": " + *telling), rebuild);
    }
}

void examine_helpers(const std::string& tools_dir, Health& health) {
    struct Helper {
        std::string_view name;
        std::string_view needed_by;
    };
    constexpr std::array kHelpers = {
        Helper{kCalibrateHelper, "`vecinfer calibrate` and `vecinfer compare --calibration-text` need"},
        Helper{kRetrieveHelper, "`vecinfer compare` needs"}, Helper{kInspectHelper, "`vecinfer inspect` needs"},
        Helper{kBenchKernelsHelper, "`vecinfer bench-kernels` needs"}};
    for (const Helper& helper : kHelpers) {
        const Result<fs::path> found = find_helper(helper.name, tools_dir);
        health.helpers.push_back({std::string(helper.name), found.ok() ? found->string() : ""});
        if (!found.ok()) {
            add(health, false, found.status().message(),
                fmt::format("build the plugin, the helpers come with it; only {} this one", helper.needed_by));
        }
    }
    const Result<fs::path> gnuplot = find_on_path("gnuplot");
    health.helpers.push_back({"gnuplot", gnuplot.ok() ? gnuplot->string() : ""});
    if (!gnuplot.ok()) {
        add(health, false, gnuplot.status().message(),
            "install it (Debian package gnuplot-nox) if you want pictures in the pages of `vecinfer compare` and `vecinfer "
            "inspect`");
    }
}

// A scheme that must be calibrated, and nothing that says with what.
void examine_calibration(Health& health) {
    const auto text = environment_value("VECINFER_SCHEME");
    const auto codebooks = environment_value("VECINFER_CODEBOOKS");
    const Result<Scheme> scheme = text ? parse_scheme(*text) : default_scheme();
    if (!scheme.ok() || (codebooks && !check_variable("VECINFER_CODEBOOKS", *codebooks).ok())) {
        return;  // said already
    }
    if (codebooks) {
        if (const Status status = choose_sidecar("", text ? std::optional(scheme.value()) : std::nullopt, codebooks).status();
            !status.ok()) {
            add(health, true, fmt::format("VECINFER_SCHEME and VECINFER_CODEBOOKS do not go together: {}", status.message()),
                "correct or unset one of them");
        }
    } else if (!resolve(scheme.value(), false).ok()) {
        add(health, false, fmt::format("VECINFER_SCHEME: {} needs a sidecar, and VECINFER_CODEBOOKS names none", *text),
            fmt::format("`vecinfer calibrate -m MODEL -f TEXT --scheme {}` writes one beside each model that you use", *text));
    }
}

void examine_environment(Health& health) {
    constexpr std::array kKnown = {"SCHEME"sv, "CODEBOOKS"sv, "ISA"sv, "TOOLS"sv, "PLUGIN"sv, "QUIET"sv};
    std::vector<std::string> names;
    for (char** entry = environ; *entry; ++entry) {
        const std::string_view text = *entry;
        const std::string_view name = text.substr(0, text.find('='));
        if ((name.starts_with(kPrefix) || name == "GGML_BACKEND_PATH") && environment_value(std::string(name).c_str())) {
            names.emplace_back(name);
        }
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
        VariableHealth variable{.name = name, .value = *environment_value(name.c_str())};
        if (const auto right = right_value_of(name)) {
            variable.checked_as = *right;
            variable.problem = check_variable(name, variable.value).message();
            if (!variable.problem.empty()) {
                add(health, true, variable.problem, fmt::format("correct or unset {}", name));
            }
        } else if (const std::string_view guess = nearest(name.substr(kPrefix.size()), kKnown); !guess.empty()) {
            variable.problem = fmt::format("no such variable, did you mean {}{}?", kPrefix, guess);
            add(health, false, fmt::format("{}: {}", name, variable.problem), fmt::format("rename or unset {}", name));
        }
        health.variables.push_back(variable);
    }
    examine_calibration(health);
}

}  // namespace

bool Health::ok() const {
    return std::none_of(problems.begin(), problems.end(), [](const Problem& problem) { return problem.is_error; });
}

Health examine(const std::string& tools_dir) {
    Health health;
    const Result<std::string_view> isa = selected_isa_name();
    if (isa.ok()) {
        health.isa = isa.value();
    }
    examine_tools(tools_dir, health);
    examine_plugin(health);
    examine_helpers(tools_dir, health);
    examine_environment(health);
    return health;
}

}  // namespace vecinfer::cli
