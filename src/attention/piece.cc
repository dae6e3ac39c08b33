// The walk over a piece's blocks: what each block needs, runs for the fused kernels, and what is left at the end.
#include "attention/piece.h"

#include <algorithm>
#include <limits>
#include <thread>

#include "attention/exactness.h"

namespace vecinfer {
namespace {

// Rows at hand for the cells [begin, end): index into the list per cell, or -1.
void index_exact(std::span<const ExactRow> rows, int begin, int end, std::int32_t* index) {
    std::fill(index, index + (end - begin), -1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].cell >= begin && rows[i].cell < end) {
            index[rows[i].cell - begin] = static_cast<std::int32_t>(i);
        }
    }
}

// Whoever claimed what is missing did so before this piece was claimed and depends on nobody.
void wait_for(const std::atomic<int>& left) {
    while (left.load(std::memory_order_acquire) > 0) {
        std::this_thread::yield();
    }
}

}  // namespace

AttentionTask::State::Piece::Piece(State& state, int piece, int next_piece, float* scratch)
    : s_(state),
      p_(state.p),
      kernels_(*state.kernels),
      piece_(piece),
      next_piece_(next_piece),
      split_(piece % state.num_splits),
      kv_head_(piece / state.num_splits % state.num_kv_heads()),
      tile_(piece / state.num_splits / state.num_kv_heads()),
      token0_(tile_ * state.tile_tokens),
      tokens_(std::min(state.tile_tokens, p_.num_tokens - token0_)),
      rows_(tokens_ * state.group),
      begin_(split_ * state.split_cells),
      end_(std::min(begin_ + state.split_cells, p_.kv_len)),
      mask_heads_(state.mask_heads()) {
    const int dk = s_.dk();
    const int dv = s_.dv();
    if (s_.num_splits == 1) {
        queries_ = s_.queries_at(scratch);
        scratch += s_.queries_floats();
        for (int r = 0; r < rows_; ++r) {
            s_.prepare_row(queries_, tile_, kv_head_, r);
        }
    } else {
        queries_ = s_.shared_queries(tile_, kv_head_);
        wait_for(s_.rows_left[tile_ * s_.num_kv_heads() + kv_head_]);
    }
    if (mask_heads_ > 0) {
        wait_for(s_.masks_left[tile_]);
    }
    scratch_ = scratch;
    auto* fused_scratch = reinterpret_cast<std::byte*>(scratch);
    run_masks_ = scratch + s_.fused_bytes() / sizeof(float);
    s_exact_ = run_masks_ + s_.run_masks_floats();
    s_code_ = s_exact_ + rows_ * kBlockCells;
    mask_ = s_code_ + rows_ * kBlockCells;
    o_exact_ = mask_ + kBlockCells;
    o_code_ = o_exact_ + rows_ * dv;
    tile_code_ = o_code_ + rows_ * dv;
    tile_exact_ = tile_code_ + kBlockCells * std::max(dk, dv);
    keys_ = tile_exact_ + kBlockCells * std::max(dk, dv);
    auto* bits = reinterpret_cast<std::uint64_t*>(keys_ + kBlockCells * dk);
    auto* index = reinterpret_cast<std::int32_t*>(bits + 2 * s_.tile_tokens);
    k_exact_ = {p_.k_exact, index, bits};
    v_exact_ = {p_.v_exact, index + s_.split_cells, bits + s_.tile_tokens};
    row_max_ = reinterpret_cast<float*>(index + 2 * s_.split_cells);
    row_sum_ = row_max_ + rows_;
    code_share_ = row_sum_ + rows_;

    std::fill(code_share_, code_share_ + rows_, 0.0f);
    std::fill(row_max_, row_max_ + rows_, kMinusInfinity);
    std::fill(row_sum_, row_sum_ + rows_, 0.0f);
    std::fill(o_exact_, o_exact_ + rows_ * dv, 0.0f);
    std::fill(o_code_, o_code_ + rows_ * dv, 0.0f);
    const auto first_block = s_.exact_blocks.begin() + begin_ / kBlockCells;
    const auto last_block = s_.exact_blocks.begin() + (end_ + kBlockCells - 1) / kBlockCells;
    if (std::find(first_block, last_block, 1) != last_block) {
        index_exact(k_exact_.rows, begin_, end_, k_exact_.index);
        index_exact(v_exact_.rows, begin_, end_, v_exact_.index);
    }
    if (p_.positions != nullptr) {
        const auto [first, last] = std::minmax_element(p_.positions + token0_, p_.positions + token0_ + tokens_);
        first_position_ = *first;
        last_position_ = *last;
    }

    if (s_.fused != nullptr) {
        run_.k = s_.k_side(kv_head_);
        run_.v = s_.v_side(kv_head_);
        run_.rows = rows_;
        run_.queries = queries_.tables;
        run_.bias = queries_.bias;
        run_.soft_cap = p_.soft_cap;
        run_.row_max = row_max_;
        run_.row_sum = row_sum_;
        run_.code_share = code_share_;
        run_.o = o_code_;
        run_.o_other = o_exact_;
        run_.scratch = fused_scratch;
    }
}

void AttentionTask::State::Piece::run() {
    for (int cell0 = begin_; cell0 < end_; cell0 += kBlockCells) {
        const int cells = std::min(kBlockCells, end_ - cell0);
        const Use use = look_at(cell0, cells);
        if (!use.visible) {
            continue;
        }
        if (s_.fused != nullptr && !use.k_exact && !use.v_exact) {
            add_to_run(cell0, cells, use.plain);
        } else {
            tile_block(cell0, cells, use);
        }
    }
    flush_run(end_);
    finish();
}

const std::uint16_t* AttentionTask::State::Piece::mask_at(int mask_head, int token, int cell) const {
    return p_.mask + mask_head * p_.mask_head_stride + (token0_ + token) * p_.mask_token_stride + cell;
}

// Mask values of one row over a block, with the head's slope.
void AttentionTask::State::Piece::read_mask(int row, int cell0, int cells, float* values) const {
    const int head = kv_head_ * s_.group + row % s_.group;
    kernels_.from_f16(mask_at(head % mask_heads_, row / s_.group, cell0), cells, values);
    for (int t = 0; s_.slopes[head] != 1.0f && t < cells; ++t) {
        values[t] *= s_.slopes[head];
    }
}

AttentionTask::State::Piece::Use AttentionTask::State::Piece::look_at(int cell0, int cells) {
    Use use;
    use.plain = cells == kBlockCells;
    use.visible = mask_heads_ == 0;
    if (mask_heads_ > 0) {
        const unsigned state = s_.mask_states[tile_ * s_.num_blocks() + cell0 / kBlockCells].load(std::memory_order_relaxed);
        use.visible = (state & cpu::kMaskVisible) != 0;
        use.plain &= (state & cpu::kMaskNonzero) == 0;
    }
    if (use.visible && s_.exact_blocks[cell0 / kBlockCells] != 0) {
        look_at_exact(k_exact_, cell0, cells, use.k_exact, use.k_code);
        look_at_exact(v_exact_, cell0, cells, use.v_exact, use.v_code);
    } else {
        use.k_code = use.v_code = use.visible;
    }
    return use;
}

// A token reads a row exactly if its position is below a limit of the row (Exactness), so the extremes of both say when all pairs
// of a block are alike, as they are in most. Hidden pairs count as well: they cost a reading and change nothing.
void AttentionTask::State::Piece::look_at_exact(const ExactSide& side, int cell0, int cells, bool& exact, bool& code) {
    constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();
    const Exactness exactness{p_};
    std::int64_t limits[kBlockCells];
    std::int64_t lowest = kAlways;
    std::int64_t highest = kNever;
    for (int t = 0; t < cells; ++t) {
        const std::int32_t i = side.index[cell0 - begin_ + t];
        limits[t] = kNever;
        if (i >= 0) {
            const ExactRow& row = side.rows[i];
            limits[t] = exactness.always(row) ? kAlways : std::int64_t{row.position} + p_.window.recent;
        }
        lowest = std::min(lowest, limits[t]);
        highest = std::max(highest, limits[t]);
    }
    exact = highest > first_position_;
    code = lowest <= last_position_;
    if (!exact || !code) {
        const std::uint64_t all = cells == kBlockCells ? ~std::uint64_t{0} : (std::uint64_t{1} << cells) - 1;
        std::fill(side.bits, side.bits + tokens_, exact ? all : 0);
        return;
    }
    for (int token = 0; token < tokens_; ++token) {
        const std::int64_t position = p_.positions != nullptr ? p_.positions[token0_ + token] : 0;
        std::uint64_t bits = 0;
        for (int t = 0; t < cells; ++t) {
            bits |= std::uint64_t{position < limits[t]} << t;
        }
        side.bits[token] = bits;
    }
}

void AttentionTask::State::Piece::add_to_run(int cell0, int cells, bool plain) {
    const int block = cell0 / kBlockCells;
    const int i = run_.num_blocks;
    run_.k_blocks[i] = s_.k.code_block(s_.stream, kv_head_, block);
    run_.v_blocks[i] = s_.v.code_block(s_.stream, kv_head_, block);
    run_.masks[i] = nullptr;
    if (!plain) {
        float* values = run_masks_ + static_cast<std::size_t>(masked_++) * rows_ * kBlockCells;
        run_.masks[i] = values;
        for (int r = 0; r < rows_; ++r, values += kBlockCells) {
            if (mask_heads_ > 0) {
                read_mask(r, cell0, cells, values);
            } else {
                std::fill(values, values + cells, 0.0f);
            }
            std::fill(values + cells, values + kBlockCells, kMinusInfinity);
        }
    }
    ++run_.num_blocks;
    if (run_.num_blocks == cpu::kRunBlocks || masked_ == s_.masked_blocks()) {
        flush_run(cell0 + kBlockCells);
    }
}

// next_cell: where the piece goes on, `end_` if it does not.
void AttentionTask::State::Piece::flush_run(int next_cell) {
    if (run_.num_blocks == 0) {
        return;
    }
    int head = kv_head_;
    int cell = next_cell;
    if (next_cell >= end_) {
        head = next_piece_ / s_.num_splits % s_.num_kv_heads();
        cell = next_piece_ % s_.num_splits * s_.split_cells;
    }
    const bool any = next_cell < end_ || next_piece_ < s_.num_pieces();
    run_.next_k = any ? s_.k.code_block(s_.stream, head, cell / kBlockCells) : nullptr;
    run_.next_v = any ? s_.v.code_block(s_.stream, head, cell / kBlockCells) : nullptr;
    s_.fused->run(run_);
    run_.num_blocks = 0;
    masked_ = 0;
}

void AttentionTask::State::Piece::finish() {
    const int dv = s_.dv();
    for (int r = 0; r < rows_; ++r) {
        float* code = o_code_ + r * dv;
        float* exact = o_exact_ + r * dv;
        s_.v.codec().transform(kv_head_).inverse_sum(code, code_share_[r], code);
        for (int d = 0; d < dv; ++d) {
            exact[d] += code[d];
        }
    }
    if (s_.num_splits == 1) {
        s_.finish_rows(row_max_, row_sum_, o_exact_, tile_, kv_head_);
        return;
    }
    float* partial = reinterpret_cast<float*>(s_.workspace) + piece_ * s_.partial_floats();
    std::copy(row_max_, row_max_ + rows_, partial);
    std::copy(row_sum_, row_sum_ + rows_, partial + rows_);
    std::copy(o_exact_, o_exact_ + rows_ * dv, partial + 2 * rows_);
    if (s_.splits_left[tile_ * s_.num_kv_heads() + kv_head_].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        s_.merge(tile_, kv_head_, scratch_);
    }
}

}  // namespace vecinfer
