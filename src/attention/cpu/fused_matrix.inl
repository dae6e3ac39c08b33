// Matrix method: a chunk of blocks is decoded to 16-bit integers once and multiplied with all query rows. For many rows (prompts,
// drafts) and for codes that a look-up per row does not fit. Included inside an anonymous namespace, after the vectors of the
// ISA:
//   F, V (kLanes floats, integers), loadf, storef, splatf, addf, subf, mulf, maxf, fma_of, sum_of, max_of, to_f, load, zero,
//   splat_pair, exp2_of, store_first, store_pairs, multiply_add (lanes of 32 bits += products of two pairs of 16 bits)
//
// Precision. Keys: centroids are int8 times a scale per codebook; the scale joins the query, which becomes an integer of up to
// kTop = 32767 relative to its largest channel, or less where dim_k * 128 * kTop would leave 31 bits. Sums are exact, so a score
// is off by the rounding of the query alone: at most half a step per channel, 2^-16 of the largest. Norms multiply in f32.
// Values: p times the cell's norm becomes an integer of up to 32767 relative to the largest of its row and chunk. A chunk of
// kChunk blocks sums up to at most 256 * 32767 * 128 = 1.07e9, below 2^31, exactly; chunks are added in f32. 2^x has a relative
// error below 4e-6. Sums of probabilities do not see the rounding. Measured: docs/numerics.md.
//
// Order of work: 6 rows take scores, softmax and values of a chunk in turn, so that scores stay in the first-level cache. The
// panels of the chunk (cells * (dim_k + dim_v) * 2 bytes) stay in the second and are read once per 6 rows, front to back.

constexpr int kRows = 6;             // of one pass: 6 rows by kVectors accumulators
constexpr int kChunk = 4;            // blocks
constexpr int kCells = kChunk * 64;  // of a chunk
constexpr int kStrip = kVectors * kLanes;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2e = 1.44269504088896f;

#include "attention/cpu/matrix_decode.inl"

// A group of kRows queries: the steps of its rows, then pairs of channels, layout (dim / 2, kRows).
constexpr std::size_t kStepsBytes = 64;

std::size_t query_bytes(const FusedSide& k) {
    return kStepsBytes + (static_cast<std::size_t>(k.dim()) * 2 + 63) / 64 * 64;
}

struct Scratch {
    alignas(64) float scores[kRows][kCells];
    alignas(64) std::int16_t p[kRows][kCells];
    alignas(64) float norm_k[kCells];
    alignas(64) float norm_v[kCells];
};

std::size_t key_panel_bytes(const FusedSide& k) {
    return static_cast<std::size_t>(k.dim()) * kCells * 2;
}
std::size_t value_panel_bytes(const FusedSide& v) {
    return static_cast<std::size_t>(v.dim() + kLanes - 1) / kLanes * kLanes * kCells * 2;
}
std::size_t scales_bytes(const FusedSide& v) {
    return static_cast<std::size_t>(v.dim() + kLanes - 1) / kLanes * 64;
}
std::size_t scratch_bytes(const FusedSide& k, const FusedSide& v, int) {
    return sizeof(Scratch) + scales_bytes(v) + key_panel_bytes(k) + value_panel_bytes(v);
}

bool supports(const FusedSide& k, const FusedSide& v) {
    const auto known = [](const FusedSide& side) {
        const int d = side.sub_dim;
        return side.books != nullptr && side.dim() % 8 == 0 && side.dim() <= 2048 &&
               (d == 1 ? side.code_bits <= 4 : (d == 2 || d == 4 || d == 8) && side.code_bits >= 8 && side.code_bits <= 16);
    };
    return known(k) && known(v);
}

void prepare(const FusedSide& k, const float* q, int row, std::byte* queries) {
    std::byte* group = queries + row / kRows * kRows * query_bytes(k);
    auto* pairs = reinterpret_cast<std::int16_t*>(group + kRows * kStepsBytes) + row % kRows * 2;
    const float top = k.dim() <= 512 ? 32767.0f : 32767.0f * 512.0f / static_cast<float>(k.dim());
    float largest = 0;
    for (int d = 0; d < k.dim(); ++d) {
        const float x = __builtin_fabsf(q[d] * k.scale_of(d / k.sub_dim));
        largest = x > largest ? x : largest;
    }
    const float inverse = largest > 1e-30f ? top / largest : 0.0f;
    reinterpret_cast<float*>(group)[row % kRows] = largest / top;
    for (int d = 0; d < k.dim(); ++d) {
        const float x = q[d] * k.scale_of(d / k.sub_dim) * inverse;
        pairs[d / 2 * 2 * kRows + d % 2] = static_cast<std::int16_t>(_mm_cvtss_si32(_mm_set_ss(x)));
    }
}

// 64 norm bytes (codec.h) as floats, the same bits as decode_norm.
VECINFER_INLINE void decode_norms(const std::uint8_t* bytes, float* out) {
    alignas(32) static constexpr float kSteps[8] = {1.0f,        1.09050773f, 1.18920712f, 1.29683955f,
                                                    1.41421356f, 1.54221083f, 1.68179283f, 1.83400809f};
    const __m256 steps = _mm256_load_ps(kSteps);
    for (int t = 0; t < 64; t += 8) {
        const __m256i u = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + t)));
        const __m256i octave = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_srli_epi32(u, 3), _mm256_set1_epi32(16)), 23);
        const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(_mm256_permutevar8x32_ps(steps, u)), octave);
        const __m256i zero = _mm256_cmpeq_epi32(u, _mm256_setzero_si256());
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + t), _mm256_andnot_si256(zero, bits));
    }
}

VECINFER_INLINE F tanh_of(F x) {
    const F clamped = maxf(splatf(-20.0f), subf(splatf(0.0f), maxf(splatf(-20.0f), subf(splatf(0.0f), x))));
    const F e = exp2_of(mulf(clamped, splatf(2.0f * kLog2e)));
    return divf(subf(e, splatf(1.0f)), addf(e, splatf(1.0f)));
}

// sum[r][i] += pair r of `pairs`, kStride 32-bit words apart, times vector i at x.
template <int R, int N, int kStride>
VECINFER_INLINE void multiply_add_rows(V (&sum)[R][N], const std::int32_t* x, const std::int32_t* pairs) {
    V v[N];
    unrolled<N>([&](int i) __attribute__((always_inline)) { v[i] = load(x + i * kLanes); });
    unrolled<R>([&](int r) __attribute__((always_inline)) {
        const V pair = splat_pair(pairs + r * kStride);
        unrolled<N>([&](int i) __attribute__((always_inline)) { multiply_add(sum[r][i], pair, v[i]); });
    });
}

template <int R, int N>
VECINFER_INLINE void clear(V (&sum)[R][N]) {
    unrolled<R>([&](int r) __attribute__((always_inline)) {
        unrolled<N>([&](int i) __attribute__((always_inline)) { sum[r][i] = zero(); });
    });
}

// What a pass works on: blocks [first, first + count) of the run, rows row0 and following.
struct Pass {
    const FusedRun& run;
    Scratch& s;
    const std::int32_t* keys;
    ValuePanel values;
    const float* scales;  // per channel of v: what one unit of its centroids is worth
    int first;
    int count;
    int row0;

    int cells() const { return count * 64; }
};

template <int R>
VECINFER_INLINE void make_scores(const Pass& c) {
    const int pairs = c.run.k.dim() / 2;
    const std::byte* group = c.run.queries + c.row0 * query_bytes(c.run.k);
    const auto* steps = reinterpret_cast<const float*>(group);
    const auto* queries = reinterpret_cast<const std::int32_t*>(group + kRows * kStepsBytes);
    for (int t = 0; t < c.cells(); t += kStrip) {
        const std::int32_t* key = c.keys + t * pairs;
        const std::int32_t* query = queries;
        V sum[R][kVectors];
        clear(sum);
        for (int d = 0; d < pairs; ++d, key += kStrip, query += kRows) {
            multiply_add_rows<R, kVectors, 1>(sum, key, query);
        }
        unrolled<kVectors>([&](int i) __attribute__((always_inline)) {
            const F norm = loadf(c.s.norm_k + t + i * kLanes);
            unrolled<R>([&](int r) __attribute__((always_inline)) {
                const F x = mulf(to_f(sum[r][i]), splatf(steps[r]));
                storef(c.s.scores[r] + t + i * kLanes, fma_of(x, norm, splatf(c.run.bias[c.row0 + r])));
            });
        });
    }
}

// Soft cap and mask; returns the largest score.
VECINFER_INLINE float adjust_row(const Pass& c, int r) {
    float* s = c.s.scores[r];
    F best = splatf(kMinusInfinity);
    for (int b = 0; b < c.count; ++b) {
        const float* mask = c.run.masks[c.first + b];
        float* block = s + b * 64;
        if (c.run.soft_cap != 0 || mask != nullptr) {
            for (int t = 0; t < 64; t += kLanes) {
                F x = loadf(block + t);
                if (c.run.soft_cap != 0) {
                    x = mulf(splatf(c.run.soft_cap), tanh_of(x));
                }
                if (mask != nullptr) {
                    x = addf(x, loadf(mask + (c.row0 + r) * 64 + t));
                }
                storef(block + t, x);
            }
        }
        for (int t = 0; t < 64; t += kLanes) {
            best = maxf(best, loadf(block + t));
        }
    }
    return max_of(best);
}

VECINFER_INLINE float exp_of(float x) {
    return first_of(exp2_of(splatf(x * kLog2e)));
}

// Turns a row's scores into integer probabilities; returns what one step is worth, 0 if there is nothing to add.
VECINFER_INLINE float softmax_row(const Pass& c, int r) {
    const FusedRun& run = c.run;
    const int row = c.row0 + r;
    float* s = c.s.scores[r];
    const int cells = c.cells();
    const float max = adjust_row(c, r);
    const float new_max = max > run.row_max[row] ? max : run.row_max[row];
    float largest = 0;
    if (max != kMinusInfinity) {
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
        const F shift = splatf(-new_max * kLog2e);
        F sum = splatf(0.0f);
        F top = splatf(0.0f);
        for (int t = 0; t < cells; t += kLanes) {
            F p = exp2_of(fma_of(loadf(s + t), splatf(kLog2e), shift));
            sum = addf(sum, p);
            p = mulf(p, loadf(c.s.norm_v + t));
            top = maxf(top, p);
            storef(s + t, p);
        }
        const float total = sum_of(sum);
        run.row_sum[row] += total;
        run.code_share[row] += total;
        largest = max_of(top);
    }
    if (!(largest > 1e-30f)) {
        for (int t = 0; t < cells; t += 16) {
            _mm256_store_si256(reinterpret_cast<__m256i*>(c.s.p[r] + t), _mm256_setzero_si256());
        }
        return 0;
    }
    const F unit = splatf(32767.0f / largest);
    for (int t = 0; t < cells; t += 16) {
        store_pairs(s + t, unit, c.s.p[r] + t);
    }
    return largest / 32767.0f;
}

// N vectors of channels from channel d on.
template <int R, int N>
VECINFER_INLINE void sum_strip(const Pass& c, int d, const float* units) {
    const int dim = c.run.v.dim();
    const std::int32_t* value = c.values.at(d, 0);
    const auto* p = reinterpret_cast<const std::int32_t*>(c.s.p[0]);
    V sum[R][N];
    clear(sum);
    for (int t = 0; t < c.cells(); t += 2, value += N * kLanes, ++p) {
        multiply_add_rows<R, N, kCells / 2>(sum, value, p);
    }
    unrolled<N>([&](int i) __attribute__((always_inline)) {
        const int at = d + i * kLanes;
        const F scale = loadf(c.scales + at);
        const int left = dim - at < kLanes ? dim - at : kLanes;
        unrolled<R>([&](int r) __attribute__((always_inline)) {
            float* o = c.run.o + static_cast<std::ptrdiff_t>(c.row0 + r) * dim + at;
            add_first(o, left, mulf(to_f(sum[r][i]), mulf(splatf(units[r]), scale)));
        });
    });
}

template <int R>
VECINFER_INLINE void sum_values(const Pass& c, const float* units) {
    for (int d = 0; d < c.run.v.dim(); d += kStrip) {
        switch (c.values.strip_channels(d) / kLanes) {
            case 1: sum_strip<R, 1>(c, d, units); break;
            case 2: sum_strip<R, 2>(c, d, units); break;
#if VECINFER_VECTORS > 2
            case 3: sum_strip<R, 3>(c, d, units); break;
            default: sum_strip<R, 4>(c, d, units); break;
#endif
        }
    }
}

template <int R>
__attribute__((noinline)) void run_rows(const Pass& c) {
    make_scores<R>(c);
    float units[R];
    for (int r = 0; r < R; ++r) {
        units[r] = softmax_row(c, r);
    }
    sum_values<R>(c, units);
}

void fill_ones(float* x, int n) {
    for (int i = 0; i < n; ++i) {
        x[i] = 1.0f;
    }
}

void run_matrix(const FusedRun& run) {
    std::byte* memory = run.scratch;
    Scratch& s = *reinterpret_cast<Scratch*>(memory);
    memory += sizeof(Scratch);
    auto* scales = reinterpret_cast<float*>(memory);
    memory += scales_bytes(run.v);
    auto* keys = reinterpret_cast<std::int32_t*>(memory);
    memory += key_panel_bytes(run.k);
    auto* values = reinterpret_cast<std::int32_t*>(memory);

    for (int d = 0; d < run.v.dim(); ++d) {
        scales[d] = run.v.scale_of(d / run.v.sub_dim);
    }
    for (int first = 0; first < run.num_blocks; first += kChunk) {
        const int count = run.num_blocks - first < kChunk ? run.num_blocks - first : kChunk;
        const ValuePanel panel{values, count * 64, run.v.dim()};
        for (int b = 0; b < count; ++b) {
            const std::uint8_t* k_block = run.k_blocks[first + b];
            const std::uint8_t* v_block = run.v_blocks[first + b];
            decode_keys(run.k, k_block, keys + static_cast<std::ptrdiff_t>(b) * 32 * run.k.dim());
            decode_values(run.v, v_block, panel, b * 64);
            if (run.k.norms) {
                decode_norms(k_block + run.k.codes_bytes(), s.norm_k + b * 64);
            } else {
                fill_ones(s.norm_k + b * 64, 64);
            }
            if (run.v.norms) {
                decode_norms(v_block + run.v.codes_bytes(), s.norm_v + b * 64);
            } else {
                fill_ones(s.norm_v + b * 64, 64);
            }
        }
        for (int row0 = 0; row0 < run.rows; row0 += kRows) {
            const Pass pass{run, s, keys, panel, scales, first, count, row0};
            switch (run.rows - row0) {
                case 1: run_rows<1>(pass); break;
                case 2: run_rows<2>(pass); break;
                case 3: run_rows<3>(pass); break;
                case 4: run_rows<4>(pass); break;
                case 5: run_rows<5>(pass); break;
                default: run_rows<6>(pass); break;
            }
        }
    }
}
