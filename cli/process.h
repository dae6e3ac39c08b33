// Child processes whose output is read; used by doctor and compare. Verbs that hand over to a tool replace the process instead
// (launch.h).
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vecinfer/status.h"

namespace vecinfer::cli {

/// Variables to set, or to unset where the value is empty (nullopt).
using Environment = std::vector<std::pair<std::string, std::optional<std::string>>>;

struct Captured {
    int exit_code = 0;   // 128 + signal if it was killed
    std::string output;  // stdout and stderr together
};

/// Runs argv[0] (a path) with no input. Killed and reported as an error after `timeout_seconds`.
Result<Captured> capture(const std::vector<std::string>& argv, const Environment& environment, int timeout_seconds);

/// Runs argv[0] (a path) with no input, stdout and stderr in files that are replaced, and returns its exit code (128 + signal if
/// it was killed). `keep_going` is asked several times a second; when it says no the child is ended and ErrorCode::cancelled
/// returned. The child ends when this process does.
Result<int> run_logged(const std::vector<std::string>& argv, const Environment& environment, const std::filesystem::path& out,
                       const std::filesystem::path& err, const std::function<bool()>& keep_going);

/// Applies `environment` to this process.
void apply(const Environment& environment);

/// The value of a variable; nullopt if it is not set or empty.
std::optional<std::string> environment_value(const char* name);

}  // namespace vecinfer::cli
