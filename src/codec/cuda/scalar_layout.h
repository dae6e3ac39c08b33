// Byte layout of packed scalar codes (groups with f16 scales) on a GPU, for host and device; see layout.h for pages.
//
//   head page = [K codes][V codes][K numbers][V numbers], each chunk after chunk, numbers of groups of 64 tokens group after
//   group chunk     = 32 cells of one head. Lane (g, t) = 4 g + t owns the A fragments of mma.m16n8k16 that the codes become:
//   rows are
//               cells for keys and channels for values. A register holds two codes, and a lane has 4 x head_dim / 8 of them:
//     keys      register (q, r), half e: cell 8 q + g, channel 8 r + 2 t + e
//     values    register (q, r), half e: channel 8 r + g, cell 16 (q / 2) + 8 e + 2 t + q % 2, as p comes out of the key product
//   word      = code pairs of registers q x head_dim / 8 + r in that order, the low half of the word for e = 0: 8 of 2 bits, 4 of
//   4
//               bits, 16 of 3 bits in three words: five in the low 15 bits of each half, of the sixteenth bit k at the top of
//               word k
//   numbers   scales, then zeros if the codec has them, in the order in which lanes read them, 16 bytes at a time
//
// A code is masked out where it lies and read as a subnormal f16: code x 2^(weight - 24), weight its place in the low 10 bits.
// Weights depend on r only; what multiplies a register, or what its sums are multiplied with, undoes them.
#pragma once

#include "codec/cuda/layout.h"
#include "vecinfer/scheme.h"

namespace vecinfer::cuda {

inline constexpr int kScalarChunk = 32;  // cells

/// Where the pair of register `id` lies: bit `bit` of the code of half e.
struct PairBit {
    int word = 0;
    int bit = 0;
};
VECINFER_HD constexpr PairBit pair_bit(int bits, int id, int e, int bit) {
    if (bits != 3) {
        const int per_word = 16 / bits;
        return {id / per_word, 16 * e + id % per_word * bits + bit};
    }
    const int field = id % 16;
    return field < 15 ? PairBit{id / 16 * 3 + field / 5, 16 * e + 3 * (field % 5) + bit}
                      : PairBit{id / 16 * 3 + bit, 16 * e + 15};
}

/// Whether codes stay where they lie: registers with the same r have the same field in their words.
VECINFER_HD constexpr bool has_weights(int bits, int head_dim) {
    return bits != 3 || head_dim % 128 == 0;
}

/// Weight of registers (q, r).
VECINFER_HD constexpr int pair_weight(int bits, int r, int head_dim) {
    if (!has_weights(bits, head_dim)) {
        return 0;
    }
    return bits == 2 ? 2 * (r % 4) : bits == 4 ? 4 * (r % 2) : r % 16 == 15 ? 0 : 3 * (r % 16 % 5 % 3);
}

/// Bytes of a chunk's codes of one side.
VECINFER_HD constexpr int scalar_code_bytes(int bits, int head_dim) {
    return 4 * bits * head_dim;
}

/// Register, lane and half of a code.
struct ScalarPlace {
    int lane = 0;
    int q = 0;
    int r = 0;
    int e = 0;
};
VECINFER_HD constexpr ScalarPlace k_scalar_place(int cell, int channel) {
    return {cell % 8 * 4 + channel % 8 / 2, cell / 8, channel / 8, channel % 2};
}
VECINFER_HD constexpr ScalarPlace v_scalar_place(int cell, int channel) {
    return {channel % 8 * 4 + cell % 8 / 2, cell / 16 * 2 + cell % 2, channel / 8, cell / 8 % 2};
}

/// Byte in a chunk of word `word` of a lane.
VECINFER_HD constexpr int scalar_word_byte(int bits, int head_dim, int lane, int word) {
    return lane_byte(lane, 4 * word, bits * head_dim / 8);
}

/// Cells that share a block of numbers.
VECINFER_HD constexpr int numbers_cells(const CodecSpec& spec) {
    return spec.axis == Axis::token && spec.group > kScalarChunk ? spec.group : kScalarChunk;
}
/// Scales in a block of numbers.
VECINFER_HD constexpr int numbers_count(const CodecSpec& spec, int head_dim) {
    return spec.axis == Axis::token ? head_dim : kScalarChunk * (head_dim / spec.group);
}
VECINFER_HD constexpr int numbers_bytes(const CodecSpec& spec, int head_dim) {
    return 2 * numbers_count(spec, head_dim) * (spec.levels == Levels::symmetric ? 1 : 2);
}

/// Entry `i` of the share of one of `readers` lanes, of `share` f16 each, in units of f16.
VECINFER_HD constexpr int number_entry(int reader, int readers, int i, int share) {
    const int width = lane_width(2 * share) / 2;
    return (i / width * readers + reader) * width + i % width;
}

/// Index of a scale in its block: of a cell in its chunk and group of channels, or of a channel.
VECINFER_HD constexpr int k_number_index(const CodecSpec& spec, int head_dim, int cell, int channel) {
    if (spec.axis == Axis::token) {  // of lane t, as its registers follow each other
        return number_entry(channel % 8 / 2, 4, channel / 8 * 2 + channel % 2, head_dim / 4);
    }
    const int groups = head_dim / spec.group;  // of lane g
    return number_entry(cell % 8, 8, cell / 8 * groups + channel / spec.group, 4 * groups);
}
VECINFER_HD constexpr int v_number_index(const CodecSpec& spec, int head_dim, int cell, int channel) {
    if (spec.axis == Axis::token) {  // of lane g
        return number_entry(channel % 8, 8, channel / 8, head_dim / 8);
    }
    const ScalarPlace at = v_scalar_place(cell, channel);  // of lane t, group after group
    return channel / spec.group * kScalarChunk + (at.lane % 4 * 4 + at.q) * 2 + at.e;
}

/// Offsets in a head page.
struct ScalarHeadPage {
    std::size_t v_codes = 0;
    std::size_t k_numbers = 0;
    std::size_t v_numbers = 0;
    std::size_t bytes = 0;
};
VECINFER_HD constexpr ScalarHeadPage scalar_head_page(const CodecSpec& k, const CodecSpec& v, int head_dim, int page_size) {
    const std::size_t cells = static_cast<std::size_t>(page_size);
    ScalarHeadPage page;
    page.v_codes = cells / kScalarChunk * scalar_code_bytes(k.code_bits, head_dim);
    page.k_numbers = page.v_codes + cells / kScalarChunk * scalar_code_bytes(v.code_bits, head_dim);
    page.v_numbers = page.k_numbers + cells / numbers_cells(k) * numbers_bytes(k, head_dim);
    page.bytes = page.v_numbers + cells / numbers_cells(v) * numbers_bytes(v, head_dim);
    return page;
}

}  // namespace vecinfer::cuda
