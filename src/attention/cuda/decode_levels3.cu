#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_levels3() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<1, 1, 64, 2, 1, 12, 1, true>>("d1b3/hd64/rows8/general"),
        decode_entry<Config<1, 1, 128, 1, 1, 16, 1, false>>("d1b3/hd128/rows4"),
        decode_entry<Config<1, 1, 128, 2, 1, 8, 1, true>>("d1b3/hd128/rows8/general"),
        decode_entry<Config<1, 1, 256, 1, 1, 8, 1, true>>("d1b3/hd256/rows4/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
