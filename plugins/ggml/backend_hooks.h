// Settings that llama.cpp hands to a backend through its registry.
#pragma once

#include "host.h"

namespace vecinfer::plugin {

void set_num_threads(ggml_backend_t backend, int n);
void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void* data);
void set_threadpool(ggml_backend_t backend, ggml_threadpool_t pool);

}  // namespace vecinfer::plugin
