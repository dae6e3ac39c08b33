// Buffers of the device: ordinary host memory, in which cache tensors take their packed size.
#pragma once

#include "cache_tensor.h"

namespace vecinfer::plugin {

/// The packed cache behind a tensor or a view of one; null if it is none of ours.
CacheTensor* cache_of(const ggml_tensor* t);
/// All packed caches that share a buffer with `t`, which must be in one of ours.
std::vector<CacheTensor*> caches_beside(const ggml_tensor* t);
bool is_our_buffer(ggml_backend_buffer_t buffer);
/// A buffer over memory that llama.cpp maps itself (weights).
ggml_backend_buffer_t wrap_host_memory(void* memory, std::size_t size);

}  // namespace vecinfer::plugin
