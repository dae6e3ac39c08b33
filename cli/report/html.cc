#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>

namespace vecinfer::cli {
namespace {

constexpr std::string_view kStyle = R"css(
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { border-bottom: 2px solid #888; } th:first-child, td:first-child { text-align: left; }
tr.marked td { background: #eef5fb; font-weight: 600; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; } figcaption { color: #555; font-size: .9rem; max-width: 52rem; }
.wide { overflow-x: auto; } .warning { border-left: 4px solid #d55e00; padding: .3rem .8rem; background: #fdf1e9; }
)css";

}  // namespace

std::string html_escaped(std::string_view text) {
    std::string escaped;
    for (const char c : text) {
        switch (c) {
            case '&': escaped += "&amp;"; break;
            case '<': escaped += "&lt;"; break;
            case '>': escaped += "&gt;"; break;
            case '"': escaped += "&quot;"; break;
            default: escaped += c;
        }
    }
    return escaped;
}

HtmlPage::HtmlPage(std::string_view title) : title_(html_escaped(title)) {}

void HtmlPage::heading(std::string_view text) {
    body_ += fmt::format("<h2>{}</h2>\n", html_escaped(text));
}

void HtmlPage::paragraph(std::string_view text) {
    body_ += fmt::format("<p>{}</p>\n", html_escaped(text));
}

void HtmlPage::warning(std::string_view text) {
    body_ += fmt::format("<p class=\"warning\">{}</p>\n", html_escaped(text));
}

void HtmlPage::table(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& marked) {
    body_ += "<div class=\"wide\"><table>\n";
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool is_marked = std::find(marked.begin(), marked.end(), i) != marked.end();
        body_ += is_marked ? "<tr class=\"marked\">" : "<tr>";
        const std::string_view tag = i == 0 ? "th" : "td";
        for (const std::string& cell : rows[i]) {
            body_ += fmt::format("<{0}>{1}</{0}>", tag, html_escaped(cell));
        }
        body_ += "</tr>\n";
    }
    body_ += "</table></div>\n";
}

void HtmlPage::picture(std::string_view svg, std::string_view caption) {
    body_ += fmt::format("<figure>{}<figcaption>{}</figcaption></figure>\n", svg, html_escaped(caption));
}

std::string HtmlPage::text() const {
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width\"><title>{0}</title><style>{1}</style></head>\n<body>\n<h1>{0}</h1>\n{2}</body></html>\n",
        title_, kStyle, body_);
}

}  // namespace vecinfer::cli
