#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "health.h"
#include "vecinfer/version.h"
#include "verb.h"

namespace vecinfer::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kExamples = R"(
Examples:
  vecinfer doctor
  vecinfer doctor --tools-dir llama.cpp/build/bin
  vecinfer doctor --json

Exit status 1 if something is broken; warnings alone give 0.
)";

Json or_null(const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
}

Json report_json(const Health& health) {
    Json tools = Json::array();
    for (const ToolHealth& tool : health.tools) {
        tools.push_back({{"name", tool.name},
                         {"path", or_null(tool.path)},
                         {"version", or_null(tool.version)},
                         {"ggml_version", or_null(tool.ggml_version)},
                         {"ggml_library", or_null(tool.ggml_library)}});
    }
    Json helpers = Json::array();
    for (const HelperHealth& helper : health.helpers) {
        helpers.push_back({{"name", helper.name}, {"path", or_null(helper.path)}});
    }
    Json variables = Json::array();
    for (const VariableHealth& variable : health.variables) {
        variables.push_back({{"name", variable.name},
                             {"value", variable.value},
                             {"checked_as", or_null(variable.checked_as)},
                             {"problem", or_null(variable.problem)}});
    }
    Json problems = Json::array();
    for (const Problem& problem : health.problems) {
        problems.push_back(
            {{"severity", problem.is_error ? "error" : "warning"}, {"what", problem.what}, {"remedy", problem.remedy}});
    }
    return {{"version", version()},
            {"commit", build_commit()},
            {"isa", {{"selected", or_null(health.isa)}, {"available", available_isa_names()}}},
            {"tools", tools},
            {"plugin",
             {{"path", or_null(health.plugin)},
              {"built_for", or_null(health.plugin_built_for)},
              {"loads", health.plugin_loads ? Json(*health.plugin_loads) : Json(nullptr)}}},
            {"helpers", helpers},
            {"environment", variables},
            {"problems", problems},
            {"ok", health.ok()}};
}

void print_report(const Health& health) {
    fmt::print("vecinfer     {} (commit {})\n", version(), build_commit());
    fmt::print("cpu          {} in use, available: {}\n", health.isa.empty() ? "nothing valid" : health.isa,
               fmt::join(available_isa_names(), ", "));
    for (const ToolHealth& tool : health.tools) {
        if (tool.path.empty()) {
            fmt::print("{:<22} not found\n", tool.name);
        } else {
            fmt::print("{:<22} {} ({}; ggml {})\n", tool.name, tool.path, tool.version.empty() ? "version unknown" : tool.version,
                       tool.ggml_version.empty() ? "version unknown" : tool.ggml_version);
        }
    }
    if (health.plugin.empty()) {
        fmt::print("plugin       not found\n");
    } else {
        fmt::print("plugin       {} (built for ggml {}){}\n", health.plugin,
                   health.plugin_built_for.empty() ? "unknown" : health.plugin_built_for,
                   !health.plugin_loads   ? ""
                   : *health.plugin_loads ? ", loads"
                                          : ", does not load");
    }
    for (const HelperHealth& helper : health.helpers) {
        fmt::print("{:<22} {}\n", helper.name, helper.path.empty() ? "not found" : helper.path);
    }
    for (const VariableHealth& variable : health.variables) {
        fmt::print("environment  {}={} ({})\n", variable.name, variable.value,
                   !variable.problem.empty()     ? "wrong, see below"
                   : variable.checked_as.empty() ? "not used by vecinfer"
                                                 : "valid: " + variable.checked_as);
    }
    for (const Problem& problem : health.problems) {
        fmt::print("{}: {}\n  remedy: {}\n", problem.is_error ? "error" : "warning", problem.what, problem.remedy);
    }
    if (health.problems.empty()) {
        fmt::print("everything is in place\n");
    }
}

}  // namespace

int run_doctor(const VerbCall& call) {
    std::string tools_dir;
    bool json = false;
    CLI::App app{"Shows what is installed, and what is wrong with a remedy for each.", "vecinfer doctor"};
    app.add_option("--tools-dir", tools_dir, "folder of the llama.cpp tools (default: VECINFER_TOOLS, then PATH)")
        ->type_name("DIR");
    app.add_flag("--json", json, "print JSON");
    set_up_help(app, "[OPTIONS]", kExamples);
    int exit_code = kExitOk;
    if (parse_args(app, "doctor", call, "", exit_code) == Parsed::finished) {
        return exit_code;
    }

    const Health health = examine(tools_dir);
    if (json) {
        fmt::print("{}\n", report_json(health).dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        print_report(health);
    }
    return health.ok() ? kExitOk : kExitFailure;
}

}  // namespace vecinfer::cli
