#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "cache/row_rounding.h"
#include "cache/stream_view.h"
#include "cache/token_group.h"
#include "scheme/spelling.h"
#include "vecinfer/cache.h"

namespace vecinfer {

int CacheGeometry::window_rows() const noexcept {
    return window.recent == 0 && window.sink == 0 ? 0 : window.recent + kRollbackRows + kSinkSequences * window.sink;
}

std::size_t CacheGeometry::block_bytes() const noexcept {
    return layout::block_bytes(codec, norm, num_heads, row_dim);
}

double CacheGeometry::row_bytes() const noexcept {
    return static_cast<double>(block_bytes()) / kBlockCells;
}

std::size_t CacheGeometry::stream_bytes() const noexcept {
    return layout::slots_bytes(*this) + layout::rows_bytes(*this) + layout::align64(layout::num_blocks(*this) * block_bytes());
}

std::size_t CacheGeometry::total_bytes() const noexcept {
    return num_streams * stream_bytes();
}

namespace {

// Cells that share a byte of codes must belong to one thread.
int owner(int head, int cell, int nth) {
    return (head + cell % layout::kLeastPlaneBytes) % nth;
}

}  // namespace

Result<PackedCache> PackedCache::create(const CacheGeometry& g, const RowCodec* codec, std::byte* memory) {
    if (g.row_dim != codec->row_dim()) {
        return argument_error("row_dim", std::to_string(g.row_dim), fmt::format("{} as the codec has", codec->row_dim()));
    }
    if (g.row_dim < kMarkedChannels || g.row_dim % 8 != 0) {
        return argument_error("row_dim", std::to_string(g.row_dim), "a multiple of 8, at least 64");
    }
    if (codec->head_dim() > kMaxHeadDim) {
        return argument_error("head_dim", std::to_string(codec->head_dim()), fmt::format("at most {}", kMaxHeadDim));
    }
    if (g.codec != codec->spec() || g.norm != codec->has_norm()) {
        return argument_error(
            "geometry", fmt::format("{}{}", spelling::codec_name(g.codec), g.norm ? " with norms" : ""),
            fmt::format("{}{} as the codec has", spelling::codec_name(codec->spec()), codec->has_norm() ? " with norms" : ""));
    }
    if (g.num_heads < codec->num_heads()) {
        return argument_error("num_heads", std::to_string(g.num_heads), fmt::format("at least {}", codec->num_heads()));
    }
    if (g.codec.groups_tokens() && g.window.recent < g.codec.group) {
        return argument_error("window.recent", std::to_string(g.window.recent),
                              fmt::format("at least {}, the tokens of a group", g.codec.group));
    }
    if (g.num_cells < 1 || g.num_streams < 1) {
        return argument_error("num_cells x num_streams", fmt::format("{} x {}", g.num_cells, g.num_streams), "at least 1 x 1");
    }
    if (memory == nullptr || reinterpret_cast<std::uintptr_t>(memory) % 64 != 0) {
        return argument_error("memory", "a null or misaligned pointer", "a 64-byte aligned one");
    }
    PackedCache cache;
    cache.geometry_ = g;
    cache.codec_ = codec;
    cache.memory_ = memory;
    return cache;
}

const std::uint8_t* PackedCache::code_block(int stream, int head, int block) const noexcept {
    return StreamView(*this, memory_, stream).block(head, block);
}

void PackedCache::write_rows(const WritePlan& plan, const float* x, std::ptrdiff_t row_stride, int ith, int nth) const noexcept {
    const StreamView view(*this, memory_, plan.stream);
    const int row_dim = geometry_.row_dim;
    const std::size_t row_size = sizeof(std::uint16_t) * row_dim;
    const auto round_row = [&](int row, std::uint16_t* out) {
        const float* in = x + row * row_stride;
        for (int i = 0; i < row_dim; ++i) {
            out[i] = round_channel(in[i], i);
        }
    };

    for (std::size_t i = ith; i < plan.moves.size(); i += nth) {
        const WritePlan::Move& move = plan.moves[i];
        std::uint16_t* slot_row = view.window_row(move.slot);
        if (move.carried >= 0) {
            std::memcpy(plan.staging + static_cast<std::size_t>(move.carried) * row_dim, slot_row, row_size);
        }
        round_row(move.row, slot_row);
    }
    const int num_rows = static_cast<int>(plan.cells.size());
    if (plan.staging_rows > 0) {
        for (int row = ith; row < num_rows; row += nth) {
            round_row(row, plan.staging + static_cast<std::size_t>(row) * row_dim);
        }
    }

    if (codec_->spec().groups_tokens()) {
        write_groups(plan, x, row_stride, ith, nth);
        return;
    }
    const int head_dim = codec_->head_dim();
    std::array<float, kMaxHeadDim> rounded;
    CellCodes codes;
    // Head by head: the tables that encoding reads are a head's own.
    for (int head = 0; head < codec_->num_heads(); ++head) {
        for (int row = 0; row < num_rows; ++row) {
            const int cell = plan.cells[row];
            if (owner(head, cell, nth) != ith) {
                continue;
            }
            const float* in = x + row * row_stride + head * head_dim;
            for (int i = 0; i < head_dim; ++i) {
                rounded[i] = f16_to_f32(round_channel(in[i], head * head_dim + i));
            }
            codec_->encode(head, rounded.data(), codes.codes.data(), codes.side.data());
            store_cell(*codec_, view.block(head, cell / kBlockCells), cell % kBlockCells, codes);
        }
    }
}

// The groups of a block share bytes, so one thread has them all.
void PackedCache::write_groups(const WritePlan& plan, const float* x, std::ptrdiff_t row_stride, int ith,
                               int nth) const noexcept {
    const StreamView view(*this, memory_, plan.stream);
    const int head_dim = codec_->head_dim();
    const int group_size = codec_->spec().group;
    const int groups_per_block = kBlockCells / group_size;
    std::array<float, kMaxHeadDim> row;
    GroupRows rows;
    for (const TokenGroup& group : plan.groups) {
        const int block = group.index / groups_per_block;
        for (int head = (ith + nth - block % nth) % nth; head < codec_->num_heads(); head += nth) {
            rows.known = 0;
            for (int i = 0; i < group_size; ++i) {
                const int first = head * head_dim;
                if (group.batch_row[i] >= 0) {
                    const float* in = x + group.batch_row[i] * row_stride + first;
                    for (int d = 0; d < head_dim; ++d) {
                        row[d] = f16_to_f32(round_channel(in[d], first + d));
                    }
                } else if (group.window_row[i] != nullptr) {
                    for (int d = 0; d < head_dim; ++d) {
                        row[d] = f16_to_f32(group.window_row[i][first + d]);
                    }
                } else {
                    continue;
                }
                codec_->transform(head).forward(row.data(), row.data());
                float* out = rows.row(i);
                for (int d = 0; d < head_dim; ++d, out += kBlockCells) {
                    *out = std::isfinite(row[d]) ? row[d] : 0.0f;
                }
                rows.known |= std::uint64_t{1} << i;
            }
            encode_token_group(*codec_, view.block(head, block), group.index % groups_per_block, rows);
        }
    }
}

void PackedCache::decode(int stream, int head, int begin, int end, float* y) const noexcept {
    const StreamView view(*this, memory_, stream);
    CellCodes codes;
    for (int cell = begin; cell < end; ++cell, y += codec_->head_dim()) {
        const std::uint8_t* block = view.block(head, cell / kBlockCells);
        if (codec_->spec().groups_tokens()) {
            decode_token_cell(*codec_, block, cell % kBlockCells, y);
        } else {
            load_cell(*codec_, block, cell % kBlockCells, codes);
            codec_->decode(head, codes.codes.data(), codes.side.data(), y);
        }
    }
}

void PackedCache::decode_original(int stream, int head, int begin, int end, float* x) const noexcept {
    for (int cell = begin; cell < end; ++cell, x += codec_->head_dim()) {
        decode(stream, head, cell, cell + 1, x);
        codec_->transform(head).inverse(x, x);
    }
}

void PackedCache::read_row(int stream, int cell, float* x) const noexcept {
    const StreamView view(*this, memory_, stream);
    if (const int slot = view.find_slot(cell); slot >= 0) {
        const std::uint16_t* row = view.window_row(slot);
        for (int i = 0; i < geometry_.row_dim; ++i) {
            x[i] = f16_to_f32(row[i]);
        }
        return;
    }
    for (int head = 0; head < codec_->num_heads(); ++head) {
        decode_original(stream, head, cell, cell + 1, x + head * codec_->head_dim());
    }
}

void PackedCache::rewrite_row(int stream, int cell, const float* x) noexcept {
    const std::int32_t cells[] = {cell};
    rewrite_rows(stream, cells, x);
}

void PackedCache::move_position(int stream, int cell, std::int32_t delta) noexcept {
    const StreamView view(*this, memory_, stream);
    if (const int slot = view.find_slot(cell); slot >= 0) {
        view.slots()[slot].position += delta;
    }
}

void PackedCache::copy_stream(int from, int to) noexcept {
    const std::size_t n = geometry_.stream_bytes();
    std::memcpy(memory_ + to * n, memory_ + from * n, n);
}

void PackedCache::clear() noexcept {
    std::memset(memory_, 0, geometry_.total_bytes());
}

}  // namespace vecinfer
