// Noise shaping: an encoder that lets the error of a key fall where queries do not look.
//
// A score's error is q . e, so what counts is e^T W e with W = E[q q^T] in code space, not |e|^2. W is kept as I + U^T U: the few
// directions in which queries are strong, above an even rest. Starting from the nearest centroids, each subspace in turn gets the
// centroid with the least e^T W e given the others; decoding knows nothing of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vecinfer/codebook.h"

namespace vecinfer {

class NoiseShaping {
public:
    static constexpr int kMaxRank = 64;

    /// One head. `directions`: U, layout (rank, head_dim). `centroids`: channel-major, layout (sub_dim, num_centroids), as in
    /// tables.h; it must outlive this object. Throws std::bad_alloc.
    NoiseShaping(std::span<const float> directions, int head_dim, int sub_dim, int code_bits, const float* centroids);

    int rank() const noexcept { return rank_; }
    const float* by_channel() const noexcept { return by_channel_.data(); }  // U^T, layout (head_dim, rank)
    const float* metric() const noexcept { return metric_.data(); }          // W, layout (num_subspaces, sub_dim, sub_dim)
    /// c^T W c, layout (num_subspaces, num_centroids); null for more than 256 centroids.
    const float* bias() const noexcept { return bias_.get(); }

    /// y: head_dim floats in code space, divided by the norm. codes: those of the nearest centroids, which are improved.
    void improve(const float* y, std::uint16_t* codes) const noexcept;

private:
    int head_dim_;
    int sub_dim_;
    int num_centroids_;
    int rank_;
    const float* centroids_;
    std::vector<float> by_channel_;        // U^T, layout (head_dim, rank)
    std::vector<float> metric_;            // W of each subspace, layout (num_subspaces, sub_dim, sub_dim)
    std::vector<float> bound_;             // [num_subspaces] its largest eigenvalue, rounded up
    std::shared_ptr<const float[]> bias_;  // c^T W c, layout (num_subspaces, num_centroids), 64-byte aligned; null: see kMaxTable
};

}  // namespace vecinfer
