// Fused kernels of CPU attention: scores and value sums straight from codes, for runs of blocks that a piece reads from codes
// alone. Blocks that hold f16 rows go through the tile kernels (tile.h), which also stand in where an ISA has no fused method.
//
// A method is one way to do it: `lut` looks partial scores up per query row (few rows), `matrix` decodes blocks to 16-bit
// integers once and multiplies (many rows, short contexts, wide codes). docs/kernels_cpu.md tells why; each kernel opens with its
// precision argument.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vecinfer::cpu {

inline constexpr int kRunBlocks = 32;  // most blocks of one run

/// One side (K or V) of one KV head.
struct FusedSide {
    int sub_dim = 0;
    int code_bits = 0;
    int num_subspaces = 0;
    bool norms = false;
    float scale = 0;                         // centroid value = scale * int8
    const float* by_channel = nullptr;       // centroids, layout (sub_dim, 2^code_bits), 64-byte aligned
    const std::int8_t* planes = nullptr;     // their int8 values, layout (sub_dim, 2^code_bits), 64-byte aligned
    const std::int8_t* centroids = nullptr;  // the same, layout (2^code_bits, sub_dim)
    // All of the above is of subspace 0, and null or 0 unless every subspace has the same codebook. Subspace m has the codebook
    // m * book_step of these lists; null: no codebooks of int8 centroids.
    int book_step = 0;
    const std::int8_t* const* books = nullptr;  // each of layout (2^code_bits, sub_dim)
    const float* book_scales = nullptr;

    int dim() const { return num_subspaces * sub_dim; }
    const std::int8_t* centroids_of(int subspace) const { return books[subspace * book_step]; }
    float scale_of(int subspace) const { return book_scales[subspace * book_step]; }
    std::size_t codes_bytes() const { return static_cast<std::size_t>(num_subspaces) * 8 * code_bits; }  // of a block
    std::size_t block_bytes() const { return codes_bytes() + (norms ? 64 : 0); }
};

/// A run of code blocks and the softmax state of `rows` query rows, which it updates. For row r and cell t
///   x = (q_code[r] . k~[t]) + bias[r],  s = (soft_cap != 0 ? soft_cap * tanh(x) : x) + mask[r][t]
/// where k~ is the decoded key, and s is in natural units.
struct FusedRun {
    FusedSide k;
    FusedSide v;
    int rows = 0;
    const std::byte* queries = nullptr;  // what `prepare` made of every row
    const float* bias = nullptr;         // [rows]
    float soft_cap = 0;

    int num_blocks = 0;                        // 1 to kRunBlocks
    const std::uint8_t* k_blocks[kRunBlocks];  // see cache/layout.h
    const std::uint8_t* v_blocks[kRunBlocks];
    const float* masks[kRunBlocks];        // per block null or layout (rows, 64): added to scores, -inf hides
    const std::uint8_t* next_k = nullptr;  // first block of the run that this thread does next, to prefetch; null: none
    const std::uint8_t* next_v = nullptr;

    float* row_max = nullptr;     // [rows] running maximum, -inf at first
    float* row_sum = nullptr;     // [rows] sum of exp(s - row_max)
    float* code_share = nullptr;  // [rows] the part of it whose values come from codes
    float* o = nullptr;           // layout (rows, dim of v): sum of exp(s - row_max) * v~
    float* o_other = nullptr;     // the same shape: sums of other readings, rescaled with row_max

    std::byte* scratch = nullptr;  // scratch_bytes(k, v, rows), 64-byte aligned
};

struct FusedKernels {
    const char* name;  // method and ISA, for tests and benchmarks
    int query_group;   // rows that are prepared side by side
    bool (*supports)(const FusedSide& k, const FusedSide& v);
    std::size_t (*query_bytes)(const FusedSide& k);  // of one row, a multiple of 64
    std::size_t (*scratch_bytes)(const FusedSide& k, const FusedSide& v, int rows);
    /// Row `row` of a tile, q: layout (dim of k) in code space, all scales applied. queries: query_bytes(k) bytes for each row,
    /// rows rounded up to a multiple of query_group, 64-byte aligned. Rows may be prepared in any order and at the same time.
    void (*prepare)(const FusedSide& k, const float* q, int row, std::byte* queries);
    void (*run)(const FusedRun& run);
};

/// The method for `rows` query rows that read `code_cells` cells from codes, on active_isa(); null: tile kernels.
const FusedKernels* fused_kernels(const FusedSide& k, const FusedSide& v, int rows, int code_cells);

const FusedKernels& fused_lut_avx2();
const FusedKernels& fused_lut_avx512vbmi();
const FusedKernels& fused_matrix_avx2();
const FusedKernels& fused_matrix_avx512();
const FusedKernels& fused_matrix_avx512vbmi();

}  // namespace vecinfer::cpu
