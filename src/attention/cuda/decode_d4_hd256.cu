#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_d4_hd256() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<4, 4, 256, 1, 1, 8, 1, false>>("d4d4/hd256/rows4"),
        decode_entry<Config<4, 4, 256, 1, 1, 8, 1, true>>("d4d4/hd256/rows4/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
