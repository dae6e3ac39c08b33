// What `vecinfer inspect` makes of the helper's JSON: text, pictures and a page.
#pragma once

#include <optional>
#include <string>

#include "compare/store.h"
#include "report/gnuplot.h"

namespace vecinfer::cli {

/// Tables: one line per layer, then the layer in detail, one line per transform.
std::string inspection_text(const Json& inspection);

std::optional<Picture> map_picture(const Json& inspection);       // |k| over channels and tokens, per transform
std::optional<Picture> kurtosis_picture(const Json& inspection);  // per layer and transform
std::optional<Picture> error_picture(const Json& inspection);     // per layer and head
std::optional<Picture> usage_picture(const Json& inspection);     // entropy of codes per layer

/// `missing`: why the page has no pictures; empty if it has them.
std::string inspection_report(const Json& inspection, std::string& missing);

}  // namespace vecinfer::cli
