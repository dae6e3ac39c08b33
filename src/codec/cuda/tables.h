// What LayerCodec keeps on the device.
#pragma once

#include <cstdint>

#include "codec/cuda/device.h"
#include "vecinfer/cuda.h"

namespace vecinfer::cuda {

/// Keys or values.
struct SideTables {
    int sub_dim = 0;
    /// Layout (num_kv_heads, 256, words): the int8 of a centroid, channel 0 in the low byte. One word, which holds the channels
    /// of sub_dim 2 twice; of sub_dim 8 two words.
    DevicePointer<std::uint32_t> words;
    DevicePointer<float> scales;   // [num_kv_heads] value of an int8 step
    DevicePointer<float> factors;  // layout (num_kv_heads, head_dim): smooth factors; null: 1
    DevicePointer<float> inverse;  // their inverses
    DevicePointer<float> center;   // likewise; null: 0
    bool hadamard = false;
    bool norms = false;
    bool unbiased = false;
    bool shaped = false;
};

struct LayerCodec::Tables {
    int num_kv_heads = 0;
    int head_dim = 0;
    SideTables k;
    SideTables v;
};

}  // namespace vecinfer::cuda
