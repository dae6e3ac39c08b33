// Kernels that are not shipped, to compare the shipped ones with.
#pragma once

#include <span>

#include "attention/cuda/decode_kernels.h"

namespace vecinfer::bench {

std::span<const cuda::DecodeKernel> decode_variants();

}  // namespace vecinfer::bench
