// K-shift: llama.cpp rotates cached keys in place when it moves positions (context shift).
#pragma once

#include "buffer.h"

namespace vecinfer::plugin {

/// Decodes the keys that `rope` (in place on a view of the whole cache) moves, lets the CPU backend's own ROPE rotate them, and
/// encodes them again.
Status shift_keys(CacheTensor& cache, const ggml_tensor* rope, ggml_backend_t cpu);

/// Moves the positions of window rows of all caches that are shifted together with `rope`'s.
void move_positions(const ggml_tensor* rope);

}  // namespace vecinfer::plugin
