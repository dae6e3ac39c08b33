// The vector of scan.inl for AVX-512, all but add_products, which VNNI does in one instruction. Included inside an anonymous
// namespace.

struct Ints {
    static constexpr int kWidth = 16;
    __m512i v;
};

inline Ints load(const std::int32_t* p) {
    return {_mm512_load_si512(p)};
}
inline void store(std::int32_t* p, Ints a) {
    _mm512_storeu_si512(p, a.v);
}
inline Ints splat(std::int32_t x) {
    return {_mm512_set1_epi32(x)};
}
inline Ints splat_first(__m128i x) {
    return {_mm512_maskz_broadcastd_epi32(0xffff, x)};
}
// The maskz forms with all lanes on are plain instructions; GCC 12 warns about the undefined operand inside the plain forms.
inline Ints minimum(Ints a, Ints b) {
    return {_mm512_maskz_min_epi32(0xffff, a.v, b.v)};
}
inline Ints maximum(Ints a, Ints b) {
    return {_mm512_maskz_max_epi32(0xffff, a.v, b.v)};
}
inline std::int32_t reduce_min(Ints a) {
    const __m256i half =
        _mm256_min_epi32(_mm512_maskz_extracti32x8_epi32(0xff, a.v, 0), _mm512_maskz_extracti32x8_epi32(0xff, a.v, 1));
    __m128i m = _mm_min_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    m = _mm_min_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_min_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}
inline unsigned less_bits(Ints a, Ints b) {
    return _mm512_cmplt_epi32_mask(a.v, b.v);
}
