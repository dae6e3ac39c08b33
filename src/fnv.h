// FNV-1a in pieces: the same function as hash64, for values that do not lie in one byte array. Numbers enter as little-endian
// bytes, so a hash is the same on every platform.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace vecinfer {

class Fnv {
public:
    void add_byte(std::uint8_t byte) noexcept { state_ = (state_ ^ byte) * 0x100000001b3ull; }
    void add(std::uint64_t value) noexcept {
        for (int shift = 0; shift < 64; shift += 8) {
            add_byte(static_cast<std::uint8_t>(value >> shift));
        }
    }
    void add(std::span<const float> values) noexcept {
        add(values.size());
        for (float value : values) {
            const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
            for (int shift = 0; shift < 32; shift += 8) {
                add_byte(static_cast<std::uint8_t>(bits >> shift));
            }
        }
    }
    void add(std::span<const std::int8_t> values) noexcept {
        add(values.size());
        for (std::int8_t value : values) {
            add_byte(static_cast<std::uint8_t>(value));
        }
    }
    std::uint64_t value() const noexcept { return state_; }

private:
    std::uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace vecinfer
