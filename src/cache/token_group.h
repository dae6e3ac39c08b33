// Groups of tokens of a scalar codec: one channel of neighbouring cells shares a scale. See PackedCache::write_rows for the rule.
#pragma once

#include <cstdint>

#include "cache/block.h"

namespace vecinfer {

/// Rows at hand of one group and head, in code space. Channel-major, so that a channel's group is one run.
struct GroupRows {
    std::uint64_t known = 0;                           // bit i: row i of the group is at hand
    float values[kMaxHeadDim * kBlockCells];           // layout (head_dim, kBlockCells)
    float* row(int i) noexcept { return values + i; }  // its channels are kBlockCells apart
};

/// Encodes group `group` of a block anew.
void encode_token_group(const RowCodec& codec, std::uint8_t* block, int group, const GroupRows& rows) noexcept;

/// One cell into code space, layout (head_dim).
void decode_token_cell(const RowCodec& codec, const std::uint8_t* block, int i, float* y) noexcept;

}  // namespace vecinfer
