// The variables that configure VecInfer. doctor and every verb that uses them check them with the same functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "vecinfer/status.h"

namespace vecinfer::cli {

/// What a right value of a variable is, e.g. "a folder"; nullopt if VecInfer does not use the variable.
std::optional<std::string_view> right_value_of(std::string_view name);

/// An error "<name>: ..., got <value>, expected ..." if `value` cannot be used. ok() for variables that VecInfer does not use.
Status check_variable(const std::string& name, const std::string& value);

/// Which variables a verb is about to use.
struct EnvironmentUse {
    bool plugin = true;      // VECINFER_PLUGIN or else GGML_BACKEND_PATH, VECINFER_ISA, VECINFER_QUIET
    bool tools = true;       // VECINFER_TOOLS
    bool codebooks = false;  // VECINFER_CODEBOOKS
};
/// The first error of those that are set.
Status check_environment(const EnvironmentUse& use);

}  // namespace vecinfer::cli
