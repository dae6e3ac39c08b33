// A kernel's entry in the table of its translation unit.
#pragma once

#include "attention/cuda/decode_kernel.cuh"
#include "attention/cuda/decode_kernels.h"

namespace vecinfer::cuda {

template <class C>
DecodeKernel decode_entry(std::string_view name) {
    static_assert(sizeof(Shared<C>) <= 222 * 1024, "shared memory of sm_90, less what lengths of sequences take");
    return {name,
            reinterpret_cast<const void*>(&decode_kernel<C>),
            C::KD,
            C::VD,
            C::HD,
            C::kRows,
            C::kChunk,
            C::kThreads,
            C::MINB,
            C::General,
            sizeof(Shared<C>),
            max_blocks<C>(),
            C::kWarpFloats};
}

}  // namespace vecinfer::cuda
