#include "report/page_pictures.h"

#include <fmt/format.h>

namespace vecinfer::cli {

void PagePictures::add(const std::optional<Picture>& picture, std::string_view caption) {
    if (!picture || !missing_.empty()) {
        return;
    }
    const Result<std::string> svg = draw(*picture);
    if (svg.ok()) {
        page_.picture(svg.value(), caption);
    } else {
        missing_ = svg.status().message();
        page_.warning(fmt::format("No pictures: {}.", missing_));
    }
}

}  // namespace vecinfer::cli
