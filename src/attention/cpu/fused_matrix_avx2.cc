// Matrix method for AVX2: vpmaddwd and vpaddd, 6 rows by 2 vectors in 12 registers. What it computes and how exactly:
// fused_matrix.inl.
#include <immintrin.h>

#include "attention/cpu/fused.h"
#include "attention/cpu/unrolled.h"

#define VECINFER_INLINE inline __attribute__((always_inline))
#define VECINFER_VECTORS 2

namespace vecinfer::cpu {
namespace {

using F = __m256;
using V = __m256i;
using Pair = std::int32_t __attribute__((may_alias, aligned(4)));  // two 16-bit integers
constexpr int kLanes = 8;
constexpr int kVectors = VECINFER_VECTORS;

VECINFER_INLINE F loadf(const float* p) {
    return _mm256_loadu_ps(p);
}
VECINFER_INLINE void storef(float* p, F x) {
    _mm256_storeu_ps(p, x);
}
VECINFER_INLINE F splatf(float x) {
    return _mm256_set1_ps(x);
}
VECINFER_INLINE F addf(F a, F b) {
    return _mm256_add_ps(a, b);
}
VECINFER_INLINE F subf(F a, F b) {
    return _mm256_sub_ps(a, b);
}
VECINFER_INLINE F mulf(F a, F b) {
    return _mm256_mul_ps(a, b);
}
VECINFER_INLINE F divf(F a, F b) {
    return _mm256_div_ps(a, b);
}
VECINFER_INLINE F maxf(F a, F b) {
    return _mm256_max_ps(a, b);
}
VECINFER_INLINE F fma_of(F a, F b, F c) {
    return _mm256_fmadd_ps(a, b, c);
}
VECINFER_INLINE float first_of(F x) {
    return _mm256_cvtss_f32(x);
}
VECINFER_INLINE float sum_of(F x) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}
VECINFER_INLINE float max_of(F x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
VECINFER_INLINE F to_f(V x) {
    return _mm256_cvtepi32_ps(x);
}
VECINFER_INLINE V load(const std::int32_t* p) {
    return _mm256_load_si256(reinterpret_cast<const V*>(p));
}
VECINFER_INLINE V zero() {
    return _mm256_setzero_si256();
}
// As instructions in this order: GCC 12 hoists all broadcasts and then keeps accumulators in memory.
VECINFER_INLINE V splat_pair(const void* pair) {
    V x;
    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(x) : "m"(*static_cast<const Pair*>(pair)));
    return x;
}
VECINFER_INLINE void multiply_add(V& sum, V a, V b) {
    V products;
    __asm__ volatile("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
}
// o[0, n) += x; n is kLanes here, since head sizes are multiples of 8.
VECINFER_INLINE void add_first(float* o, int, F x) {
    storef(o, addf(loadf(o), x));
}
// 16 products s * unit as 16-bit integers.
VECINFER_INLINE void store_pairs(const float* s, F unit, std::int16_t* p) {
    const V a = _mm256_cvtps_epi32(mulf(loadf(s), unit));
    const V b = _mm256_cvtps_epi32(mulf(loadf(s + 8), unit));
    _mm256_store_si256(reinterpret_cast<V*>(p), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
}
// 2^x for x up to 126; from -126 down, -inf included, 2^-126. Relative error below 4e-6.
VECINFER_INLINE F exp2_of(F x) {
    const F magic = splatf(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const F clamped = maxf(x, splatf(-126.0f));
    const F n = addf(clamped, magic);
    const F f = subf(clamped, subf(n, magic));
    F p = fma_of(f, splatf(9.666368515e-3f), splatf(5.592197584e-2f));
    p = fma_of(p, f, splatf(2.402234904e-1f));
    p = fma_of(p, f, splatf(6.931210452e-1f));
    p = fma_of(p, f, splatf(1.0f));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}

#include "attention/cpu/fused_matrix.inl"

}  // namespace

const FusedKernels& fused_matrix_avx2() {
    static constexpr FusedKernels kKernels{"matrix/avx2", kRows, supports, query_bytes, scratch_bytes, prepare, run_matrix};
    return kKernels;
}

}  // namespace vecinfer::cpu
