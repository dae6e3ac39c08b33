// Scan of all centroids in integers, included by encode_<isa>.cc inside an anonymous namespace after it has defined
//   Ints                   a vector of Ints::kWidth 32-bit integers, kWidth 8 or 16
//   load, splat, minimum, maximum
//   splat_first(x)         the first lane of an __m128i in all lanes
//   add_products(a, b, c)  per lane a + b.low c.low + b.high c.high, of signed 16-bit halves
//   store(p, a)            unaligned
//   reduce_min             least lane
//   less_bits(a, b)        one bit per lane, lane 0 lowest: a < b
//
// Why the codes are exact. cost_i = bias_i - 2 x . c_i is to be least, where c_i = scale C_i with integers C_i (int8 centroids)
// and bias_i is |c_i|^2, for the nearest centroid, or c_i^T W c_i. x is rounded to X / steps, X 16-bit integers, bias_i / 2 to
// B_i units of u = scale / steps, and S_i = B_i - X . C_i is computed exactly: |S_i u - cost_i / 2| <= E u with
//     E = 1/2 (B) + sum_k |C_ik| / 2 (X) + what float centroids miss of scale C_i.
// The definition (nearest.h) takes the least of costs that are rounded as floats; the cost of its winner w lies at most R above
// the least one. With b the index of the least S: S_w u <= cost_w / 2 + E u <= cost_b / 2 + R / 2 + E u <= S_b u + R / 2 + 2 E u.
// So only centroids with S_i <= S_b + 2 E + R / (2 u) can be the winner. scan.cc computes that margin for each codebook, in
// doubles, with room for the roundings of steps and products. Costs of the few classes of centroids that are that close are
// computed as the definition says, lowest index first.
//
// Why nothing overflows. |C| 2^class_bits <= 2^15 and |X| < 2^15 fit 16 bits and two products 2^31; scan.cc chooses steps and the
// most of them so that |S| 2^class_bits + class < 2^30, whatever order a sum is taken in, as |B| and sum |X C| are bounded
// together. An x of more steps, or not a number, is searched by the definition.
//
// Costs are shifted left by class_bits and hold their class below, so that the least cost of a lane names its class. A second
// minimum per lane tells whether another class of that lane is close, whose name is lost: then, too, all centroids are searched.
// It costs three operations per class of vectors.

inline constexpr int kLanes = 16;  // classes that are ordered together
inline constexpr int kChunk = 64;  // channels that are searched together: scans, then decisions, so that latencies overlap

/// out <- -x * steps, rounded, n a multiple of 16; false if an entry has too many steps.
inline bool quantize(const float* x, int n, const ScanTable& t, std::int16_t* out) {
    const __m256 factor = _mm256_set1_ps(-t.steps);
    const __m256i end = _mm256_set1_epi16(static_cast<std::int16_t>(t.most + 1));
    __m256i inside = _mm256_set1_epi16(-1);
    for (int i = 0; i < n; i += 16) {
        const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
        const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), factor));
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
        // What fits no integer, is infinite or no number at all has become one of the ends of 16 bits.
        inside = _mm256_and_si256(inside, _mm256_cmpgt_epi16(end, both));
        inside = _mm256_and_si256(inside, _mm256_cmpgt_epi16(both, _mm256_sub_epi16(_mm256_setzero_si256(), end)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), both);
    }
    return _mm256_movemask_epi8(inside) == -1;
}

/// Channels of one sub-vector, a pair in every lane.
template <int D>
struct Pairs {
    Ints at[D / 2];
};

template <int D>
inline Pairs<D> pairs(const std::int16_t* x) {
    Pairs<D> out;
    for (int p = 0; p < D / 2; ++p) {
        std::int32_t pair;
        std::memcpy(&pair, x + 2 * p, sizeof pair);
        out.at[p] = splat(pair);
    }
    return out;
}

/// What a scan leaves of a sub-vector.
struct Scanned {
    Ints best;    // least cost of each lane
    Ints second;  // least one of the lane's other classes
};

template <int D, int kClassSize>
inline Scanned scan(const Pairs<D>& x, const ScanTable& t) {
    Ints best = splat(0x7fffffff);
    Ints second = best;
    for (int block = 0; block < t.num_centroids; block += kLanes * kClassSize) {
        for (int at = block; at < block + kLanes; at += Ints::kWidth) {
            Ints least{};
            for (int v = 0; v < kClassSize; ++v) {
                const std::int32_t* words = t.words + at + v * kLanes;
                Ints cost = load(t.bias + at + v * kLanes);
                for (int p = 0; p < D / 2; ++p) {
                    cost = add_products(cost, load(words + static_cast<std::ptrdiff_t>(p) * t.num_centroids), x.at[p]);
                }
                least = v == 0 ? cost : minimum(least, cost);
            }
            second = minimum(second, maximum(best, least));
            best = minimum(best, least);
        }
    }
    return {best, second};
}

template <int D>
inline Scanned scan(const Pairs<D>& x, const ScanTable& t) {
    return t.class_size == 4 ? scan<D, 4>(x, t) : scan<D, 16>(x, t);
}

/// Lanes whose best class can hold the winner; none if a class can whose name is lost.
inline unsigned close_lanes(const Scanned& scanned, std::int32_t least, const ScanTable& t) {
    const Ints limit = splat(least + t.margin);
    return less_bits(scanned.second, limit) == 0 ? less_bits(scanned.best, limit) : 0;
}

/// Costs of four neighbouring centroids from index `first` on, by the operations of Distance in nearest.inl.
template <int D>
struct Distances {
    const float* x;
    const ScanTable& t;

    __m128 operator()(int first) const {
        const float* centroid = t.centroids + first;
        __m128 sum{};
        for (int c = 0; c < D; ++c, centroid += t.num_centroids) {
            const __m128 difference = _mm_sub_ps(_mm_set1_ps(x[c]), _mm_load_ps(centroid));
            const __m128 square = _mm_mul_ps(difference, difference);
            sum = c == 0 ? square : _mm_add_ps(sum, square);
        }
        return sum;
    }
};

/// Likewise, by those of BiasedProduct; `bias` is of all centroids.
template <int D>
struct BiasedProducts {
    const float* x;
    const ScanTable& t;
    const float* bias;

    __m128 operator()(int first) const {
        const float* centroid = t.centroids + first;
        __m128 cost = _mm_load_ps(bias + first);
        for (int c = 0; c < D; ++c, centroid += t.num_centroids) {
            cost = _mm_sub_ps(cost, _mm_mul_ps(_mm_set1_ps(x[c]), _mm_load_ps(centroid)));
        }
        return cost;
    }
};

inline __m128 least_everywhere(__m128 x) {
    const __m128 m = _mm_min_ps(x, _mm_movehl_ps(x, x));
    return _mm_broadcastss_ps(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

inline int first_equal(__m128 x, __m128 value) {
    return __builtin_ctz(static_cast<unsigned>(_mm_movemask_ps(_mm_cmpeq_ps(x, value))));
}

/// The winner among the best classes of some lanes, at least one.
template <class Costs>
inline std::uint16_t winner(const Scanned& scanned, std::int32_t least, unsigned lanes, const ScanTable& t, const Costs& costs) {
    const std::int32_t mask = (1 << t.class_bits) - 1;
    if ((lanes & (lanes - 1)) == 0 && t.class_size == 4) {
        const int first = 4 * (least & mask);
        const __m128 all = costs(first);
        return static_cast<std::uint16_t>(first + first_equal(all, least_everywhere(all)));
    }
    std::int32_t best[Ints::kWidth];
    store(best, scanned.best);
    float cost = __builtin_inff();
    int code = 0;
    for (; lanes != 0; lanes &= lanes - 1) {
        const int first = t.class_size * (best[__builtin_ctz(lanes)] & mask);
        for (int i = first; i < first + t.class_size; i += 4) {
            const __m128 four = costs(i);
            const __m128 value = least_everywhere(four);
            const float of_four = _mm_cvtss_f32(value);
            if (of_four < cost || (of_four == cost && i < code)) {
                cost = of_four;
                code = i + first_equal(four, value);
            }
        }
    }
    return static_cast<std::uint16_t>(code);
}

/// codes[i] <- nearest centroid of sub-vector i.
template <int D>
void find_nearest(const float* x, std::int64_t n, const ScanTable& t, std::uint16_t* codes) {
    constexpr int kMost = kChunk / D;  // sub-vectors of a chunk
    if (D == 1 || t.most == 0) {
        nearest_kernel(kIsa, D)(x, n, t.centroids, t.num_centroids, codes, nullptr);
        return;
    }
    alignas(32) float tail[kChunk];
    alignas(32) std::int16_t steps[kChunk];
    Scanned scanned[kMost];
    std::int32_t least[kMost];
    unsigned lanes[kMost];
    for (; n > 0; n -= kMost, x += kChunk, codes += kMost) {
        const int count = static_cast<int>(n < kMost ? n : kMost);
        if (count < kMost) {
            std::fill_n(std::copy_n(x, count * D, tail), kChunk - count * D, 0.0f);
            x = tail;
        }
        if (!quantize(x, kChunk, t, steps)) {
            nearest_kernel(kIsa, D)(x, count, t.centroids, t.num_centroids, codes, nullptr);
            continue;
        }
        for (int i = 0; i < count; ++i) {
            scanned[i] = scan<D>(pairs<D>(steps + i * D), t);
        }
        for (int i = 0; i < count; ++i) {
            least[i] = reduce_min(scanned[i].best);
            lanes[i] = close_lanes(scanned[i], least[i], t);
        }
        for (int i = 0; i < count; ++i) {
            if (lanes[i] != 0) {
                codes[i] = winner(scanned[i], least[i], lanes[i], t, Distances<D>{x + i * D, t});
            } else {
                nearest_kernel(kIsa, D)(x + i * D, 1, t.centroids, t.num_centroids, codes + i, nullptr);
            }
        }
    }
}

/// As quantize, for one sub-vector in a register.
template <int D>
inline bool quantize_goal(const Channels<D>& goal, const ScanTable& t, Pairs<D>& out) {
    const __m128 factor = _mm_set1_ps(-t.steps);
    __m128 low{};
    __m128 high{};
    if constexpr (D == 8) {
        low = _mm_setr_ps(goal[0], goal[1], goal[2], goal[3]);
        high = _mm_setr_ps(goal[4], goal[5], goal[6], goal[7]);
    } else if constexpr (D == 4) {
        low = _mm_setr_ps(goal[0], goal[1], goal[2], goal[3]);
    } else {
        low = _mm_setr_ps(goal[0], goal[1], 0.0f, 0.0f);
    }
    const __m128i both = _mm_packs_epi32(_mm_cvtps_epi32(_mm_mul_ps(low, factor)), _mm_cvtps_epi32(_mm_mul_ps(high, factor)));
    const __m128i end = _mm_set1_epi16(static_cast<std::int16_t>(t.most + 1));
    const __m128i inside =
        _mm_and_si128(_mm_cmpgt_epi16(end, both), _mm_cmpgt_epi16(both, _mm_sub_epi16(_mm_setzero_si128(), end)));
    out.at[0] = splat_first(both);
    out.at[D / 2 - 1] = splat_first(_mm_shuffle_epi32(both, (D / 2 - 1) * 0x55));
    if constexpr (D == 8) {
        out.at[1] = splat_first(_mm_shuffle_epi32(both, 0x55));
        out.at[2] = splat_first(_mm_shuffle_epi32(both, 0xaa));
    }
    return _mm_movemask_epi8(inside) == 0xffff;
}

/// codes[s] <- the centroid with the least bias - 2 goal . c, for N goals. bias: t's as floats.
template <int D, int N>
inline void least_costs(const Channels<D>* goals, const ScanTable& t, const float* bias, std::uint16_t* codes) {
    Scanned scanned[N];
    bool within[N];
    for (int s = 0; s < N; ++s) {
        Pairs<D> x;
        within[s] = quantize_goal<D>(goals[s], t, x) && t.most > 0;
        scanned[s] = scan<D>(x, t);
    }
    std::int32_t least[N];
    unsigned lanes[N];
    for (int s = 0; s < N; ++s) {
        least[s] = reduce_min(scanned[s].best);
        lanes[s] = within[s] ? close_lanes(scanned[s], least[s], t) : 0;
    }
    for (int s = 0; s < N; ++s) {
        float slope[D];
        store_lanes(slope, goals[s] * 2.0f);
        codes[s] = lanes[s] != 0 ? winner(scanned[s], least[s], lanes[s], t, BiasedProducts<D>{slope, t, bias})
                                 : least_cost_kernel(kIsa, D)(slope, t.centroids, bias, t.num_centroids);
    }
}
