// Warps per block and cells in flight of the other widths and head sizes.
#include "attention/cuda/decode_entry.cuh"
#include "cuda/variants.h"

namespace vecinfer::bench {

using cuda::Config;
using cuda::decode_entry;

std::span<const cuda::DecodeKernel> decode_variants_other() {
    static const cuda::DecodeKernel variants[] = {
        decode_entry<Config<4, 4, 64, 1, 1, 16, 1, false>>("ch1/warps16/blocks1"),
        decode_entry<Config<4, 4, 64, 1, 1, 8, 2, false>>("ch1/warps8/blocks2"),
        decode_entry<Config<4, 4, 128, 2, 1, 12, 1, false>>("ch1/warps12/blocks1"),
        decode_entry<Config<4, 4, 256, 1, 1, 12, 1, false>>("ch1/warps12/blocks1"),
        decode_entry<Config<2, 2, 128, 1, 1, 12, 1, false>>("ch1/warps12/blocks1"),
        decode_entry<Config<2, 4, 128, 1, 1, 12, 1, false>>("ch1/warps12/blocks1"),
        decode_entry<Config<8, 8, 128, 1, 1, 16, 1, false>>("ch1/warps16/blocks1"),
        decode_entry<Config<8, 8, 128, 1, 2, 12, 1, false>>("ch2/warps12/blocks1"),
    };
    return variants;
}

}  // namespace vecinfer::bench
