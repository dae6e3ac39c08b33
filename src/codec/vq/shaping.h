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

#include "codec/vq/scan.h"
#include "vecinfer/codebook.h"

namespace vecinfer {

/// What the kernels read. Ranks are filled up to a multiple of 8 with directions of zeros, which change no sum.
struct ShapingTables {
    static constexpr int kPasses = 2;  // a third one finds next to nothing
    static constexpr int kMaxCentroids =
        256;  // codebooks up to this size have a table of c^T W c per subspace; others a bound of W

    int head_dim = 0;
    int num_centroids = 0;
    int rank = 0;
    const float* centroids = nullptr;  // channel-major, layout (sub_dim, num_centroids)
    std::vector<float> by_channel;     // U^T, layout (head_dim, rank)
    std::vector<float> by_rank;        // U of each subspace, layout (num_subspaces, rank, sub_dim)
    std::vector<float> metric;         // W of each subspace, layout (num_subspaces, sub_dim, sub_dim)
    std::vector<float> bound;          // [num_subspaces] its largest eigenvalue, rounded up
    std::shared_ptr<const float[]>
        bias;            // c^T W c, layout (num_subspaces, num_centroids), 64-byte aligned; null: see kMaxCentroids
    ScanTables scan;     // with bias: its subspaces
    ScanTables nearest;  // without
};

/// Of one head, for arguments as of NoiseShaping. Throws std::bad_alloc.
ShapingTables shaping_tables(std::span<const float> directions, int head_dim, int sub_dim, int code_bits, const float* centroids,
                             float scale);

class NoiseShaping {
public:
    static constexpr int kMaxRank = 64;
    /// Vectors that improve() takes at once.
    static constexpr int kMaxVectors = 3;

    /// One head. `directions`: U, layout (rank, head_dim). `centroids`: channel-major, layout (sub_dim, num_centroids), integers
    /// times `scale`, as in tables.h; it must outlive this object. Throws std::bad_alloc.
    NoiseShaping(std::span<const float> directions, int head_dim, int sub_dim, int code_bits, const float* centroids,
                 float scale);

    const ShapingTables& tables() const noexcept { return tables_; }

    /// n vectors by themselves, n at most kMaxVectors. y: in code space, divided by the norm, layout (n, head_dim). codes: those
    /// of the nearest centroids, which are improved, layout (n, num_subspaces). The same on every ISA, as long as no sum over
    /// directions overflows a float, far beyond what f16 rows lead to.
    void improve(int n, const float* y, std::uint16_t* codes) const noexcept;

private:
    int sub_dim_;
    ShapingTables tables_;
};

}  // namespace vecinfer
