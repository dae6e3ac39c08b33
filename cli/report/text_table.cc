#include "report/text_table.h"

#include <algorithm>

namespace vecinfer::cli {
namespace {

// Columns that a text takes: names may hold file names in any language. Bytes that continue a character take none.
std::size_t columns(const std::string& text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows) {
    std::vector<std::size_t> widths;
    for (const auto& row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i) {
            widths[i] = std::max(widths[i], columns(row[i]));
        }
    }
    std::string text;
    for (const auto& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string padding(widths[i] - columns(row[i]), ' ');
            text += i == 0 ? row[i] + padding : "  " + padding + row[i];
        }
        text += "\n";
    }
    return text;
}

}  // namespace vecinfer::cli
