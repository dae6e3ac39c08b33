// IEEE half precision in portable, branch-free code that vectorizes. No float subnormals occur on the way, so flush-to-zero
// modes of the host process do not change results.
#pragma once

#include <bit>
#include <cstdint>

namespace vecinfer {

inline constexpr float kMaxF16 = 65504.0f;

/// Exact; infinities and NaNs stay what they are.
constexpr float f16_to_f32(std::uint16_t half) noexcept {
    const std::uint32_t magnitude = half & 0x7fffu;
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t rebias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;
    const std::uint32_t normal = (magnitude << 13) + rebias;
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
    return std::bit_cast<float>(sign | (magnitude < 0x0400u ? subnormal : normal));
}

/// What a value becomes when it is stored as f16 and read back: nearest, ties to even, finite magnitudes above 65504 clamped to
/// it. Non-finite values become 0, so that one bad activation cannot spread through a cache.
constexpr float round_to_f16(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = bits & 0x80000000u;
    const std::int32_t magnitude = static_cast<std::int32_t>(bits & 0x7fffffffu);
    const std::int32_t rounded = (magnitude + 0x0fff + ((magnitude >> 13) & 1)) & ~0x1fff;
    const std::int32_t normal = rounded > 0x477fe000 ? 0x477fe000 : rounded;
    // The spacing of floats in [0.5, 1) is 2^-24, that of f16 subnormals.
    const std::int32_t subnormal = std::bit_cast<std::int32_t>((std::bit_cast<float>(magnitude) + 0.5f) - 0.5f);
    const std::int32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    return std::bit_cast<float>(magnitude > 0x7f7fffff ? 0u : sign | static_cast<std::uint32_t>(finite));
}

/// Bits of round_to_f16(x).
constexpr std::uint16_t f32_to_f16(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(round_to_f16(x));
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t normal = (magnitude - 0x38000000u) >> 13;
    const std::uint32_t subnormal =
        static_cast<std::uint32_t>(static_cast<std::int32_t>(std::bit_cast<float>(magnitude) * 0x1p24f));
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | (magnitude < 0x38800000u ? subnormal : normal));
}

}  // namespace vecinfer
