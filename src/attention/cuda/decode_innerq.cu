#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {
namespace {

using Key = ScalarSide<3, Axis::channel, 32, Levels::symmetric>;
template <int Bits, Levels L>
using Value = ScalarSide<Bits, Axis::token, 32, L>;
using Two = Value<2, Levels::symmetric>;
using Three = Value<3, Levels::symmetric>;

}  // namespace

std::span<const DecodeKernel> decode_kernels_innerq() {
    static const DecodeKernel kernels[] = {
        decode_entry<ScalarConfig<Key, Two, 64, 2, 12, 1>>("innerq3v2/hd64/rows8"),
        decode_entry<ScalarConfig<Key, Two, 128, 1, 16, 1>>("innerq3v2/hd128/rows4"),
        decode_entry<ScalarConfig<Key, Two, 128, 2, 8, 1>>("innerq3v2/hd128/rows8"),
        decode_entry<ScalarConfig<Key, Two, 256, 1, 8, 1>>("innerq3v2/hd256/rows4"),
        decode_entry<ScalarConfig<Key, Three, 64, 2, 12, 1>>("innerq3v3/hd64/rows8"),
        decode_entry<ScalarConfig<Key, Three, 128, 1, 16, 1>>("innerq3v3/hd128/rows4"),
        decode_entry<ScalarConfig<Key, Three, 128, 2, 8, 1>>("innerq3v3/hd128/rows8"),
        decode_entry<ScalarConfig<Key, Three, 256, 1, 8, 1>>("innerq3v3/hd256/rows4"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
