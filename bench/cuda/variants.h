// Kernels that are not shipped, to compare the shipped ones with.
#pragma once

#include <span>

#include "attention/cuda/decode_kernels.h"

namespace vecinfer::bench {

/// d4b8 keys and values, head_dim 128, 4 query rows.
std::span<const cuda::DecodeKernel> decode_variants();
/// Everything else.
std::span<const cuda::DecodeKernel> decode_variants_other();

}  // namespace vecinfer::bench
