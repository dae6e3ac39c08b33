// Look-up method for AVX-512 with VBMI and VNNI: 8-bit codes of any sub_dim, few query rows.
//
// Keys. Per query row and subspace a table holds q . centroid for the 256 centroids as 16-bit integers in two byte planes. A byte
// look-up for 64 cells is two vpermi2b and a blend. With B_m = |q_m| max|c| a partial score lies in [-B_m, B_m]; entries are
// (q . c + B_m) / step, rounded. kSegment subspaces are summed as integers, the even and the odd ones of them with high bytes of
// their own. step is chosen so that the sum of 2 B_m / step over either half is at most 65535 - kSegment, and rounding adds at
// most half per subspace, so the sum of a half stays below 65536:
//   high bytes: parts of that sum over 256, so their own sum is at most 255 and accumulates in bytes;
//   low bytes:  even cells + 256 * odd cells accumulate modulo 2^16 beside the odd cells alone (at most kSegment * 255 = 4080),
//   from
//               which the even ones follow exactly.
// The sum of a segment, at most 131070, and those over segments are exact in f32.
// Error: each entry is off by at most step / 2, uniformly, and a score by about 0.29 step sqrt(num_subspaces). Measured in
// docs/numerics.md.
//
// Values. int8 centroids are exact. p is an unsigned 16-bit integer in two digits, one vpdpbusd each: at most 255 * 127 * 4 per
// step and lane, kRunBlocks steps: 4.1e6 per digit, 1.07e9 joined, below 2^31. 16 lanes are added in f32.
#include <immintrin.h>

#include "attention/cpu/fused.h"

// GCC 12 takes the undefined operand inside unmasked intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace vecinfer::cpu {
namespace {

#include "attention/cpu/softmax_avx512.inl"

#define VECINFER_INLINE inline __attribute__((always_inline))

constexpr int kSegment = 16;
constexpr int kSkew = 80;    // floats between arrays, so that they do not compete for the same cache sets
constexpr int kTable = 512;  // bytes per subspace: 256 low, 256 high

// Head of a query's tables; those of the subspaces follow.
struct Header {
    float step;
    float base;  // score = step * sum + base
    float unused[14];
};
static_assert(sizeof(Header) == 64);

bool supports(const FusedSide& k, const FusedSide& v) {
    return k.by_channel != nullptr && v.planes != nullptr && k.code_bits == 8 && v.code_bits == 8;
}

std::size_t query_bytes(const FusedSide& k) {
    return sizeof(Header) + static_cast<std::size_t>(k.num_subspaces) * kTable;
}

// Norms of both sides, scores of a row, digits of four, and 16 channels of sums of four.
std::size_t scratch_bytes(const FusedSide&, const FusedSide&, int) {
    const std::size_t cells = kRunBlocks * 64;
    return 3 * (cells + kSkew) * sizeof(float) + 4 * cells * 2 + (4 * 256 + kSkew) * sizeof(float);
}

template <int D>
void prepare_tables(const FusedSide& k, const float* q, std::byte* out) {
    auto* header = reinterpret_cast<Header*>(out);
    auto* table = reinterpret_cast<std::uint8_t*>(out) + sizeof(Header);
    F longest = splatf(0.0f);
    for (int i = 0; i < 256; i += 16) {
        F norm = splatf(0.0f);
        for (int c = 0; c < D; ++c) {
            const F x = loadf(k.by_channel + c * 256 + i);
            norm = _mm512_fmadd_ps(x, x, norm);
        }
        longest = _mm512_max_ps(longest, norm);
    }
    // A little more than the longest centroid, so that rounding cannot leave the range.
    const float length = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(_mm512_reduce_max_ps(longest)))) * 1.00001f;

    float bounds[512];
    float base = 0;
    float widest = 0;
    for (int m = 0; m < k.num_subspaces; m += kSegment) {
        float width[2] = {0, 0};
        for (int s = m; s < m + kSegment && s < k.num_subspaces; ++s) {
            float norm = 0;
            for (int c = 0; c < D; ++c) {
                norm += q[s * D + c] * q[s * D + c];
            }
            bounds[s] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(norm))) * length;
            base -= bounds[s];
            width[s % 2] += 2 * bounds[s];
        }
        const float wider = width[0] > width[1] ? width[0] : width[1];
        widest = wider > widest ? wider : widest;
    }
    const float step = widest / (65535.0f - kSegment);
    const float inverse = widest > 1e-30f ? 1.0f / step : 0.0f;
    header->step = inverse > 0 ? step : 0.0f;
    header->base = inverse > 0 ? base : 0.0f;

    const V order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int s = 0; s < k.num_subspaces; ++s, table += kTable) {
        F part[D];
        for (int c = 0; c < D; ++c) {
            part[c] = splatf(q[s * D + c] * inverse);
        }
        const F offset = splatf(bounds[s] * inverse);
        for (int i = 0; i < 256; i += 64) {
            V x[4];
            for (int j = 0; j < 4; ++j) {
                F sum = offset;
                for (int c = 0; c < D; ++c) {
                    sum = _mm512_fmadd_ps(part[c], loadf(k.by_channel + c * 256 + i + 16 * j), sum);
                }
                x[j] = _mm512_cvtps_epi32(sum);
            }
            const V a = _mm512_packus_epi32(x[0], x[1]);
            const V b = _mm512_packus_epi32(x[2], x[3]);
            const V low_mask = _mm512_set1_epi16(255);
            const V low = _mm512_packus_epi16(_mm512_and_si512(a, low_mask), _mm512_and_si512(b, low_mask));
            const V high = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
            _mm512_store_si512(table + i, _mm512_permutexvar_epi32(order, low));
            _mm512_store_si512(table + 256 + i, _mm512_permutexvar_epi32(order, high));
        }
    }
}

void prepare(const FusedSide& k, const float* q, int row, std::byte* queries) {
    std::byte* out = queries + row * query_bytes(k);
    switch (k.sub_dim) {
        case 2: prepare_tables<2>(k, q, out); break;
        case 4: prepare_tables<4>(k, q, out); break;
        default: prepare_tables<8>(k, q, out); break;
    }
}

VECINFER_INLINE V look(V codes, __mmask64 upper, V t0, V t1, V t2, V t3) {
    return _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(t0, codes, t1), _mm512_permutex2var_epi8(t2, codes, t3));
}

// Accumulators of 64 cells: a = even + 256 * odd cells of the low bytes, b = odd cells; h, g = high bytes of the even and of the
// odd subspaces.
struct Sums {
    V a;
    V b;
    V h;
    V g;
};

VECINFER_INLINE void add_low(Sums& sums, V x) {
    sums.a = _mm512_add_epi16(sums.a, x);
    sums.b = _mm512_add_epi16(sums.b, _mm512_srli_epi16(x, 8));
}

// The four vectors of a block in dword order.
VECINFER_INLINE void widen(const Sums& sums, F out[4]) {
    const V even = _mm512_sub_epi16(sums.a, _mm512_slli_epi16(sums.b, 8));
    const V low = _mm512_set1_epi32(0xffff);
    const V high = _mm512_set1_epi16(0xff);
    // At most 510 in 16 bits each.
    const V even_high = _mm512_add_epi16(_mm512_and_si512(sums.h, high), _mm512_and_si512(sums.g, high));
    const V odd_high = _mm512_add_epi16(_mm512_srli_epi16(sums.h, 8), _mm512_srli_epi16(sums.g, 8));
    const auto join = [](V x, V y) __attribute__((always_inline)) {
        return _mm512_cvtepi32_ps(_mm512_add_epi32(x, _mm512_slli_epi32(y, 8)));
    };
    out[0] = join(_mm512_and_si512(even, low), _mm512_and_si512(even_high, low));
    out[1] = join(_mm512_and_si512(sums.b, low), _mm512_and_si512(odd_high, low));
    out[2] = join(_mm512_srli_epi32(even, 16), _mm512_srli_epi32(even_high, 16));
    out[3] = join(_mm512_srli_epi32(sums.b, 16), _mm512_srli_epi32(odd_high, 16));
}

// What turns sums into scores.
struct Finish {
    F step;
    F base;
    F bias;
    bool norms;
};

// first, last: this segment opens, closes the sum over segments. s: 64 floats. Returns the largest score if last.
VECINFER_INLINE F store_block(const Sums& sums, const Finish& f, bool first, bool last, const float* norm, float* s, F best) {
    F x[4];
    widen(sums, x);
    for (int k = 0; k < 4; ++k) {
        if (!first) {
            x[k] = _mm512_add_ps(x[k], loadf(s + 16 * k));
        }
        if (last) {
            x[k] = _mm512_fmadd_ps(x[k], f.step, f.base);
            x[k] = f.norms ? _mm512_fmadd_ps(x[k], loadf(norm + 16 * k), f.bias) : _mm512_add_ps(x[k], f.bias);
            best = _mm512_max_ps(best, x[k]);
        }
        _mm512_store_ps(s + 16 * k, x[k]);
    }
    return best;
}

struct Codes {
    V codes;
    __mmask64 upper;
};
VECINFER_INLINE Codes load_codes(const std::uint8_t* p) {
    const V codes = _mm512_loadu_si512(p);
    return {codes, _mm512_movepi8_mask(codes)};
}

// One subspace: low bytes of its table to all blocks, then high bytes.
template <class Low, class High>
VECINFER_INLINE void each_plane(const std::uint8_t* table, const Low& low, const High& high) {
    low(load(table), load(table + 64), load(table + 128), load(table + 192));
    high(load(table + 256), load(table + 320), load(table + 384), load(table + 448));
}

// Scores of one row over four blocks. In subspaces [fetch_begin, fetch_end) a line of each block of `fetch` is prefetched.
__attribute__((noinline)) F score_4(const std::uint8_t* table, int num_subspaces, const std::uint8_t* const* blocks,
                                    const std::uint8_t* const* fetch, int fetch_begin, int fetch_end, const Finish& f,
                                    const float* norm, float* s, F best) {
    const std::uint8_t* k0 = blocks[0];
    const std::uint8_t* k1 = blocks[1];
    const std::uint8_t* k2 = blocks[2];
    const std::uint8_t* k3 = blocks[3];
    const V zero = _mm512_setzero_si512();
    for (int m = 0; m < num_subspaces; m += kSegment) {
        const int end = m + kSegment < num_subspaces ? m + kSegment : num_subspaces;
        Sums s0{zero, zero, zero, zero};
        Sums s1 = s0;
        Sums s2 = s0;
        Sums s3 = s0;
        const auto subspace = [&](int i, V& h0, V& h1, V& h2, V& h3) __attribute__((always_inline)) {
            const Codes c0 = load_codes(k0 + i * 64);
            const Codes c1 = load_codes(k1 + i * 64);
            const Codes c2 = load_codes(k2 + i * 64);
            const Codes c3 = load_codes(k3 + i * 64);
            if (i >= fetch_begin && i < fetch_end) {
                _mm_prefetch(fetch[0] + i * 64, _MM_HINT_T1);
                _mm_prefetch(fetch[1] + i * 64, _MM_HINT_T1);
                _mm_prefetch(fetch[2] + i * 64, _MM_HINT_T1);
                _mm_prefetch(fetch[3] + i * 64, _MM_HINT_T1);
            }
            each_plane(
                table + i * kTable,
                [&](V t0, V t1, V t2, V t3) __attribute__((always_inline)) {
                    add_low(s0, look(c0.codes, c0.upper, t0, t1, t2, t3));
                    add_low(s1, look(c1.codes, c1.upper, t0, t1, t2, t3));
                    add_low(s2, look(c2.codes, c2.upper, t0, t1, t2, t3));
                    add_low(s3, look(c3.codes, c3.upper, t0, t1, t2, t3));
                },
                [&](V t0, V t1, V t2, V t3) __attribute__((always_inline)) {
                    h0 = _mm512_add_epi8(h0, look(c0.codes, c0.upper, t0, t1, t2, t3));
                    h1 = _mm512_add_epi8(h1, look(c1.codes, c1.upper, t0, t1, t2, t3));
                    h2 = _mm512_add_epi8(h2, look(c2.codes, c2.upper, t0, t1, t2, t3));
                    h3 = _mm512_add_epi8(h3, look(c3.codes, c3.upper, t0, t1, t2, t3));
                });
        };
        int i = m;
        for (; i + 2 <= end; i += 2) {
            subspace(i, s0.h, s1.h, s2.h, s3.h);
            subspace(i + 1, s0.g, s1.g, s2.g, s3.g);
        }
        if (i < end) {
            subspace(i, s0.h, s1.h, s2.h, s3.h);
        }
        const bool first = m == 0;
        const bool last = end == num_subspaces;
        best = store_block(s0, f, first, last, norm, s, best);
        best = store_block(s1, f, first, last, norm + 64, s + 64, best);
        best = store_block(s2, f, first, last, norm + 128, s + 128, best);
        best = store_block(s3, f, first, last, norm + 192, s + 192, best);
    }
    return best;
}

__attribute__((noinline)) F score_1(const std::uint8_t* table, int num_subspaces, const std::uint8_t* block, const Finish& f,
                                    const float* norm, float* s, F best) {
    const V zero = _mm512_setzero_si512();
    for (int m = 0; m < num_subspaces; m += kSegment) {
        const int end = m + kSegment < num_subspaces ? m + kSegment : num_subspaces;
        Sums sums{zero, zero, zero, zero};
        for (int i = m; i < end; ++i) {
            const Codes c = load_codes(block + i * 64);
            each_plane(
                table + i * kTable,
                [&](V t0, V t1, V t2, V t3)
                    __attribute__((always_inline)) { add_low(sums, look(c.codes, c.upper, t0, t1, t2, t3)); },
                [&](V t0, V t1, V t2, V t3) __attribute__((always_inline)) {
                    V& h = i % 2 == 0 ? sums.h : sums.g;
                    h = _mm512_add_epi8(h, look(c.codes, c.upper, t0, t1, t2, t3));
                });
        }
        best = store_block(sums, f, m == 0, end == num_subspaces, norm, s, best);
    }
    return best;
}

// Adds the lanes of 16 vectors: lane i of the result is the sum of vector i.
VECINFER_INLINE F add_lanes(const float* x) {
    F w[4];
    for (int i = 0; i < 4; ++i) {
        const F a = loadf(x + 64 * i);
        const F b = loadf(x + 64 * i + 16);
        const F c = loadf(x + 64 * i + 32);
        const F d = loadf(x + 64 * i + 48);
        const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
        w[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    }
    const F u = _mm512_add_ps(_mm512_shuffle_f32x4(w[0], w[1], 0x44), _mm512_shuffle_f32x4(w[0], w[1], 0xee));
    const F v = _mm512_add_ps(_mm512_shuffle_f32x4(w[2], w[3], 0x44), _mm512_shuffle_f32x4(w[2], w[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(u, v, 0x88), _mm512_shuffle_f32x4(u, v, 0xdd));
}

// sums += per lane u . s over 4 bytes, u unsigned, s signed. As an instruction, not an intrinsic: around that, GCC 12 copies
// every accumulator twice per step.
VECINFER_INLINE void add_dots(V& sums, V u, V s) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(u), "v"(s));
}

VECINFER_INLINE F join_digits(V low, V high) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(low, _mm512_slli_epi32(high, 8)));
}

// Two channels of one subspace over a run, for R rows. planes: the two channels' centroids, 256 apart. digits: layout (block,
// row, 128). sums: layout (R, 16, 16): channel 0 and 1 of each row are written. A line at `ahead`, and
// one every ahead_stride bytes, is fetched per block meanwhile. Accumulators are named: GCC 12 spills arrays of them.
template <int R>
VECINFER_INLINE void sum_pair(const std::uint8_t* const* blocks, int num_blocks, std::size_t offset, const std::int8_t* planes,
                              const std::uint8_t* digits, std::size_t stride, float* sums, const std::uint8_t* ahead,
                              std::size_t ahead_stride) {
    const V x0 = load(planes);
    const V x1 = load(planes + 64);
    const V x2 = load(planes + 128);
    const V x3 = load(planes + 192);
    const V y0 = load(planes + 256);
    const V y1 = load(planes + 320);
    const V y2 = load(planes + 384);
    const V y3 = load(planes + 448);
    V a0 = _mm512_setzero_si512(), a1 = a0, a2 = a0, a3 = a0;  // row 0: channel 0 low, high, channel 1 low, high
    V b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    V c0 = a0, c1 = a0, c2 = a0, c3 = a0;
    V d0 = a0, d1 = a0, d2 = a0, d3 = a0;
    for (int b = 0; b < num_blocks; ++b, digits += stride) {
        const Codes codes = load_codes(blocks[b] + offset);
        _mm_prefetch(ahead + b * ahead_stride, _MM_HINT_T1);
        const V x = look(codes.codes, codes.upper, x0, x1, x2, x3);
        const V y = look(codes.codes, codes.upper, y0, y1, y2, y3);
        const auto step = [&](int row, V& p0, V& p1, V& p2, V& p3) __attribute__((always_inline)) {
            const V low = load(digits + row * 128);
            const V high = load(digits + row * 128 + 64);
            add_dots(p0, low, x);
            add_dots(p1, high, x);
            add_dots(p2, low, y);
            add_dots(p3, high, y);
        };
        step(0, a0, a1, a2, a3);
        if constexpr (R > 1) {
            step(1, b0, b1, b2, b3);
        }
        if constexpr (R > 2) {
            step(2, c0, c1, c2, c3);
        }
        if constexpr (R > 3) {
            step(3, d0, d1, d2, d3);
        }
    }
    const auto store = [&](int row, V p0, V p1, V p2, V p3) __attribute__((always_inline)) {
        _mm512_store_ps(sums + row * 256, join_digits(p0, p1));
        _mm512_store_ps(sums + row * 256 + 16, join_digits(p2, p3));
    };
    store(0, a0, a1, a2, a3);
    if constexpr (R > 1) {
        store(1, b0, b1, b2, b3);
    }
    if constexpr (R > 2) {
        store(2, c0, c1, c2, c3);
    }
    if constexpr (R > 3) {
        store(3, d0, d1, d2, d3);
    }
}

// Value sums of R rows from row0 on.
template <int R>
__attribute__((noinline)) void sum_values(const FusedRun& run, int row0, const std::uint8_t* digits, std::size_t stride,
                                          const float* units, float* sums) {
    const int sub_dim = run.v.sub_dim;
    const int dim = run.v.dim();
    // Keys of the next run; where there is none, a line that is at hand anyway.
    const std::uint8_t* next = run.next_k != nullptr ? run.next_k : run.k_blocks[0];
    const std::size_t next_stride = run.next_k != nullptr ? run.k.block_bytes() : 0;
    int filled = 0;
    for (int m = 0; m < run.v.num_subspaces; ++m) {
        const std::uint8_t* ahead = next + (m < run.k.num_subspaces ? m : 0) * 64;
        for (int c = 0; c < sub_dim; c += 2, filled += 2) {
            sum_pair<R>(run.v_blocks, run.num_blocks, m * 64, run.v.planes + c * 256, digits, stride, sums + filled * 16, ahead,
                        next_stride);
        }
        const int done = (m + 1) * sub_dim;
        if (filled == 16 || done == dim) {
            const auto lanes = static_cast<__mmask16>((1u << filled) - 1);
            for (int r = 0; r < R; ++r) {
                float* o = run.o + (row0 + r) * dim + done - filled;
                const F old = _mm512_maskz_loadu_ps(lanes, o);
                _mm512_mask_storeu_ps(o, lanes, _mm512_fmadd_ps(add_lanes(sums + r * 256), splatf(units[r]), old));
            }
            filled = 0;
        }
    }
}

void run_lut(const FusedRun& run) {
    const int nb = run.num_blocks;
    constexpr std::size_t kCells = kRunBlocks * 64;
    auto* norm_k = reinterpret_cast<float*>(run.scratch);
    float* norm_v = norm_k + kCells + kSkew;
    float* sums = norm_v + kCells + kSkew;  // (4, 16, 16)
    float* scores = sums + 4 * 256 + kSkew;
    auto* digits = reinterpret_cast<std::uint8_t*>(scores + kCells + kSkew);  // layout (block, row, 128)
    for (int b = 0; b < nb; ++b) {
        if (run.k.norms) {
            decode_norms(run.k_blocks[b] + run.k.codes_bytes(), norm_k + b * 64);
        }
        if (run.v.norms) {
            decode_norms(run.v_blocks[b] + run.v.codes_bytes(), norm_v + b * 64);
        }
    }
    for (int b = 0; b < nb && run.next_k != nullptr; ++b) {  // norms of the next run
        _mm_prefetch(run.next_k + b * run.k.block_bytes() + run.k.codes_bytes(), _MM_HINT_T1);
        _mm_prefetch(run.next_v + b * run.v.block_bytes() + run.v.codes_bytes(), _MM_HINT_T1);
    }
    const bool adjust = needs_adjusting(run);
    const std::size_t stride = query_bytes(run.k);
    for (int row0 = 0; row0 < run.rows; row0 += 4) {
        const int group = run.rows - row0 < 4 ? run.rows - row0 : 4;
        float units[4];
        // Value lines to fetch while the first rows are scored; each row takes a share of them.
        const int common = run.v.num_subspaces < run.k.num_subspaces ? run.v.num_subspaces : run.k.num_subspaces;
        const int lines = row0 == 0 ? common : 0;
        for (int r = 0; r < group; ++r) {
            const std::byte* query = run.queries + (row0 + r) * stride;
            const auto* header = reinterpret_cast<const Header*>(query);
            const auto* table = reinterpret_cast<const std::uint8_t*>(query) + sizeof(Header);
            const Finish finish{splatf(header->step), splatf(header->base), splatf(run.bias[row0 + r]), run.k.norms};
            F best = splatf(kMinusInfinity);
            int b = 0;
            for (; b + 4 <= nb; b += 4) {
                best = score_4(table, run.k.num_subspaces, run.k_blocks + b, run.v_blocks + b, lines * r / group,
                               lines * (r + 1) / group, finish, norm_k + b * 64, scores + b * 64, best);
            }
            for (; b < nb; ++b) {
                best = score_1(table, run.k.num_subspaces, run.k_blocks[b], finish, norm_k + b * 64, scores + b * 64, best);
            }
            const float max = adjust ? adjust_row(run, row0 + r, scores) : _mm512_reduce_max_ps(best);
            units[r] = run.v.scale * softmax_row<false>(run, row0 + r, scores, max, run.v.norms ? norm_v : nullptr,
                                                        digits + r * 128, group * 128);
        }
        switch (group) {
            case 1: sum_values<1>(run, row0, digits, 128, units, sums); break;
            case 2: sum_values<2>(run, row0, digits, 256, units, sums); break;
            case 3: sum_values<3>(run, row0, digits, 384, units, sums); break;
            default: sum_values<4>(run, row0, digits, 512, units, sums); break;
        }
    }
}

}  // namespace

const FusedKernels& fused_lut_avx512vbmi() {
    static constexpr FusedKernels kKernels{"lut/avx512vbmi", 1, supports, query_bytes, scratch_bytes, prepare, run_lut};
    return kKernels;
}

}  // namespace vecinfer::cpu
