#include <cmath>
#include <limits>
#include <vector>

#include "attention/exactness.h"
#include "codec/f16.h"

namespace vecinfer {

namespace {

// One cell's row of one head in the original space: the f16 row where the query reads it exactly, else decoded from codes.
std::vector<double> row_for(const PackedCache& cache, int stream, int head, int cell, std::span<const ExactRow> exact,
                            const Exactness& exactness, int token) {
    const int dim = cache.codec().head_dim();
    std::vector<double> row(dim);
    for (const ExactRow& e : exact) {
        if (e.cell == cell && exactness(e, token)) {
            for (int d = 0; d < dim; ++d) {
                row[d] = f16_to_f32(e.row[head * dim + d]);
            }
            return row;
        }
    }
    std::vector<float> decoded(dim);
    cache.decode_original(stream, head, cell, cell + 1, decoded.data());
    row.assign(decoded.begin(), decoded.end());
    return row;
}

double slope(double max_bias, int head, int num_heads) {
    if (max_bias <= 0) {
        return 1.0;
    }
    int n = 1;
    while (2 * n <= num_heads) {
        n *= 2;
    }
    return head < n ? std::pow(2.0, -max_bias * (head + 1) / n) : std::pow(2.0, -max_bias / 2 * (2 * (head - n) + 1) / n);
}

}  // namespace

Status attention_reference(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& p, double* out) {
    if (Status status = check_attention(k, v, stream, p); !status.ok()) {
        return status;
    }
    const int dk = k.codec().head_dim();
    const int dv = v.codec().head_dim();
    const int group = p.num_qo_heads / k.codec().num_heads();
    const Exactness exactness{p};
    for (int token = 0; token < p.num_tokens; ++token) {
        for (int head = 0; head < p.num_qo_heads; ++head) {
            const float* q = p.q + token * p.q_token_stride + head * p.q_head_stride;
            std::vector<double> scores(p.kv_len, -std::numeric_limits<double>::infinity());
            double max = p.sinks != nullptr ? p.sinks[head] : -std::numeric_limits<double>::infinity();
            for (int cell = 0; cell < p.kv_len; ++cell) {
                double bias = 0;
                if (p.mask != nullptr) {
                    const std::uint16_t m = p.mask[head % p.mask_heads * p.mask_head_stride + token * p.mask_token_stride + cell];
                    if (m == kF16MinusInfinity) {
                        continue;
                    }
                    bias = slope(p.alibi_max_bias, head, p.num_qo_heads) * f16_to_f32(m);
                }
                const std::vector<double> row = row_for(k, stream, head / group, cell, p.k_exact, exactness, token);
                double s = 0;
                for (int d = 0; d < dk; ++d) {
                    s += static_cast<double>(q[d]) * row[d];
                }
                s *= p.sm_scale;
                s = p.soft_cap != 0 ? p.soft_cap * std::tanh(s / p.soft_cap) : s;
                scores[cell] = s + bias;
                max = std::max(max, scores[cell]);
            }
            std::vector<double> o(dv, 0.0);
            double total = p.sinks != nullptr ? std::exp(p.sinks[head] - max) : 0.0;
            for (int cell = 0; cell < p.kv_len; ++cell) {
                if (std::isinf(scores[cell])) {
                    continue;
                }
                const double w = std::exp(scores[cell] - max);
                const std::vector<double> row = row_for(v, stream, head / group, cell, p.v_exact, exactness, token);
                for (int d = 0; d < dv; ++d) {
                    o[d] += w * row[d];
                }
                total += w;
            }
            for (int d = 0; d < dv; ++d) {
                out[(static_cast<std::size_t>(token) * p.num_qo_heads + head) * dv + d] = total > 0 ? o[d] / total : 0.0;
            }
        }
    }
    return {};
}

}  // namespace vecinfer
