// Matrix method for AVX-512 with VNNI: vpdpwssd, 6 rows by 4 vectors in 24 registers. What it computes and how exactly:
// fused_matrix.inl.
#include <immintrin.h>

#include "attention/cpu/fused.h"
#include "attention/cpu/unrolled.h"

// GCC 12 takes the undefined operand inside unmasked intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define VECINFER_INLINE inline __attribute__((always_inline))
#define VECINFER_VECTORS 4
#define VECINFER_VNNI 1

namespace vecinfer::cpu {
namespace {

#include "attention/cpu/matrix_avx512.inl"
static_assert(kLanes * sizeof(float) == sizeof(F));
#include "attention/cpu/fused_matrix.inl"

}  // namespace

const FusedKernels& fused_matrix_avx512vbmi() {
    static constexpr FusedKernels kKernels{"matrix/avx512vbmi", kRows, supports, query_bytes, scratch_bytes, prepare, run_matrix};
    return kKernels;
}

}  // namespace vecinfer::cpu
