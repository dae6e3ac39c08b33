// Tables for a terminal.
#pragma once

#include <string>
#include <vector>

namespace vecinfer::cli {

/// One line per row; the first column left-aligned, the others right-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows);

}  // namespace vecinfer::cli
