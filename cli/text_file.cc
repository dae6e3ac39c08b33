#include "text_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <vector>

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

// Where a text stops being UTF-8, or -1. llama.cpp's tokenizers end the process there.
class Utf8Check {
public:
    std::int64_t feed(std::string_view bytes) {
        for (const char c : bytes) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte < low_ || byte > high_) {
                return position_;
            }
            ++position_;
            if (left_ > 0) {
                --left_;
                low_ = left_ > 0 ? 0x80 : 0x00;
                high_ = left_ > 0 ? 0xbf : 0xf4;
                continue;
            }
            if (byte < 0x80) {
                continue;
            }
            if (byte < 0xc2) {
                return position_ - 1;
            }
            left_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
            // Overlong forms, surrogates and what is beyond U+10FFFF.
            low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
            high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
        }
        return -1;
    }
    /// At the end of the text.
    std::int64_t finish() const { return left_ > 0 ? position_ : -1; }

private:
    std::int64_t position_ = 0;
    int left_ = 0;  // bytes that the character still needs
    unsigned char low_ = 0x00;
    unsigned char high_ = 0xf4;
};

}  // namespace

Status check_text(const fs::path& path, std::string_view argument) {
    std::error_code error;
    if (!fs::exists(path, error)) {
        return Status(ErrorCode::not_found, fmt::format("{}: {} does not exist", argument, path.string()));
    }
    if (!fs::is_regular_file(path, error)) {
        return Status(ErrorCode::io_error, fmt::format("{}: {} is not a file", argument, path.string()));
    }
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return Status(ErrorCode::io_error, fmt::format("{}: cannot read {}", argument, path.string()));
    }
    if (file.peek() == std::ifstream::traits_type::eof()) {
        return Status(ErrorCode::corrupt_data, fmt::format("{}: {} is empty", argument, path.string()));
    }
    bool is_blank = true;
    Utf8Check check;
    std::vector<char> part(1 << 16);
    std::int64_t bad = -1;
    while (bad < 0 && file) {
        file.read(part.data(), static_cast<std::streamsize>(part.size()));
        const std::string_view bytes(part.data(), static_cast<std::size_t>(file.gcount()));
        bad = check.feed(bytes);
        is_blank = is_blank && bytes.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
    }
    if (bad = bad < 0 ? check.finish() : bad; bad >= 0) {
        return Status(ErrorCode::corrupt_data,
                      fmt::format("{}: {} is not UTF-8 at byte {}, expected plain text", argument, path.string(), bad));
    }
    if (is_blank) {
        return Status(ErrorCode::corrupt_data, fmt::format("{}: {} is blank", argument, path.string()));
    }
    return {};
}

}  // namespace vecinfer::cli
