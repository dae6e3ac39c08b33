// Scalar quantization of groups of values that share a scale, symmetric, asymmetric or a choice of both (KIVI, InnerQ).
//
// Stored per group: an f16 scale and, unless all groups are symmetric, an f16 zero. A value is base + scale * code with code >=
// 0:
//   symmetric at b bits   codes 0 .. 2 m, m = 2^(b-1) - 1, base = -m * scale; so code - m is sign and magnitude. Code 2^b - 1,
//   which
//                         would be minus zero, is not used.
//   asymmetric at b bits  codes 0 .. 2^b - 1, base = zero, the group's least value
//   hybrid at b bits      the sign bit of the scale says which: set for asymmetric at b - 1 bits
// The same functions run on GPUs. scale * code and m * scale are exact in f32 (11 + 8 bits at most), so that fused and separate
// operations give the same value.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/f16.h"
#include "vecinfer/scheme.h"

namespace vecinfer::scalar {

inline constexpr int kMaxGroup = 128;

/// The numbers of one group as they are stored.
struct Stored {
    std::uint16_t scale = 0;
    std::uint16_t zero = 0;  // not stored by symmetric codecs

    bool operator==(const Stored&) const = default;
};

/// What they mean.
struct Range {
    float scale = 0;
    float base = 0;
    int max_code = 0;

    constexpr float at(int code) const noexcept { return base + scale * static_cast<float>(code); }
};

constexpr Range range(const CodecSpec& spec, Stored stored) noexcept {
    const bool negative = (stored.scale & 0x8000u) != 0;
    const float scale = f16_to_f32(stored.scale & 0x7fffu);
    if (spec.levels == Levels::symmetric || (spec.levels == Levels::hybrid && !negative)) {
        const int m = (1 << (spec.code_bits - 1)) - 1;
        return {scale, -static_cast<float>(m) * scale, 2 * m};
    }
    const int bits = spec.levels == Levels::hybrid ? spec.code_bits - 1 : spec.code_bits;
    return {scale, f16_to_f32(stored.zero), (1 << bits) - 1};
}

/// Nearest level, the upper one on ties; values beyond the range get its ends. A group without extent (scale 0) has code 0.
constexpr std::uint16_t encode(const Range& r, float x) noexcept {
    if (r.scale == 0) {
        return 0;
    }
    const float t = (x - r.base) / r.scale;
    const float most = static_cast<float>(r.max_code);
    const float inside = t > 0 ? (t < most ? t : most) : 0.0f;
    const auto lower = static_cast<int>(inside);
    return static_cast<std::uint16_t>(inside - static_cast<float>(lower) < 0.5f ? lower : lower + 1);
}

constexpr Stored fit_symmetric(int bits, float low, float high) noexcept {
    const float magnitude = std::max(high, -low) + 0.0f;  // no minus zero, whose sign would mean something
    return {f32_to_f16(magnitude / static_cast<float>((1 << (bits - 1)) - 1)), 0};
}

constexpr Stored fit_asymmetric(int bits, float low, float high) noexcept {
    return {f32_to_f16((high - low) / static_cast<float>((1 << bits) - 1)), f32_to_f16(low)};
}

/// Sum of |x[i] - its level|, i a multiple of `step` below n * step.
constexpr double absolute_error(const Range& r, const float* x, int n, int step) noexcept {
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        const double error = static_cast<double>(x[i * step]) - static_cast<double>(r.at(encode(r, x[i * step])));
        sum += error < 0 ? -error : error;
    }
    return sum;
}

/// Numbers for a group of n values, `step` apart, 1 <= n <= kMaxGroup: the least and largest value become its ends, up to f16
/// rounding.
constexpr Stored fit(const CodecSpec& spec, const float* x, int n, int step = 1) noexcept {
    float low = x[0];
    float high = x[0];
    for (int i = 1; i < n; ++i) {
        low = x[i * step] < low ? x[i * step] : low;
        high = x[i * step] > high ? x[i * step] : high;
    }
    if (spec.levels == Levels::symmetric) {
        return fit_symmetric(spec.code_bits, low, high);
    }
    if (spec.levels == Levels::asymmetric) {
        return fit_asymmetric(spec.code_bits, low, high);
    }
    const Stored symmetric = fit_symmetric(spec.code_bits, low, high);
    Stored asymmetric = fit_asymmetric(spec.code_bits - 1, low, high);
    asymmetric.scale |= 0x8000u;
    return absolute_error(range(spec, asymmetric), x, n, step) < absolute_error(range(spec, symmetric), x, n, step) ? asymmetric
                                                                                                                    : symmetric;
}

}  // namespace vecinfer::scalar
