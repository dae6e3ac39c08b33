// Which fused method runs. Decided per call, outside all loops.
#include "attention/cpu/fused.h"

#include "dispatch/isa.h"

namespace vecinfer::cpu {
namespace {

constexpr int kLutRows = 8;  // tables cost per row; beyond this the matrix method is cheaper

}  // namespace

const FusedKernels* fused_kernels([[maybe_unused]] const FusedSide& k, [[maybe_unused]] const FusedSide& v,
                                  [[maybe_unused]] int rows, [[maybe_unused]] int code_cells) {
#if defined(__x86_64__)
    if (active_isa() == Isa::avx512vbmi) {
        const FusedKernels& lut = fused_lut_avx512vbmi();
        if (rows <= kLutRows && code_cells > 0 && lut.supports(k, v)) {
            return &lut;
        }
    }
#endif
    return nullptr;
}

}  // namespace vecinfer::cpu
