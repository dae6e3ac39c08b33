// Body of the tile kernels, compiled once per ISA into the namespace VECINFER_TILE_NS. Written with compiler vectors of 8 floats,
// which become two SSE, one AVX2 or one AVX-512VL register. No std templates here: an inline function emitted by an AVX unit
// could replace the baseline copy at link time.
#include <cstdint>
#include <cstring>

#include "attention/cpu/tile.h"
#include "attention/cpu/unrolled.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace vecinfer::cpu::VECINFER_TILE_NS {
namespace {

typedef float F8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef std::int32_t I8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float F4 __attribute__((vector_size(16), aligned(4), may_alias));

constexpr int kCells = 64;

inline F8 load(const float* p) {
    return *reinterpret_cast<const F8*>(p);
}
inline void store(float* p, F8 v) {
    *reinterpret_cast<F8*>(p) = v;
}
inline F8 splat(float x) {
    return F8{x, x, x, x, x, x, x, x};
}

inline F8 fma(F8 a, F8 b, F8 c) {
#if defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

// Loads stay on their side. Without it GCC 12 hoists broadcasts and has no registers left for accumulators.
inline void keep_order() {
    __asm__ volatile("" ::: "memory");
}

inline float sum(F8 v) {
    const F4 lo = __builtin_shufflevector(v, v, 0, 1, 2, 3);
    const F4 hi = __builtin_shufflevector(v, v, 4, 5, 6, 7);
    const F4 s = lo + hi;
    return (s[0] + s[2]) + (s[1] + s[3]);
}

template <int kSubDim>
inline void copy_piece(float* to, const float* from) {
    __builtin_memcpy(to, from, kSubDim * sizeof(float));  // one unaligned vector move
}

/// Codes below 8 bits of 64 cells, from their planes (cache/layout.h) to one byte per cell. Shifting a plane as 64-bit words
/// moves bits into neighbouring bytes, which the mask removes.
inline void unpack(const std::uint8_t* planes, int code_bits, std::uint8_t* codes) {
    int done = 0;
    for (int width = 4; width > 0; width /= 2) {
        if ((code_bits & width) == 0) {
            continue;
        }
        const std::uint64_t mask = ((1u << width) - 1) * 0x0101010101010101ull;
        for (int word = 0; word < width; ++word) {
            std::uint64_t x;
            std::memcpy(&x, planes + 8 * word, 8);
            for (int i = 0; i < 8 / width; ++i) {
                std::uint8_t* to = codes + 8 * width * i + 8 * word;
                std::uint64_t out = (x >> (width * i) & mask) << done;
                if (done > 0) {
                    std::uint64_t before;
                    std::memcpy(&before, to, 8);
                    out |= before;
                }
                std::memcpy(to, &out, 8);
            }
        }
        planes += 8 * width;
        done += width;
    }
}

constexpr int kAtOnce = 8;  // channels whose tiles are written together, so that stores are not scattered

void decode_channels(const std::uint8_t* block, int num_subspaces, int code_bits, const float* centroids,
                     std::ptrdiff_t centroid_stride, float* y) {
    const int stride = kCells * code_bits / 8;
    std::uint8_t codes[kAtOnce][kCells];
    for (int m = 0; m < num_subspaces; m += kAtOnce, centroids += kAtOnce * centroid_stride) {
        for (int c = 0; c < kAtOnce; ++c, block += stride) {
            unpack(block, code_bits, codes[c]);
        }
        for (int t = 0; t < kCells; ++t) {
            float* out = y + t * num_subspaces + m;
            for (int c = 0; c < kAtOnce; ++c) {
                out[c] = centroids[c * centroid_stride + codes[c][t]];
            }
        }
    }
}

template <int kSubDim>
void decode_pieces(const std::uint8_t* block, int num_subspaces, int code_bits, const float* centroids,
                   std::ptrdiff_t centroid_stride, float* y) {
    const int dim = num_subspaces * kSubDim;
    const int stride = kCells * code_bits / 8;
    for (int m = 0; m < num_subspaces; ++m, block += stride, centroids += centroid_stride) {
        float* out = y + m * kSubDim;
        if (code_bits == 8) {
            for (int t = 0; t < kCells; ++t) {
                copy_piece<kSubDim>(out + t * dim, centroids + block[t] * kSubDim);
            }
        } else if (code_bits == 10) {
            for (int t = 0; t < kCells; ++t) {
                const unsigned high = block[kCells + t % 16] >> (t / 16 * 2) & 3;
                copy_piece<kSubDim>(out + t * dim, centroids + (block[t] | high << 8) * kSubDim);
            }
        } else {
            for (int t = 0; t < 32; ++t) {
                const unsigned high = block[kCells + t];
                const unsigned a = block[t] | (high & 15) << 8;
                const unsigned b = block[t + 32] | (high >> 4) << 8;
                copy_piece<kSubDim>(out + t * dim, centroids + a * kSubDim);
                copy_piece<kSubDim>(out + (t + 32) * dim, centroids + b * kSubDim);
            }
        }
    }
}

void scale_row(float* x, int n, float factor) {
    const F8 f = splat(factor);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        store(x + i, load(x + i) * f);
    }
    for (; i < n; ++i) {
        x[i] *= factor;
    }
}

void decode_block(const std::uint8_t* block, int num_subspaces, int sub_dim, int code_bits, const float* centroids,
                  std::ptrdiff_t centroid_stride, bool norms, const float* norm_table, float* y) {
    switch (sub_dim) {
        case 1: decode_channels(block, num_subspaces, code_bits, centroids, centroid_stride, y); break;
        case 2: decode_pieces<2>(block, num_subspaces, code_bits, centroids, centroid_stride, y); break;
        case 4: decode_pieces<4>(block, num_subspaces, code_bits, centroids, centroid_stride, y); break;
        default: decode_pieces<8>(block, num_subspaces, code_bits, centroids, centroid_stride, y); break;
    }
    if (norms) {
        const std::uint8_t* norm = block + num_subspaces * (kCells * code_bits / 8);
        const int dim = num_subspaces * sub_dim;
        for (int t = 0; t < kCells; ++t) {
            scale_row(y + t * dim, dim, norm_table[norm[t]]);
        }
    }
}

// kRows x 4 dot products at once: kRows + 4 loads feed 4 * kRows multiply-adds.
template <int kRows>
void scores_rows(const float* q, const float* k, int dim, float* s) {
    for (int t = 0; t < kCells; t += 4) {
        F8 acc[kRows][4];
        for (int r = 0; r < kRows; ++r) {
            for (int c = 0; c < 4; ++c) {
                acc[r][c] = splat(0.0f);
            }
        }
        for (int d = 0; d < dim; d += 8) {
            const F8 k0 = load(k + (t + 0) * dim + d);
            const F8 k1 = load(k + (t + 1) * dim + d);
            const F8 k2 = load(k + (t + 2) * dim + d);
            const F8 k3 = load(k + (t + 3) * dim + d);
            for (int r = 0; r < kRows; ++r) {
                const F8 x = load(q + r * dim + d);
                acc[r][0] = fma(x, k0, acc[r][0]);
                acc[r][1] = fma(x, k1, acc[r][1]);
                acc[r][2] = fma(x, k2, acc[r][2]);
                acc[r][3] = fma(x, k3, acc[r][3]);
            }
        }
        for (int r = 0; r < kRows; ++r) {
            for (int c = 0; c < 4; ++c) {
                s[r * kCells + t + c] = sum(acc[r][c]);
            }
        }
    }
}

// c[r][j] += sum_i a[r][i] * b[i][j] for i < depth and kRows x kCols vectors of j. Strides are in floats.
template <int kRows, int kCols>
inline void multiply_rows(const float* a, int a_stride, const float* b, int b_stride, int depth, float* c, int c_stride) {
    F8 acc[kRows][kCols];
    const auto each = [](const auto& f) __attribute__((always_inline)) {
        unrolled<kRows>([&](int r) __attribute__((always_inline)) {
            unrolled<kCols>([&](int j) __attribute__((always_inline)) { f(r, j); });
        });
    };
    each([&](int r, int j) __attribute__((always_inline)) { acc[r][j] = load(c + r * c_stride + 8 * j); });
    for (int i = 0; i < depth; ++i) {
        F8 x[kCols];
        unrolled<kCols>([&](int j) __attribute__((always_inline)) { x[j] = load(b + i * b_stride + 8 * j); });
        unrolled<kRows>([&](int r) __attribute__((always_inline)) {
            const F8 w = splat(a[r * a_stride + i]);
            keep_order();
            unrolled<kCols>([&](int j) __attribute__((always_inline)) { acc[r][j] = fma(w, x[j], acc[r][j]); });
        });
    }
    each([&](int r, int j) __attribute__((always_inline)) { store(c + r * c_stride + 8 * j, acc[r][j]); });
}

template <int kRows, int kCols>
void multiply_panel(const float* a, int a_stride, const float* b, int columns, int depth, float* c) {
    int j = 0;
    for (; j + 8 * kCols <= columns; j += 8 * kCols) {
        multiply_rows<kRows, kCols>(a, a_stride, b + j, columns, depth, c + j, columns);
    }
    for (; j < columns; j += 8) {
        multiply_rows<kRows, 1>(a, a_stride, b + j, columns, depth, c + j, columns);
    }
}

// c += a b, c of layout (rows, columns), b of layout (depth, columns). 6 x 2 accumulators, two loads and a broadcast fit 16
// registers.
void multiply(const float* a, int a_stride, const float* b, int rows, int columns, int depth, float* c) {
    int r = 0;
    for (; r + 6 <= rows; r += 6) {
        multiply_panel<6, 2>(a + r * a_stride, a_stride, b, columns, depth, c + r * columns);
    }
    if (rows - r >= 3) {
        multiply_panel<3, 4>(a + r * a_stride, a_stride, b, columns, depth, c + r * columns);
        r += 3;
    }
    if (rows - r == 2) {
        multiply_panel<2, 4>(a + r * a_stride, a_stride, b, columns, depth, c + r * columns);
    } else if (rows - r == 1) {
        multiply_panel<1, 4>(a + r * a_stride, a_stride, b, columns, depth, c + r * columns);
    }
}

// k of layout (64, dim) to kt of layout (dim, 64), 8 x 8 floats at a time.
void transpose(const float* k, int dim, float* kt) {
    for (int t = 0; t < kCells; t += 8) {
        for (int d = 0; d < dim; d += 8) {
            F8 x[8];
            F8 y[8];
            for (int i = 0; i < 8; ++i) {
                x[i] = load(k + (t + i) * dim + d);
            }
            for (int i = 0; i < 8; i += 2) {
                y[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
                y[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
            }
            for (int i = 0; i < 8; ++i) {
                const int j = i % 4 < 2 ? i : i - 2;  // i, i + 2 pair up
                x[i] = i % 4 < 2 ? __builtin_shufflevector(y[j], y[j + 2], 0, 1, 8, 9, 4, 5, 12, 13)
                                 : __builtin_shufflevector(y[j], y[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
            }
            for (int i = 0; i < 4; ++i) {
                store(kt + (d + i) * kCells + t, __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
                store(kt + (d + i + 4) * kCells + t, __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
            }
        }
    }
}

void scores(const float* q, const float* k, int rows, int dim, float* kt, float* s) {
    int r = 0;
    if (rows >= 6) {  // enough to pay for transposed keys
        const int whole = rows / 6 * 6;
        transpose(k, dim, kt);
        std::memset(s, 0, sizeof(float) * static_cast<std::size_t>(whole) * kCells);
        multiply(q, dim, kt, whole, kCells, dim, s);
        r = whole;
    }
    for (; r + 3 <= rows; r += 3) {
        scores_rows<3>(q + r * dim, k, dim, s + r * kCells);
    }
    if (rows - r == 2) {
        scores_rows<2>(q + r * dim, k, dim, s + r * kCells);
    } else if (rows - r == 1) {
        scores_rows<1>(q + r * dim, k, dim, s + r * kCells);
    }
}

void accumulate(const float* p, const float* v, int rows, int dim, float* o) {
    multiply(p, kCells, v, rows, dim, kCells, o);
}

// exp(x) for x <= 0: 2^n * 2^f with f in [-0.5, 0.5] and a degree-6 polynomial for 2^f; below -87 the result is 0.
inline F8 exp_nonpositive(F8 x) {
    const F8 y = x * splat(1.44269504f);
    const F8 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
    const F8 n = (y + magic) - magic;
    // f = y - n in two steps keeps the digits that x * log2(e) alone would round away
    const F8 f = fma(x, splat(1.44269504f), -n) + x * splat(1.925963033e-8f);
    F8 r = splat(1.540353039e-4f);
    r = fma(r, f, splat(1.333355814e-3f));
    r = fma(r, f, splat(9.618129107e-3f));
    r = fma(r, f, splat(5.550410866e-2f));
    r = fma(r, f, splat(2.402265069e-1f));
    r = fma(r, f, splat(6.931471806e-1f));
    r = fma(r, f, splat(1.0f));
    const I8 valid = x > splat(-87.0f);
    const F8 safe = valid ? n : splat(0.0f);
    const I8 exponent = (__builtin_convertvector(safe, I8) + 127) << 23;
    F8 power;
    std::memcpy(&power, &exponent, sizeof(power));
    return valid ? r * power : splat(0.0f);
}

float exp_row(float* s, float max) {
    F8 total = splat(0.0f);
    for (int t = 0; t < kCells; t += 8) {
        const F8 p = exp_nonpositive(load(s + t) - splat(max));
        store(s + t, p);
        total += p;
    }
    return sum(total);
}

float max_row(const float* s) {
    F8 best = load(s);
    for (int t = 8; t < kCells; t += 8) {
        const F8 x = load(s + t);
        best = x > best ? x : best;
    }
    float m = best[0];
    for (int i = 1; i < 8; ++i) {
        m = best[i] > m ? best[i] : m;
    }
    return m;
}

void from_f16(const std::uint16_t* x, int n, float* y) {
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
    }
#endif
    for (; i < n; ++i) {
        // Exact for every f16: shift the exponent in, then rescale; infinities and NaN keep their class.
        const std::uint32_t h = x[i];
        std::uint32_t bits = (h & 0x7fff) << 13;
        float f;
        std::memcpy(&f, &bits, 4);
        f *= 5.192296858534828e+33f;  // 2^112
        std::memcpy(&bits, &f, 4);
        bits = (h & 0x7c00) == 0x7c00 ? 0x7f800000u | (h & 0x3ff) << 13 : bits;
        bits |= (h & 0x8000) << 16;
        std::memcpy(y + i, &bits, 4);
    }
}

/// Scale and base of n groups from their f16 numbers: value = base + scale * code.
inline void ranges(const ScalarBlock& s, const std::uint8_t* scales, const std::uint8_t* zeros, int n, float* scale,
                   float* base) {
    std::uint16_t half[kCells];
    std::memcpy(half, scales, n * sizeof(half[0]));
    from_f16(half, n, scale);
    if (s.zeros) {
        std::memcpy(half, zeros, n * sizeof(half[0]));
        from_f16(half, n, base);
    }
    const float m = static_cast<float>((1 << (s.code_bits - 1)) - 1);
    for (int i = 0; i < n; ++i) {
        const float zero = s.zeros ? base[i] : 0.0f;
        const float magnitude = __builtin_fabsf(scale[i]);
        base[i] = s.symmetric && !(s.zeros && __builtin_signbit(scale[i])) ? -m * magnitude : zero;
        scale[i] = magnitude;
    }
}

void decode_scalars(const std::uint8_t* block, const ScalarBlock& s, float* y) {
    const int stride = kCells * s.code_bits / 8;
    const std::uint8_t* scales = block + s.head_dim * stride;
    const std::uint8_t* zeros = scales + s.head_dim * kCells / s.group * 2;
    std::uint8_t codes[kCells];
    float values[kAtOnce][kCells];
    float scale[kCells];
    float base[kCells];
    for (int d = 0; d < s.head_dim; d += kAtOnce) {
        if (!s.by_token && d % s.group == 0) {
            const int at = d / s.group * kCells * 2;
            ranges(s, scales + at, zeros + at, kCells, scale, base);
        }
        for (int c = 0; c < kAtOnce; ++c, block += stride) {
            if (s.code_bits == 8) {
                std::memcpy(codes, block, kCells);
            } else {
                unpack(block, s.code_bits, codes);
            }
            if (s.by_token) {
                for (int t = 0; t < kCells; t += s.group) {
                    const int at = (t / s.group * s.head_dim + d + c) * 2;
                    ranges(s, scales + at, zeros + at, 1, scale, base);
                    for (int i = t; i < t + s.group; ++i) {
                        values[c][i] = base[0] + scale[0] * static_cast<float>(codes[i]);
                    }
                }
            } else {
                for (int t = 0; t < kCells; ++t) {
                    values[c][t] = base[t] + scale[t] * static_cast<float>(codes[t]);
                }
            }
        }
        for (int t = 0; t < kCells; ++t) {
            for (int c = 0; c < kAtOnce; ++c) {
                y[t * s.head_dim + d + c] = values[c][t];
            }
        }
    }
}

unsigned mask_state(const std::uint16_t* mask, int n) {
    typedef std::uint16_t H16 __attribute__((vector_size(32), aligned(2), may_alias));
    typedef std::uint64_t L4 __attribute__((vector_size(32)));
    constexpr std::uint16_t kMinusInfinity = 0xfc00;
    H16 visible{};
    H16 nonzero{};
    unsigned state = 0;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const H16 x = *reinterpret_cast<const H16*>(mask + i);
        visible |= reinterpret_cast<H16>(x != kMinusInfinity);
        nonzero |= x;
    }
    for (; i < n; ++i) {
        state |= (mask[i] != kMinusInfinity ? kMaskVisible : 0) | (mask[i] != 0 ? kMaskNonzero : 0);
    }
    L4 v;
    L4 z;
    std::memcpy(&v, &visible, sizeof(v));
    std::memcpy(&z, &nonzero, sizeof(z));
    return state | ((v[0] | v[1] | v[2] | v[3]) != 0 ? kMaskVisible : 0) | ((z[0] | z[1] | z[2] | z[3]) != 0 ? kMaskNonzero : 0);
}

}  // namespace

extern const TileKernels kTable;
const TileKernels kTable = {decode_block, decode_scalars, scores, accumulate, exp_row, max_row, scale_row, from_f16, mask_state};

}  // namespace vecinfer::cpu::VECINFER_TILE_NS
