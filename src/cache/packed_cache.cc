#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cache/layout.h"
#include "cache/row_rounding.h"
#include "cache/stream_view.h"
#include "vecinfer/cache.h"

namespace vecinfer {

int CacheGeometry::window_rows() const noexcept {
    return window.recent == 0 && window.sink == 0 ? 0 : window.recent + kRollbackRows + kSinkSequences * window.sink;
}

std::size_t CacheGeometry::row_bytes() const noexcept {
    return static_cast<std::size_t>(row_dim / sub_dim) * code_bits / 8 + norms_per_row;
}

std::size_t CacheGeometry::stream_bytes() const noexcept {
    return layout::slots_bytes(*this) + layout::rows_bytes(*this) +
           layout::align64(layout::num_blocks(*this) * kBlockCells * row_bytes());
}

std::size_t CacheGeometry::total_bytes() const noexcept {
    return num_streams * stream_bytes();
}

namespace {

constexpr int kMaxHeadDim = 1024;
constexpr int kMaxSubspaces = kMaxHeadDim;

// Cells that share a byte of codes must belong to one thread.
int owner(int head, int cell, int nth) {
    return (head + cell % layout::kLeastPlaneBytes) % nth;
}

void encode_cell(const RowCodec& codec, int head, std::uint8_t* block, int i, const float* x) {
    std::array<std::uint16_t, kMaxSubspaces> codes;
    std::uint8_t norm = 0;
    codec.encode(head, x, codes.data(), &norm);
    const int bits = codec.code_bits();
    for (int m = 0; m < codec.num_subspaces(); ++m) {
        layout::store_code(block + m * layout::subspace_bytes(bits), bits, i, codes[m]);
    }
    if (codec.has_norm()) {
        block[codec.num_subspaces() * layout::subspace_bytes(bits) + i] = norm;
    }
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
    if (g.sub_dim != codec->sub_dim() || g.code_bits != codec->code_bits()) {
        return argument_error("geometry", fmt::format("d{}b{}", g.sub_dim, g.code_bits),
                              fmt::format("d{}b{} as the codec has", codec->sub_dim(), codec->code_bits()));
    }
    if (g.norms_per_row < (codec->has_norm() ? codec->num_heads() : 0)) {
        return argument_error("norms_per_row", std::to_string(g.norms_per_row), fmt::format("at least {}", codec->num_heads()));
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

    const int head_dim = codec_->head_dim();
    std::array<float, kMaxHeadDim> rounded;
    for (int row = 0; row < num_rows; ++row) {
        const int cell = plan.cells[row];
        for (int head = 0; head < codec_->num_heads(); ++head) {
            if (owner(head, cell, nth) != ith) {
                continue;
            }
            const float* in = x + row * row_stride + head * head_dim;
            for (int i = 0; i < head_dim; ++i) {
                rounded[i] = f16_to_f32(round_channel(in[i], head * head_dim + i));
            }
            encode_cell(*codec_, head, view.block(head, cell / kBlockCells), cell % kBlockCells, rounded.data());
        }
    }
}

void PackedCache::decode(int stream, int head, int begin, int end, float* y) const noexcept {
    const StreamView view(*this, memory_, stream);
    const int bits = codec_->code_bits();
    std::array<std::uint16_t, kMaxSubspaces> codes;
    for (int cell = begin; cell < end; ++cell, y += codec_->head_dim()) {
        const std::uint8_t* block = view.block(head, cell / kBlockCells);
        const int i = cell % kBlockCells;
        for (int m = 0; m < codec_->num_subspaces(); ++m) {
            codes[m] = layout::load_code(block + m * layout::subspace_bytes(bits), bits, i);
        }
        const std::uint8_t norm =
            codec_->has_norm() ? block[codec_->num_subspaces() * layout::subspace_bytes(bits) + i] : std::uint8_t{0};
        codec_->decode(head, codes.data(), norm, y);
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
    const StreamView view(*this, memory_, stream);
    WritePlan plan;
    plan.stream = stream;
    plan.cells = {cell};
    if (const int slot = view.find_slot(cell); slot >= 0) {
        plan.moves = {{slot, 0, -1}};
    }
    write_rows(plan, x, geometry_.row_dim, 0, 1);
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
