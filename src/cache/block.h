// One cell of a code block: its codes and what goes with them.
#pragma once

#include <array>
#include <cstring>

#include "cache/layout.h"

namespace vecinfer {

inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxSideBytes = kMaxHeadDim / 16 * 2 * 2;  // scales and zeros of groups of 16

/// One head of one row, as RowCodec::encode gives it.
struct CellCodes {
    std::array<std::uint16_t, kMaxHeadDim> codes;
    std::array<std::uint8_t, kMaxSideBytes> side;
};

/// Side bytes are stored one array of 64 cells after the other: of norm bytes or of f16 numbers.
inline int side_width(const RowCodec& codec) {
    return codec.spec().kind == CodecKind::scalar ? 2 : 1;
}

inline void load_cell(const RowCodec& codec, const std::uint8_t* block, int i, CellCodes& cell) {
    const int bits = codec.code_bits();
    for (int m = 0; m < codec.num_subspaces(); ++m, block += layout::subspace_bytes(bits)) {
        cell.codes[m] = layout::load_code(block, bits, i);
    }
    const int width = side_width(codec);
    for (int begin = 0; begin < codec.side_bytes(); begin += width, block += kBlockCells * width) {
        std::memcpy(&cell.side[begin], block + i * width, width);
    }
}

inline void store_cell(const RowCodec& codec, std::uint8_t* block, int i, const CellCodes& cell) {
    const int bits = codec.code_bits();
    for (int m = 0; m < codec.num_subspaces(); ++m, block += layout::subspace_bytes(bits)) {
        layout::store_code(block, bits, i, cell.codes[m]);
    }
    const int width = side_width(codec);
    for (int begin = 0; begin < codec.side_bytes(); begin += width, block += kBlockCells * width) {
        std::memcpy(block + i * width, &cell.side[begin], width);
    }
}

}  // namespace vecinfer
