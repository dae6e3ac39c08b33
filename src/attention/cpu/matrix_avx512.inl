// Vectors of the matrix method for AVX-512, with or without VNNI: VECINFER_VNNI says so. Included inside an anonymous namespace.

using F = __m512;
using V = __m512i;
using Pair = std::int32_t __attribute__((may_alias, aligned(4)));  // two 16-bit integers
constexpr int kLanes = 16;
constexpr int kVectors = VECINFER_VECTORS;

VECINFER_INLINE F loadf(const float* p) {
    return _mm512_loadu_ps(p);
}
VECINFER_INLINE void storef(float* p, F x) {
    _mm512_storeu_ps(p, x);
}
VECINFER_INLINE F splatf(float x) {
    return _mm512_set1_ps(x);
}
VECINFER_INLINE F addf(F a, F b) {
    return _mm512_add_ps(a, b);
}
VECINFER_INLINE F subf(F a, F b) {
    return _mm512_sub_ps(a, b);
}
VECINFER_INLINE F mulf(F a, F b) {
    return _mm512_mul_ps(a, b);
}
VECINFER_INLINE F divf(F a, F b) {
    return _mm512_div_ps(a, b);
}
VECINFER_INLINE F maxf(F a, F b) {
    return _mm512_max_ps(a, b);
}
VECINFER_INLINE F fma_of(F a, F b, F c) {
    return _mm512_fmadd_ps(a, b, c);
}
VECINFER_INLINE float first_of(F x) {
    return _mm512_cvtss_f32(x);
}
VECINFER_INLINE float sum_of(F x) {
    return _mm512_reduce_add_ps(x);
}
VECINFER_INLINE float max_of(F x) {
    return _mm512_reduce_max_ps(x);
}
VECINFER_INLINE F to_f(V x) {
    return _mm512_cvtepi32_ps(x);
}
VECINFER_INLINE V load(const std::int32_t* p) {
    return _mm512_load_si512(p);
}
VECINFER_INLINE V zero() {
    return _mm512_setzero_si512();
}
// As instructions in this order: GCC 12 copies accumulators around intrinsics.
VECINFER_INLINE V splat_pair(const void* pair) {
    V x;
    __asm__ volatile("vpbroadcastd %1, %0" : "=v"(x) : "m"(*static_cast<const Pair*>(pair)));
    return x;
}
VECINFER_INLINE void multiply_add(V& sum, V a, V b) {
#if VECINFER_VNNI
    __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
    V products;
    __asm__ volatile("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum), "=&v"(products) : "v"(a), "v"(b));
#endif
}
// o[0, n) += x, at most kLanes.
VECINFER_INLINE void add_first(float* o, int n, F x) {
    if (n >= kLanes) {
        storef(o, addf(loadf(o), x));
        return;
    }
    const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1);
    _mm512_mask_storeu_ps(o, mask, addf(_mm512_maskz_loadu_ps(mask, o), x));
}
// 16 products s * unit as 16-bit integers.
VECINFER_INLINE void store_pairs(const float* s, F unit, std::int16_t* p) {
    const V x = _mm512_cvtps_epi32(mulf(loadf(s), unit));
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
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
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
}
