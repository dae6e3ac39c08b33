#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_own() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<4, 4, 64, 2, 1, 12, 1, true, Table::own>>("own4/hd64/rows8/general"),
        decode_entry<Config<4, 4, 128, 1, 2, 16, 1, false, Table::own>>("own4/hd128/rows4"),
        decode_entry<Config<4, 4, 128, 2, 1, 8, 1, true, Table::own>>("own4/hd128/rows8/general"),
        decode_entry<Config<4, 4, 256, 1, 1, 8, 1, true, Table::own>>("own4/hd256/rows4/general"),
        decode_entry<Config<2, 2, 64, 2, 1, 8, 1, true, Table::own>>("own2/hd64/rows8/general"),
        decode_entry<Config<2, 2, 128, 1, 1, 16, 1, false, Table::own>>("own2/hd128/rows4"),
        decode_entry<Config<2, 2, 128, 2, 1, 8, 1, true, Table::own>>("own2/hd128/rows8/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
