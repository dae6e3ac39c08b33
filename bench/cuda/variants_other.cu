// Warps per block and cells in flight of the other widths and head sizes.
#include "attention/cuda/decode_entry.cuh"
#include "cuda/variants.h"

namespace vecinfer::bench {

using cuda::Config;
using cuda::decode_entry;
using cuda::ScalarConfig;
using cuda::ScalarSide;

using KiviKey = ScalarSide<2, Axis::token, 32, Levels::asymmetric>;
using KiviValue = ScalarSide<2, Axis::channel, 32, Levels::asymmetric>;
using InnerqKey = ScalarSide<3, Axis::channel, 32, Levels::symmetric>;
using InnerqValue = ScalarSide<2, Axis::token, 32, Levels::symmetric>;

std::span<const cuda::DecodeKernel> decode_variants_other() {
    static const cuda::DecodeKernel variants[] = {
        decode_entry<Config<4, 4, 64, 1, 1, 16, 1, false>>("ch1/warps16/blocks1"),
        decode_entry<Config<2, 2, 128, 1, 1, 12, 1, false>>("ch1/warps12/blocks1"),
        decode_entry<Config<2, 4, 128, 1, 1, 12, 1, false>>("ch1/warps12/blocks1"),
        decode_entry<Config<8, 8, 128, 1, 2, 12, 1, false>>("ch2/warps12/blocks1"),
        decode_entry<ScalarConfig<KiviKey, KiviValue, 128, 1, 12, 1>>("warps12/blocks1"),
        decode_entry<ScalarConfig<KiviKey, KiviValue, 128, 1, 20, 1>>("warps20/blocks1"),
        decode_entry<ScalarConfig<InnerqKey, InnerqValue, 128, 1, 12, 1>>("warps12/blocks1"),
        decode_entry<ScalarConfig<InnerqKey, InnerqValue, 128, 1, 20, 1>>("warps20/blocks1"),
    };
    return variants;
}

}  // namespace vecinfer::bench
