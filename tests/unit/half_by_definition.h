// A half by its definition, the oracle of everything that rounds to f16.
#pragma once

#include <cmath>
#include <cstdint>

namespace vecinfer {

/// Value of a half by its definition, in double.
inline double half_by_definition(std::uint16_t half) {
    const double sign = half & 0x8000 ? -1 : 1;
    const int exponent = half >> 10 & 31;
    const int mantissa = half & 1023;
    if (exponent == 31) {
        return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
    }
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

}  // namespace vecinfer
