// What the threads of one attention call share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "attention/cpu/fused.h"
#include "attention/cpu/tile.h"
#include "vecinfer/attention.h"

namespace vecinfer {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Codebooks of one side as the kernels read them: layout (num_heads, books per head), one book per head or one per subspace.
struct SideBooks {
    int per_head = 0;  // 0: no int8 centroids
    std::vector<const std::int8_t*> centroids;
    std::vector<float> scales;
};

struct AttentionTask::State {
    PackedCache k;
    PackedCache v;
    int stream = 0;
    AttentionParams p;
    const cpu::TileKernels* kernels = nullptr;
    const cpu::FusedKernels* fused = nullptr;  // for blocks read from codes alone; null: tile kernels
    SideBooks k_books;
    SideBooks v_books;
    const float* norm_table = nullptr;

    int group = 1;        // query heads per KV head
    int tile_tokens = 1;  // query tokens per tile
    int num_tiles = 1;    // query tiles
    int num_splits = 1;
    int split_cells = 0;
    std::vector<float> slopes;               // [num_qo_heads]
    std::vector<std::uint8_t> exact_blocks;  // per code block: 1 if any of its rows is at hand in f16
    // What the mask holds (cpu::kMaskVisible, kMaskNonzero), layout (num_tiles, blocks), any row of the tile. All KV heads ask
    // for it, so it is found out once, along the mask's rows.
    std::unique_ptr<std::atomic<std::uint8_t>[]> mask_states;

    std::byte* workspace = nullptr;
    static constexpr int kQueues = 64;
    static constexpr int kMaskRows = 512;
    std::atomic<int> next_row{0};                     // query rows to prepare
    std::atomic<int> next_mask_row{0};                // rows of the mask to look at
    std::atomic<int> taken[kQueues] = {};             // pieces of each thread's range that are done or in work
    std::unique_ptr<std::atomic<int>[]> splits_left;  // per (tile, KV head)
    std::unique_ptr<std::atomic<int>[]> rows_left;    // the same, query rows that are not prepared yet
    std::unique_ptr<std::atomic<int>[]> masks_left;   // per tile, mask rows that nobody has looked at yet

    int dk() const { return k.codec().head_dim(); }
    int dv() const { return v.codec().head_dim(); }
    int num_kv_heads() const { return k.codec().num_heads(); }
    int tile_rows() const { return tile_tokens * group; }
    int num_blocks() const { return static_cast<int>(exact_blocks.size()); }
    int mask_heads() const { return p.mask != nullptr ? p.mask_heads : 0; }
    int num_mask_rows() const { return p.num_tokens * mask_heads(); }
    int num_pieces() const { return num_tiles * num_kv_heads() * num_splits; }
    // Where the context is split, the pieces of a (tile, KV head) share its queries, which are made by jobs of their own.
    int num_shared_rows() const { return num_splits == 1 ? 0 : num_tiles * num_kv_heads() * tile_rows(); }

    // Partial result of one piece: per row max, sum and dv outputs (original space).
    std::size_t partial_floats() const { return static_cast<std::size_t>(tile_rows()) * (2 + dv()); }
    std::size_t partials_floats() const { return num_splits == 1 ? 0 : num_pieces() * partial_floats(); }

    // Query rows of one (tile, KV head).
    struct Queries {
        float* exact;       // layout (rows, dk): original space, scaled
        float* code;        // layout (rows, dk): code space, scaled
        float* bias;        // [rows] what scores over codes lack when keys are centered
        std::byte* tables;  // what fused->prepare made of them
    };
    std::size_t table_bytes() const { return fused != nullptr ? fused->query_bytes(k_side(0)) : 0; }
    std::size_t queries_floats() const {
        const int unit = fused != nullptr ? fused->query_group : 1;
        const std::size_t table_rows = (tile_rows() + unit - 1) / unit * unit;
        return tile_rows() * 2 * pad(dk()) + table_rows * table_bytes() / sizeof(float) + pad(tile_rows());
    }
    std::size_t shared_queries_floats() const { return num_splits == 1 ? 0 : num_tiles * num_kv_heads() * queries_floats(); }
    Queries queries_at(float* memory) const {
        float* code = memory + tile_rows() * pad(dk());
        float* bias = code + tile_rows() * pad(dk());
        return {memory, code, bias, reinterpret_cast<std::byte*>(bias + pad(tile_rows()))};
    }
    Queries shared_queries(int tile, int kv_head) const {
        return queries_at(reinterpret_cast<float*>(workspace) + pad(partials_floats()) +
                          (tile * num_kv_heads() + kv_head) * queries_floats());
    }

    std::size_t fused_bytes() const { return fused != nullptr ? fused->scratch_bytes(k_side(0), v_side(0), tile_rows()) : 0; }
    // Blocks of a run that may have a mask, which takes a float per row and cell: fewer where there are many rows.
    int masked_blocks() const { return std::clamp(kMaskRows / tile_rows(), 4, cpu::kRunBlocks); }
    // Masks of the blocks of a run, layout (masked_blocks, tile_rows, 64).
    std::size_t run_masks_floats() const {
        return fused != nullptr ? static_cast<std::size_t>(masked_blocks()) * tile_rows() * kBlockCells : 0;
    }
    std::size_t scratch_floats() const {
        const std::size_t rows = tile_rows();
        return (num_splits == 1 ? queries_floats() : 0) + fused_bytes() / sizeof(float) + run_masks_floats() +
               rows * (2 * dv() + 2 * kBlockCells + 3) +
               static_cast<std::size_t>(kBlockCells) * (dk() + 2 * std::max(dk(), dv())) + kBlockCells +
               2 * static_cast<std::size_t>(split_cells) + exact_bits_floats() + 64;
    }
    // Per query token and side, one bit per cell of a block.
    std::size_t exact_bits_floats() const {
        return 2 * static_cast<std::size_t>(tile_tokens) * sizeof(std::uint64_t) / sizeof(float);
    }
    static std::size_t pad(std::size_t floats) { return (floats + 15) / 16 * 16; }  // to 64 bytes

    class Piece;  // piece.h
    static SideBooks make_books(const RowCodec& codec);
    static cpu::FusedSide side(const PackedCache& cache, const SideBooks& books, int kv_head);
    cpu::FusedSide k_side(int kv_head) const { return side(k, k_books, kv_head); }
    cpu::FusedSide v_side(int kv_head) const { return side(v, v_books, kv_head); }
    void prepare_row(const Queries& queries, int tile, int kv_head, int row) const;
    void look_at_mask_row(int token, int mask_head) const;
    void finish_rows(const float* max, const float* sum, const float* out, int tile, int kv_head) const;
    void merge(int tile, int kv_head, float* scratch) const;
};

}  // namespace vecinfer
