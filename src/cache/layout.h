// Byte layout of a packed cache. The only place that knows it.
//
//   cache   = num_streams x stream
//   stream  = [slots][window rows][head 0 codes][head 1 codes] ...      every part starts on a 64-byte boundary
//   slots   = window_rows x Slot: which cell and position a window row holds; all-zero bytes mean free
//   rows    = window_rows x row_dim f16, original space. The lowest mantissa bit of the first 64 channels is always 0: it carries
//   the
//             mark of exported rows (row_transfer.cc)
//   codes   = ceil(num_cells / 64) blocks, one after the other, so that one head's context is one contiguous run
//   block   = [subspace 0][subspace 1] ... [side], of a scalar codec each channel is a subspace
//   subspace = the bits of 64 codes in planes of 8, 4, 2 and 1 bits, as the width is made up of them, low bits first: 8-bit codes
//             are one byte per cell, 12 = 8 + 4, 10 = 8 + 2, 4, 3 = 2 + 1, 2.
//   plane   of w bits: 8w bytes; byte j holds cells j, j + 8w, j + 16w ... from its low bits up
//   side    of a vq codec: 64 norm bytes, one per cell (codec.h: encode_norm); absent without norms
//           of groups of channels: 64 f16 scales, one per cell, for each group in turn; then zeros alike, unless symmetric
//           of groups of tokens: an f16 scale per channel, for each of the block's 64 / group groups in turn; then zeros alike,
//             unless symmetric; then u64 `written`, bit i set once cell i was written
//
// Subspace-major blocks let a kernel look up 64 cells of one subspace from one table with consecutive loads; 64 is one AVX-512
// register of codes. In planes, one shift and one mask by a constant free a run of 8w consecutive cells at once, on any ISA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vecinfer/cache.h"

namespace vecinfer::layout {

struct Slot {
    std::int32_t cell_plus_1;  // 0: free
    std::int32_t position;
    std::uint64_t stamp;  // age, see make_stamp; the smallest is replaced first
};
static_assert(sizeof(Slot) == 16);

/// Batches count up; within one, later positions are younger. Rows imported one after another count as one batch, whatever their
/// order: `imported` marks it.
constexpr std::uint64_t make_stamp(std::uint64_t batch, std::int32_t position, bool imported) {
    return batch << 32 | static_cast<std::uint64_t>(imported) << 31 | (static_cast<std::uint32_t>(position) & 0x7fffffffu);
}

constexpr std::size_t align64(std::size_t n) {
    return (n + 63) / 64 * 64;
}

constexpr std::size_t subspace_bytes(int code_bits) {
    return static_cast<std::size_t>(kBlockCells) * code_bits / 8;
}

constexpr std::size_t code_bytes(const CodecSpec& spec, int channels) {
    return static_cast<std::size_t>(channels / spec.sub_dim) * subspace_bytes(spec.code_bits);
}

/// `channels` of `num_heads` heads.
inline std::size_t block_bytes(const CodecSpec& spec, bool has_norm, int num_heads, int channels) {
    std::size_t side = has_norm ? static_cast<std::size_t>(num_heads) * kBlockCells : 0;
    if (spec.kind == CodecKind::scalar) {
        const int values = kBlockCells * channels;
        side = sizeof(std::uint16_t) * static_cast<std::size_t>(spec.numbers_per_group()) *
               static_cast<std::size_t>(values / spec.group);
        side += spec.groups_tokens() ? sizeof(std::uint64_t) * static_cast<std::size_t>(num_heads) : 0;
    }
    return code_bytes(spec, channels) + side;
}

inline std::size_t num_blocks(const CacheGeometry& g) {
    return (static_cast<std::size_t>(g.num_cells) + kBlockCells - 1) / kBlockCells;
}

inline std::size_t slots_bytes(const CacheGeometry& g) {
    return align64(sizeof(Slot) * g.window_rows());
}

inline std::size_t rows_bytes(const CacheGeometry& g) {
    return align64(sizeof(std::uint16_t) * g.row_dim * g.window_rows());
}

/// Recent slots come first, then the sink slots.
inline int num_recent_slots(const CacheGeometry& g) {
    return g.window_rows() - kSinkSequences * g.window.sink;
}

/// Cells that never share a byte of codes, whatever the width: i and j if they differ modulo this.
inline constexpr int kLeastPlaneBytes = 8;

/// Reads and writes one cell's code in a subspace of a block.
inline std::uint16_t load_code(const std::uint8_t* subspace, int code_bits, int i) {
    if (code_bits == 8) {
        return subspace[i];
    }
    unsigned code = 0;
    int done = 0;
    for (int width = 8; width > 0; width /= 2) {
        if (code_bits & width) {
            const int bytes = 8 * width;
            code |= (subspace[i % bytes] >> (i / bytes * width) & ((1u << width) - 1)) << done;
            subspace += bytes;
            done += width;
        }
    }
    return static_cast<std::uint16_t>(code);
}

inline void store_code(std::uint8_t* subspace, int code_bits, int i, std::uint16_t code) {
    if (code_bits == 8) {
        subspace[i] = static_cast<std::uint8_t>(code);
        return;
    }
    unsigned rest = code;
    for (int width = 8; width > 0; width /= 2) {
        if (code_bits & width) {
            const int bytes = 8 * width;
            const int shift = i / bytes * width;
            const unsigned mask = (1u << width) - 1;
            std::uint8_t& byte = subspace[i % bytes];
            byte = static_cast<std::uint8_t>((byte & ~(mask << shift)) | (rest & mask) << shift);
            subspace += bytes;
            rest >>= width;
        }
    }
}

}  // namespace vecinfer::layout
