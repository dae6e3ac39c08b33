// The pictures of a comparison, as gnuplot scripts.
#pragma once

#include <optional>

#include "compare/store.h"
#include "report/gnuplot.h"

namespace vecinfer::cli {

/// Each takes the document of result_json; nullopt if it holds nothing to draw.
std::optional<Picture> pareto_picture(const Json& result);     // effective bits against mean KLD
std::optional<Picture> retrieval_picture(const Json& result);  // one map of depth and length per row
std::optional<Picture> speed_picture(const Json& result);      // decode and prompt speed against depth

}  // namespace vecinfer::cli
