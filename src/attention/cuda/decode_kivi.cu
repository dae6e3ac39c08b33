#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {
namespace {

template <int Bits>
using Key = ScalarSide<Bits, Axis::token, 32, Levels::asymmetric>;
template <int Bits>
using Value = ScalarSide<Bits, Axis::channel, 32, Levels::asymmetric>;

}  // namespace

std::span<const DecodeKernel> decode_kernels_kivi() {
    static const DecodeKernel kernels[] = {
        decode_entry<ScalarConfig<Key<2>, Value<2>, 64, 2, 12, 1>>("kivi2/hd64/rows8"),
        decode_entry<ScalarConfig<Key<2>, Value<2>, 128, 1, 16, 1>>("kivi2/hd128/rows4"),
        decode_entry<ScalarConfig<Key<2>, Value<2>, 128, 2, 8, 1>>("kivi2/hd128/rows8"),
        decode_entry<ScalarConfig<Key<2>, Value<2>, 256, 1, 8, 1>>("kivi2/hd256/rows4"),
        decode_entry<ScalarConfig<Key<4>, Value<4>, 64, 2, 12, 1>>("kivi4/hd64/rows8"),
        decode_entry<ScalarConfig<Key<4>, Value<4>, 128, 1, 16, 1>>("kivi4/hd128/rows4"),
        decode_entry<ScalarConfig<Key<4>, Value<4>, 128, 2, 8, 1>>("kivi4/hd128/rows8"),
        decode_entry<ScalarConfig<Key<4>, Value<4>, 256, 1, 8, 1>>("kivi4/hd256/rows4"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
