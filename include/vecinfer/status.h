// Error contract of the library: functions return Status or Result<T>. The library never prints, aborts or exits, and no
// public function throws; running out of memory is reported as ErrorCode::out_of_memory.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "vecinfer/export.h"

namespace vecinfer VECINFER_API {

enum class ErrorCode {
    ok = 0,
    invalid_argument,  // a value outside its documented range
    unsupported,       // valid, but this build or device cannot do it
    not_found,         // a file or a named thing does not exist
    io_error,          // reading or writing failed (permissions, full disk)
    corrupt_data,      // bytes that do not parse as what they claim to be
    mismatch,          // two valid things that do not belong together (codebook and model, state and scheme)
    out_of_memory,
    cancelled,  // a progress callback asked to stop
};

/// Name of a code as printed in messages and returned by the C API, e.g. "invalid_argument".
std::string_view error_code_name(ErrorCode code) noexcept;

class [[nodiscard]] Status {
public:
    Status() noexcept = default;
    Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

    bool ok() const noexcept { return code_ == ErrorCode::ok; }
    ErrorCode code() const noexcept { return code_; }
    /// One line without a trailing newline; names the argument, what was got and what was expected. Empty when ok().
    const std::string& message() const noexcept { return message_; }

private:
    ErrorCode code_ = ErrorCode::ok;
    std::string message_;
};

/// The one form of argument errors: "<argument>: got <got>, expected <expected>".
Status argument_error(std::string_view argument, std::string_view got, std::string_view expected);

/// Either a value or a Status that is not ok().
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}

    bool ok() const noexcept { return state_.index() == 0; }
    /// Undefined unless ok().
    T& value() & { return std::get<0>(state_); }
    const T& value() const& { return std::get<0>(state_); }
    T&& value() && { return std::get<0>(std::move(state_)); }
    T* operator->() { return &std::get<0>(state_); }
    const T* operator->() const { return &std::get<0>(state_); }
    /// The error; an ok Status when the result holds a value.
    Status status() const { return ok() ? Status() : std::get<1>(state_); }

private:
    std::variant<T, Status> state_;
};

}  // namespace VECINFER_API
