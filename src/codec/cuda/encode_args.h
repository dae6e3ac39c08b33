// What the encoding kernels read and write; checked by encode.cc before a launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cuda/layout.h"
#include "vecinfer/cuda.h"

namespace vecinfer::cuda {

struct EncodeSide {
    const void* x;
    std::int64_t token_stride;
    std::int64_t head_stride;
    const std::uint32_t* words;      // see codec/cuda/tables.h
    const float* scales;             // [num_kv_heads]
    const float* levels;             // of codes of one channel: layout (num_kv_heads, kMaxLevels); else null
    const float* steps;              // with own_books: layout (num_kv_heads, HD)
    const std::uint32_t* fragments;  // see codec/cuda/search.cuh
    Form form;                       // of the page layout
    const float* shaping;            // see tables.h
    const float* shaping_metric;
    const float* shaping_bias;
    int shaping_rank;             // 0: none
    const float* inverse;         // layout (num_kv_heads, HD), null: 1
    const float* center;          // likewise, null: 0
    std::uint16_t* window;        // null: none
    std::int64_t codes_offset;    // in a head page
    std::int64_t numbers_offset;  // of scalar codecs
    CodecSpec spec;
    int value;  // 1: values
    int hadamard;
    int norms;
    int unbiased;
};

struct EncodeArgs {
    EncodeSide side;
    Number type;
    int num_tokens;
    int num_kv_heads;

    std::uint8_t* pages;
    std::int64_t page_bytes;
    std::int64_t head_bytes;
    std::int64_t norm_offset;
    int page_size;
    const std::int64_t* slots;
    int aligned;  // rows may be read four numbers at a time

    int window_rows;
    int sink;
    const std::int32_t* window_slots;
    const std::int32_t* positions;
    const std::int32_t* sequences;
    const std::int32_t* kv_lens;
};

struct EncodeKernel {
    const void* function;
    int warps;
    int tokens;  // of one head and side that a block takes
    std::size_t shared_bytes;
};
EncodeKernel encode_kernel(int head_dim, const CodecSpec& spec, bool own_books);

/// Of scalar codecs; a block takes 32 tokens, of codecs that group tokens the groups that end there. The latter read earlier rows
/// of a group from the window, so rows enter the window afterwards: window_kernel.
EncodeKernel scalar_encode_kernel(const CodecSpec& spec, int head_dim);
EncodeKernel window_kernel(int head_dim);

}  // namespace vecinfer::cuda
