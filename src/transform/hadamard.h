// Orthonormal Hadamard transforms of one vector, arguments already checked.
#pragma once

#include "vecinfer/status.h"

namespace vecinfer {

inline constexpr int kMaxHeadDim = 1024;

/// ok() if head_dim is even and within 2 to kMaxHeadDim.
Status check_head_dim(int head_dim);

/// In place x <- x H over n floats; n must have passed check_head_dim. No allocation.
void hadamard_forward(float* x, int n) noexcept;
/// In place x <- x H^T.
void hadamard_backward(float* x, int n) noexcept;

}  // namespace vecinfer
