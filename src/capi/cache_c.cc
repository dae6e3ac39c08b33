// Cache and attention of the C API.
#include <fmt/format.h>

#include <limits>

#include "capi/handles.h"
#include "scheme/spelling.h"

namespace vecinfer::capi {
namespace {

Status check_range(const char* name, std::int64_t got, std::int64_t low, std::int64_t high) {
    if (got < low || got > high) {
        return argument_error(name, fmt::format("{}", got), fmt::format("{} to {}", low, high));
    }
    return {};
}

Status make_geometry(const RowCodec& codec, const vecinfer_cache_config& config, CacheGeometry& out) {
    constexpr std::int64_t kMaxCells = std::numeric_limits<std::int32_t>::max() - kBlockCells;
    constexpr std::int64_t kMaxStreams = 1 << 20;
    if (Status s = check_range("num_cells", config.num_cells, 1, kMaxCells); !s.ok()) {
        return s;
    }
    if (Status s = check_range("num_streams", config.num_streams, 1, kMaxStreams); !s.ok()) {
        return s;
    }
    if (Status s = check_range("recent", config.recent, 0, spelling::kMaxRecent); !s.ok()) {
        return s;
    }
    if (Status s = check_range("sink", config.sink, 0, spelling::kMaxSink); !s.ok()) {
        return s;
    }
    out = {.row_dim = codec.row_dim(),
           .codec = codec.spec(),
           .num_heads = codec.num_heads(),
           .norm = codec.has_norm(),
           .num_cells = config.num_cells,
           .num_streams = config.num_streams,
           .window = {.recent = config.recent, .sink = config.sink}};
    if (out.stream_bytes() > std::numeric_limits<std::size_t>::max() / static_cast<std::size_t>(config.num_streams)) {
        return argument_error("num_streams", fmt::format("{}", config.num_streams), "a cache that fits into memory");
    }
    return {};
}

Status check_stream(const vecinfer_cache& cache, std::int32_t stream) {
    return check_range("stream", stream, 0, cache.value.geometry().num_streams - 1);
}

/// Rows of a stream that are at hand in f16. `storage` keeps them if they do not lie in the cache's batch.
std::span<const ExactRow> exact_rows(const vecinfer_cache& cache, int stream, std::vector<ExactRow>& storage) {
    const vecinfer_cache::Batch& batch = cache.batches[static_cast<std::size_t>(stream)];
    if (batch.planned) {
        return batch.plan.exact;
    }
    storage = cache.value.window(stream);
    return storage;
}

Status run_attention(const vecinfer_cache& k, const vecinfer_cache& v, int stream, const vecinfer_attention_params& p,
                     int num_threads) {
    if (k.value.geometry().window != v.value.geometry().window) {
        return {ErrorCode::mismatch, "v: got another window config than k, expected the same"};
    }
    std::vector<ExactRow> k_storage;
    std::vector<ExactRow> v_storage;
    const AttentionParams params{.num_tokens = p.num_tokens,
                                 .num_qo_heads = p.num_qo_heads,
                                 .kv_len = p.kv_len,
                                 .sm_scale = p.sm_scale,
                                 .soft_cap = p.soft_cap,
                                 .alibi_max_bias = p.alibi_max_bias,
                                 .q = p.q,
                                 .q_token_stride = p.q_token_stride,
                                 .q_head_stride = p.q_head_stride,
                                 .out = p.out,
                                 .out_token_stride = p.out_token_stride,
                                 .out_head_stride = p.out_head_stride,
                                 .mask = p.mask,
                                 .mask_token_stride = p.mask_token_stride,
                                 .mask_head_stride = p.mask_head_stride,
                                 .mask_heads = p.mask_heads,
                                 .sinks = p.sinks,
                                 .lse = p.lse,
                                 .k_exact = exact_rows(k, stream, k_storage),
                                 .v_exact = exact_rows(v, stream, v_storage),
                                 .positions = p.positions,
                                 .window = k.value.geometry().window,
                                 .prefill = p.prefill_exact ? Prefill::exact : Prefill::windowed};
    return attention(k.value, v.value, stream, params, num_threads);
}

}  // namespace
}  // namespace vecinfer::capi

using vecinfer::Result;
using vecinfer::Status;
using vecinfer::capi::call;
using vecinfer::capi::check_pointers;
using vecinfer::capi::check_range;
using vecinfer::capi::check_stream;
using vecinfer::capi::make_geometry;

vecinfer_code vecinfer_cache_config_init(const vecinfer_scheme* scheme, vecinfer_cache_config* config) {
    return call("vecinfer_cache_config_init", [&]() -> Status {
        if (Status s = check_pointers({scheme, config}, {"scheme", "config"}); !s.ok()) {
            return s;
        }
        *config = {.num_cells = 0, .num_streams = 1, .recent = scheme->value.window.recent, .sink = scheme->value.window.sink};
        return {};
    });
}

vecinfer_code vecinfer_cache_bytes(const vecinfer_codec* codec, const vecinfer_cache_config* config, size_t* bytes) {
    return call("vecinfer_cache_bytes", [&]() -> Status {
        if (Status s = check_pointers({codec, config, bytes}, {"codec", "config", "bytes"}); !s.ok()) {
            return s;
        }
        vecinfer::CacheGeometry geometry;
        if (Status s = make_geometry(*codec->value, *config, geometry); !s.ok()) {
            return s;
        }
        *bytes = geometry.total_bytes();
        return {};
    });
}

vecinfer_code vecinfer_cache_create(const vecinfer_codec* codec, const vecinfer_cache_config* config, void* memory, size_t bytes,
                                    vecinfer_cache** cache) {
    return call("vecinfer_cache_create", [&]() -> Status {
        if (Status s = check_pointers({codec, config, memory, cache}, {"codec", "config", "memory", "cache"}); !s.ok()) {
            return s;
        }
        vecinfer::CacheGeometry geometry;
        if (Status s = make_geometry(*codec->value, *config, geometry); !s.ok()) {
            return s;
        }
        if (bytes < geometry.total_bytes()) {
            return vecinfer::argument_error("bytes", fmt::format("{}", bytes),
                                            fmt::format("at least {}", geometry.total_bytes()));
        }
        Result<vecinfer::PackedCache> made =
            vecinfer::PackedCache::create(geometry, codec->value.get(), static_cast<std::byte*>(memory));
        if (!made.ok()) {
            return made.status();
        }
        auto handle = std::make_unique<vecinfer_cache>();
        handle->codec = codec->value;
        handle->value = made.value();
        handle->batches.resize(static_cast<std::size_t>(geometry.num_streams));
        *cache = handle.release();
        return {};
    });
}

void vecinfer_cache_free(vecinfer_cache* cache) {
    delete cache;
}

vecinfer_code vecinfer_cache_clear(vecinfer_cache* cache) {
    return call("vecinfer_cache_clear", [&]() -> Status {
        if (Status s = check_pointers({cache}, {"cache"}); !s.ok()) {
            return s;
        }
        cache->value.clear();
        for (vecinfer_cache::Batch& batch : cache->batches) {
            batch = {};
        }
        return {};
    });
}

vecinfer_code vecinfer_cache_plan(vecinfer_cache* cache, int32_t stream, size_t num_rows, const int32_t* cells,
                                  const int32_t* positions) {
    return call("vecinfer_cache_plan", [&]() -> Status {
        if (Status s = check_pointers({cache, cells, positions}, {"cache", "cells", "positions"}); !s.ok()) {
            return s;
        }
        if (Status s = check_stream(*cache, stream); !s.ok()) {
            return s;
        }
        Result<vecinfer::WritePlan> plan = cache->value.plan_write(stream, {cells, num_rows}, {positions, num_rows});
        if (!plan.ok()) {
            return plan.status();
        }
        vecinfer_cache::Batch& batch = cache->batches[static_cast<std::size_t>(stream)];
        const int row_dim = cache->value.geometry().row_dim;
        batch.staging.resize(static_cast<std::size_t>(plan->staging_rows) * static_cast<std::size_t>(row_dim));
        batch.plan = std::move(plan.value());
        batch.plan.bind_staging(batch.staging.data(), row_dim);
        batch.planned = true;
        cache->last_stream = stream;
        return {};
    });
}

vecinfer_code vecinfer_cache_write(vecinfer_cache* cache, const float* x, ptrdiff_t row_stride, int32_t ith, int32_t nth) {
    return call("vecinfer_cache_write", [&]() -> Status {
        if (Status s = check_pointers({cache, x}, {"cache", "x"}); !s.ok()) {
            return s;
        }
        if (Status s = check_range("nth", nth, 1, std::numeric_limits<std::int32_t>::max()); !s.ok()) {
            return s;
        }
        if (Status s = check_range("ith", ith, 0, nth - 1); !s.ok()) {
            return s;
        }
        const vecinfer_cache::Batch& batch = cache->batches[static_cast<std::size_t>(cache->last_stream)];
        if (!batch.planned) {
            return vecinfer::argument_error("cache", "a write without a plan", "vecinfer_cache_plan first");
        }
        cache->value.write_rows(batch.plan, x, row_stride, ith, nth);
        return {};
    });
}

vecinfer_code vecinfer_cache_decode(const vecinfer_cache* cache, int32_t stream, int32_t head, int32_t begin, int32_t end,
                                    float* out) {
    return call("vecinfer_cache_decode", [&]() -> Status {
        if (Status s = check_pointers({cache, out}, {"cache", "out"}); !s.ok()) {
            return s;
        }
        if (Status s = check_stream(*cache, stream); !s.ok()) {
            return s;
        }
        if (Status s = check_range("head", head, 0, cache->codec->num_heads() - 1); !s.ok()) {
            return s;
        }
        if (Status s = check_range("begin", begin, 0, cache->value.geometry().num_cells); !s.ok()) {
            return s;
        }
        if (Status s = check_range("end", end, begin, cache->value.geometry().num_cells); !s.ok()) {
            return s;
        }
        cache->value.decode_original(stream, head, begin, end, out);
        return {};
    });
}

vecinfer_code vecinfer_cache_read_row(const vecinfer_cache* cache, int32_t stream, int32_t cell, float* out) {
    return call("vecinfer_cache_read_row", [&]() -> Status {
        if (Status s = check_pointers({cache, out}, {"cache", "out"}); !s.ok()) {
            return s;
        }
        if (Status s = check_stream(*cache, stream); !s.ok()) {
            return s;
        }
        if (Status s = check_range("cell", cell, 0, cache->value.geometry().num_cells - 1); !s.ok()) {
            return s;
        }
        cache->value.read_row(stream, cell, out);
        return {};
    });
}

void vecinfer_attention_params_init(vecinfer_attention_params* params) {
    if (params != nullptr) {
        *params = {};
        params->struct_size = sizeof(*params);
        params->sm_scale = 1.0f;
        params->mask_heads = 1;
    }
}

vecinfer_code vecinfer_attention(const vecinfer_cache* k, const vecinfer_cache* v, int32_t stream,
                                 const vecinfer_attention_params* params, int32_t num_threads) {
    return call("vecinfer_attention", [&]() -> Status {
        if (Status s = check_pointers({k, v, params}, {"k", "v", "params"}); !s.ok()) {
            return s;
        }
        if (params->struct_size != sizeof(*params)) {
            return vecinfer::argument_error("params->struct_size", fmt::format("{}", params->struct_size),
                                            fmt::format("{}, as vecinfer_attention_params_init sets it", sizeof(*params)));
        }
        if (Status s = check_stream(*k, stream); !s.ok()) {
            return s;
        }
        if (Status s = check_stream(*v, stream); !s.ok()) {
            return s;
        }
        if (Status s = check_range("num_threads", num_threads, 0, 4096); !s.ok()) {
            return s;
        }
        return vecinfer::capi::run_attention(*k, *v, stream, *params, num_threads);
    });
}
