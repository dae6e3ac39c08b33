#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_d8() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<8, 8, 128, 1, 2, 16, 1, false>>("d8d8/hd128/rows4"),
        decode_entry<Config<8, 8, 128, 2, 1, 8, 1, true>>("d8d8/hd128/rows8/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
