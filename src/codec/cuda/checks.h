// Argument checks that encode and decode share.
#pragma once

#include <fmt/format.h>

#include "vecinfer/cuda.h"

namespace vecinfer::cuda {

inline Status check_range(const char* name, std::int64_t got, std::int64_t low, std::int64_t high) {
    return got < low || got > high ? argument_error(name, fmt::format("{}", got), fmt::format("{} to {}", low, high)) : Status();
}

inline Status check_pointer(const char* name, const void* p, std::size_t alignment) {
    if (p == nullptr) {
        return argument_error(name, "null", "device memory");
    }
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return address % alignment != 0
               ? argument_error(name, fmt::format("an address that is {} modulo {}", address % alignment, alignment),
                                fmt::format("a multiple of {} bytes", alignment))
               : Status();
}

inline std::size_t number_bytes(Number type) {
    return type == Number::f32 ? 4 : 2;
}

inline bool has_window(const CacheView& c) {
    return c.window.recent > 0 || c.window.sink > 0;
}

/// Pages and window of a cache with `sequences` sequences that takes `new_rows` tokens of a sequence at a time.
Status check_cache(const LayerCodec& codec, const CacheView& cache, int sequences, int new_rows);

}  // namespace vecinfer::cuda
