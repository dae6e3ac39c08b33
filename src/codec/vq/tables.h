// Float tables of a codec's centroids. Per codebook, first channel-major (sub_dim, searched_centroids) for the search of
// encoding, then (num_centroids, sub_dim) for decoding; codebook after codebook. 64-byte aligned: both halves are multiples of 64
// floats. And their int8 values channel-major (sub_dim, num_centroids), which byte look-ups read.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "vecinfer/codebook.h"

namespace vecinfer {

/// Centroids that a search looks at: a multiple of 64, filled up with infinitely distant ones.
inline int searched_centroids(int num_centroids) noexcept {
    return (num_centroids + 63) / 64 * 64;
}

/// Floats in one half of a codebook's tables.
inline std::size_t table_values(int sub_dim, int code_bits) noexcept {
    return static_cast<std::size_t>(sub_dim) * static_cast<std::size_t>(searched_centroids(1 << code_bits));
}

/// All codebooks have the same (sub_dim, code_bits). Throws std::bad_alloc.
inline std::shared_ptr<const float[]> make_tables(const std::vector<Codebook>& codebooks) {
    constexpr std::align_val_t kAlignment{64};
    const std::size_t values = table_values(codebooks.front().sub_dim, codebooks.front().code_bits);
    float* memory = static_cast<float*>(::operator new(codebooks.size() * 2 * values * sizeof(float), kAlignment));
    std::shared_ptr<const float[]> owner(memory, [](const float* p) { ::operator delete(const_cast<float*>(p), kAlignment); });
    for (const Codebook& codebook : codebooks) {
        const int count = codebook.num_centroids();
        const int searched = searched_centroids(count);
        std::fill_n(memory, values, std::numeric_limits<float>::infinity());
        std::fill_n(memory + values, values, 0.0f);
        for (int i = 0; i < count; ++i) {
            for (int c = 0; c < codebook.sub_dim; ++c) {
                memory[c * searched + i] = codebook.at(i, c);
                memory[values + static_cast<std::size_t>(i * codebook.sub_dim + c)] = codebook.at(i, c);
            }
        }
        memory += 2 * values;
    }
    return owner;
}

/// Throws std::bad_alloc.
inline std::shared_ptr<const std::int8_t[]> make_planes(const std::vector<Codebook>& codebooks) {
    constexpr std::align_val_t kAlignment{64};
    const std::size_t values = table_values(codebooks.front().sub_dim, codebooks.front().code_bits);
    auto* memory = static_cast<std::int8_t*>(::operator new(codebooks.size() * values, kAlignment));
    std::shared_ptr<const std::int8_t[]> owner(
        memory, [](const std::int8_t* p) { ::operator delete(const_cast<std::int8_t*>(p), kAlignment); });
    for (const Codebook& codebook : codebooks) {
        const int count = codebook.num_centroids();
        for (int i = 0; i < count; ++i) {
            for (int c = 0; c < codebook.sub_dim; ++c) {
                memory[c * count + i] = codebook.centroids[static_cast<std::size_t>(i) * codebook.sub_dim + c];
            }
        }
        memory += values;
    }
    return owner;
}

}  // namespace vecinfer
