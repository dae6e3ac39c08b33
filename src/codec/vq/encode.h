// Kernels of encoding with a vector quantizer, one set per ISA and sub_dim. All give the same codes: those of nearest.h.
#pragma once

#include <cstdint>

#include "codec/vq/scan.h"
#include "dispatch/isa.h"

namespace vecinfer {

struct ShapingTables;

struct EncodeKernels {
    /// codes[i] <- index of the centroid nearest to sub-vector i, 0 <= i < n, as a NearestFn finds it. x: layout (n, sub_dim).
    void (*find_nearest)(const float* x, std::int64_t n, const ScanTable& table, std::uint16_t* codes);
    /// Noise shaping of n vectors, see NoiseShaping::improve. Null where sub_dim is 1.
    void (*improve)(const ShapingTables& tables, int n, const float* y, std::uint16_t* codes);
};

/// Those of one ISA, which must be among available_isas(); sub_dim is 1, 2, 4 or 8.
EncodeKernels encode_kernels(Isa isa, int sub_dim) noexcept;
/// Those of active_isa().
EncodeKernels encode_kernels(int sub_dim) noexcept;

// One per ISA, for encode_kernels alone.
EncodeKernels encode_kernels_scalar(int sub_dim) noexcept;
EncodeKernels encode_kernels_avx2(int sub_dim) noexcept;
EncodeKernels encode_kernels_avx512(int sub_dim) noexcept;
EncodeKernels encode_kernels_avx512vbmi(int sub_dim) noexcept;

}  // namespace vecinfer
