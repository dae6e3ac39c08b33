// What the decode attention kernels read and write; checked by decode.cc before a launch.
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "vecinfer/cuda.h"

namespace vecinfer::cuda {

struct DecodeArgs {
    // Codes, see codec/cuda/layout.h and scalar_layout.h. Page of cell c of sequence s: block_table[s * table_stride + (c >>
    // page_shift)], or s.
    const std::uint8_t* pages;
    std::uint32_t page_bytes;
    std::uint32_t head_bytes;
    std::uint32_t v_offset;
    std::uint32_t norm_offset;       // norms, or numbers of keys
    std::uint32_t v_numbers_offset;  // of scalar codecs
    const std::int32_t* block_table;
    std::int64_t table_stride;
    int page_shift;

    // f16 rows, layout (slots, num_kv_heads, window_rows, HD): sinks first, then a ring.
    const std::uint16_t* window_k;
    const std::uint16_t* window_v;
    const std::int32_t* window_slots;  // [batch], null: sequence s has slot s
    int window_rows;
    int sink;
    int recent;

    int batch;
    int num_kv_heads;
    int group;                    // query heads per KV head
    int num_q;                    // query tokens per sequence
    int row_tiles;                // ceil(group * num_q / rows of a kernel)
    const std::int32_t* kv_lens;  // [batch], the query tokens included
    int sliding_window;           // a query reads positions above its own minus this; INT_MAX: all

    const void* q;  // layout (batch, num_q, num_qo_heads, HD)
    std::int64_t q_seq_stride;
    std::int64_t q_token_stride;
    std::int64_t q_head_stride;
    void* out;
    std::int64_t out_seq_stride;
    std::int64_t out_token_stride;
    std::int64_t out_head_stride;
    Number q_type;
    Number out_type;
    float* lse;  // layout (batch, num_q, num_qo_heads), null: not wanted

    // Codec: per KV head.
    const std::uint32_t* k_words;  // see codec/cuda/tables.h
    const std::uint32_t* v_words;
    const float* k_steps;  // layout (num_kv_heads, HD), null: 1
    const float* v_steps;
    const float* k_scale;  // [num_kv_heads]
    const float* v_scale;
    const float* q_factors;  // layout (num_kv_heads, HD), null: 1
    const float* k_center;   // likewise, null: 0
    const float* v_center;
    int k_hadamard;
    int v_hadamard;

    float sm_scale;
    float soft_cap;             // 0: off
    const float* alibi_slopes;  // [num_qo_heads], null: off
    const float* sinks;         // [num_qo_heads], null: off

    // Workspace.
    float* partials;     // layout (slots, 2, rows * HD)
    float2* stats;       // layout (slots, 2, rows): reference in log2 units and sum
    unsigned* counters;  // [items], zero between launches
};

}  // namespace vecinfer::cuda
