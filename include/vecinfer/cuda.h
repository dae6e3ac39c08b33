// Packed caches and decode attention on NVIDIA GPUs: library vecinfer_cuda, compute capability 8.0 and up.
//
// Nothing here synchronizes with the host, except LayerCodec::create. Calls go to the stream that is given and can be captured in
// a CUDA graph. All memory is the caller's; pointers are device pointers on the current device unless it says otherwise. Errors
// are a Status: arguments are checked before a launch, and a CUDA error of a launch (or one left by an earlier call) is reported,
// never cleared silently. A Stream is a cudaStream_t; null is the default stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "vecinfer/codec.h"
#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer {
namespace cuda VECINFER_API {

using Stream = void*;

enum class Number { f16, bf16, f32 };

/// Codebooks and transforms of one layer on the current device.
class LayerCodec {
public:
    /// ErrorCode::unsupported names what the kernels do not know: other codecs than d2b8, d4b8, d8b8, d4b12, d8b12, d1b2, d1b3,
    /// d1b4 and scalars of 2 to 4 bits in groups of 32 or 64, vectors on one side and scalars on the other, head sizes other than
    /// 64, 128 and 256 or different ones for keys and values, codebooks per subspace of other than d2b8 and d4b8, noise shaping
    /// of codes of 12 bits, full transforms. Pairs of codecs that no kernel was built for can be encoded; plan_decode and
    /// decode_attention refuse them. ErrorCode::invalid_argument if k and v differ in heads. Copies, allocates and synchronizes.
    static Result<LayerCodec> create(const RowCodec& k, const RowCodec& v);

    int num_kv_heads() const noexcept;
    int head_dim() const noexcept;
    /// Cells that a page must have a multiple of: 16, of scalar codecs 32, or 64 with groups of 64 tokens.
    int page_step() const noexcept;
    /// Bytes of a page of page_size cells, all heads, keys and values. page_size: a multiple of page_step().
    std::size_t page_bytes(int page_size) const noexcept;

    struct Tables;
    const Tables& tables() const noexcept { return *tables_; }

private:
    std::shared_ptr<const Tables> tables_;
};

/// Codes and f16 rows of all sequences of one layer. Layout of a page: src/codec/cuda/layout.h and scalar_layout.h.
struct CacheView {
    void* pages = nullptr;  // num_pages * page_bytes(page_size) bytes, 16-byte aligned
    std::int64_t num_pages = 0;
    /// Cells. With a block table a power of two from page_step() on; without, a multiple of 64. At most 4 GiB a page.
    int page_size = 0;
    /// Layout (batch, table_stride): page of cells [i * page_size, (i + 1) * page_size) of a sequence at entry i. Entries that no
    /// cell below kv_len needs are not read. Null: contiguous, sequence s has page s.
    const std::int32_t* block_table = nullptr;
    std::int64_t table_stride = 0;

    /// Codecs that group tokens need recent >= group: the tokens of an incomplete group are read from f16 rows.
    WindowSpec window;
    /// f16, layout (num_slots, num_kv_heads, window_rows, head_dim), original space, 16-byte aligned: row p for a position
    /// p < sink, else row sink + (p - sink) % (window_rows - sink). Null if sink and recent are 0.
    void* window_k = nullptr;
    void* window_v = nullptr;
    int window_rows = 0;  // at least sink + recent + num_q - 1
    int num_slots = 0;
    const std::int32_t* window_slots = nullptr;  // [batch], slot of each sequence; null: sequence s has slot s
};

/// New tokens of any number of sequences. Strides are in elements.
struct EncodeParams {
    int num_tokens = 0;
    const void* k = nullptr;  // layout (num_tokens, num_kv_heads, head_dim), original space (keys after RoPE)
    const void* v = nullptr;
    Number type = Number::f16;  // of k and v
    std::int64_t k_token_stride = 0;
    std::int64_t k_head_stride = 0;
    std::int64_t v_token_stride = 0;
    std::int64_t v_head_stride = 0;
    /// [num_tokens] page * page_size + cell in the page, distinct; negative: the token is not stored. Contiguous: page is the
    /// sequence.
    const std::int64_t* slots = nullptr;
    // Only if the cache has f16 rows:
    const std::int32_t* positions = nullptr;  // [num_tokens] position of each token in its sequence
    const std::int32_t* sequences = nullptr;  // [num_tokens] its sequence; null: token i is of sequence i
    const std::int32_t* kv_lens = nullptr;    // [sequences] cells once the tokens are stored
};

/// Transforms and encodes rows into codes, and copies those that belong to the window into f16 rows. Values are rounded to f16
/// first, non-finite ones to 0. Codes, norms and scales are those of RowCodec::encode, bit for bit, except where a sum of squares
/// lies within rounding of two norm bytes. A codec that groups tokens encodes a group when its last token comes, from the tokens
/// at hand and, for those of earlier calls, their f16 rows; the tokens of a sequence must follow each other in `slots` and a
/// cell's number modulo the group must be its position's.
Status encode(const LayerCodec& codec, const CacheView& cache, const EncodeParams& params, Stream stream);

/// One decoding step: num_q query tokens at the end of each sequence. Strides are in elements.
struct DecodeParams {
    int batch = 0;
    int num_q = 1;  // 1 to 16; cells [kv_len - num_q, kv_len) are those of the query tokens, already encoded
    int num_qo_heads = 0;
    const std::int32_t* kv_lens = nullptr;  // [batch], the query tokens included; 0 gives zeros
    float sm_scale = 1.0f;
    float soft_cap = 0.0f;                // 0: off
    int sliding_window = 0;               // 0: off; else a query reads its own position and this many - 1 before it
    const float* alibi_slopes = nullptr;  // [num_qo_heads], adds slope * (position of key - position of query); null: off
    const float* sinks = nullptr;         // [num_qo_heads], extra scores in the softmax sum; null: off

    const void* q = nullptr;  // layout (batch, num_q, num_qo_heads, head_dim), original space
    Number q_type = Number::f16;
    std::int64_t q_seq_stride = 0;
    std::int64_t q_token_stride = 0;
    std::int64_t q_head_stride = 0;
    void* out = nullptr;  // the same layout
    Number out_type = Number::f16;
    std::int64_t out_seq_stride = 0;
    std::int64_t out_token_stride = 0;
    std::int64_t out_head_stride = 0;
    float* lse = nullptr;  // layout (batch, num_q, num_qo_heads), natural logarithm of the softmax sum; null: not wanted
};

/// Bytes of workspace for calls up to `batch` sequences and `num_q` query tokens.
Result<std::size_t> decode_workspace_bytes(const LayerCodec& codec, int batch, int num_qo_heads, int num_q);
/// Must run once on a new workspace, before the first call that uses it and after a call that failed.
Status init_decode_workspace(void* workspace, std::size_t bytes, Stream stream);

/// softmax(sm_scale * q K^T) V for every query token over the codes and f16 rows of its sequence. `workspace`: at least
/// decode_workspace_bytes, 256-byte aligned, not shared by calls that run at the same time. The result depends on the launch
/// shape (batch, heads, device) but not on timing.
Status decode_attention(const LayerCodec& codec, const CacheView& cache, const DecodeParams& params, void* workspace,
                        std::size_t workspace_bytes, Stream stream);

/// What a decode_attention call would do, for logs and tests: name of the kernel, its blocks, and why it is not a faster one.
struct DecodePlan {
    std::string kernel;  // e.g. "d4b8/hd128/rows4/sm90"
    int blocks = 0;
    int threads = 0;
    std::size_t shared_bytes = 0;
    std::string note;  // empty for the fastest path
};
Result<DecodePlan> plan_decode(const LayerCodec& codec, const CacheView& cache, const DecodeParams& params);

}  // namespace VECINFER_API
}  // namespace vecinfer
