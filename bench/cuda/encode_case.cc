#include "cuda/encode_case.h"

#include "cuda/device_kernels.h"

namespace vecinfer::bench {

EncodeCaseData::EncodeCaseData(const DecodeShape& s) : shape_(s), codec_(make_layer(s)) {
    const std::size_t tokens = static_cast<std::size_t>(s.batch) * s.context;
    const std::size_t values = tokens * s.num_kv_heads * s.head_dim;
    const std::size_t page = codec_.page_bytes(s.context);
    bytes_ = 4 * values + page * s.batch;
    check(cuda::allocate(page * s.batch, pages_, "pages"));
    check(cuda::allocate(values, k_, "rows"));
    check(cuda::allocate(values, v_, "rows"));
    fill_f16(k_.get(), values, 1.0f, 5, nullptr);
    fill_f16(v_.get(), values, 1.0f, 6, nullptr);
    std::vector<std::int64_t> slots(tokens);
    for (std::size_t i = 0; i < tokens; ++i) {
        slots[i] = static_cast<std::int64_t>(i);
    }
    check(cuda::upload(slots, slots_, "slots"));
    check(cudaDeviceSynchronize(), "filling rows");
}

void EncodeCaseData::launch(cudaStream_t stream) const {
    cuda::CacheView cache;
    cache.pages = pages_.get();
    cache.num_pages = shape_.batch;
    cache.page_size = shape_.context;
    cache.window = {.recent = 0, .sink = 0};
    cuda::EncodeParams p;
    p.num_tokens = num_tokens();
    p.k = k_.get();
    p.v = v_.get();
    p.k_head_stride = p.v_head_stride = shape_.head_dim;
    p.k_token_stride = p.v_token_stride = static_cast<std::int64_t>(shape_.num_kv_heads) * shape_.head_dim;
    p.slots = slots_.get();
    check(cuda::encode(codec_, cache, p, stream));
}

}  // namespace vecinfer::bench
