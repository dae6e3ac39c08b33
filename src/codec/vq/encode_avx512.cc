#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "codec/vq/encode.h"
#include "codec/vq/lanes.h"
#include "codec/vq/nearest.h"
#include "codec/vq/shaping.h"
#include "transform/hadamard.h"

namespace vecinfer {
namespace {

constexpr Isa kIsa = Isa::avx512;

#include "codec/vq/ints_avx512.inl"

inline Ints add_products(Ints a, Ints b, Ints c) {
    return {_mm512_add_epi32(a.v, _mm512_madd_epi16(b.v, c.v))};
}

#include "codec/vq/scan.inl"
#include "codec/vq/shaping.inl"

}  // namespace

EncodeKernels encode_kernels_avx512(int sub_dim) noexcept {
    return pick(sub_dim);
}

}  // namespace vecinfer
