// Tile kernels of CPU attention, one table per ISA. Tiles are 64 cells (kBlockCells) by head_dim f32 values, row-major.
//
// Precision: everything accumulates in f32 over at most head_dim (1024) or 64 terms per call, so the relative error of a score is
// below 1e-6 * sqrt(head_dim); exp is a degree-6 polynomial with relative error below 3e-7. Error against fp64: docs/numerics.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vecinfer::cpu {

/// Block of a scalar codec (codec/scalar/scalar.h).
struct ScalarBlock {
    int head_dim;    // a multiple of 8
    int code_bits;   // 2, 3, 4 or 8
    int group;       // a multiple of 16
    bool by_token;   // groups of cells of one channel; else of channels of one cell
    bool symmetric;  // groups are symmetric, or with `zeros` those whose scale is not negative
    bool zeros;      // zeros are stored
};

inline constexpr unsigned kMaskVisible = 1;  // some value is not -inf
inline constexpr unsigned kMaskNonzero = 2;  // some value is not +0

struct TileKernels {
    /// Decodes one code block (cache/layout.h) of 64 cells into y, layout (64, num_subspaces * sub_dim), in code space.
    /// centroids: layout (2^code_bits, sub_dim), those of the next subspace `centroid_stride` floats further (0: the same).
    /// norms: whether the block ends in norm bytes; norm_table: 256 floats. sub_dim 1 needs num_subspaces in multiples of 8.
    void (*decode_block)(const std::uint8_t* block, int num_subspaces, int sub_dim, int code_bits, const float* centroids,
                         std::ptrdiff_t centroid_stride, bool norms, const float* norm_table, float* y);
    /// The same of a scalar codec, y of layout (64, head_dim).
    void (*decode_scalars)(const std::uint8_t* block, const ScalarBlock& scalars, float* y);
    /// s[r][t] = sum_d q[r][d] * k[t][d] for r < rows, t < 64. dim is a multiple of 8; s has 64 columns. kt: room for 64 * dim
    /// floats.
    void (*scores)(const float* q, const float* k, int rows, int dim, float* kt, float* s);
    /// o[r][d] += sum_t p[r][t] * v[t][d] for r < rows, t < 64. dim is a multiple of 8.
    void (*accumulate)(const float* p, const float* v, int rows, int dim, float* o);
    /// s[t] <- exp(s[t] - max) for 64 values, returns their sum. -inf gives 0.
    float (*exp_row)(float* s, float max);
    float (*max_row)(const float* s);
    void (*scale)(float* x, int n, float factor);
    void (*from_f16)(const std::uint16_t* x, int n, float* y);
    /// Which of kMaskVisible and kMaskNonzero hold for n f16 mask values, n <= 64.
    unsigned (*mask_state)(const std::uint16_t* mask, int n);
};

const TileKernels& tile_kernels_scalar();
const TileKernels& tile_kernels_avx2();
const TileKernels& tile_kernels_avx512();
/// The table of active_isa().
const TileKernels& tile_kernels();

}  // namespace vecinfer::cpu
