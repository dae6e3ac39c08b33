// Rows on their way out of and into a cache, in the room of one f16 row.
//
//   exact row:  row_dim f16 values; the lowest mantissa bits of the first 64 hold a mark: 16 bits tag, 16 bits codec hash, 32
//   bits
//               position, most significant bit first. Import encodes the row again, which gives the same codes.
//   decoded row: the same with a tag of its own and no position, of codecs that group tokens: their rows have no codes of their
//   own code row:   u64 tag, u64 codec hash, per head its codes side by side (low bits first) and norm byte, zeros
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "cache/block.h"
#include "cache/row_rounding.h"
#include "cache/stream_view.h"
#include "vecinfer/cache.h"

namespace vecinfer {

namespace {

constexpr std::uint64_t kCodeRowTag = 0x31574f5243455600ull;  // "\0VECROW1"
constexpr std::uint16_t kExactRowTag = 0xec5a;
constexpr std::uint16_t kDecodedRowTag = 0xec5b;

std::uint16_t short_hash(std::uint64_t hash) {
    return static_cast<std::uint16_t>(hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48);
}

constexpr std::size_t kCodeRowHeader = 16;

struct Mark {
    std::uint16_t tag;
    std::uint16_t hash;
    std::int32_t position;
};

Mark read_mark(const std::byte* in) {
    std::uint64_t mark = 0;
    for (int i = 0; i < kMarkedChannels; ++i) {
        std::uint16_t h = 0;
        std::memcpy(&h, in + 2 * i, 2);
        mark = mark << 1 | (h & 1);
    }
    return {static_cast<std::uint16_t>(mark >> 48), static_cast<std::uint16_t>(mark >> 32),
            static_cast<std::int32_t>(static_cast<std::uint32_t>(mark))};
}

/// Codes side by side, low bits first. `bytes` must be zero before the first put.
struct CodeStream {
    std::byte* bytes;
    std::size_t bits = 0;

    void put(unsigned code, int code_bits) {
        for (int i = 0; i < code_bits; ++i, ++bits) {
            bytes[bits / 8] |= static_cast<std::byte>((code >> i & 1) << bits % 8);
        }
    }
    std::uint16_t get(int code_bits) {
        unsigned code = 0;
        for (int i = 0; i < code_bits; ++i, ++bits) {
            code |= (static_cast<unsigned>(bytes[bits / 8]) >> bits % 8 & 1) << i;
        }
        return static_cast<std::uint16_t>(code);
    }
};

}  // namespace

void PackedCache::export_row(int stream, int cell, std::byte* out) const noexcept {
    const StreamView view(*this, memory_, stream);
    const int slot = view.find_slot(cell);
    if (slot >= 0 || codec_->spec().groups_tokens()) {
        const std::uint64_t tag = slot >= 0 ? kExactRowTag : kDecodedRowTag;
        const std::int32_t position = slot >= 0 ? view.slots()[slot].position : 0;
        const std::uint64_t mark =
            tag << 48 | static_cast<std::uint64_t>(short_hash(codec_->hash())) << 32 | static_cast<std::uint32_t>(position);
        const int head_dim = codec_->head_dim();
        std::array<float, kMaxHeadDim> decoded;
        for (int i = 0; i < geometry_.row_dim; ++i) {
            if (slot < 0 && i % head_dim == 0) {
                decode_original(stream, i / head_dim, cell, cell + 1, decoded.data());
            }
            const std::uint16_t value = slot >= 0 ? view.window_row(slot)[i] : round_channel(decoded[i % head_dim], i);
            const std::uint16_t bit = i < kMarkedChannels ? mark >> (63 - i) & 1 : 0;
            const std::uint16_t h = value | bit;
            std::memcpy(out + 2 * i, &h, 2);
        }
        return;
    }
    std::memset(out, 0, static_cast<std::size_t>(geometry_.row_dim) * 2);
    const std::uint64_t hash = codec_->hash();
    std::memcpy(out, &kCodeRowTag, 8);
    std::memcpy(out + 8, &hash, 8);
    CodeStream stream_out{out + kCodeRowHeader};
    CellCodes codes;
    for (int head = 0; head < codec_->num_heads(); ++head) {
        load_cell(*codec_, view.block(head, cell / kBlockCells), cell % kBlockCells, codes);
        for (int m = 0; m < codec_->num_subspaces(); ++m) {
            stream_out.put(codes.codes[m], codec_->code_bits());
        }
        for (int i = 0; i < codec_->side_bytes(); ++i) {
            stream_out.put(codes.side[i], 8);
        }
    }
}

Status PackedCache::check_row(const std::byte* in) const {
    std::uint64_t tag = 0;
    std::uint64_t hash = 0;
    std::memcpy(&tag, in, 8);
    std::memcpy(&hash, in + 8, 8);
    if (tag == kCodeRowTag) {
        return hash == codec_->hash() && !codec_->spec().groups_tokens()
                   ? Status()
                   : Status(ErrorCode::mismatch,
                            fmt::format("saved row: got codes of codebook {:016x}, expected {:016x}", hash, codec_->hash()));
    }
    const Mark mark = read_mark(in);
    if (mark.tag != kExactRowTag && !(mark.tag == kDecodedRowTag && codec_->spec().groups_tokens())) {
        return {ErrorCode::mismatch, "saved row: got plain f16 or foreign data, expected a row saved with a vecinfer cache"};
    }
    if (mark.hash != short_hash(codec_->hash())) {
        return {ErrorCode::mismatch, fmt::format("saved row: got a row of another codebook (short hash {:04x}), expected {:04x}",
                                                 mark.hash, short_hash(codec_->hash()))};
    }
    return {};
}

Status PackedCache::import_row(int stream, int cell, const std::byte* in) {
    const std::int32_t cells[] = {cell};
    return import_rows(stream, cells, in);
}

Status PackedCache::import_rows(int stream, std::span<const std::int32_t> cells, const std::byte* in) {
    const std::size_t row_dim = static_cast<std::size_t>(geometry_.row_dim);
    const StreamView view(*this, memory_, stream);
    std::vector<std::int32_t> f16_cells;
    std::vector<std::int32_t> positions;
    std::vector<float> rows;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        if (Status status = check_row(in + i * 2 * row_dim); !status.ok()) {
            return status;
        }
    }
    for (std::size_t i = 0; i < cells.size(); ++i, in += 2 * row_dim) {
        std::uint64_t tag = 0;
        std::memcpy(&tag, in, 8);
        if (tag != kCodeRowTag) {
            const Mark mark = read_mark(in);
            f16_cells.push_back(cells[i]);
            positions.push_back(mark.tag == kExactRowTag ? mark.position : kNotForTheWindow);
            for (std::size_t d = 0; d < row_dim; ++d) {
                std::uint16_t h = 0;
                std::memcpy(&h, in + 2 * d, 2);
                rows.push_back(f16_to_f32(d < kMarkedChannels ? h & 0xfffe : h));
            }
            continue;
        }
        CodeStream stream_in{const_cast<std::byte*>(in) + kCodeRowHeader};
        CellCodes codes;
        for (int head = 0; head < codec_->num_heads(); ++head) {
            for (int m = 0; m < codec_->num_subspaces(); ++m) {
                codes.codes[m] = stream_in.get(codec_->code_bits());
            }
            for (int k = 0; k < codec_->side_bytes(); ++k) {
                codes.side[k] = static_cast<std::uint8_t>(stream_in.get(8));
            }
            store_cell(*codec_, view.block(head, cells[i] / kBlockCells), cells[i] % kBlockCells, codes);
        }
        if (const int slot = view.find_slot(cells[i]); slot >= 0) {
            view.slots()[slot].cell_plus_1 = 0;
        }
    }
    if (f16_cells.empty()) {
        return {};
    }
    Result<WritePlan> plan = plan_write(stream, f16_cells, positions, true);
    if (!plan.ok()) {
        return plan.status();
    }
    // No attention runs over an import, so what it displaces need not be kept.
    plan->staging_rows = 0;
    for (WritePlan::Move& move : plan->moves) {
        move.carried = -1;
    }
    write_rows(plan.value(), rows.data(), geometry_.row_dim, 0, 1);
    return {};
}

}  // namespace vecinfer
