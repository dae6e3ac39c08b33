/* C API of vecinfer_cuda: packed caches and decode attention on NVIDIA GPUs. See cuda.h for the ideas and vecinfer_c.h for the
 * conventions of handles and errors. Pointers are device memory on the current device unless it says otherwise; `stream` is a
 * cudaStream_t, NULL for the default stream. Only vecinfer_cuda_layer_create synchronizes. */
#ifndef VECINFER_VECINFER_CUDA_C_H
#define VECINFER_VECINFER_CUDA_C_H

#include "vecinfer/vecinfer_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codebooks and transforms of one layer on the current device. */
typedef struct vecinfer_cuda_layer vecinfer_cuda_layer;

typedef enum vecinfer_cuda_number { VECINFER_CUDA_F16 = 0, VECINFER_CUDA_BF16 = 1, VECINFER_CUDA_F32 = 2 } vecinfer_cuda_number;

/* The codecs may be freed afterwards. VECINFER_UNSUPPORTED says what the kernels do not know. */
VECINFER_API vecinfer_code vecinfer_cuda_layer_create(const vecinfer_codec* k, const vecinfer_codec* v,
                                                      vecinfer_cuda_layer** layer);
VECINFER_API void vecinfer_cuda_layer_free(vecinfer_cuda_layer* layer);
/* Bytes of a page of page_size cells (a multiple of 16; of 32 or 64 for scalar codecs): all heads, keys and values. */
VECINFER_API vecinfer_code vecinfer_cuda_page_bytes(const vecinfer_cuda_layer* layer, int32_t page_size, size_t* bytes);

typedef struct vecinfer_cuda_cache {
    size_t struct_size; /* sizeof(vecinfer_cuda_cache) */
    void* pages;        /* num_pages pages, 16-byte aligned */
    int64_t num_pages;
    int32_t page_size;          /* with a block table a power of two, without a multiple of 64 */
    int32_t num_slots;          /* of f16 rows */
    const int32_t* block_table; /* layout (batch, table_stride); NULL: sequence s has page s */
    int64_t table_stride;
    int32_t recent;
    int32_t sink;
    int32_t window_rows;
    int32_t reserved; /* 0 */
    void* window_k;   /* f16, layout (num_slots, num_kv_heads, window_rows, head_dim); NULL if recent and sink are 0 */
    void* window_v;
    const int32_t* window_slots; /* [batch]; NULL: sequence s has slot s */
} vecinfer_cuda_cache;

typedef struct vecinfer_cuda_encode_params {
    size_t struct_size; /* sizeof(vecinfer_cuda_encode_params) */
    int32_t num_tokens;
    vecinfer_cuda_number type; /* of k and v */
    const void* k;             /* layout (num_tokens, num_kv_heads, head_dim); strides in elements */
    const void* v;
    int64_t k_token_stride;
    int64_t k_head_stride;
    int64_t v_token_stride;
    int64_t v_head_stride;
    const int64_t* slots;     /* [num_tokens] page * page_size + cell; negative: not stored */
    const int32_t* positions; /* [num_tokens]; this and the rest only if the cache has f16 rows */
    const int32_t* sequences; /* [num_tokens]; NULL: token i is of sequence i */
    const int32_t* kv_lens;   /* [sequences], the new tokens included */
} vecinfer_cuda_encode_params;

VECINFER_API void vecinfer_cuda_cache_init(vecinfer_cuda_cache* cache); /* struct_size, everything else 0 */
VECINFER_API void vecinfer_cuda_encode_params_init(vecinfer_cuda_encode_params* params);
VECINFER_API vecinfer_code vecinfer_cuda_encode(const vecinfer_cuda_layer* layer, const vecinfer_cuda_cache* cache,
                                                const vecinfer_cuda_encode_params* params, void* stream);

typedef struct vecinfer_cuda_decode_params {
    size_t struct_size; /* sizeof(vecinfer_cuda_decode_params) */
    int32_t batch;
    int32_t num_q; /* query tokens at the end of each sequence, 1 to 16 */
    int32_t num_qo_heads;
    int32_t sliding_window; /* 0: off */
    const int32_t* kv_lens; /* [batch], the query tokens included */
    float sm_scale;
    float soft_cap;            /* 0: off */
    const float* alibi_slopes; /* [num_qo_heads]; NULL: off */
    const float* sinks;        /* [num_qo_heads]; NULL: off */
    const void* q;             /* layout (batch, num_q, num_qo_heads, head_dim); strides in elements */
    void* out;                 /* the same layout */
    vecinfer_cuda_number q_type;
    vecinfer_cuda_number out_type;
    int64_t q_seq_stride;
    int64_t q_token_stride;
    int64_t q_head_stride;
    int64_t out_seq_stride;
    int64_t out_token_stride;
    int64_t out_head_stride;
    float* lse; /* layout (batch, num_q, num_qo_heads); NULL: not wanted */
} vecinfer_cuda_decode_params;

VECINFER_API void vecinfer_cuda_decode_params_init(vecinfer_cuda_decode_params* params); /* num_q 1, sm_scale 1, the rest 0 */
VECINFER_API vecinfer_code vecinfer_cuda_decode_workspace(const vecinfer_cuda_layer* layer, int32_t batch, int32_t num_qo_heads,
                                                          int32_t num_q, size_t* bytes);
/* Once on a new workspace, and after a call that failed. */
VECINFER_API vecinfer_code vecinfer_cuda_init_workspace(void* workspace, size_t bytes, void* stream);
VECINFER_API vecinfer_code vecinfer_cuda_decode(const vecinfer_cuda_layer* layer, const vecinfer_cuda_cache* cache,
                                                const vecinfer_cuda_decode_params* params, void* workspace,
                                                size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif
