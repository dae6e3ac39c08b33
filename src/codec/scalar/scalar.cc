#include "codec/scalar/scalar.h"

#include <algorithm>
#include <cmath>

namespace vecinfer::scalar {
namespace {

Stored fit_symmetric(int bits, float low, float high) noexcept {
    const float magnitude = std::max(std::fabs(low), std::fabs(high));
    return {f32_to_f16(magnitude / static_cast<float>((1 << (bits - 1)) - 1)), 0};
}

Stored fit_asymmetric(int bits, float low, float high) noexcept {
    return {f32_to_f16((high - low) / static_cast<float>((1 << bits) - 1)), f32_to_f16(low)};
}

double absolute_error(const Range& r, const float* x, int n) noexcept {
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += std::fabs(static_cast<double>(x[i]) - r.at(encode(r, x[i])));
    }
    return sum;
}

}  // namespace

Stored fit(const CodecSpec& spec, const float* x, int n) noexcept {
    float low = x[0];
    float high = x[0];
    for (int i = 1; i < n; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
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
    return absolute_error(range(spec, asymmetric), x, n) < absolute_error(range(spec, symmetric), x, n) ? asymmetric : symmetric;
}

}  // namespace vecinfer::scalar
