// Small ggml graphs over cache tensors of the plugin, built the way llama.cpp builds them, and attention in fp64 to compare with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace vecinfer::plugin_test {

struct Freed {
    void operator()(ggml_context* c) const { ggml_free(c); }
    void operator()(ggml_backend_buffer* b) const { ggml_backend_buffer_free(b); }
    void operator()(ggml_backend* b) const { ggml_backend_free(b); }
};
using Context = std::unique_ptr<ggml_context, Freed>;
using Buffer = std::unique_ptr<ggml_backend_buffer, Freed>;
using Backend = std::unique_ptr<ggml_backend, Freed>;

/// The plugin's only device. The plugin is loaded by the first call; null if it cannot be.
ggml_backend_dev_t device();
/// The scheme this process runs with: VECINFER_SCHEME, or "" for the default.
std::string scheme();

struct Shape {
    int head_dim = 64;
    int kv_heads = 2;
    int qo_heads = 4;
    int cells = 512;  // per stream
    int streams = 1;

    int row_dim() const { return kv_heads * head_dim; }
};

/// Standard normal values times `scale`, the same for the same seed.
std::vector<float> normal(std::size_t n, unsigned seed, float scale = 1.0f);
float round_f16(float x);

/// One graph: rows that are written, then queries that attend. Either part may be empty.
struct Batch {
    std::vector<std::int64_t> rows;       // cells to write, counted over all streams
    std::vector<std::int32_t> positions;  // of each written row
    std::span<const float> k;             // layout (rows, row_dim)
    std::span<const float> v;
    std::span<const float> q;           // layout (queries, qo_heads, head_dim), stream by stream
    std::vector<std::uint8_t> visible;  // layout (queries, cells): 1 where a query sees a cell of its stream
    int first_stream = 0;
    int num_streams = 1;
    float soft_cap = 0;        // 0: none
    std::vector<float> sinks;  // a logit per query head that takes its share of the softmax and adds nothing; empty: none
};

/// Tensors cache_k_l0 and cache_v_l0 in a buffer of the plugin, and graphs over them.
class CachePair {
public:
    explicit CachePair(const Shape& shape);

    bool allocated() const { return buffer_ != nullptr; }
    std::size_t buffer_size() const { return ggml_backend_buffer_get_size(buffer_.get()); }
    ggml_tensor* k() { return k_; }
    ggml_tensor* v() { return v_; }
    void clear() { ggml_backend_buffer_clear(buffer_.get(), 0); }

    /// Runs the batch; `out` gets layout (queries, qo_heads, head_dim).
    ggml_status run(const Batch& batch, std::vector<float>* out = nullptr);
    /// Rotates the first `n_rot` channels of every key by `shift[cell]` positions in place, as llama.cpp's context shift does.
    ggml_status shift_keys(const std::vector<std::int32_t>& shift, int n_rot);
    /// keys x queries by MUL_MAT, which attention without flash attention would do.
    ggml_status multiply_keys();
    /// Attention whose values are a view of the key tensor.
    ggml_status attend_values_in_keys();
    /// What llama.cpp does when a sequence moves from one stream to another.
    void copy_stream(int from, int to);

    /// Rows of `t` as llama.cpp saves them.
    static std::vector<std::uint8_t> save(ggml_tensor* t, std::int64_t first, std::int64_t count);
    static void load(ggml_tensor* t, std::int64_t first, std::span<const std::uint8_t> bytes);

private:
    ggml_tensor* heads_view(ggml_context* ctx, ggml_tensor* t, int first_stream, int num_streams) const;
    ggml_status compute(ggml_context* ctx, std::span<ggml_tensor* const> outputs, const struct Inputs& inputs,
                        std::vector<float>* last_output);

    Shape shape_;
    Backend backend_;
    Context context_;
    ggml_tensor* k_ = nullptr;
    ggml_tensor* v_ = nullptr;
    Buffer buffer_;
};

/// Attention of every query in fp64. k, v: layout (cells, row_dim), of the one stream that the queries see. A query that sees
/// nothing gives zeros. Layouts of q, visible and the result, soft_cap and sinks as in Batch.
std::vector<float> reference_attention(const Shape& shape, std::span<const float> k, std::span<const float> v,
                                       std::span<const float> q, std::span<const std::uint8_t> visible, float soft_cap = 0,
                                       std::span<const float> sinks = {});

/// |a - b| / |b|, over all entries.
double relative_error(std::span<const float> a, std::span<const float> b);

}  // namespace vecinfer::plugin_test
