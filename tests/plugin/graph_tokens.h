// Tokens that tests write, what queries see of them, and the same rows as a cache without the plugin would hold them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph_fixture.h"

namespace vecinfer::plugin_test {

struct Tokens {
    Shape shape;
    std::vector<float> k;
    std::vector<float> v;

    Tokens(const Shape& s, int n, unsigned seed)
        : shape(s),
          k(normal(static_cast<std::size_t>(n * s.row_dim()), seed)),
          v(normal(static_cast<std::size_t>(n * s.row_dim()), seed + 1)) {}

    /// Tokens [first, first + n) go to the rows from `row` on; their positions are their numbers.
    Batch write(int first, int n, std::int64_t row) const {
        Batch b;
        b.rows.resize(static_cast<std::size_t>(n));
        b.positions.resize(static_cast<std::size_t>(n));
        std::iota(b.rows.begin(), b.rows.end(), row);
        std::iota(b.positions.begin(), b.positions.end(), first);
        const auto offset = static_cast<std::size_t>(first * shape.row_dim());
        const auto size = static_cast<std::size_t>(n * shape.row_dim());
        b.k = std::span(k).subspan(offset, size);
        b.v = std::span(v).subspan(offset, size);
        return b;
    }
    Batch write(int first, int n) const { return write(first, n, first); }
};

// What every query of a batch sees: cells [0, first_seen + i] for query i.
inline void causal(Batch& b, const Shape& shape, std::span<const float> q, int queries, int first_seen) {
    b.q = q;
    b.visible.assign(static_cast<std::size_t>(queries * shape.cells), 0);
    for (int i = 0; i < queries; ++i) {
        std::fill_n(b.visible.begin() + static_cast<std::ptrdiff_t>(i) * shape.cells, first_seen + i + 1, std::uint8_t{1});
    }
}

inline std::vector<float> queries_for(const Shape& shape, int n, unsigned seed = 77, float scale = 1.0f) {
    return normal(static_cast<std::size_t>(n * shape.qo_heads * shape.head_dim), seed, scale);
}

// The cache as it would be without a plugin: rows in place, the rest zero.
inline std::vector<float> cache_rows(const Shape& shape, std::span<const float> rows) {
    std::vector<float> all(static_cast<std::size_t>(shape.cells * shape.row_dim()));
    std::copy(rows.begin(), rows.end(), all.begin());
    return all;
}

inline bool finite(std::span<const float> x) {
    return std::all_of(x.begin(), x.end(), [](float e) { return std::isfinite(e); });
}

inline std::vector<float> attend(CachePair& pair, const Shape& shape, int tokens, std::span<const float> q) {
    Batch b;
    causal(b, shape, q, 1, tokens - 1);
    std::vector<float> out;
    EXPECT_EQ(pair.run(b, &out), GGML_STATUS_SUCCESS);
    return out;
}

// NEOX rotation by `delta` positions of the first n_rot channels of every head, in fp64.
inline void rotate(std::vector<float>& rows, int head_dim, int n_rot, double delta) {
    for (std::size_t head = 0; head < rows.size(); head += static_cast<std::size_t>(head_dim)) {
        for (int i = 0; i < n_rot / 2; ++i) {
            const double angle = delta * std::pow(10000.0, -2.0 * i / n_rot);
            float& a = rows[head + static_cast<std::size_t>(i)];
            float& b = rows[head + static_cast<std::size_t>(i + n_rot / 2)];
            const double x = a * std::cos(angle) - b * std::sin(angle);
            const double y = a * std::sin(angle) + b * std::cos(angle);
            a = static_cast<float>(x);
            b = static_cast<float>(y);
        }
    }
}

}  // namespace vecinfer::plugin_test
