// Texts that a user gives.
#pragma once

#include <filesystem>
#include <string_view>

#include "vecinfer/status.h"

namespace vecinfer::cli {

/// ok() if `path` is a file of UTF-8 text that can be read and is not blank. `argument` names it in the message.
Status check_text(const std::filesystem::path& path, std::string_view argument = "text");

}  // namespace vecinfer::cli
