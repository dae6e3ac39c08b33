// Which fused method runs. Decided per call, outside all loops.
#include "attention/cpu/fused.h"

#include "dispatch/isa.h"

namespace vecinfer::cpu {
namespace {

constexpr int kLutRows = 16;  // tables cost per row: beyond this, decoding a tile once is cheaper

}  // namespace

const FusedKernels* fused_kernels([[maybe_unused]] const FusedSide& k, [[maybe_unused]] const FusedSide& v,
                                  [[maybe_unused]] int rows, [[maybe_unused]] int code_cells) {
#if defined(__x86_64__)
    if (active_isa() != Isa::scalar) {
        const FusedKernels& lut = active_isa() == Isa::avx512vbmi ? fused_lut_avx512vbmi() : fused_lut_avx2();
        if (rows <= kLutRows && code_cells > 0 && lut.supports(k, v)) {
            return &lut;
        }
    }
#endif
    return nullptr;
}

}  // namespace vecinfer::cpu
