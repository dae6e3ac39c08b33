// The one rounding that every row goes through before it is stored, as f16 or as codes.
#pragma once

#include <cmath>
#include <cstdint>

#include "codec/f16.h"

namespace vecinfer {

/// Channels at the start of a row whose f16 form leaves the lowest mantissa bit free for the mark of exported rows.
inline constexpr int kMarkedChannels = 64;

/// f16 with the lowest mantissa bit cleared, rounded to nearest even at that width. Relative error of this step at most 2^-10.
inline std::uint16_t round_to_even_f16(std::uint16_t h) {
    // The carry out of the mantissa moves into the exponent, which is right; at the largest finite value it would give
    // infinity, so there the bit is dropped instead.
    const std::uint16_t up = static_cast<std::uint16_t>(h + ((h & 1) & (h >> 1)));
    return static_cast<std::uint16_t>((up & 0x7fff) >= 0x7c00 ? h & ~1u : up & ~1u);
}

inline std::uint16_t round_channel(float x, int channel) {
    const std::uint16_t h = f32_to_f16(std::isfinite(x) ? x : 0.0f);
    return channel < kMarkedChannels ? round_to_even_f16(h) : h;
}

}  // namespace vecinfer
