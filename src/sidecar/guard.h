// Keeps the promise that no public function throws: running out of memory becomes a Status.
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "vecinfer/status.h"

namespace vecinfer {

/// Returns body(), a Status or Result; `what` names the operation in the message.
template <class Body>
auto guarded(std::string_view what, Body&& body) noexcept -> decltype(body()) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return Status(ErrorCode::out_of_memory, std::string(what) + ": out of memory");
    } catch (const std::length_error&) {
        return Status(ErrorCode::out_of_memory, std::string(what) + ": more than fits in memory");
    } catch (const std::exception& e) {
        return Status(ErrorCode::io_error, std::string(what) + ": " + e.what());
    }
}

/// Puts `prefix` and a colon before the message of an error.
inline Status with_prefix(std::string_view prefix, const Status& status) {
    return status.ok() ? status : Status(status.code(), std::string(prefix) + ": " + status.message());
}

}  // namespace vecinfer
