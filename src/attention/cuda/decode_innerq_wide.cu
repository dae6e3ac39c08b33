#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {
namespace {

using Key = ScalarSide<3, Axis::channel, 32, Levels::symmetric>;
using Hybrid = ScalarSide<2, Axis::token, 32, Levels::hybrid>;
using WideKey = ScalarSide<4, Axis::channel, 64, Levels::symmetric>;
using WideValue = ScalarSide<4, Axis::token, 64, Levels::symmetric>;

}  // namespace

std::span<const DecodeKernel> decode_kernels_innerq_wide() {
    static const DecodeKernel kernels[] = {
        decode_entry<ScalarConfig<Key, Hybrid, 64, 2, 12, 1>>("innerq3v2h/hd64/rows8"),
        decode_entry<ScalarConfig<Key, Hybrid, 128, 1, 16, 1>>("innerq3v2h/hd128/rows4"),
        decode_entry<ScalarConfig<Key, Hybrid, 128, 2, 8, 1>>("innerq3v2h/hd128/rows8"),
        decode_entry<ScalarConfig<Key, Hybrid, 256, 1, 8, 1>>("innerq3v2h/hd256/rows4"),
        decode_entry<ScalarConfig<WideKey, WideValue, 64, 2, 12, 1>>("innerq4v4/hd64/rows8"),
        decode_entry<ScalarConfig<WideKey, WideValue, 128, 1, 16, 1>>("innerq4v4/hd128/rows4"),
        decode_entry<ScalarConfig<WideKey, WideValue, 128, 2, 8, 1>>("innerq4v4/hd128/rows8"),
        decode_entry<ScalarConfig<WideKey, WideValue, 256, 1, 8, 1>>("innerq4v4/hd256/rows4"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
