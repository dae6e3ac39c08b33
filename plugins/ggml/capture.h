// What helper programs may ask of the loaded plugin, reached through ggml_backend_reg_get_proc_address(reg, "<name>"):
// vecinfer_set_capture shows the keys, values and queries of every batch, as attention sees them; vecinfer_configure reads the
// environment again.
#pragma once

#include <cstdint>

#include "ggml.h"

extern "C" {

/// One batch of one layer. Rows are f32, all heads of a token side by side.
struct vecinfer_capture {
    int layer;
    int side;  // 0: keys, 1: values
    int head_dim;
    int num_kv_heads;
    std::int64_t num_tokens;
    const float* rows;        // layout (num_tokens, num_kv_heads * head_dim)
    std::int64_t row_stride;  // floats
    int num_qo_heads;         // keys only, 0 if the queries were not at hand
    const float* queries;     // layout (num_tokens, num_qo_heads, head_dim)
    std::int64_t q_token_stride;
    std::int64_t q_head_stride;
    float sm_scale;  // of FLASH_ATTN_EXT, with the queries
};

/// Called from one thread at a time while a graph runs. Only with VECINFER_SCHEME=f16.
typedef void (*vecinfer_capture_fn)(void* user_data, const vecinfer_capture* capture);
typedef void (*vecinfer_set_capture_fn)(vecinfer_capture_fn fn, void* user_data);

/// Only while no context exists that uses the device. False, with the reason on stderr, if the environment is wrong; then every
/// allocation is refused.
typedef bool (*vecinfer_configure_fn)(void);
}

namespace vecinfer::plugin {

struct CaptureRows {
    int layer;
    int side;
    int head_dim;
    const ggml_tensor* queries;  // FLASH_ATTN_EXT's q, or null
    float sm_scale;
};

void set_capture(vecinfer_capture_fn fn, void* user_data);
bool capturing();
void capture_write(const CaptureRows& capture, const ggml_tensor* set_rows);

}  // namespace vecinfer::plugin
