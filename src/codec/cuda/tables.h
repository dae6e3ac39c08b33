// What LayerCodec keeps on the device.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "codec/cuda/layout.h"
#include "vecinfer/cuda.h"

namespace vecinfer::cuda {

/// Keys or values.
struct SideTables {
    CodecSpec spec;
    Form form;               // of the page layout, none for scalar codecs
    bool own_books = false;  // a codebook per subspace
    /// What a code of the page stands for, layout (num_kv_heads, 2^bits, words): int8, channel 0 in the low byte. One word, which
    /// holds the channels of sub_dim 2 twice; of sub_dim 8 two words. Of sub_dim 1 layout (num_kv_heads, 2): the eight levels.
    /// With codebooks of their own layout (num_kv_heads, num_subspaces, 256), of sub_dim 2 half a word each.
    DevicePointer<std::uint32_t> words;
    /// Centroids as operands of the search, see search.cuh: layout (num_kv_heads, books, 2^code_bits / 16, 32, 4). Null of one
    /// channel and for scalar codecs.
    DevicePointer<std::uint32_t> fragments;
    /// Of shaped codes (codec/vq/shaping.h): directions, layout (num_kv_heads, head_dim, rank); W of each subspace, layout
    /// (num_kv_heads, num_subspaces, sub_dim, sub_dim); c^T W c, layout (num_kv_heads, num_subspaces, 256). Null otherwise.
    DevicePointer<float> shaping;
    DevicePointer<float> shaping_metric;
    DevicePointer<float> shaping_bias;
    int shaping_rank = 0;          // a multiple of 4; directions that were added are 0
    DevicePointer<float> levels;   // of codes of one channel: their values, layout (num_kv_heads, kMaxLevels); else null
    DevicePointer<float> scales;   // [num_kv_heads] value of an int8 step, 1 for scalar codecs and with own_books
    DevicePointer<float> steps;    // with own_books: value of an int8 step by channel, layout (num_kv_heads, head_dim); else null
    DevicePointer<float> factors;  // layout (num_kv_heads, head_dim): smooth factors; null: 1
    DevicePointer<float> inverse;  // their inverses
    DevicePointer<float> center;   // likewise; null: 0
    bool hadamard = false;
    bool norms = false;
    bool unbiased = false;
};

/// Offsets in a head page; norms are the numbers of keys of scalar codecs.
struct PageParts {
    std::size_t v_codes = 0;
    std::size_t norms = 0;
    std::size_t v_numbers = 0;
    std::size_t bytes = 0;
};
PageParts page_parts(const LayerCodec::Tables& tables, int page_size);

struct LayerCodec::Tables {
    int num_kv_heads = 0;
    int head_dim = 0;
    SideTables k;
    SideTables v;
};

}  // namespace vecinfer::cuda
