/* C API of VecInfer: opaque handles, plain pointers, shapes and strides. See the C++ headers of the same names for the ideas.
 *
 * Every function that can fail returns a vecinfer_code; vecinfer_last_error() then tells what was wrong. Outputs are written on
 * success only. Handles are freed with the function of their type; NULL is allowed there. Different handles may be used from
 * different threads at once; one handle may be read by many threads, but a call that takes it as a non-const pointer excludes all
 * others unless it says otherwise. Strides count elements, not bytes. f16 is IEEE half precision as uint16_t. */
#ifndef VECINFER_VECINFER_C_H
#define VECINFER_VECINFER_C_H

#include <stddef.h>
#include <stdint.h>

#include "vecinfer/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum vecinfer_code {
    VECINFER_OK = 0,
    VECINFER_INVALID_ARGUMENT, /* a value outside its documented range */
    VECINFER_UNSUPPORTED,      /* valid, but this build or device cannot do it */
    VECINFER_NOT_FOUND,        /* a file or a named thing does not exist */
    VECINFER_IO_ERROR,         /* reading or writing failed */
    VECINFER_CORRUPT_DATA,     /* bytes that do not parse as what they claim to be */
    VECINFER_MISMATCH,         /* two valid things that do not belong together */
    VECINFER_OUT_OF_MEMORY,
    VECINFER_CANCELLED
} vecinfer_code;

/* "major.minor.patch". */
VECINFER_API const char* vecinfer_version(void);
/* Name of a code, e.g. "invalid_argument". */
VECINFER_API const char* vecinfer_code_name(vecinfer_code code);
/* One line about the last call on this thread that failed: the argument, what was got, what was expected. Valid until the next
 * failing call on this thread; never NULL. */
VECINFER_API const char* vecinfer_last_error(void);

/* ---- Scheme: how a cache is stored, spelled as in scheme.h, e.g. "vecinfer:k2v2,recent=64". ---- */

typedef struct vecinfer_scheme vecinfer_scheme;

VECINFER_API vecinfer_code vecinfer_scheme_parse(const char* text, vecinfer_scheme** scheme);
VECINFER_API void vecinfer_scheme_free(vecinfer_scheme* scheme);
/* Writes the spelling with its terminating zero. `long_form` nonzero: every part spelled out. `length` (may be NULL) receives the
 * length without the zero; with capacity 0 nothing is written, which asks for the length only. A buffer that is too small is
 * VECINFER_INVALID_ARGUMENT, with `length` set all the same. */
VECINFER_API vecinfer_code vecinfer_scheme_print(const vecinfer_scheme* scheme, int long_form, char* buffer, size_t capacity,
                                                 size_t* length);

typedef struct vecinfer_layer_shape {
    int32_t layer; /* index as the engine numbers it */
    int32_t num_kv_heads;
    int32_t head_dim_k;
    int32_t head_dim_v;
} vecinfer_layer_shape;

typedef struct vecinfer_footprint {
    double code_bytes_per_token;     /* codes and norms of one token, all layers */
    double total_bytes_per_token;    /* codes, window and codebooks over the context */
    double f16_bytes_per_token;      /* the same cache in f16 */
    double code_bits_per_value;      /* codes alone */
    double effective_bits_per_value; /* everything, at the given context */
    size_t window_bytes;
    size_t codebook_bytes;
} vecinfer_footprint;

/* What `context` tokens of one sequence take. `layers`: num_layers entries. `calibrated`: nonzero with a sidecar. */
VECINFER_API vecinfer_code vecinfer_scheme_footprint(const vecinfer_scheme* scheme, const vecinfer_layer_shape* layers,
                                                     size_t num_layers, int64_t context, int calibrated,
                                                     vecinfer_footprint* footprint);

/* ---- Sidecar: the calibration of one model. ---- */

typedef struct vecinfer_sidecar vecinfer_sidecar;

VECINFER_API vecinfer_code vecinfer_sidecar_load(const char* path, vecinfer_sidecar** sidecar);
/* The same from memory; `bytes` is not needed afterwards. */
VECINFER_API vecinfer_code vecinfer_sidecar_parse(const void* bytes, size_t size, vecinfer_sidecar** sidecar);
VECINFER_API void vecinfer_sidecar_free(vecinfer_sidecar* sidecar);
/* The scheme it was calibrated for, as a handle of its own. */
VECINFER_API vecinfer_code vecinfer_sidecar_scheme(const vecinfer_sidecar* sidecar, vecinfer_scheme** scheme);
/* 0 for NULL. */
VECINFER_API size_t vecinfer_sidecar_num_layers(const vecinfer_sidecar* sidecar);
/* `index` counts the layers of the sidecar from 0; shape->layer is the engine's number. */
VECINFER_API vecinfer_code vecinfer_sidecar_layer(const vecinfer_sidecar* sidecar, size_t index, vecinfer_layer_shape* shape);

/* ---- Codec: keys or values of one layer. ---- */

typedef struct vecinfer_codec vecinfer_codec;

typedef enum vecinfer_side { VECINFER_KEY = 0, VECINFER_VALUE = 1 } vecinfer_side;

/* `sidecar` NULL: the universal codebook, no calibration. With a sidecar, the scheme must be one that it was calibrated for and
 * shape->layer must be in it. Scheme and sidecar are not needed afterwards. */
VECINFER_API vecinfer_code vecinfer_codec_create(const vecinfer_scheme* scheme, const vecinfer_layer_shape* shape,
                                                 vecinfer_side side, const vecinfer_sidecar* sidecar, vecinfer_codec** codec);
VECINFER_API void vecinfer_codec_free(vecinfer_codec* codec);
/* Rows encoded under equal hashes are interchangeable. 0 for NULL. */
VECINFER_API uint64_t vecinfer_codec_hash(const vecinfer_codec* codec);

/* ---- Cache: codes and window of one side of one layer, in memory that the caller owns. ---- */

typedef struct vecinfer_cache vecinfer_cache;

typedef struct vecinfer_cache_config {
    int32_t num_cells;   /* tokens per stream */
    int32_t num_streams; /* independent sequences */
    int32_t recent;      /* latest tokens read from f16, 0 to 4096 */
    int32_t sink;        /* first tokens read from f16, 0 to 256 */
} vecinfer_cache_config;

/* num_streams 1, and the window of the scheme. num_cells is left at 0. */
VECINFER_API vecinfer_code vecinfer_cache_config_init(const vecinfer_scheme* scheme, vecinfer_cache_config* config);
/* Bytes of memory that such a cache needs. */
VECINFER_API vecinfer_code vecinfer_cache_bytes(const vecinfer_codec* codec, const vecinfer_cache_config* config, size_t* bytes);
/* `memory`: `bytes` bytes, at least vecinfer_cache_bytes(), 64-byte aligned, zeroed for an empty cache; it must outlive the
 * handle. A zeroed or formerly used memory of the same codec and config is taken over as it is. The codec may be freed earlier.
 */
VECINFER_API vecinfer_code vecinfer_cache_create(const vecinfer_codec* codec, const vecinfer_cache_config* config, void* memory,
                                                 size_t bytes, vecinfer_cache** cache);
/* Leaves the memory as it is. */
VECINFER_API void vecinfer_cache_free(vecinfer_cache* cache);
VECINFER_API vecinfer_code vecinfer_cache_clear(vecinfer_cache* cache);

/* Writing a batch takes two steps: plan once, then write from any number of threads.
 * Plan: `cells`, [num_rows], distinct, 0 <= cell < num_cells; `positions`, [num_rows], each row's token position in its sequence.
 */
VECINFER_API vecinfer_code vecinfer_cache_plan(vecinfer_cache* cache, int32_t stream, size_t num_rows, const int32_t* cells,
                                               const int32_t* positions);
/* Carries out share `ith` of `nth` of the plan; the batch is written when all shares are. x: layout (num_rows, num_kv_heads,
 * head_dim), f32, original space (keys after RoPE), with `row_stride` floats between rows. Shares may run at the same time. */
VECINFER_API vecinfer_code vecinfer_cache_write(vecinfer_cache* cache, const float* x, ptrdiff_t row_stride, int32_t ith,
                                                int32_t nth);
/* Decodes the codes of cells [begin, end) of one KV head into out, layout (end - begin, head_dim), f32, original space. */
VECINFER_API vecinfer_code vecinfer_cache_decode(const vecinfer_cache* cache, int32_t stream, int32_t head, int32_t begin,
                                                 int32_t end, float* out);
/* One row, [num_kv_heads * head_dim] f32: from the window if it is there, else from codes. */
VECINFER_API vecinfer_code vecinfer_cache_read_row(const vecinfer_cache* cache, int32_t stream, int32_t cell, float* out);

/* ---- Attention of query tokens over one stream. ---- */

typedef struct vecinfer_attention_params {
    size_t struct_size; /* sizeof(vecinfer_attention_params) */
    int32_t num_tokens;
    int32_t num_qo_heads;  /* a multiple of num_kv_heads */
    int32_t kv_len;        /* cells [0, kv_len) take part */
    int32_t prefill_exact; /* nonzero: all rows of the batch written last are read from f16 */
    float sm_scale;        /* usually 1 / sqrt(head_dim) */
    float soft_cap;        /* 0: off */
    float alibi_max_bias;  /* 0: off */
    int32_t mask_heads;    /* head h uses mask h % mask_heads */
    const float* q;        /* layout (num_tokens, num_qo_heads, head_dim_k), original space */
    ptrdiff_t q_token_stride;
    ptrdiff_t q_head_stride;
    float* out; /* layout (num_tokens, num_qo_heads, head_dim_v) */
    ptrdiff_t out_token_stride;
    ptrdiff_t out_head_stride;
    const uint16_t* mask; /* f16, layout (mask_heads, num_tokens, kv_len), added to scores; NULL: none */
    ptrdiff_t mask_token_stride;
    ptrdiff_t mask_head_stride;
    const float* sinks;       /* [num_qo_heads] extra scores in the softmax sum; NULL: none */
    float* lse;               /* layout (num_tokens, num_qo_heads), log of the softmax sum; NULL: not wanted */
    const int32_t* positions; /* [num_tokens] of the queries; NULL: every row at hand in f16 is read from there */
} vecinfer_attention_params;

/* struct_size, sm_scale 1, mask_heads 1, everything else 0. */
VECINFER_API void vecinfer_attention_params_init(vecinfer_attention_params* params);
/* softmax(sm_scale * q K^T + mask) V straight from codes and window; a row whose keys are all masked becomes zeros. The last
 * batch planned on each cache must be written. `num_threads`: 0 for all cores. Both caches must have the same window config. */
VECINFER_API vecinfer_code vecinfer_attention(const vecinfer_cache* k, const vecinfer_cache* v, int32_t stream,
                                              const vecinfer_attention_params* params, int32_t num_threads);

#ifdef __cplusplus
}
#endif

#endif
