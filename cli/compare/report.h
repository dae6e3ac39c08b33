// The HTML report of a comparison.
#pragma once

#include <string>

#include "compare/store.h"

namespace vecinfer::cli {

/// `result` as result_json makes it. `missing`: why the report has no pictures; empty if it has them.
std::string compare_report(const Json& result, std::string& missing);

}  // namespace vecinfer::cli
