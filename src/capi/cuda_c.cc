// C API of vecinfer_cuda.
#include <fmt/format.h>

#include "capi/handles.h"
#include "vecinfer/cuda.h"
#include "vecinfer/vecinfer_cuda_c.h"

struct vecinfer_cuda_layer {
    vecinfer::cuda::LayerCodec value;
};

namespace {

using vecinfer::Result;
using vecinfer::Status;
using vecinfer::capi::call;
using vecinfer::capi::check_pointers;
using vecinfer::cuda::CacheView;
using vecinfer::cuda::DecodeParams;
using vecinfer::cuda::EncodeParams;
using vecinfer::cuda::Number;

template <class T>
Status check_size(const char* name, const T& params) {
    return params.struct_size == sizeof(T)
               ? Status()
               : vecinfer::argument_error(fmt::format("{}->struct_size", name), fmt::format("{}", params.struct_size),
                                          fmt::format("{}, as its init function sets it", sizeof(T)));
}

Status to_number(const char* name, vecinfer_cuda_number from, Number& to) {
    if (from < VECINFER_CUDA_F16 || from > VECINFER_CUDA_F32) {
        return vecinfer::argument_error(name, fmt::format("{}", static_cast<int>(from)), "a vecinfer_cuda_number");
    }
    to = static_cast<Number>(from);
    return {};
}

CacheView to_view(const vecinfer_cuda_cache& c) {
    CacheView view;
    view.pages = c.pages;
    view.num_pages = c.num_pages;
    view.page_size = c.page_size;
    view.block_table = c.block_table;
    view.table_stride = c.table_stride;
    view.window = {.recent = c.recent, .sink = c.sink};
    view.window_k = c.window_k;
    view.window_v = c.window_v;
    view.window_rows = c.window_rows;
    view.num_slots = c.num_slots;
    view.window_slots = c.window_slots;
    return view;
}

template <class T>
void init(T* params) {
    if (params != nullptr) {
        *params = {};
        params->struct_size = sizeof(T);
    }
}

}  // namespace

extern "C" {

vecinfer_code vecinfer_cuda_layer_create(const vecinfer_codec* k, const vecinfer_codec* v, vecinfer_cuda_layer** layer) {
    return call("vecinfer_cuda_layer_create", [&]() -> Status {
        if (Status s = check_pointers({k, v, layer}, {"k", "v", "layer"}); !s.ok()) {
            return s;
        }
        Result<vecinfer::cuda::LayerCodec> made = vecinfer::cuda::LayerCodec::create(*k->value, *v->value);
        if (made.ok()) {
            *layer = new vecinfer_cuda_layer{std::move(made).value()};
        }
        return made.status();
    });
}

void vecinfer_cuda_layer_free(vecinfer_cuda_layer* layer) {
    delete layer;
}

vecinfer_code vecinfer_cuda_page_bytes(const vecinfer_cuda_layer* layer, int32_t page_size, size_t* bytes) {
    return call("vecinfer_cuda_page_bytes", [&]() -> Status {
        if (Status s = check_pointers({layer, bytes}, {"layer", "bytes"}); !s.ok()) {
            return s;
        }
        if (const int step = layer->value.page_step(); page_size < step || page_size % step != 0) {
            return vecinfer::argument_error("page_size", fmt::format("{}", page_size), fmt::format("a multiple of {}", step));
        }
        *bytes = layer->value.page_bytes(page_size);
        return {};
    });
}

void vecinfer_cuda_cache_init(vecinfer_cuda_cache* cache) {
    init(cache);
}

void vecinfer_cuda_encode_params_init(vecinfer_cuda_encode_params* params) {
    init(params);
}

void vecinfer_cuda_decode_params_init(vecinfer_cuda_decode_params* params) {
    init(params);
    if (params != nullptr) {
        params->num_q = 1;
        params->sm_scale = 1.0f;
    }
}

vecinfer_code vecinfer_cuda_encode(const vecinfer_cuda_layer* layer, const vecinfer_cuda_cache* cache,
                                   const vecinfer_cuda_encode_params* params, void* stream) {
    return call("vecinfer_cuda_encode", [&]() -> Status {
        Status s = check_pointers({layer, cache, params}, {"layer", "cache", "params"});
        s = s.ok() ? check_size("cache", *cache) : s;
        s = s.ok() ? check_size("params", *params) : s;
        EncodeParams p;
        s = s.ok() ? to_number("type", params->type, p.type) : s;
        if (!s.ok()) {
            return s;
        }
        p.num_tokens = params->num_tokens;
        p.k = params->k;
        p.v = params->v;
        p.k_token_stride = params->k_token_stride;
        p.k_head_stride = params->k_head_stride;
        p.v_token_stride = params->v_token_stride;
        p.v_head_stride = params->v_head_stride;
        p.slots = params->slots;
        p.positions = params->positions;
        p.sequences = params->sequences;
        p.kv_lens = params->kv_lens;
        return vecinfer::cuda::encode(layer->value, to_view(*cache), p, stream);
    });
}

vecinfer_code vecinfer_cuda_decode_workspace(const vecinfer_cuda_layer* layer, int32_t batch, int32_t num_qo_heads, int32_t num_q,
                                             size_t* bytes) {
    return call("vecinfer_cuda_decode_workspace", [&]() -> Status {
        if (Status s = check_pointers({layer, bytes}, {"layer", "bytes"}); !s.ok()) {
            return s;
        }
        const Result<std::size_t> needed = vecinfer::cuda::decode_workspace_bytes(layer->value, batch, num_qo_heads, num_q);
        if (needed.ok()) {
            *bytes = needed.value();
        }
        return needed.status();
    });
}

vecinfer_code vecinfer_cuda_init_workspace(void* workspace, size_t bytes, void* stream) {
    return call("vecinfer_cuda_init_workspace",
                [&]() -> Status { return vecinfer::cuda::init_decode_workspace(workspace, bytes, stream); });
}

vecinfer_code vecinfer_cuda_decode(const vecinfer_cuda_layer* layer, const vecinfer_cuda_cache* cache,
                                   const vecinfer_cuda_decode_params* params, void* workspace, size_t workspace_bytes,
                                   void* stream) {
    return call("vecinfer_cuda_decode", [&]() -> Status {
        Status s = check_pointers({layer, cache, params}, {"layer", "cache", "params"});
        s = s.ok() ? check_size("cache", *cache) : s;
        s = s.ok() ? check_size("params", *params) : s;
        DecodeParams p;
        s = s.ok() ? to_number("q_type", params->q_type, p.q_type) : s;
        s = s.ok() ? to_number("out_type", params->out_type, p.out_type) : s;
        if (!s.ok()) {
            return s;
        }
        p.batch = params->batch;
        p.num_q = params->num_q;
        p.num_qo_heads = params->num_qo_heads;
        p.kv_lens = params->kv_lens;
        p.sm_scale = params->sm_scale;
        p.soft_cap = params->soft_cap;
        p.sliding_window = params->sliding_window;
        p.alibi_slopes = params->alibi_slopes;
        p.sinks = params->sinks;
        p.q = params->q;
        p.q_seq_stride = params->q_seq_stride;
        p.q_token_stride = params->q_token_stride;
        p.q_head_stride = params->q_head_stride;
        p.out = params->out;
        p.out_seq_stride = params->out_seq_stride;
        p.out_token_stride = params->out_token_stride;
        p.out_head_stride = params->out_head_stride;
        p.lse = params->lse;
        return vecinfer::cuda::decode_attention(layer->value, to_view(*cache), p, workspace, workspace_bytes, stream);
    });
}

}  // extern "C"
