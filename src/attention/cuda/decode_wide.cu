#include "attention/cuda/decode_entry.cuh"

namespace vecinfer::cuda {

std::span<const DecodeKernel> decode_kernels_wide() {
    static const DecodeKernel kernels[] = {
        decode_entry<Config<8, 8, 128, 1, 2, 16, 1, false, Table::wide>>("d8b12/hd128/rows4"),
        decode_entry<Config<8, 8, 128, 2, 1, 8, 1, true, Table::wide>>("d8b12/hd128/rows8/general"),
        decode_entry<Config<8, 8, 128, 1, 2, 16, 1, false, Table::wide, Table::copies>>("d8b12d8b8/hd128/rows4"),
        decode_entry<Config<8, 8, 128, 2, 1, 8, 1, true, Table::wide, Table::copies>>("d8b12d8b8/hd128/rows8/general"),
        decode_entry<Config<4, 4, 64, 2, 1, 12, 1, true, Table::wide>>("d4b12/hd64/rows8/general"),
        decode_entry<Config<4, 4, 128, 1, 1, 16, 1, false, Table::wide>>("d4b12/hd128/rows4"),
        decode_entry<Config<4, 4, 128, 2, 1, 8, 1, true, Table::wide>>("d4b12/hd128/rows8/general"),
    };
    return kernels;
}

}  // namespace vecinfer::cuda
