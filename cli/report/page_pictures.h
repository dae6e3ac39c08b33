// Pictures on their way into a page.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "report/gnuplot.h"
#include "report/html.h"

namespace vecinfer::cli {

/// Draws pictures into `page`. The first that fails leaves its reason on the page and in `missing`, and ends the drawing.
class PagePictures {
public:
    /// Both must outlive this.
    PagePictures(HtmlPage& page, std::string& missing) : page_(page), missing_(missing) { missing_.clear(); }

    /// nullopt: there is nothing to draw.
    void add(const std::optional<Picture>& picture, std::string_view caption);

private:
    HtmlPage& page_;
    std::string& missing_;
};

}  // namespace vecinfer::cli
