// Pictures by gnuplot, as SVG that can stand inside an HTML page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "vecinfer/status.h"

namespace vecinfer::cli {

/// Colours that stay apart for most kinds of colour blindness, for series in order.
std::string_view series_colour(std::size_t index);

/// A text in double quotes, as gnuplot reads it.
std::string gnuplot_string(std::string_view text);

struct Picture {
    std::string name;  // letters and digits; unique in a page
    int width = 760;
    int height = 460;
    std::string script;  // without terminal and output
};

/// SVG of a picture. ErrorCode::not_found if gnuplot is not on PATH, with the package that brings it.
Result<std::string> draw(const Picture& picture);

}  // namespace vecinfer::cli
