// Integer tables of a codebook: a scan of all centroids that finds which few can have the least cost.
//
// The cost of centroid c for a sub-vector x is bias - 2 x . c: with bias = |c|^2 the squared distance without |x|^2, with bias =
// c^T W c what noise shaping minimizes. scan.inl has the scan and the argument why the codes that come out are exact.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace vecinfer {

/// View of one codebook's tables. Entries are in scan order: of every 16 k centroids, k = class_size, first those with index k l,
/// l < 16, then those with k l + 1, and so on, so that a lane of k vectors in turn holds a class of k neighbouring centroids.
struct ScanTable {
    const float* centroids = nullptr;     // layout (sub_dim, num_centroids), index order
    const std::int32_t* words = nullptr;  // two 16-bit channels 2p and 2p + 1 each, layout (sub_dim / 2, num_centroids)
    const std::int32_t* bias = nullptr;   // bias in integer units, then the class in the lowest class_bits
    int num_centroids = 0;
    int class_size = 4;  // or 16
    int class_bits = 0;
    float steps = 0;          // integer steps of x per unit
    std::int32_t most = 0;    // steps up to this can be scanned, at most 2^15 - 2; 0: nothing can
    std::int32_t margin = 0;  // classes less than this above the least one cannot be told from it
};

/// Owner of such tables for one codebook and any number of biases. Throws std::bad_alloc.
class ScanTables {
public:
    ScanTables() = default;

    /// centroids: layout (sub_dim, num_centroids), integers times `scale` to float accuracy; they must outlive this object.
    /// num_centroids: a power of two, 64 or more. biases: layout (count, num_centroids). reach: no |x| beyond it is scanned.
    /// rounding: how far the cost of the centroid that float arithmetic takes for the best can lie above the least cost, for x
    /// within reach.
    ScanTables(const float* centroids, int sub_dim, int num_centroids, float scale, std::span<const double> biases, double reach,
               double rounding);

    /// For the nearest centroid.
    static ScanTables for_nearest(const float* centroids, int sub_dim, int num_centroids, float scale);

    ScanTable table(int which = 0) const noexcept {
        ScanTable t = table_;
        t.bias += static_cast<std::ptrdiff_t>(which) * t.num_centroids;
        return t;
    }

private:
    ScanTable table_;
    std::shared_ptr<const std::int32_t[]> memory_;
};

}  // namespace vecinfer
