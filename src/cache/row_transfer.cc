// Rows on their way out of and into a cache, in the room of one f16 row.
//
//   exact row:  row_dim f16 values; the lowest mantissa bits of the first 64 hold a mark: 16 bits tag, 16 bits codec hash, 32
//   bits
//               position, most significant bit first. Import encodes the row again, which gives the same codes.
//   code row:   u64 tag, u64 codec hash, per head its codes side by side (low bits first) and norm byte, zeros
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "cache/row_rounding.h"
#include "cache/stream_view.h"
#include "vecinfer/cache.h"

namespace vecinfer {

namespace {

constexpr std::uint64_t kCodeRowTag = 0x31574f5243455600ull;  // "\0VECROW1"
constexpr std::uint16_t kExactRowTag = 0xec5a;

std::uint16_t short_hash(std::uint64_t hash) {
    return static_cast<std::uint16_t>(hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48);
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
    if (const int slot = view.find_slot(cell); slot >= 0) {
        const std::uint16_t* row = view.window_row(slot);
        const std::uint64_t mark = static_cast<std::uint64_t>(kExactRowTag) << 48 |
                                   static_cast<std::uint64_t>(short_hash(codec_->hash())) << 32 |
                                   static_cast<std::uint32_t>(view.slots()[slot].position);
        for (int i = 0; i < geometry_.row_dim; ++i) {
            const std::uint16_t bit = i < kMarkedChannels ? mark >> (63 - i) & 1 : 0;
            const std::uint16_t h = row[i] | bit;
            std::memcpy(out + 2 * i, &h, 2);
        }
        return;
    }
    std::memset(out, 0, static_cast<std::size_t>(geometry_.row_dim) * 2);
    const std::uint64_t hash = codec_->hash();
    std::memcpy(out, &kCodeRowTag, 8);
    std::memcpy(out + 8, &hash, 8);
    CodeStream codes{out + 16};
    const int bits = codec_->code_bits();
    const int num_subspaces = codec_->num_subspaces();
    for (int head = 0; head < codec_->num_heads(); ++head) {
        const std::uint8_t* block = view.block(head, cell / kBlockCells);
        for (int m = 0; m < num_subspaces; ++m) {
            codes.put(layout::load_code(block + m * layout::subspace_bytes(bits), bits, cell % kBlockCells), bits);
        }
        if (codec_->has_norm()) {
            codes.put(block[num_subspaces * layout::subspace_bytes(bits) + cell % kBlockCells], 8);
        }
    }
}

Status PackedCache::import_row(int stream, int cell, const std::byte* in) {
    const StreamView view(*this, memory_, stream);
    std::uint64_t tag = 0;
    std::uint64_t hash = 0;
    std::memcpy(&tag, in, 8);
    std::memcpy(&hash, in + 8, 8);
    if (tag == kCodeRowTag) {
        if (hash != codec_->hash()) {
            return {ErrorCode::mismatch,
                    fmt::format("saved row: got codes of codebook {:016x}, expected {:016x}", hash, codec_->hash())};
        }
        CodeStream codes{const_cast<std::byte*>(in) + 16};
        const int bits = codec_->code_bits();
        const int num_subspaces = codec_->num_subspaces();
        for (int head = 0; head < codec_->num_heads(); ++head) {
            std::uint8_t* block = view.block(head, cell / kBlockCells);
            for (int m = 0; m < num_subspaces; ++m) {
                layout::store_code(block + m * layout::subspace_bytes(bits), bits, cell % kBlockCells, codes.get(bits));
            }
            if (codec_->has_norm()) {
                block[num_subspaces * layout::subspace_bytes(bits) + cell % kBlockCells] =
                    static_cast<std::uint8_t>(codes.get(8));
            }
        }
        if (const int slot = view.find_slot(cell); slot >= 0) {
            view.slots()[slot].cell_plus_1 = 0;
        }
        return {};
    }

    std::uint64_t mark = 0;
    std::vector<float> row(geometry_.row_dim);
    for (int i = 0; i < geometry_.row_dim; ++i) {
        std::uint16_t h = 0;
        std::memcpy(&h, in + 2 * i, 2);
        if (i < kMarkedChannels) {
            mark = mark << 1 | (h & 1);
            h &= static_cast<std::uint16_t>(~1u);
        }
        row[i] = f16_to_f32(h);
    }
    if (mark >> 48 != kExactRowTag) {
        return {ErrorCode::mismatch, "saved row: got plain f16 or foreign data, expected a row saved with a vecinfer cache"};
    }
    if ((mark >> 32 & 0xffff) != short_hash(codec_->hash())) {
        return {ErrorCode::mismatch, fmt::format("saved row: got a row of another codebook (short hash {:04x}), expected {:04x}",
                                                 mark >> 32 & 0xffff, short_hash(codec_->hash()))};
    }
    const std::int32_t position = static_cast<std::int32_t>(static_cast<std::uint32_t>(mark));
    const std::int32_t cells[] = {cell};
    const std::int32_t positions[] = {position};
    Result<WritePlan> plan = plan_write(stream, cells, positions, true);
    if (!plan.ok()) {
        return plan.status();
    }
    write_rows(plan.value(), row.data(), geometry_.row_dim, 0, 1);
    return {};
}

}  // namespace vecinfer
