// A kernel's entry in the table of its translation unit.
#pragma once

#include "attention/cuda/decode_kernel.cuh"
#include "attention/cuda/decode_kernels.h"

namespace vecinfer::cuda {

/// What a kernel reads: of vectors the codec whose page layout it is.
template <class C>
constexpr CodecSpec key_spec() {
    if constexpr (C::kScalar) {
        return C::Keys::spec();
    } else {
        return {CodecKind::vq, C::KD, C::kKeyForm.bits};
    }
}
template <class C>
constexpr CodecSpec value_spec() {
    if constexpr (C::kScalar) {
        return C::Values::spec();
    } else {
        return {CodecKind::vq, C::VD, C::kValueForm.bits};
    }
}

template <class C>
DecodeKernel decode_entry(std::string_view name) {
    static_assert(sizeof(Shared<C>) <= 222 * 1024, "shared memory of sm_90, less what lengths of sequences take");
    return {name,
            reinterpret_cast<const void*>(&decode_kernel<C>),
            key_spec<C>(),
            value_spec<C>(),
            C::KT == Table::own,
            C::VT == Table::own,
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
