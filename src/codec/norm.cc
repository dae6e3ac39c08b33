#include <cmath>
#include <cstdint>

#include "vecinfer/codec.h"

namespace vecinfer {
namespace {

constexpr int kStepsPerOctave = 8;
constexpr int kBias = 128;
// 2^((k + 0.5) / 8): where rounding the logarithm moves on to step k + 1. A table instead of log2, whose last digit varies.
constexpr double kThresholds[kStepsPerOctave] = {1.0442737824274138, 1.1387886347566916, 1.2418578120734840, 1.3542555469368927,
                                                 1.4768261459394993, 1.6104903319492543, 1.7562521603732995, 1.9152065613971474};
// 2^(k / 8)
constexpr double kSteps[kStepsPerOctave] = {1.0,
                                            1.0905077326652577,
                                            1.1892071150027210,
                                            1.2968395546510096,
                                            1.4142135623730951,
                                            1.5422108254079407,
                                            1.6817928305074290,
                                            1.8340080864093424};

}  // namespace

std::uint8_t encode_norm(float rms) noexcept {
    if (!(rms > 0.0f)) {
        return 0;
    }
    if (rms > 65536.0f) {
        return 255;
    }
    int exponent = 0;
    const double mantissa = 2.0 * std::frexp(static_cast<double>(rms), &exponent);  // [1, 2)
    int code = kBias + kStepsPerOctave * (exponent - 1);
    for (double threshold : kThresholds) {
        code += mantissa >= threshold ? 1 : 0;
    }
    return static_cast<std::uint8_t>(code < 1 ? 1 : code > 255 ? 255 : code);
}

float decode_norm(std::uint8_t code) noexcept {
    if (code == 0) {
        return 0.0f;
    }
    const int octave = code / kStepsPerOctave - kBias / kStepsPerOctave;
    return static_cast<float>(std::ldexp(kSteps[code % kStepsPerOctave], octave));
}

}  // namespace vecinfer
