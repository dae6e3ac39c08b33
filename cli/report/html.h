// A self-contained HTML page: text, tables and inline pictures, no scripts and nothing loaded from elsewhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vecinfer::cli {

std::string html_escaped(std::string_view text);

class HtmlPage {
public:
    explicit HtmlPage(std::string_view title);

    void heading(std::string_view text);
    void paragraph(std::string_view text);  // plain text, escaped
    void warning(std::string_view text);
    /// The first row is the header; the first column holds names, the others numbers. `marked`: rows to set off, from 1.
    void table(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& marked = {});
    /// `svg`: as draw() returns it.
    void picture(std::string_view svg, std::string_view caption);

    std::string text() const;

private:
    std::string title_;
    std::string body_;
};

}  // namespace vecinfer::cli
