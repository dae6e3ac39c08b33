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

constexpr Isa kIsa = Isa::avx2;

struct Ints {
    static constexpr int kWidth = 8;
    __m256i v;
};

inline Ints load(const std::int32_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p))};
}
inline void store(std::int32_t* p, Ints a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
inline Ints splat(std::int32_t x) {
    return {_mm256_set1_epi32(x)};
}
inline Ints splat_first(__m128i x) {
    return {_mm256_broadcastd_epi32(x)};
}
inline Ints minimum(Ints a, Ints b) {
    return {_mm256_min_epi32(a.v, b.v)};
}
inline Ints maximum(Ints a, Ints b) {
    return {_mm256_max_epi32(a.v, b.v)};
}
inline Ints add_products(Ints a, Ints b, Ints c) {
    return {_mm256_add_epi32(a.v, _mm256_madd_epi16(b.v, c.v))};
}
inline std::int32_t reduce_min(Ints a) {
    __m128i m = _mm_min_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    m = _mm_min_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_min_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}
inline unsigned less_bits(Ints a, Ints b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v))));
}

#include "codec/vq/scan.inl"
#include "codec/vq/shaping.inl"

}  // namespace

EncodeKernels encode_kernels_avx2(int sub_dim) noexcept {
    return pick(sub_dim);
}

}  // namespace vecinfer
