// Attention of query tokens over one stream of a packed cache: softmax(sm_scale * q K^T + mask) V without decoding the cache
// first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "vecinfer/cache.h"
#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

/// One call's inputs and outputs. Strides are in elements. Queries and outputs are in the original space; transforms are applied
/// inside.
struct AttentionParams {
    int num_tokens = 0;           // query tokens, >= 1
    int num_qo_heads = 0;         // a multiple of the caches' num_kv_heads (GQA)
    int kv_len = 0;               // cells [0, kv_len) take part, subject to the mask
    float sm_scale = 1.0f;        // usually 1 / sqrt(head_dim)
    float soft_cap = 0.0f;        // 0: off; else scores become soft_cap * tanh(sm_scale * q.k / soft_cap)
    float alibi_max_bias = 0.0f;  // 0: off; else the mask is multiplied by the head's ALiBi slope

    const float* q = nullptr;  // layout (num_tokens, num_qo_heads, head_dim_k)
    std::ptrdiff_t q_token_stride = 0;
    std::ptrdiff_t q_head_stride = 0;
    float* out = nullptr;  // layout (num_tokens, num_qo_heads, head_dim_v); a row whose keys are all masked becomes zeros
    std::ptrdiff_t out_token_stride = 0;
    std::ptrdiff_t out_head_stride = 0;

    const std::uint16_t* mask = nullptr;  // f16, layout (mask_heads, num_tokens, kv_len), added to scores, -inf hides; null: none
    std::ptrdiff_t mask_token_stride = 0;
    std::ptrdiff_t mask_head_stride = 0;
    int mask_heads = 1;            // head h uses mask h % mask_heads
    const float* sinks = nullptr;  // one extra score per query head that takes part in the softmax sum only; null: none
    float* lse = nullptr;          // optional, layout (num_tokens, num_qo_heads): log of the softmax sum (natural log)

    /// Rows at hand in f16 (WritePlan::exact or PackedCache::window) and the rule which of them a query reads exactly: positions
    /// below window.sink, positions within window.recent of the query's, and with Prefill::exact all rows of the current batch.
    std::span<const ExactRow> k_exact;
    std::span<const ExactRow> v_exact;
    const std::int32_t* positions = nullptr;  // [num_tokens] of the queries; null: every row at hand is read exactly
    WindowSpec window;
    Prefill prefill = Prefill::windowed;
};

/// Work of one call, cut into pieces that any number of threads can carry out. The result does not depend on the number of
/// threads.
class AttentionTask {
public:
    /// Checks every argument. `params` pointers must stay valid until the last run returns.
    static Result<AttentionTask> create(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& params);

    /// How blocks of codes are read: method and ISA, e.g. "lut/avx512vbmi", or "tile" for the general path. Static storage.
    const char* method() const noexcept;

    /// Scratch that run needs, for `num_threads` threads.
    std::size_t workspace_bytes(int num_threads) const noexcept;
    /// Must be called once before run, with workspace_bytes(num_threads) bytes, 64-byte aligned.
    void bind_workspace(std::byte* workspace) noexcept;
    /// Called once by each of `nth` threads, ith = 0 .. nth - 1, at the same time or one after another. One task runs once.
    void run(int ith, int nth) noexcept;

private:
    struct State;
    std::shared_ptr<State> state_;
};

/// Convenience: create, allocate, run with `num_threads` threads of its own (0: all cores).
Status attention(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& params, int num_threads = 0);

/// Slow oracle in fp64 over the decoded rows; the same inputs, `out` layout (num_tokens, num_qo_heads, head_dim_v) contiguous.
Status attention_reference(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& params, double* out);

}  // namespace VECINFER_API
