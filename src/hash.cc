#include <cstddef>
#include <cstdint>
#include <span>

#include "vecinfer/sidecar.h"

namespace vecinfer {

std::uint64_t hash64(std::span<const std::byte> bytes) noexcept {
    std::uint64_t h = 0xcbf29ce484222325ull;
    for (std::byte b : bytes) {
        h = (h ^ static_cast<std::uint64_t>(b)) * 0x100000001b3ull;
    }
    return h;
}

}  // namespace vecinfer
