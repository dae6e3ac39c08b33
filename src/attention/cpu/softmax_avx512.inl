// Softmax over a run, shared by the fused AVX-512 kernels; included inside an anonymous namespace. Needs VBMI.
//
// Scores of a block lie in "dword order": vector k (16 floats) holds cells 4i + k in lane i. A byte vector of 64 cells widens to
// this order by shifts and masks of its 32-bit lanes, and narrows back the same way.
//
// Precision. 2^x is a degree-4 polynomial with relative error below 4e-6. A probability times the cell's value norm becomes an
// integer of 16 (unsigned digits) or 15 bits (signed ones), relative to the largest of the row and run: absolute error of half a
// step, 2^-17 or 2^-16 of the largest. Sums of probabilities are f32 and see no such rounding.

using V = __m512i;
using F = __m512;

inline V load(const void* p) {
    return _mm512_load_si512(p);
}
inline F loadf(const float* p) {
    return _mm512_load_ps(p);
}
inline V splat(int x) {
    return _mm512_set1_epi32(x);
}
inline F splatf(float x) {
    return _mm512_set1_ps(x);
}

constexpr float kLog2e = 1.44269504088896f;
constexpr float kMinusInfinity = -__builtin_inff();

// 2^x for x up to 126. From -126 down, -inf included, it gives 2^-126: no share of any sum that holds a 1.
inline F exp2_of(F x) {
    const F magic = splatf(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const F clamped = _mm512_maskz_max_ps(0xffff, x, splatf(-126.0f));
    const F n = _mm512_add_ps(clamped, magic);
    const F f = _mm512_sub_ps(clamped, _mm512_sub_ps(n, magic));
    F p = _mm512_fmadd_ps(f, splatf(9.666368515e-3f), splatf(5.592197584e-2f));
    p = _mm512_fmadd_ps(p, f, splatf(2.402234904e-1f));
    p = _mm512_fmadd_ps(p, f, splatf(6.931210452e-1f));
    p = _mm512_fmadd_ps(p, f, splatf(1.0f));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
}

// exp for single values, without the C library: an inline function of it would be compiled for this ISA.
inline float exp_of(float x) {
    return _mm512_cvtss_f32(exp2_of(splatf(x * kLog2e)));
}

// Byte k of every 32-bit lane.
inline V byte_of(V x, int k) {
    return k == 3 ? _mm512_srli_epi32(x, 24) : _mm512_and_si512(_mm512_srli_epi32(x, 8 * k), splat(0xff));
}

// 64 norm bytes u (codec.h) as floats in dword order: 2^((u - 128) / 8), 0 for u = 0, the same bits as decode_norm.
inline void decode_norms(const std::uint8_t* bytes, float* out) {
    alignas(64) static constexpr float kSteps[16] = {1.0f,        1.09050773f, 1.18920712f, 1.29683955f, 1.41421356f, 1.54221083f,
                                                     1.68179283f, 1.83400809f, 1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
                                                     1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
    const V steps = _mm512_sub_epi32(load(kSteps), splat(16 << 23));
    const V u = _mm512_loadu_si512(bytes);
    for (int k = 0; k < 4; ++k) {
        const V x = byte_of(u, k);
        const V octave = _mm512_slli_epi32(_mm512_srli_epi32(x, 3), 23);
        const V bits = _mm512_add_epi32(_mm512_permutexvar_epi32(x, steps), octave);
        _mm512_store_si512(out + 16 * k, _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(x, x), bits));
    }
}

// 64 floats in linear order at `from`, vector k of their dword order.
inline F dword_order(const float* from, int k) {
    const V index = _mm512_add_epi32(_mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60), splat(k));
    return _mm512_i32gather_ps(index, from, 4);
}

inline F tanh_of(F x) {
    const F clamped = _mm512_min_ps(_mm512_max_ps(x, splatf(-20.0f)), splatf(20.0f));
    const F e = exp2_of(_mm512_mul_ps(clamped, splatf(2.0f * kLog2e)));
    return _mm512_div_ps(_mm512_sub_ps(e, splatf(1.0f)), _mm512_add_ps(e, splatf(1.0f)));
}

// Soft cap and mask of one row, only where a run needs them. s: layout (num_blocks, 64). Returns the new maximum.
inline float adjust_row(const FusedRun& run, int row, float* s) {
    F best = splatf(kMinusInfinity);
    for (int b = 0; b < run.num_blocks; ++b) {
        for (int k = 0; k < 4; ++k) {
            F x = loadf(s + b * 64 + 16 * k);
            if (run.soft_cap != 0) {
                x = _mm512_mul_ps(splatf(run.soft_cap), tanh_of(x));
            }
            if (run.masks[b] != nullptr) {
                x = _mm512_add_ps(x, dword_order(run.masks[b] + row * 64, k));
            }
            _mm512_store_ps(s + b * 64 + 16 * k, x);
            best = _mm512_max_ps(best, x);
        }
    }
    return _mm512_reduce_max_ps(best);
}

inline bool needs_adjusting(const FusedRun& run) {
    bool needed = run.soft_cap != 0;
    for (int b = 0; b < run.num_blocks; ++b) {
        needed |= run.masks[b] != nullptr;
    }
    return needed;
}

inline void scale_outputs(float* o, float* other, int n, float factor) {
    for (int i = 0; i < n; i += 8) {  // dimensions are multiples of 8
        _mm256_storeu_ps(o + i, _mm256_mul_ps(_mm256_loadu_ps(o + i), _mm256_set1_ps(factor)));
        _mm256_storeu_ps(other + i, _mm256_mul_ps(_mm256_loadu_ps(other + i), _mm256_set1_ps(factor)));
    }
}

// Turns the scores of one row into probability digits and updates the row's softmax state. max: largest score of the run.
// norms: value norms in dword order, layout (num_blocks, 64), or null. digits: per block 64 low and 64 high bytes in cell order,
// `stride` bytes between blocks; value = high * 256 + low, both unsigned, or both signed if kSigned. Returns what one step of
// these integers is worth, 0 if the run contributes nothing (the digits are 0 then).
template <bool kSigned>
inline float softmax_row(const FusedRun& run, int row, float* s, float max, const float* norms, std::uint8_t* digits,
                         std::size_t stride) {
    constexpr float kTop = kSigned ? 32639.0f : 65535.0f;
    const int nb = run.num_blocks;
    const float new_max = max > run.row_max[row] ? max : run.row_max[row];
    float largest = 0;
    if (new_max != kMinusInfinity) {
        if (new_max > run.row_max[row]) {
            const float factor = run.row_max[row] == kMinusInfinity ? 0.0f : exp_of(run.row_max[row] - new_max);
            const int dim = run.v.dim();
            scale_outputs(run.o + row * dim, run.o_other + row * dim, dim, factor);
            run.row_sum[row] *= factor;
            run.code_share[row] *= factor;
            run.row_max[row] = new_max;
        }
        const F shift = splatf(-new_max * kLog2e);
        F sum = splatf(0.0f);
        F top = splatf(0.0f);
        for (int i = 0; i < 4 * nb; ++i) {
            F p = exp2_of(_mm512_fmadd_ps(loadf(s + 16 * i), splatf(kLog2e), shift));
            sum = _mm512_add_ps(sum, p);
            if (norms != nullptr) {
                p = _mm512_mul_ps(p, loadf(norms + 16 * i));
            }
            top = _mm512_max_ps(top, p);
            _mm512_store_ps(s + 16 * i, p);
        }
        const float total = _mm512_reduce_add_ps(sum);
        run.row_sum[row] += total;
        run.code_share[row] += total;
        largest = _mm512_reduce_max_ps(top);
    }
    if (!(largest > 1e-30f)) {
        for (int b = 0; b < nb; ++b) {
            _mm512_store_si512(digits + b * stride, splat(0));
            _mm512_store_si512(digits + b * stride + 64, splat(0));
        }
        return 0;
    }
    const F unit = splatf(kTop / largest);
    // Bytes 0 and 2 of each 16-bit pair: low digits; 1 and 3: high digits.
    const V low_bytes = _mm512_set_epi8(
#define VECINFER_LANE(i) 64 + 4 * (i) + 2, 64 + 4 * (i), 4 * (i) + 2, 4 * (i)
        VECINFER_LANE(15), VECINFER_LANE(14), VECINFER_LANE(13), VECINFER_LANE(12), VECINFER_LANE(11), VECINFER_LANE(10),
        VECINFER_LANE(9), VECINFER_LANE(8), VECINFER_LANE(7), VECINFER_LANE(6), VECINFER_LANE(5), VECINFER_LANE(4),
        VECINFER_LANE(3), VECINFER_LANE(2), VECINFER_LANE(1), VECINFER_LANE(0)
#undef VECINFER_LANE
    );
    const V high_bytes = _mm512_add_epi8(low_bytes, _mm512_set1_epi8(1));
    for (int b = 0; b < nb; ++b) {
        V p[4];
        for (int k = 0; k < 4; ++k) {
            p[k] = _mm512_cvtps_epi32(_mm512_mul_ps(loadf(s + b * 64 + 16 * k), unit));
        }
        V a = _mm512_or_si512(p[0], _mm512_slli_epi32(p[1], 16));
        V c = _mm512_or_si512(p[2], _mm512_slli_epi32(p[3], 16));
        _mm512_store_si512(digits + b * stride, _mm512_permutex2var_epi8(a, low_bytes, c));
        if (kSigned) {  // the low digit is -128 to 127, so the high one carries
            a = _mm512_add_epi16(a, _mm512_set1_epi16(128));
            c = _mm512_add_epi16(c, _mm512_set1_epi16(128));
        }
        _mm512_store_si512(digits + b * stride + 64, _mm512_permutex2var_epi8(a, high_bytes, c));
    }
    return largest / kTop;
}
