#include <cmath>
#include <cstdint>

#include "codec/norm_steps.h"
#include "vecinfer/codec.h"

namespace vecinfer {

std::uint8_t encode_norm(float rms) noexcept {
    if (!(rms > 0.0f)) {
        return 0;
    }
    if (rms > 65536.0f) {
        return 255;
    }
    int exponent = 0;
    const double mantissa = 2.0 * std::frexp(static_cast<double>(rms), &exponent);  // [1, 2)
    int code = kNormBias + kNormStepsPerOctave * (exponent - 1);
    for (double threshold : kNormSteps.thresholds) {
        code += mantissa >= threshold ? 1 : 0;
    }
    return static_cast<std::uint8_t>(code < 1 ? 1 : code > 255 ? 255 : code);
}

float decode_norm(std::uint8_t code) noexcept {
    if (code == 0) {
        return 0.0f;
    }
    const int octave = code / kNormStepsPerOctave - kNormBias / kNormStepsPerOctave;
    return static_cast<float>(std::ldexp(kNormSteps.values[code % kNormStepsPerOctave], octave));
}

}  // namespace vecinfer
