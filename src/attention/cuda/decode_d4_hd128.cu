#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_d4_hd128() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<4, 4, 128, 1, 2, 16, 1, false>>("d4d4/hd128/rows4"),
        decode_entry<Config<4, 4, 128, 2, 1, 8, 1, false>>("d4d4/hd128/rows8"),
        decode_entry<Config<4, 4, 128, 1, 1, 12, 1, true>>("d4d4/hd128/rows4/general"),
        decode_entry<Config<4, 4, 128, 2, 1, 8, 1, true>>("d4d4/hd128/rows8/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
