#include "text_file.h"

#include <fmt/format.h>

#include <fstream>

namespace vecinfer::cli {
namespace fs = std::filesystem;

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
    return {};
}

}  // namespace vecinfer::cli
