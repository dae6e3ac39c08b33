// The best linear map into code space that one shared codebook allows: DESIGN of the `full` step.
//
// The expected squared error of a score is e^T Sq e, with e the error of the key and Sq = E[q q^T]. With Sq = L L^T the keys (k -
// m) L have an isotropic error, and the eigenvectors U of their covariance make them independent, with energies that fall off
// steeply. A Hadamard transform over all channels would level these energies and lose what unequal ones are worth. So channels
// sorted by energy are cut into sub_dim bands; a Hadamard transform inside each band makes its channels alike, and subspace j
// takes channel j of every band. All subspaces then look the same, from strong to weak channel, and k-means spends the bits of a
// code where the energy is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vecinfer {

struct HeadSamples {
    int num_heads = 0;
    int head_dim = 0;
    std::span<const std::uint16_t> rows;  // f16, layout (n, num_heads * head_dim)
};

/// One matrix per KV head, layout (num_kv_heads, head_dim, head_dim), for y = (x - center) A. `queries` may have more heads (a
/// group per KV head); empty: errors count alike in all directions (values). `center` is empty or (num_kv_heads, head_dim).
std::vector<float> full_matrices(const HeadSamples& rows, const HeadSamples& queries, std::span<const float> center, int sub_dim);

}  // namespace vecinfer
