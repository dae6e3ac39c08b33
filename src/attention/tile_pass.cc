// The general path: one block of 64 cells for all rows of a piece, any codec and f16 rows, in f32. Tile math lives in
// attention/cpu/tile.h.
//
// A code is decoded once per tile and not once per query head. Scores are picked per pair of query and cell; values are summed in
// two accumulators, because codes live in the transformed value space.
#include <algorithm>
#include <cmath>

#include "attention/piece.h"

namespace vecinfer {
namespace {

cpu::ScalarBlock scalar_block(const RowCodec& codec) {
    const CodecSpec& spec = codec.spec();
    return {.head_dim = codec.head_dim(),
            .code_bits = spec.code_bits,
            .group = spec.group,
            .by_token = spec.groups_tokens(),
            .symmetric = spec.levels != Levels::asymmetric,
            .zeros = spec.levels != Levels::symmetric};
}

}  // namespace

void AttentionTask::State::Piece::decode(const PackedCache& cache, int cell0) {
    const RowCodec& codec = cache.codec();
    const std::uint8_t* block = cache.code_block(s_.stream, kv_head_, cell0 / kBlockCells);
    if (codec.spec().kind == CodecKind::scalar) {
        kernels_.decode_scalars(block, scalar_block(codec), tile_code_);
        return;
    }
    kernels_.decode_block(block, codec.num_subspaces(), codec.sub_dim(), codec.code_bits(), codec.centroids(kv_head_),
                          codec.centroid_stride(), codec.has_norm(), s_.norm_table, tile_code_);
}

// Fills the exact tile with the f16 rows at hand; cells without one are zero.
void AttentionTask::State::Piece::load_exact(const ExactSide& side, int cell0, int cells, int dim) {
    for (int t = 0; t < kBlockCells; ++t) {
        const std::int32_t i = t < cells ? side.index[cell0 - begin_ + t] : -1;
        if (i >= 0) {
            kernels_.from_f16(side.rows[i].row + kv_head_ * dim, dim, tile_exact_ + t * dim);
        } else {
            std::fill(tile_exact_ + t * dim, tile_exact_ + (t + 1) * dim, 0.0f);
        }
    }
}

// Scores become probabilities relative to the running maximum, which is updated with all that depends on it.
void AttentionTask::State::Piece::softmax_tile_row(int row, int cell0, int cells, const Use& use) {
    float* s = s_code_ + row * kBlockCells;
    const float* exact = s_exact_ + row * kBlockCells;
    if (!use.k_code) {
        std::copy(exact, exact + kBlockCells, s);
    } else {
        const std::uint64_t bits = use.k_exact ? k_exact_.bits[row / s_.group] : 0;
        for (int t = 0; t < cells; ++t) {
            s[t] = (bits >> t & 1) != 0 ? exact[t] : s[t] + queries_.bias[row];
        }
    }
    if (p_.soft_cap != 0) {
        for (int t = 0; t < cells; ++t) {
            s[t] = p_.soft_cap * std::tanh(s[t]);
        }
    }
    if (mask_heads_ > 0 && !use.plain) {
        read_mask(row, cell0, cells, mask_);
        for (int t = 0; t < cells; ++t) {
            s[t] += mask_[t];
        }
    }
    std::fill(s + cells, s + kBlockCells, kMinusInfinity);
    const float max = std::max(row_max_[row], kernels_.max_row(s));
    if (max == kMinusInfinity) {
        std::fill(s, s + kBlockCells, 0.0f);
        return;
    }
    if (max > row_max_[row]) {
        const float factor = row_max_[row] == kMinusInfinity ? 0.0f : std::exp(row_max_[row] - max);
        row_sum_[row] *= factor;
        code_share_[row] *= factor;
        kernels_.scale(o_code_ + row * s_.dv(), s_.dv(), factor);
        kernels_.scale(o_exact_ + row * s_.dv(), s_.dv(), factor);
        row_max_[row] = max;
    }
    row_sum_[row] += kernels_.exp_row(s, max);
}

void AttentionTask::State::Piece::tile_block(int cell0, int cells, const Use& use) {
    if (use.k_code) {
        decode(s_.k, cell0);
        kernels_.scores(queries_.code, tile_code_, rows_, s_.dk(), keys_, s_code_);
    }
    if (use.k_exact) {
        load_exact(k_exact_, cell0, cells, s_.dk());
        kernels_.scores(queries_.exact, tile_exact_, rows_, s_.dk(), keys_, s_exact_);
    }
    for (int r = 0; r < rows_; ++r) {
        softmax_tile_row(r, cell0, cells, use);
    }

    // s_code_ now holds the probabilities; the exact share moves to s_exact_.
    if (use.v_exact) {
        for (int r = 0; r < rows_; ++r) {
            float* code = s_code_ + r * kBlockCells;
            float* exact = s_exact_ + r * kBlockCells;
            const std::uint64_t bits = v_exact_.bits[r / s_.group];
            for (int t = 0; t < kBlockCells; ++t) {
                const bool e = (bits >> t & 1) != 0;
                exact[t] = e ? code[t] : 0.0f;
                code[t] = e ? 0.0f : code[t];
            }
        }
        load_exact(v_exact_, cell0, cells, s_.dv());
        kernels_.accumulate(s_exact_, tile_exact_, rows_, s_.dv(), o_exact_);
    }
    if (use.v_code) {
        decode(s_.v, cell0);
        for (int r = 0; r < rows_; ++r) {
            const float* p = s_code_ + r * kBlockCells;
            for (int t = 0; t < kBlockCells; ++t) {
                code_share_[r] += p[t];
            }
        }
        kernels_.accumulate(s_code_, tile_code_, rows_, s_.dv(), o_code_);
    }
}

}  // namespace vecinfer
