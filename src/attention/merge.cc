// From partial results to outputs: splits of the context are merged, sinks join the sum, rows are normalized.
#include <algorithm>
#include <cmath>

#include "attention/attention_state.h"

namespace vecinfer {

// Always in split order, so that the result does not depend on which thread came last.
void AttentionTask::State::merge(int tile, int kv_head, float* scratch) const {
    const int rows = std::min(tile_tokens, p.num_tokens - tile * tile_tokens) * group;
    float* max = scratch;
    float* sum = max + rows;
    float* out = sum + rows;
    std::fill(max, max + rows, kMinusInfinity);
    std::fill(sum, sum + rows + rows * dv(), 0.0f);
    for (int split = 0; split < num_splits; ++split) {
        const float* partial = reinterpret_cast<const float*>(workspace) +
                               ((tile * num_kv_heads() + kv_head) * num_splits + split) * partial_floats();
        for (int r = 0; r < rows; ++r) {
            const float m = std::max(max[r], partial[r]);
            if (m == kMinusInfinity) {
                continue;
            }
            const float a = max[r] == kMinusInfinity ? 0.0f : std::exp(max[r] - m);
            const float b = partial[r] == kMinusInfinity ? 0.0f : std::exp(partial[r] - m);
            const float* o = partial + 2 * rows + r * dv();
            sum[r] = sum[r] * a + partial[rows + r] * b;
            for (int d = 0; d < dv(); ++d) {
                out[r * dv() + d] = out[r * dv() + d] * a + o[d] * b;
            }
            max[r] = m;
        }
    }
    finish_rows(max, sum, out, tile, kv_head);
}

void AttentionTask::State::finish_rows(const float* max, const float* sum, const float* out, int tile, int kv_head) const {
    const int token0 = tile * tile_tokens;
    const int rows = std::min(tile_tokens, p.num_tokens - token0) * group;
    for (int r = 0; r < rows; ++r) {
        const int token = token0 + r / group;
        const int head = kv_head * group + r % group;
        float m = max[r];
        float total = sum[r];
        float factor = 1.0f;
        if (p.sinks != nullptr) {
            const float with_sink = std::max(m, p.sinks[head]);
            factor = m == kMinusInfinity ? 0.0f : std::exp(m - with_sink);
            total = total * factor + std::exp(p.sinks[head] - with_sink);
            m = with_sink;
        }
        const float inv = total > 0 ? factor / total : 0.0f;
        float* y = p.out + token * p.out_token_stride + head * p.out_head_stride;
        for (int d = 0; d < dv(); ++d) {
            y[d] = out[r * dv() + d] * inv;
        }
        if (p.lse != nullptr) {
            p.lse[token * p.num_qo_heads + head] = total > 0 ? m + std::log(total) : kMinusInfinity;
        }
    }
}

}  // namespace vecinfer
