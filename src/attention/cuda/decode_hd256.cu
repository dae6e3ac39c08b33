#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_hd256() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<256, 1, 1, 8, 1, false>>("d4b8/hd256/rows4"),
        decode_entry<Config<256, 1, 1, 8, 1, true>>("d4b8/hd256/rows4/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
