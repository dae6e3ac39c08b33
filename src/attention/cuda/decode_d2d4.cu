#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_d2d4() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<2, 4, 64, 2, 1, 8, 1, true>>("d2d4/hd64/rows8/general"),
        decode_entry<Config<2, 4, 128, 1, 1, 16, 1, false>>("d2d4/hd128/rows4"),
        decode_entry<Config<2, 4, 128, 2, 1, 8, 1, true>>("d2d4/hd128/rows8/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
