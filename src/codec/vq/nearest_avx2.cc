#include <immintrin.h>

#include "codec/vq/nearest.h"

namespace vecinfer {
namespace {

struct Vec {
    static constexpr int kWidth = 8;
    __m256 v;
};
constexpr int kBroadcasts = 8;  // of 16 registers

inline Vec load(const float* p) {
    return {_mm256_load_ps(p)};
}
inline Vec splat(float x) {
    return {_mm256_set1_ps(x)};
}
inline Vec sub(Vec a, Vec b) {
    return {_mm256_sub_ps(a.v, b.v)};
}
inline Vec mul(Vec a, Vec b) {
    return {_mm256_mul_ps(a.v, b.v)};
}
inline Vec add(Vec a, Vec b) {
    return {_mm256_add_ps(a.v, b.v)};
}
inline Vec minimum(Vec a, Vec b) {
    return {_mm256_min_ps(a.v, b.v)};
}
inline Vec select_less(Vec a, Vec b, Vec t, Vec f) {
    return {_mm256_blendv_ps(f.v, t.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
inline float reduce_min(Vec a) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    m = _mm_min_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}
inline unsigned equal_bits(Vec a, Vec b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)));
}

#include "codec/vq/nearest.inl"

}  // namespace

NearestFn nearest_kernel_avx2(int sub_dim) noexcept {
    return pick(sub_dim);
}

LeastCostFn least_cost_kernel_avx2(int sub_dim) noexcept {
    return pick_least_cost(sub_dim);
}

}  // namespace vecinfer
