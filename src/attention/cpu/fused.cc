// Which fused method runs. Decided per call, outside all loops.
#include "attention/cpu/fused.h"

#include "dispatch/isa.h"

namespace vecinfer::cpu {
namespace {

#if defined(__x86_64__)
const FusedKernels& lut_kernels() {
    return active_isa() == Isa::avx512vbmi ? fused_lut_avx512vbmi() : fused_lut_avx2();
}

const FusedKernels& matrix_kernels() {
    switch (active_isa()) {
        case Isa::avx512vbmi: return fused_matrix_avx512vbmi();
        case Isa::avx512: return fused_matrix_avx512();
        default: return fused_matrix_avx2();
    }
}
#endif

}  // namespace

const FusedKernels* fused_kernels([[maybe_unused]] const FusedSide& k, [[maybe_unused]] const FusedSide& v,
                                  [[maybe_unused]] int rows, [[maybe_unused]] int code_cells) {
#if defined(__x86_64__)
    if (active_isa() == Isa::scalar || code_cells == 0) {
        return nullptr;
    }
    // Tables cost per row, decoding costs once: beyond so many rows the matrix method is faster.
    const int lut_rows = active_isa() == Isa::avx512vbmi ? 16 : 4;
    if (rows <= lut_rows && lut_kernels().supports(k, v)) {
        return &lut_kernels();
    }
    if (matrix_kernels().supports(k, v)) {
        return &matrix_kernels();
    }
#endif
    return nullptr;
}

}  // namespace vecinfer::cpu
