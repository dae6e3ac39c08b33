// The tables of an inspection, for text and page alike.
#pragma once

#include <string>
#include <vector>

#include "compare/store.h"

namespace vecinfer::cli {

using Table = std::vector<std::vector<std::string>>;  // the first row is the header

/// "codebooks FILE", "data-free codebooks" or "no codebooks".
std::string codebooks_text(const Json& inspection);
Table layer_table(const Json& inspection);
Table detail_table(const Json& inspection);

}  // namespace vecinfer::cli
