// What the opaque handles of the C API hold, and how its functions report errors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sidecar/guard.h"
#include "vecinfer/attention.h"
#include "vecinfer/cache.h"
#include "vecinfer/codec.h"
#include "vecinfer/scheme.h"
#include "vecinfer/sidecar.h"
#include "vecinfer/vecinfer_c.h"

struct vecinfer_scheme {
    vecinfer::Scheme value;
};

struct vecinfer_sidecar {
    vecinfer::Sidecar value;
};

struct vecinfer_codec {
    std::shared_ptr<const vecinfer::RowCodec> value;
};

struct vecinfer_cache {
    /// The batch planned last on a stream: attention reads its rows from f16.
    struct Batch {
        bool planned = false;
        vecinfer::WritePlan plan;
        std::vector<std::uint16_t> staging;
    };
    std::shared_ptr<const vecinfer::RowCodec> codec;
    vecinfer::PackedCache value;
    std::vector<Batch> batches;  // [num_streams]
    int last_stream = 0;         // of the plan that vecinfer_cache_write carries out
};

namespace vecinfer::capi {

/// Remembers the message for vecinfer_last_error and turns the status into a code.
vecinfer_code report(const Status& status) noexcept;

/// An error for the first pointer that is null; `names` are those of the parameters, in the same order.
Status check_pointers(std::initializer_list<const void*> pointers, std::initializer_list<const char*> names);

/// Runs body(), which returns a Status, and reports what comes back.
template <class Body>
vecinfer_code call(const char* function, Body&& body) noexcept {
    return report(guarded(function, [&]() -> Status { return with_prefix(function, body()); }));
}

inline LayerShape to_shape(const vecinfer_layer_shape& shape) {
    return {shape.layer, shape.num_kv_heads, shape.head_dim_k, shape.head_dim_v};
}

}  // namespace vecinfer::capi
