/* Uses the C API from scheme to attention. Every expectation follows from the inputs: a single key makes attention return its
 * value, and a row in the window comes back as its f16 copy. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vecinfer/vecinfer_c.h>

#define NUM_HEADS 2
#define HEAD_DIM 64
#define ROW_DIM (NUM_HEADS * HEAD_DIM)
#define NUM_ROWS 300

static int g_failures = 0;

static void expect(int condition, const char* what) {
    if (!condition) {
        fprintf(stderr, "failed: %s (last error: %s)\n", what, vecinfer_last_error());
        g_failures++;
    }
}

static void* aligned(size_t bytes, void** raw) {
    *raw = calloc(1, bytes + 64);
    return (void*)(((uintptr_t)*raw + 63) & ~(uintptr_t)63);
}

static float entry(int row, int channel) {
    return (float)sin(0.37 * row + 1.3 * channel + 0.01 * row * channel);
}

static void check_errors(void) {
    vecinfer_scheme* scheme = NULL;
    expect(vecinfer_scheme_parse("vecinfer:k5v2", &scheme) == VECINFER_INVALID_ARGUMENT, "a width that does not exist");
    expect(strcmp(vecinfer_last_error(), "vecinfer_scheme_parse: scheme: width: got 5, expected one of 1, 1.5, 2, 2.5, 3, 4") == 0,
           "message of a bad width");
    expect(scheme == NULL, "no handle on failure");
    expect(vecinfer_scheme_parse(NULL, &scheme) == VECINFER_INVALID_ARGUMENT, "NULL text");
    vecinfer_sidecar* sidecar = NULL;
    expect(vecinfer_sidecar_load("/nonexistent/x.gguf", &sidecar) == VECINFER_NOT_FOUND, "missing sidecar");
    expect(vecinfer_sidecar_parse("no sidecar", 10, &sidecar) == VECINFER_CORRUPT_DATA, "bytes that are no sidecar");
    expect(strcmp(vecinfer_code_name(VECINFER_CORRUPT_DATA), "corrupt_data") == 0, "code name");
    vecinfer_scheme_free(NULL);
    vecinfer_cache_free(NULL);
}

static void check_scheme(const vecinfer_scheme* scheme) {
    char text[64];
    size_t length = 0;
    expect(vecinfer_scheme_print(scheme, 0, text, sizeof text, &length) == VECINFER_OK, "print");
    expect(strcmp(text, "vecinfer:k4v2,recent=32") == 0 && length == strlen(text), "spelling");
    expect(vecinfer_scheme_print(scheme, 0, text, 5, &length) == VECINFER_INVALID_ARGUMENT, "buffer too small");
    const vecinfer_layer_shape layer = {0, NUM_HEADS, HEAD_DIM, HEAD_DIM};
    vecinfer_footprint footprint;
    expect(vecinfer_scheme_footprint(scheme, &layer, 1, 4096, 0, &footprint) == VECINFER_OK, "footprint");
    expect(footprint.code_bits_per_value == 3.0, "4 and 2 bits are 3 on average");
    expect(footprint.f16_bytes_per_token == 2.0 * 2 * ROW_DIM, "f16 bytes");
}

typedef struct side {
    vecinfer_codec* codec;
    vecinfer_cache* cache;
    void* raw;
} side;

static side make_side(const vecinfer_scheme* scheme, vecinfer_side which) {
    side out = {NULL, NULL, NULL};
    const vecinfer_layer_shape shape = {0, NUM_HEADS, HEAD_DIM, HEAD_DIM};
    vecinfer_cache_config config;
    size_t bytes = 0;
    expect(vecinfer_codec_create(scheme, &shape, which, NULL, &out.codec) == VECINFER_OK, "codec");
    expect(vecinfer_cache_config_init(scheme, &config) == VECINFER_OK && config.recent == 32 && config.sink == 4, "config");
    config.num_cells = NUM_ROWS;
    expect(vecinfer_cache_bytes(out.codec, &config, &bytes) == VECINFER_OK && bytes > 0, "cache bytes");
    void* memory = aligned(bytes, &out.raw);
    expect(vecinfer_cache_create(out.codec, &config, memory, bytes - 1, &out.cache) == VECINFER_INVALID_ARGUMENT,
           "too few bytes");
    expect(vecinfer_cache_create(out.codec, &config, memory, bytes, &out.cache) == VECINFER_OK, "cache");
    return out;
}

static void free_side(side* s) {
    vecinfer_codec_free(s->codec); /* before the cache on purpose: the order must not matter */
    vecinfer_cache_free(s->cache);
    free(s->raw);
}

static void write_rows(vecinfer_cache* cache, const float* x) {
    int32_t cells[NUM_ROWS];
    int i;
    for (i = 0; i < NUM_ROWS; i++) {
        cells[i] = i;
    }
    expect(vecinfer_cache_write(cache, x, ROW_DIM, 0, 1) == VECINFER_INVALID_ARGUMENT, "write without a plan");
    expect(vecinfer_cache_plan(cache, 0, NUM_ROWS, cells, cells) == VECINFER_OK, "plan");
    for (i = 0; i < 3; i++) {
        expect(vecinfer_cache_write(cache, x, ROW_DIM, i, 3) == VECINFER_OK, "write");
    }
}

static float largest_difference(const float* a, const float* b, int n) {
    float worst = 0;
    int i;
    for (i = 0; i < n; i++) {
        const float difference = fabsf(a[i] - b[i]);
        worst = difference > worst || difference != difference ? difference : worst;
    }
    return worst;
}

static void check_cache(vecinfer_cache* cache, const float* x) {
    float row[ROW_DIM];
    float decoded[HEAD_DIM];
    double error = 0;
    double energy = 0;
    int i;
    expect(vecinfer_cache_read_row(cache, 0, NUM_ROWS - 1, row) == VECINFER_OK, "read a recent row");
    expect(largest_difference(row, x + (NUM_ROWS - 1) * ROW_DIM, ROW_DIM) < 2e-3f, "recent rows come back as f16");
    expect(vecinfer_cache_decode(cache, 0, 1, 100, 101, decoded) == VECINFER_OK, "decode");
    for (i = 0; i < HEAD_DIM; i++) {
        const double want = x[100 * ROW_DIM + HEAD_DIM + i];
        error += (decoded[i] - want) * (decoded[i] - want);
        energy += want * want;
    }
    expect(error < 0.25 * energy, "codes of an old row are near it");
    expect(vecinfer_cache_read_row(cache, 0, NUM_ROWS, row) == VECINFER_INVALID_ARGUMENT, "a cell out of range");
    expect(vecinfer_cache_decode(cache, 1, 0, 0, 1, decoded) == VECINFER_INVALID_ARGUMENT, "a stream out of range");
}

static void check_attention(const side* k, const side* v, const float* values) {
    float q[2 * ROW_DIM]; /* 4 query heads on 2 KV heads */
    float out[2 * ROW_DIM];
    float lse[4];
    const int32_t position = 0;
    int head;
    int i;
    vecinfer_attention_params params;
    for (i = 0; i < 2 * ROW_DIM; i++) {
        q[i] = entry(7, i);
    }
    vecinfer_attention_params_init(&params);
    params.num_tokens = 1;
    params.num_qo_heads = 4;
    params.kv_len = 1; /* only the first token, which is a sink */
    params.sm_scale = 0.125f;
    params.q = q;
    params.q_token_stride = 2 * ROW_DIM;
    params.q_head_stride = HEAD_DIM;
    params.out = out;
    params.out_token_stride = 2 * ROW_DIM;
    params.out_head_stride = HEAD_DIM;
    params.lse = lse;
    params.positions = &position;
    expect(vecinfer_attention(k->cache, v->cache, 0, &params, 1) == VECINFER_OK, "attention");
    for (head = 0; head < 4; head++) {
        expect(largest_difference(out + head * HEAD_DIM, values + head / 2 * HEAD_DIM, HEAD_DIM) < 2e-3f,
               "attention over one key is its value");
        expect(isfinite(lse[head]), "lse");
    }
    params.kv_len = NUM_ROWS + 1;
    expect(vecinfer_attention(k->cache, v->cache, 0, &params, 1) == VECINFER_INVALID_ARGUMENT, "kv_len out of range");
    params.struct_size = 1;
    expect(vecinfer_attention(k->cache, v->cache, 0, &params, 1) == VECINFER_INVALID_ARGUMENT, "struct_size");
}

int main(void) {
    static float keys[NUM_ROWS * ROW_DIM];
    static float values[NUM_ROWS * ROW_DIM];
    vecinfer_scheme* scheme = NULL;
    int row;
    int i;
    for (row = 0; row < NUM_ROWS; row++) {
        for (i = 0; i < ROW_DIM; i++) {
            keys[row * ROW_DIM + i] = entry(row, i);
            values[row * ROW_DIM + i] = entry(row + 1000, i);
        }
    }
    expect(strlen(vecinfer_version()) >= 5, "version");
    check_errors();
    expect(vecinfer_scheme_parse("vecinfer:k4v2,recent=32", &scheme) == VECINFER_OK, "parse");
    if (scheme == NULL) {
        return 1;
    }
    check_scheme(scheme);
    side k = make_side(scheme, VECINFER_KEY);
    side v = make_side(scheme, VECINFER_VALUE);
    vecinfer_scheme_free(scheme);
    if (k.cache == NULL || v.cache == NULL) {
        return 1;
    }
    expect(vecinfer_codec_hash(k.codec) != vecinfer_codec_hash(v.codec), "hashes of different codecs");
    write_rows(k.cache, keys);
    write_rows(v.cache, values);
    check_cache(k.cache, keys);
    check_cache(v.cache, values);
    check_attention(&k, &v, values);
    expect(vecinfer_cache_clear(k.cache) == VECINFER_OK, "clear");
    free_side(&k);
    free_side(&v);
    return g_failures == 0 ? 0 : 1;
}
