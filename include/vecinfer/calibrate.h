// Calibration: watches a model's keys, values and queries, then trains smooth factors and codebooks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/sidecar.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

struct CalibratorOptions {
    Scheme scheme;                // resolved for calibrated use
    int tokens_per_layer = 4096;  // token rows kept per layer and side, drawn evenly over all tokens seen
    std::uint64_t seed = 0;       // same seed and same observations give the same result
    int num_threads = 0;          // 0: all cores
};

/// Rows of one batch of one layer, f32 in the original space. Strides in floats.
struct KvRows {
    int layer = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    std::int64_t num_tokens = 0;
    const float* rows = nullptr;  // layout (num_tokens, num_kv_heads * head_dim)
    std::int64_t row_stride = 0;
};

/// Queries of one batch of one layer; query heads of a group use the same KV head, in order.
struct QueryRows {
    int layer = 0;
    int num_kv_heads = 0;
    int num_qo_heads = 0;
    int head_dim = 0;
    std::int64_t num_tokens = 0;
    const float* queries = nullptr;  // layout (num_tokens, num_qo_heads, head_dim)
    std::int64_t token_stride = 0;
    std::int64_t head_stride = 0;
};

class Calibrator {
public:
    static Result<Calibrator> create(const CalibratorOptions& options);
    Calibrator(Calibrator&&) noexcept;
    Calibrator& operator=(Calibrator&&) noexcept;
    ~Calibrator();

    /// Non-finite rows and shapes that change between calls are errors. Not thread-safe.
    Status observe_keys(const KvRows& rows);
    Status observe_values(const KvRows& rows);
    /// Needed for smooth-opt, full and shaped.
    Status observe_queries(const QueryRows& rows);
    /// observe_keys and observe_queries for a batch of one sequence from its start, token i of both the same, no longer than a
    /// sliding window. From then on keys and queries of the layer count by what attention makes of them: see finish.
    Status observe_attention(const KvRows& keys, const QueryRows& queries, float sm_scale);

    /// Tokens seen by the layer that saw most.
    std::int64_t tokens() const noexcept;

    /// Trains everything. `progress` gets the share done; returning false cancels. Layers come in order.
    /// Per KV head and channel i, over all tokens seen: center m_i = E[k_i]; smooth lambda_i = sqrt(max |k_i|) (VecInfer, section
    /// "smooth"); smooth-opt lambda_i = (E[(k_i - m_i)^2] / E[q_i^2])^(1/4), with m_i = 0 without center; shaped: the strongest
    /// directions of E[q q^T] in code space. After observe_attention every E but that of values is weighted: with p the
    /// probability that query q gives to key k, and only pairs counted that are read from codes under the scheme's window, a key
    /// has the weight sum of p (1 - p) |q|^2 and a query sum of p (1 - p).
    Result<std::vector<LayerCalibration>> finish(const std::function<bool(double)>& progress = {}) const;

    /// The same for other codecs: `key` and `value` in every layer. Everything but the codebooks comes out as in finish().
    Result<std::vector<LayerCalibration>> finish_with(const CodecSpec& key, const CodecSpec& value,
                                                      const std::function<bool(double)>& progress = {}) const;

private:
    struct State;
    std::unique_ptr<State> state_;
    Calibrator();
    Result<std::vector<LayerCalibration>> train(const Scheme& scheme, const std::function<bool(double)>& progress) const;
};

}  // namespace VECINFER_API
