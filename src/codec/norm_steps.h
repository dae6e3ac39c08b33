// Steps of norm bytes (codec.h: encode_norm), for host and device: a byte is an exponent in eighths of an octave.
#pragma once

namespace vecinfer {

inline constexpr int kNormStepsPerOctave = 8;
inline constexpr int kNormBias = 128;  // the byte of 1

struct NormSteps {
    /// 2^((k + 0.5) / 8): where rounding the logarithm moves on to step k + 1. A table instead of log2, whose last digit varies.
    double thresholds[kNormStepsPerOctave] = {1.0442737824274138, 1.1387886347566916, 1.2418578120734840, 1.3542555469368927,
                                              1.4768261459394993, 1.6104903319492543, 1.7562521603732995, 1.9152065613971474};
    /// 2^(k / 8)
    double values[kNormStepsPerOctave] = {1.0,
                                          1.0905077326652577,
                                          1.1892071150027210,
                                          1.2968395546510096,
                                          1.4142135623730951,
                                          1.5422108254079407,
                                          1.6817928305074290,
                                          1.8340080864093424};
};
inline constexpr NormSteps kNormSteps;

}  // namespace vecinfer
