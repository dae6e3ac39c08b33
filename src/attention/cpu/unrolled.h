// Loops that are none: the compiler keeps an array in registers only if it never sees a variable index.
#pragma once

#include <utility>

namespace vecinfer::cpu {

/// f(0), f(1) ... f(N - 1). Always inline, so that units of different ISAs do not share it.
template <int N, class Function>
inline __attribute__((always_inline)) void unrolled(const Function& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
        (f(I), ...);
    }
    (std::make_integer_sequence<int, N>());
}

}  // namespace vecinfer::cpu
