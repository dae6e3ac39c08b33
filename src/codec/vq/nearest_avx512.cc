#include <immintrin.h>

#include "codec/vq/nearest.h"

namespace vecinfer {
namespace {

struct Vec {
    static constexpr int kWidth = 16;
    __m512 v;
};
constexpr int kBroadcasts = 16;  // of 32 registers

inline Vec load(const float* p) {
    return {_mm512_load_ps(p)};
}
inline Vec splat(float x) {
    return {_mm512_set1_ps(x)};
}
inline Vec sub(Vec a, Vec b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec mul(Vec a, Vec b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec add(Vec a, Vec b) {
    return {_mm512_add_ps(a.v, b.v)};
}
// The maskz forms with all lanes on are plain instructions; GCC 12 warns about the undefined operand inside the plain forms.
inline Vec minimum(Vec a, Vec b) {
    return {_mm512_maskz_min_ps(0xffff, a.v, b.v)};
}
inline Vec select_less(Vec a, Vec b, Vec t, Vec f) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), f.v, t.v)};
}
inline float reduce_min(Vec a) {
    const __m256 half = _mm256_min_ps(_mm512_maskz_extractf32x8_ps(0xff, a.v, 0), _mm512_maskz_extractf32x8_ps(0xff, a.v, 1));
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    m = _mm_min_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}
inline unsigned equal_bits(Vec a, Vec b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ);
}

#include "codec/vq/nearest.inl"

}  // namespace

NearestFn nearest_kernel_avx512(int sub_dim) noexcept {
    return pick(sub_dim);
}

LeastCostFn least_cost_kernel_avx512(int sub_dim) noexcept {
    return pick_least_cost(sub_dim);
}

}  // namespace vecinfer
