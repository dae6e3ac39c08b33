// Look-up method for AVX2: 8-bit codes of any sub_dim, few query rows. Also runs on AVX-512 without VBMI.
//
// Keys. AVX2 has no byte look-up in 256 entries, but a scalar load of 64 bits looks four rows up at once: an entry holds q .
// centroid of up to four query rows in 16 bits each. With B_m = |q_m| max|c| a row's partial score lies in [-B_m, B_m]; entries
// are (q . c + B_m) / step, rounded, where step makes the sum of 2 B_m / step over kSegment subspaces at most 65535 - kSegment.
// Rounding adds at most half per subspace, so a 16-bit field never carries into the next. (Fields of rows that do not exist hold
// anything; they lie above the others.) Segments are added in f32, exactly up to 2^24.
// Error: each entry is off by at most step / 2, uniformly, and a score by about 0.29 step sqrt(num_subspaces). Measured in
// docs/numerics.md.
//
// Values. int8 centroids as 16-bit integers are exact. p is an integer of 15 bits relative to the largest of the chunk. vpmaddwd
// adds two products, at most 2 * 32767 * 127, and a chunk of kChunk blocks has 128 steps: 1.07e9, below 2^31. Sums over chunks
// are f32.
#include <immintrin.h>

#include "attention/cpu/fused.h"

namespace vecinfer::cpu {
namespace {

#define VECINFER_INLINE inline __attribute__((always_inline))

using F = __m256;
using V = __m256i;

constexpr int kSegment = 8;
constexpr int kChunk = 8;  // blocks
constexpr int kCells = kChunk * 64;
constexpr int kGroup = 4;  // rows per table
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2e = 1.44269504088896f;

struct Header {
    float step;
    float base;  // score = step * sum + base
    float unused[14];
};
static_assert(sizeof(Header) == 64);

bool supports(const FusedSide& k, const FusedSide& v) {
    return k.by_channel != nullptr && v.planes != nullptr && k.code_bits == 8 && v.code_bits == 8 && v.dim() % 8 == 0;
}

// A quarter of a group: four headers, then (num_subspaces, 256) entries of 64 bits.
std::size_t query_bytes(const FusedSide& k) {
    return sizeof(Header) + static_cast<std::size_t>(k.num_subspaces) * 512;
}

VECINFER_INLINE float sqrt_of(float x) {
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

VECINFER_INLINE float max_of(F x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

VECINFER_INLINE float sum_of(F x) {
    __m128 m = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_add_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}

void prepare(const FusedSide& k, const float* q, int row, std::byte* tables) {
    std::byte* group = tables + row / kGroup * kGroup * query_bytes(k);
    Header& header = reinterpret_cast<Header*>(group)[row % kGroup];
    auto* field = reinterpret_cast<std::uint16_t*>(group + kGroup * sizeof(Header)) + row % kGroup;
    const int d = k.sub_dim;
    F longest = _mm256_setzero_ps();
    for (int i = 0; i < 256; i += 8) {
        F norm = _mm256_setzero_ps();
        for (int c = 0; c < d; ++c) {
            const F x = _mm256_load_ps(k.by_channel + c * 256 + i);
            norm = _mm256_fmadd_ps(x, x, norm);
        }
        longest = _mm256_max_ps(longest, norm);
    }
    // A little more than the longest centroid, so that rounding cannot leave the range.
    const float length = sqrt_of(max_of(longest)) * 1.00001f;
    float bounds[512];
    float base = 0;
    float widest = 0;
    for (int m = 0; m < k.num_subspaces; m += kSegment) {
        float width = 0;
        for (int s = m; s < m + kSegment && s < k.num_subspaces; ++s) {
            float norm = 0;
            for (int c = 0; c < d; ++c) {
                norm += q[s * d + c] * q[s * d + c];
            }
            bounds[s] = sqrt_of(norm) * length;
            base -= bounds[s];
            width += 2 * bounds[s];
        }
        widest = width > widest ? width : widest;
    }
    const float step = widest / (65535.0f - kSegment);
    const float inverse = widest > 1e-30f ? 1.0f / step : 0.0f;
    header.step = inverse > 0 ? step : 0.0f;
    header.base = inverse > 0 ? base : 0.0f;
    for (int s = 0; s < k.num_subspaces; ++s, field += 256 * kGroup) {
        for (int i = 0; i < 256; i += 8) {
            F sum = _mm256_set1_ps(bounds[s] * inverse);
            for (int c = 0; c < d; ++c) {
                sum = _mm256_fmadd_ps(_mm256_set1_ps(q[s * d + c] * inverse), _mm256_load_ps(k.by_channel + c * 256 + i), sum);
            }
            alignas(32) std::int32_t x[8];
            _mm256_store_si256(reinterpret_cast<V*>(x), _mm256_cvtps_epi32(sum));
            for (int j = 0; j < 8; ++j) {
                field[(i + j) * kGroup] = static_cast<std::uint16_t>(x[j]);
            }
        }
    }
}

// Four 16-bit fields as floats.
VECINFER_INLINE __m128 fields(std::uint64_t sums) {
    return _mm_cvtepi32_ps(_mm_cvtepu16_epi32(_mm_cvtsi64_si128(static_cast<long long>(sums))));
}

// One segment of one block. sums: layout (64, 4) f32, overwritten if `first`, else added to.
VECINFER_INLINE void add_segment(const std::uint64_t* table, const std::uint8_t* codes, int count, bool first, float* sums) {
    for (int t = 0; t < 64; t += 8) {
        const std::uint8_t* c = codes + t;
        const std::uint64_t* entry = table;
        std::uint64_t a0 = 0, a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0, a6 = 0, a7 = 0;
        for (int s = 0; s < count; ++s, c += 64, entry += 256) {
            a0 += entry[c[0]];
            a1 += entry[c[1]];
            a2 += entry[c[2]];
            a3 += entry[c[3]];
            a4 += entry[c[4]];
            a5 += entry[c[5]];
            a6 += entry[c[6]];
            a7 += entry[c[7]];
        }
        const std::uint64_t a[8] = {a0, a1, a2, a3, a4, a5, a6, a7};
        for (int i = 0; i < 8; ++i) {
            float* s = sums + (t + i) * 4;
            const __m128 x = fields(a[i]);
            _mm_store_ps(s, first ? x : _mm_add_ps(_mm_load_ps(s), x));
        }
    }
}

// 2^x for x up to 126; from -126 down, -inf included, 2^-126. Relative error below 2e-7.
VECINFER_INLINE F exp2_of(F x) {
    const F magic = _mm256_set1_ps(12582912.0f);  // 1.5 * 2^23
    const F clamped = _mm256_max_ps(x, _mm256_set1_ps(-126.0f));
    const F n = _mm256_add_ps(clamped, magic);
    const F f = _mm256_sub_ps(clamped, _mm256_sub_ps(n, magic));
    F p = _mm256_fmadd_ps(f, _mm256_set1_ps(1.3390863e-3f), _mm256_set1_ps(9.6760319e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.5503571e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.40221075e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.93147188e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.00000008f));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}

VECINFER_INLINE float exp_of(float x) {
    return _mm_cvtss_f32(_mm256_castps256_ps128(exp2_of(_mm256_set1_ps(x * kLog2e))));
}

VECINFER_INLINE F tanh_of(F x) {
    const F clamped = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-20.0f)), _mm256_set1_ps(20.0f));
    const F e = exp2_of(_mm256_mul_ps(clamped, _mm256_set1_ps(2.0f * kLog2e)));
    const F one = _mm256_set1_ps(1.0f);
    return _mm256_div_ps(_mm256_sub_ps(e, one), _mm256_add_ps(e, one));
}

// 64 norm bytes (codec.h) as floats, the same bits as decode_norm.
VECINFER_INLINE void decode_norms(const std::uint8_t* bytes, float* out) {
    alignas(32) static constexpr float kSteps[8] = {1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
                                                    1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
    const F steps = _mm256_load_ps(kSteps);
    for (int t = 0; t < 64; t += 8) {
        const V u = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + t)));
        const V octave = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_srli_epi32(u, 3), _mm256_set1_epi32(16)), 23);
        const V bits = _mm256_add_epi32(_mm256_castps_si256(_mm256_permutevar8x32_ps(steps, u)), octave);
        const V zero = _mm256_cmpeq_epi32(u, _mm256_setzero_si256());
        _mm256_store_si256(reinterpret_cast<V*>(out + t), _mm256_andnot_si256(zero, bits));
    }
}

struct Scratch {
    alignas(64) float sums[kCells * 4];              // layout (cell, row)
    alignas(64) float scores[kGroup][kCells];        // then probabilities times norms
    alignas(64) std::int16_t p[kGroup][kCells * 4];  // per 4 cells: p0 p1 four times, p2 p3 four times
    alignas(64) float norm_k[kCells];
    alignas(64) float norm_v[kCells];
    alignas(64) std::int16_t centroids[256 * 8];  // layout (256, sub_dim)
};

std::size_t scratch_bytes(const FusedSide&, const FusedSide&, int) {
    return sizeof(Scratch);
}

// What a chunk is: blocks [first, first + count) of the run, rows [row0, row0 + rows).
struct Chunk {
    const FusedRun& run;
    Scratch& s;
    int first;
    int count;
    int row0;
    int rows;
};

VECINFER_INLINE void make_scores(const Chunk& c) {
    const FusedRun& run = c.run;
    const std::byte* group = run.queries + c.row0 * query_bytes(run.k);
    const auto* headers = reinterpret_cast<const Header*>(group);
    const auto* table = reinterpret_cast<const std::uint64_t*>(group + kGroup * sizeof(Header));
    for (int m = 0; m < run.k.num_subspaces; m += kSegment) {
        const int count = run.k.num_subspaces - m < kSegment ? run.k.num_subspaces - m : kSegment;
        for (int b = 0; b < c.count; ++b) {
            const std::uint8_t* codes = run.k_blocks[c.first + b] + m * 64;
            if (count == kSegment) {
                add_segment(table + m * 256, codes, kSegment, m == 0, c.s.sums + b * 256);
            } else {
                add_segment(table + m * 256, codes, count, m == 0, c.s.sums + b * 256);
            }
            for (int s = 0; s < count && m + s < run.v.num_subspaces; ++s) {
                _mm_prefetch(run.v_blocks[c.first + b] + (m + s) * 64, _MM_HINT_T0);
            }
        }
    }
    for (int t = 0; t < c.count * 64; t += 4) {
        __m128 x0 = _mm_load_ps(c.s.sums + 4 * t);
        __m128 x1 = _mm_load_ps(c.s.sums + 4 * t + 4);
        __m128 x2 = _mm_load_ps(c.s.sums + 4 * t + 8);
        __m128 x3 = _mm_load_ps(c.s.sums + 4 * t + 12);
        _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
        const __m128 norm = run.k.norms ? _mm_load_ps(c.s.norm_k + t) : _mm_set1_ps(1.0f);
        const auto store = [&](int r, __m128 x) __attribute__((always_inline)) {
            if (r < c.rows) {
                x = _mm_fmadd_ps(x, _mm_set1_ps(headers[r].step), _mm_set1_ps(headers[r].base));
                _mm_store_ps(c.s.scores[r] + t, _mm_fmadd_ps(x, norm, _mm_set1_ps(run.bias[c.row0 + r])));
            }
        };
        store(0, x0);
        store(1, x1);
        store(2, x2);
        store(3, x3);
    }
}

VECINFER_INLINE float adjust_row(const Chunk& c, int r) {
    float* s = c.s.scores[r];
    F best = _mm256_set1_ps(kMinusInfinity);
    for (int b = 0; b < c.count; ++b) {
        const float* mask = c.run.masks[c.first + b];
        for (int t = b * 64; t < b * 64 + 64; t += 8) {
            F x = _mm256_load_ps(s + t);
            if (c.run.soft_cap != 0) {
                x = _mm256_mul_ps(_mm256_set1_ps(c.run.soft_cap), tanh_of(x));
            }
            if (mask != nullptr) {
                x = _mm256_add_ps(x, _mm256_loadu_ps(mask + (c.row0 + r) * 64 + t - b * 64));
            }
            _mm256_store_ps(s + t, x);
            best = _mm256_max_ps(best, x);
        }
    }
    return max_of(best);
}

// Turns a row's scores into 15-bit probabilities; returns what one step is worth, 0 if there is nothing to add.
VECINFER_INLINE float softmax_row(const Chunk& c, int r) {
    const FusedRun& run = c.run;
    const int row = c.row0 + r;
    float* s = c.s.scores[r];
    const int cells = c.count * 64;
    const float max = adjust_row(c, r);
    const float new_max = max > run.row_max[row] ? max : run.row_max[row];
    float largest = 0;
    if (new_max != kMinusInfinity) {
        if (new_max > run.row_max[row]) {
            const float factor = run.row_max[row] == kMinusInfinity ? 0.0f : exp_of(run.row_max[row] - new_max);
            const int dim = run.v.dim();
            for (int i = row * dim; i < (row + 1) * dim; i += 8) {
                _mm256_storeu_ps(run.o + i, _mm256_mul_ps(_mm256_loadu_ps(run.o + i), _mm256_set1_ps(factor)));
                _mm256_storeu_ps(run.o_other + i, _mm256_mul_ps(_mm256_loadu_ps(run.o_other + i), _mm256_set1_ps(factor)));
            }
            run.row_sum[row] *= factor;
            run.code_share[row] *= factor;
            run.row_max[row] = new_max;
        }
        const F shift = _mm256_set1_ps(-new_max * kLog2e);
        F sum = _mm256_setzero_ps();
        F top = _mm256_setzero_ps();
        for (int t = 0; t < cells; t += 8) {
            F p = exp2_of(_mm256_fmadd_ps(_mm256_load_ps(s + t), _mm256_set1_ps(kLog2e), shift));
            sum = _mm256_add_ps(sum, p);
            if (run.v.norms) {
                p = _mm256_mul_ps(p, _mm256_load_ps(c.s.norm_v + t));
            }
            top = _mm256_max_ps(top, p);
            _mm256_store_ps(s + t, p);
        }
        const float total = sum_of(sum);
        run.row_sum[row] += total;
        run.code_share[row] += total;
        largest = max_of(top);
    }
    const float unit = largest > 1e-30f ? 32767.0f / largest : 0.0f;
    const V first = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2);
    const V second = _mm256_setr_epi32(4, 4, 4, 4, 6, 6, 6, 6);
    for (int t = 0; t < cells; t += 8) {
        const F x = unit > 0 ? _mm256_mul_ps(_mm256_load_ps(s + t), _mm256_set1_ps(unit)) : _mm256_setzero_ps();
        const V p = _mm256_cvtps_epi32(x);
        const V pairs = _mm256_or_si256(p, _mm256_srli_epi64(p, 16));  // even lanes: two cells
        auto* out = reinterpret_cast<V*>(c.s.p[r] + t * 4);
        _mm256_store_si256(out, _mm256_permutevar8x32_epi32(pairs, first));
        _mm256_store_si256(out + 1, _mm256_permutevar8x32_epi32(pairs, second));
    }
    return unit > 0 ? largest / 32767.0f : 0.0f;
}

VECINFER_INLINE __m128i load4(const std::int16_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

VECINFER_INLINE __m128i load2(const std::int16_t* a, const std::int16_t* b) {
    int x;
    int y;
    __builtin_memcpy(&x, a, 4);
    __builtin_memcpy(&y, b, 4);
    return _mm_insert_epi32(_mm_cvtsi32_si128(x), y, 1);
}

// Four channels of four cells as 16-bit integers, cells in pairs: [c0 c1] x 4 channels, [c2 c3] x 4 channels. codes: of the four
// cells; half: which four of 8 channels.
template <int D>
VECINFER_INLINE V four_channels(const std::int16_t* centroids, const std::uint8_t* codes, int half) {
    const auto at = [&](int i) __attribute__((always_inline)) {
        if constexpr (D == 2) {  // two subspaces side by side
            return load2(centroids + codes[i] * 2, centroids + codes[i + 64] * 2);
        } else {
            return load4(centroids + codes[i] * D + (D == 8 ? half * 4 : 0));
        }
    };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(at(0), at(1))), _mm_unpacklo_epi16(at(2), at(3)), 1);
}

// Eight channels from channel c0 on, for R rows.
template <int D, int R>
VECINFER_INLINE void sum_eight(const Chunk& c, int c0, const float* units) {
    const FusedRun& run = c.run;
    const int dim = run.v.dim();
    const std::size_t a_offset = static_cast<std::size_t>(c0 / D) * 64;
    const std::size_t b_offset = static_cast<std::size_t>((c0 + 4) / D) * 64;
    V a0 = _mm256_setzero_si256(), a1 = a0, a2 = a0, a3 = a0;  // rows, first four channels
    V b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int b = 0; b < c.count; ++b) {
        const std::uint8_t* block = run.v_blocks[c.first + b];
        for (int t = 0; t < 64; t += 4) {
            const V x = four_channels<D>(c.s.centroids, block + a_offset + t, 0);
            const V y = four_channels<D>(c.s.centroids, block + b_offset + t, 1);
            const auto step = [&](int r, V& a, V& bb) __attribute__((always_inline)) {
                const V p = _mm256_load_si256(reinterpret_cast<const V*>(c.s.p[r] + (b * 64 + t) * 4));
                a = _mm256_add_epi32(a, _mm256_madd_epi16(p, x));
                bb = _mm256_add_epi32(bb, _mm256_madd_epi16(p, y));
            };
            step(0, a0, b0);
            if constexpr (R > 1) {
                step(1, a1, b1);
            }
            if constexpr (R > 2) {
                step(2, a2, b2);
            }
            if constexpr (R > 3) {
                step(3, a3, b3);
            }
        }
    }
    const auto store = [&](int r, V a, V b) __attribute__((always_inline)) {
        // The halves hold even and odd pairs of cells; each sum is below 2^30, so that of both fits.
        const V sum = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
        float* o = run.o + (c.row0 + r) * dim + c0;
        _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(units[r]), _mm256_loadu_ps(o)));
    };
    store(0, a0, b0);
    if constexpr (R > 1) {
        store(1, a1, b1);
    }
    if constexpr (R > 2) {
        store(2, a2, b2);
    }
    if constexpr (R > 3) {
        store(3, a3, b3);
    }
}

template <int D, int R>
__attribute__((noinline)) void sum_values(const Chunk& c, const float* units) {
    for (int c0 = 0; c0 < c.run.v.dim(); c0 += 8) {
        sum_eight<D, R>(c, c0, units);
    }
}

template <int D>
void sum_rows(const Chunk& c, const float* units) {
    switch (c.rows) {
        case 1: sum_values<D, 1>(c, units); break;
        case 2: sum_values<D, 2>(c, units); break;
        case 3: sum_values<D, 3>(c, units); break;
        default: sum_values<D, 4>(c, units); break;
    }
}

void run_lut(const FusedRun& run) {
    Scratch& s = *reinterpret_cast<Scratch*>(run.scratch);
    for (int i = 0; i < 256 * run.v.sub_dim; i += 16) {
        const V x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(run.v.centroids + i)));
        _mm256_store_si256(reinterpret_cast<V*>(s.centroids + i), x);
    }
    for (int first = 0; first < run.num_blocks; first += kChunk) {
        const int count = run.num_blocks - first < kChunk ? run.num_blocks - first : kChunk;
        for (int b = 0; b < count; ++b) {
            if (run.k.norms) {
                decode_norms(run.k_blocks[first + b] + run.k.codes_bytes(), s.norm_k + b * 64);
            }
            if (run.v.norms) {
                decode_norms(run.v_blocks[first + b] + run.v.codes_bytes(), s.norm_v + b * 64);
            }
        }
        for (int row0 = 0; row0 < run.rows; row0 += kGroup) {
            const Chunk c{run, s, first, count, row0, run.rows - row0 < kGroup ? run.rows - row0 : kGroup};
            make_scores(c);
            float units[kGroup];
            for (int r = 0; r < c.rows; ++r) {
                units[r] = run.v.scale * softmax_row(c, r);
            }
            switch (run.v.sub_dim) {
                case 2: sum_rows<2>(c, units); break;
                case 4: sum_rows<4>(c, units); break;
                default: sum_rows<8>(c, units); break;
            }
        }
    }
}

}  // namespace

const FusedKernels& fused_lut_avx2() {
    static constexpr FusedKernels kKernels{"lut/avx2", kGroup, supports, query_bytes, scratch_bytes, prepare, run_lut};
    return kKernels;
}

}  // namespace vecinfer::cpu
