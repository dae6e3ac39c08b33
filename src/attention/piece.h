// One piece of an attention call: a query tile, a KV head, a part of the context.
#pragma once

#include <cstdint>
#include <span>

#include "attention/attention_state.h"

namespace vecinfer {

/// Walks the blocks of a piece in order and updates one softmax state per query row. A block has two readings: codes (with
/// transformed queries) and, where rows are at hand in f16, exact rows; the query's position decides per pair of query and cell.
/// Blocks that every row reads from codes go to the fused kernels in runs, others through `tile_block`.
class AttentionTask::State::Piece {
public:
    /// next_piece: what the thread probably does afterwards, num_pieces(): nothing known. scratch: scratch_floats().
    Piece(State& state, int piece, int next_piece, float* scratch);

    void run();

private:
    // How the rows read the cells of one block.
    struct Use {
        bool visible = false;  // any pair of row and cell
        bool plain = true;     // every mask value is 0, no cell is cut off
        bool k_code = false;
        bool k_exact = false;
        bool v_code = false;
        bool v_exact = false;
    };
    // One side's rows in f16.
    struct ExactSide {
        std::span<const ExactRow> rows;
        std::int32_t* index;  // [split_cells] into `rows` by cell, -1: none
        std::uint64_t* bits;  // [tile_tokens] cells of the block in work that a token reads exactly
    };

    Use look_at(int cell0, int cells);
    void look_at_exact(const ExactSide& side, int cell0, int cells, bool& exact, bool& code);
    const std::uint16_t* mask_at(int mask_head, int token, int cell) const;
    void read_mask(int row, int cell0, int cells, float* values) const;

    void add_to_run(int cell0, int cells, bool plain);
    void flush_run(int next_cell);

    // tile_pass.cc
    void tile_block(int cell0, int cells, const Use& use);
    void softmax_tile_row(int row, int cell0, int cells, const Use& use);
    void decode(const PackedCache& cache, int cell0);
    void load_exact(const ExactSide& side, int cell0, int cells, int dim);

    void finish();

    State& s_;
    const AttentionParams& p_;
    const cpu::TileKernels& kernels_;
    int piece_;
    int next_piece_;
    int split_;
    int kv_head_;
    int tile_;
    int token0_;
    int tokens_;
    int rows_;
    int begin_;  // cells
    int end_;
    int mask_heads_;
    std::int32_t first_position_ = 0;  // lowest and highest of the tile's tokens
    std::int32_t last_position_ = 0;

    State::Queries queries_;
    float* scratch_;  // what merging may overwrite
    float* run_masks_;
    float* s_exact_;  // layout (rows, 64)
    float* s_code_;
    float* mask_;     // [64] of the row in work
    float* o_exact_;  // layout (rows, dv): sums in the original space
    float* o_code_;   // and in code space
    float* row_max_;
    float* row_sum_;
    float* code_share_;  // sum of the probabilities whose values come from codes
    float* tile_code_;   // layout (64, max(dk, dv))
    float* tile_exact_;
    float* keys_;  // layout (dk, 64): a tile's keys transposed
    ExactSide k_exact_;
    ExactSide v_exact_;
    cpu::FusedRun run_;
    int masked_ = 0;  // blocks of the run with a mask
};

}  // namespace vecinfer
