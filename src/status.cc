#include "vecinfer/status.h"

#include <fmt/format.h>

namespace vecinfer {

std::string_view error_code_name(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::ok: return "ok";
        case ErrorCode::invalid_argument: return "invalid_argument";
        case ErrorCode::unsupported: return "unsupported";
        case ErrorCode::not_found: return "not_found";
        case ErrorCode::io_error: return "io_error";
        case ErrorCode::corrupt_data: return "corrupt_data";
        case ErrorCode::mismatch: return "mismatch";
        case ErrorCode::out_of_memory: return "out_of_memory";
        case ErrorCode::cancelled: return "cancelled";
    }
    return "unknown";
}

Status argument_error(std::string_view argument, std::string_view got, std::string_view expected) {
    return {ErrorCode::invalid_argument, fmt::format("{}: got {}, expected {}", argument, got, expected)};
}

}  // namespace vecinfer
