#include "capture.h"

#include "cache_tensor.h"

namespace vecinfer::plugin {

namespace {

vecinfer_capture_fn capture_fn = nullptr;
void* capture_user_data = nullptr;

}  // namespace

void set_capture(vecinfer_capture_fn fn, void* user_data) {
    capture_fn = fn;
    capture_user_data = user_data;
}

bool capturing() {
    return capture_fn != nullptr;
}

// Does the node's own work (f16 rows into an ordinary cache), then shows the rows.
void capture_write(const CaptureRows& capture, const ggml_tensor* dst) {
    const ggml_tensor* rows = dst->src[0];
    const ggml_tensor* index = dst->src[1];
    const std::int64_t n = rows->ne[0];
    for (std::int64_t i = 0; i < rows->ne[1]; ++i) {
        const auto cell = *reinterpret_cast<const std::int64_t*>(static_cast<const char*>(index->data) + i * index->nb[0]);
        const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(rows->data) + i * rows->nb[1]);
        ggml_fp32_to_fp16_row(row, reinterpret_cast<ggml_fp16_t*>(static_cast<char*>(dst->data) + cell * dst->nb[1]), n);
    }
    vecinfer_capture c{};
    c.layer = capture.layer;
    c.side = capture.side;
    c.head_dim = capture.head_dim;
    c.num_kv_heads = static_cast<int>(n / capture.head_dim);
    c.num_tokens = rows->ne[1];
    c.rows = static_cast<const float*>(rows->data);
    c.row_stride = static_cast<std::int64_t>(rows->nb[1] / sizeof(float));
    if (const ggml_tensor* q = capture.queries; q != nullptr && q->ne[3] == 1 && q->ne[1] == rows->ne[1]) {
        c.num_qo_heads = static_cast<int>(q->ne[2]);
        c.queries = static_cast<const float*>(q->data);
        c.q_token_stride = static_cast<std::int64_t>(q->nb[1] / sizeof(float));
        c.sm_scale = capture.sm_scale;
        c.q_head_stride = static_cast<std::int64_t>(q->nb[2] / sizeof(float));
    }
    capture_fn(capture_user_data, &c);
}

}  // namespace vecinfer::plugin
