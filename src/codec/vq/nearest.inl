// Body of the nearest-centroid kernels, included by nearest_<isa>.cc inside an anonymous namespace after it has defined
//   Vec                      a vector of Vec::kWidth floats, kWidth a power of two up to 16
//   load, splat, sub, mul, add, minimum (the second operand where the first is not less)
//   select_less(a, b, t, f)  per lane a < b ? t : f
//   reduce_min               least lane
//   equal_bits(a, b)         one bit per lane, lane 0 lowest
//
// The scan keeps, per lane, the least distance and the group of kGroup vectors it first came from: three operations per group
// instead of three per vector. The winner's group is then computed again to find which entry it was; the same operations give
// the same bits, so the comparison for equality is exact. A group number is held as a float: exact up to 2^24.

inline constexpr int kGroup = 4;
inline constexpr float kInfinity = __builtin_inff();

template <int D>
inline Vec distance(const Vec* x, const float* table, int num_centroids) {
    Vec t = sub(x[0], load(table));
    Vec sum = mul(t, t);
    for (int c = 1; c < D; ++c) {
        t = sub(x[c], load(table + static_cast<long>(c) * num_centroids));
        sum = add(sum, mul(t, t));
    }
    return sum;
}

/// N sub-vectors at once, so that their dependency chains overlap.
template <int D, int N>
inline void nearest_of(const float* x, const float* table, int num_centroids, std::uint16_t* codes, float* distances) {
    constexpr int kStep = kGroup * Vec::kWidth;
    Vec xs[N][D];
    Vec best[N];
    Vec where[N];
    for (int s = 0; s < N; ++s) {
        for (int c = 0; c < D; ++c) {
            xs[s][c] = splat(x[s * D + c]);
        }
        best[s] = splat(kInfinity);
        where[s] = splat(0.0f);
    }
    for (int begin = 0; begin < num_centroids; begin += kStep) {
        const Vec group = splat(static_cast<float>(begin));
        for (int s = 0; s < N; ++s) {
            Vec least = distance<D>(xs[s], table + begin, num_centroids);
            for (int v = 1; v < kGroup; ++v) {
                least = minimum(distance<D>(xs[s], table + begin + v * Vec::kWidth, num_centroids), least);
            }
            where[s] = select_less(least, best[s], group, where[s]);
            best[s] = minimum(least, best[s]);
        }
    }
    for (int s = 0; s < N; ++s) {
        const float least = reduce_min(best[s]);
        const Vec level = splat(least);
        const int begin = static_cast<int>(reduce_min(select_less(level, best[s], splat(kInfinity), where[s])));
        std::uint64_t equal = 0;
        for (int v = 0; v < kGroup; ++v) {
            const Vec d = distance<D>(xs[s], table + begin + v * Vec::kWidth, num_centroids);
            equal |= static_cast<std::uint64_t>(equal_bits(d, level)) << (v * Vec::kWidth);
        }
        codes[s] = static_cast<std::uint16_t>(equal == 0 ? 0 : begin + __builtin_ctzll(equal));
        if (distances != nullptr) {
            distances[s] = least;
        }
    }
}

template <int D>
void nearest(const float* x, std::int64_t n, const float* table, int num_centroids, std::uint16_t* codes, float* distances) {
    constexpr int kAtOnce = kBroadcasts / D;
    std::int64_t i = 0;
    for (; i + kAtOnce <= n; i += kAtOnce) {
        nearest_of<D, kAtOnce>(x + i * D, table, num_centroids, codes + i, distances == nullptr ? nullptr : distances + i);
    }
    for (; i < n; ++i) {
        nearest_of<D, 1>(x + i * D, table, num_centroids, codes + i, distances == nullptr ? nullptr : distances + i);
    }
}

inline NearestFn pick(int sub_dim) noexcept {
    switch (sub_dim) {
        case 1: return nearest<1>;
        case 2: return nearest<2>;
        case 4: return nearest<4>;
        default: return nearest<8>;
    }
}
