#include <array>
#include <cstdint>
#include <new>
#include <span>

#include "vecinfer/codebook.h"

namespace vecinfer {
namespace {

#include "codebook/universal_data.inc"

Codebook make(int sub_dim, int code_bits, float scale, std::span<const std::int8_t> centroids) {
    return {.sub_dim = sub_dim, .code_bits = code_bits, .scale = scale, .centroids = {centroids.begin(), centroids.end()}};
}

}  // namespace

const Codebook* universal_codebook(int sub_dim, int code_bits) noexcept {
    try {
        static const std::array codebooks = {
            make(2, 8, kScaleD2B8, kCentroidsD2B8),    make(4, 8, kScaleD4B8, kCentroidsD4B8),
            make(8, 8, kScaleD8B8, kCentroidsD8B8),    make(4, 12, kScaleD4B12, kCentroidsD4B12),
            make(8, 12, kScaleD8B12, kCentroidsD8B12), make(4, 10, kScaleD4B10, kCentroidsD4B10),
            make(1, 2, kScaleD1B2, kCentroidsD1B2),    make(1, 3, kScaleD1B3, kCentroidsD1B3),
            make(1, 4, kScaleD1B4, kCentroidsD1B4),
        };
        for (const Codebook& codebook : codebooks) {
            if (codebook.sub_dim == sub_dim && codebook.code_bits == code_bits) {
                return &codebook;
            }
        }
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
    return nullptr;
}

}  // namespace vecinfer
