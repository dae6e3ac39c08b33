// Random numbers that are the same everywhere: only exact IEEE operations, no library functions whose last digit varies.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace vecinfer {

/// Natural logarithm of a positive normal number, to about 1e-16 relative to max(1, |log x|).
inline double portable_log(double x) noexcept {
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
    int exponent = static_cast<int>(bits >> 52) - 1023;
    double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        ++exponent;
    }
    // log m = 2 artanh s; |s| < 0.172, so the terms left out are below 1e-17.
    const double s = (m - 1.0) / (m + 1.0);
    const double square = s * s;
    double sum = 0.0;
    for (int k = 19; k >= 1; k -= 2) {
        sum = sum * square + 1.0 / k;
    }
    return 2.0 * s * sum + exponent * 0.69314718055994531;
}

/// xoshiro256** seeded by splitmix64.
class Random {
public:
    explicit Random(std::uint64_t seed) noexcept {
        for (std::uint64_t& word : state_) {
            seed += 0x9e3779b97f4a7c15ull;
            std::uint64_t z = seed;
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
            word = z ^ (z >> 31);
        }
    }

    std::uint64_t next() noexcept {
        const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
        const std::uint64_t shifted = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= shifted;
        state_[3] = std::rotl(state_[3], 45);
        return result;
    }

    /// In [0, 1).
    double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

    /// Standard normal, by the polar method.
    double normal() noexcept {
        if (has_spare_) {
            has_spare_ = false;
            return spare_;
        }
        double u;
        double v;
        double s;
        do {
            u = 2.0 * uniform() - 1.0;
            v = 2.0 * uniform() - 1.0;
            s = u * u + v * v;
        } while (s >= 1.0 || s == 0.0);
        const double factor = std::sqrt(-2.0 * portable_log(s) / s);
        spare_ = v * factor;
        has_spare_ = true;
        return u * factor;
    }

private:
    std::uint64_t state_[4] = {};
    double spare_ = 0;
    bool has_spare_ = false;
};

}  // namespace vecinfer
