#include "cuda/encode_case.h"

#include "codec/cuda/tables.h"
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
    std::vector<std::int32_t> positions(tokens);
    std::vector<std::int32_t> sequences(tokens);
    for (std::size_t i = 0; i < tokens; ++i) {
        positions[i] = static_cast<std::int32_t>(i % s.context);
        sequences[i] = static_cast<std::int32_t>(i / s.context);
    }
    check(cuda::upload(positions, positions_, "positions"));
    check(cuda::upload(sequences, sequences_, "sequences"));
    check(cuda::upload(std::vector<std::int32_t>(s.batch, s.context), lens_, "lengths"));
    const std::size_t window = static_cast<std::size_t>(s.batch) * s.num_kv_heads * s.recent * s.head_dim;
    check(cuda::allocate(window, window_k_, "window"));
    check(cuda::allocate(window, window_v_, "window"));
    check(cudaDeviceSynchronize(), "filling rows");
}

void EncodeCaseData::launch(cudaStream_t stream) const {
    cuda::CacheView cache;
    cache.pages = pages_.get();
    cache.num_pages = shape_.batch;
    cache.page_size = shape_.context;
    const bool groups = codec_.tables().k.spec.groups_tokens() || codec_.tables().v.spec.groups_tokens();
    cache.window = {.recent = groups ? shape_.recent : 0, .sink = 0};
    cache.window_k = window_k_.get();
    cache.window_v = window_v_.get();
    cache.window_rows = shape_.recent;
    cache.num_slots = shape_.batch;
    cuda::EncodeParams p;
    p.num_tokens = num_tokens();
    p.k = k_.get();
    p.v = v_.get();
    p.k_head_stride = p.v_head_stride = shape_.head_dim;
    p.k_token_stride = p.v_token_stride = static_cast<std::int64_t>(shape_.num_kv_heads) * shape_.head_dim;
    p.slots = slots_.get();
    p.positions = positions_.get();
    p.sequences = sequences_.get();
    p.kv_lens = lens_.get();
    check(cuda::encode(codec_, cache, p, stream));
}

}  // namespace vecinfer::bench
