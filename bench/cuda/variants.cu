// Warps per block, blocks per multiprocessor, cells in flight.
#include "attention/cuda/decode_entry.cuh"
#include "cuda/variants.h"

namespace vecinfer::bench {

using cuda::Config;
using cuda::decode_entry;

std::span<const cuda::DecodeKernel> decode_variants() {
    static const cuda::DecodeKernel variants[] = {
        decode_entry<Config<4, 4, 128, 1, 1, 20, 1, false>>("ch1/warps20/blocks1"),
        decode_entry<Config<4, 4, 128, 1, 2, 12, 1, false>>("ch2/warps12/blocks1"),
        decode_entry<Config<4, 4, 128, 1, 2, 20, 1, false>>("ch2/warps20/blocks1"),
    };
    return variants;
}

}  // namespace vecinfer::bench
