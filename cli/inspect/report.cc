#include <fmt/format.h>

#include "inspect/inspection.h"
#include "inspect/tables.h"
#include "report/html.h"
#include "report/page_pictures.h"

namespace vecinfer::cli {

std::string inspection_report(const Json& inspection, std::string& missing) {
    HtmlPage page(fmt::format("Keys and values of {}", inspection["model"]["file"].get<std::string>()));
    PagePictures pictures(page, missing);
    const Json& detail = inspection["detail"];
    page.paragraph(fmt::format("{} tokens of text; errors are those of {} with {}.", inspection["tokens"].get<int>(),
                               inspection["scheme"].get<std::string>(), codebooks_text(inspection)));
    page.heading("Which layers need more bits");
    pictures.add(
        error_picture(inspection),
        "Score error is what quantizing keys does to the softmax's input, for the queries of this text: it decides how many bits "
        "keys need. Relative squared error is the share of energy that is lost.");
    page.table(layer_table(inspection));
    page.heading("What transforms do to the spread");
    pictures.add(
        kurtosis_picture(inspection),
        "Fourth moment of a vector's entries over its own energy: 3 if they are normal, which is what codebooks are made for.");
    page.heading(fmt::format("Keys of layer {} ({})", detail["layer"].get<int>(), detail["chosen"].get<std::string>()));
    pictures.add(
        map_picture(inspection),
        "Magnitude of keys, channels of all heads from left to right, tokens from bottom to top, each map in units of its own "
        "average. Stripes are outlier channels.");
    page.table(detail_table(inspection));
    page.heading("How codes are used");
    pictures.add(usage_picture(inspection),
                 "Entropy near the width of a code and few unused centroids mean that a codebook fits.");
    page.paragraph("Reconstruction errors mislead on keys: judge a scheme by the KL divergence of `vecinfer compare`.");
    return page.text();
}

}  // namespace vecinfer::cli
