#include "environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "locate.h"
#include "process.h"
#include "sidecar_choice.h"
#include "vecinfer/scheme.h"
#include "vecinfer/version.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

struct Variable {
    std::string_view name;
    std::string_view right_value;
};
constexpr std::array kVariables = {
    Variable{"VECINFER_SCHEME", "a scheme"},
    Variable{"VECINFER_CODEBOOKS", "none, or sidecars that can be read"},
    Variable{"VECINFER_ISA", "an instruction set of this CPU"},
    Variable{"VECINFER_QUIET", "0 or 1"},
    Variable{"VECINFER_TOOLS", "a folder"},
    Variable{"VECINFER_PLUGIN", "the file of VecInfer's plugin"},
    Variable{"GGML_BACKEND_PATH", "the file of VecInfer's plugin"},
};

Status named(std::string_view name, const Status& status) {
    return status.ok() ? status : Status(status.code(), fmt::format("{}: {}", name, status.message()));
}

}  // namespace

std::optional<std::string_view> right_value_of(std::string_view name) {
    const auto* found =
        std::find_if(kVariables.begin(), kVariables.end(), [&](const Variable& variable) { return variable.name == name; });
    return found == kVariables.end() ? std::nullopt : std::optional(found->right_value);
}

Status check_variable(const std::string& name, const std::string& value) {
    std::error_code error;
    if (name == "VECINFER_SCHEME") {
        return named(name, parse_scheme(value).status());
    }
    if (name == "VECINFER_CODEBOOKS") {
        return named(name, value == "none" ? Status() : check_codebooks(value));
    }
    if (name == "VECINFER_ISA") {
        return selected_isa_name().status();  // names the variable itself
    }
    const std::optional<std::string_view> right = right_value_of(name);
    const bool is_right = !right                     ? true
                          : name == "VECINFER_QUIET" ? value == "0" || value == "1"
                          : name == "VECINFER_TOOLS" ? fs::is_directory(value, error)
                                                     : fs::is_regular_file(value, error) && plugin_built_for(value);
    return is_right ? Status() : argument_error(name, value, *right);
}

Status check_environment(const EnvironmentUse& use) {
    std::vector<const char*> names;
    if (use.tools) {
        names.push_back("VECINFER_TOOLS");
    }
    if (use.plugin) {
        names.insert(names.end(), {environment_value("VECINFER_PLUGIN") ? "VECINFER_PLUGIN" : "GGML_BACKEND_PATH", "VECINFER_ISA",
                                   "VECINFER_QUIET"});
    }
    if (use.codebooks) {
        names.push_back("VECINFER_CODEBOOKS");
    }
    for (const char* name : names) {
        const std::optional<std::string> value = environment_value(name);
        if (const Status status = value ? check_variable(name, *value) : Status(); !status.ok()) {
            return status;
        }
    }
    return {};
}

}  // namespace vecinfer::cli
