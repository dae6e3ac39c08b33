// Encoding: checks and launch.
#include <algorithm>
#include <vector>

#include "codec/cuda/checks.h"
#include "codec/cuda/encode_args.h"
#include "codec/cuda/tables.h"
#include "sidecar/guard.h"

namespace vecinfer::cuda {
namespace {

constexpr int kMaxTokens = 1 << 24;

Status check_params(const LayerCodec& codec, const CacheView& cache, const EncodeParams& p) {
    Status s = check_range("num_tokens", p.num_tokens, 0, kMaxTokens);
    s = s.ok() ? check_pointer("k", p.k, number_bytes(p.type)) : s;
    s = s.ok() ? check_pointer("v", p.v, number_bytes(p.type)) : s;
    s = s.ok() ? check_pointer("slots", p.slots, 8) : s;
    // Sequences are known on the device only; that there are enough slots for them is the caller's word.
    s = s.ok() ? check_cache(codec, cache, 1, 1) : s;
    if (s.ok() && has_window(cache)) {
        s = check_pointer("positions", p.positions, 4);
        s = s.ok() ? check_pointer("kv_lens", p.kv_lens, 4) : s;
    }
    return s;
}

EncodeSide side_of(const SideTables& t, const void* x, std::int64_t token_stride, std::int64_t head_stride, void* window) {
    EncodeSide side = {};
    side.x = x;
    side.token_stride = token_stride;
    side.head_stride = head_stride;
    side.words = t.words.get();
    side.scales = t.scales.get();
    side.levels = t.levels.get();
    side.spec = t.spec;
    side.steps = t.steps.get();
    side.fragments = t.fragments.get();
    side.form = t.form;
    side.shaping = t.shaping.get();
    side.shaping_metric = t.shaping_metric.get();
    side.shaping_bias = t.shaping_bias.get();
    side.shaping_rank = t.shaping_rank;
    side.inverse = t.inverse.get();
    side.center = t.center.get();
    side.window = static_cast<std::uint16_t*>(window);
    side.hadamard = t.hadamard ? 1 : 0;
    side.norms = t.norms ? 1 : 0;
    side.unbiased = t.unbiased ? 1 : 0;
    return side;
}

Status launch(const EncodeKernel& kernel, EncodeArgs& a, int multiprocessors, Stream stream) {
    const int most = std::max(1, 4 * multiprocessors / a.num_kv_heads);  // a block goes on to further tokens
    const dim3 grid(std::min((a.num_tokens + kernel.tokens - 1) / kernel.tokens, most), a.num_kv_heads);
    Status s = cuda_status(
        cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kernel.shared_bytes)),
        "encode");
    void* arguments[] = {&a};
    return s.ok() ? cuda_status(cudaLaunchKernel(kernel.function, grid, dim3(32, kernel.warps), arguments, kernel.shared_bytes,
                                                 static_cast<cudaStream_t>(stream)),
                                "encode")
                  : s;
}

}  // namespace

Status encode(const LayerCodec& codec, const CacheView& cache, const EncodeParams& p, Stream stream) {
    return guarded("encode", [&]() -> Status {
        if (Status s = check_params(codec, cache, p); !s.ok() || p.num_tokens == 0) {
            return s;
        }
        const LayerCodec::Tables& t = codec.tables();
        const PageParts page = page_parts(t, cache.page_size);
        const bool window = has_window(cache);
        EncodeArgs a = {};
        a.type = p.type;
        a.num_tokens = p.num_tokens;
        a.num_kv_heads = t.num_kv_heads;
        a.pages = static_cast<std::uint8_t*>(cache.pages);
        a.head_bytes = static_cast<std::int64_t>(page.bytes);
        a.page_bytes = a.head_bytes * t.num_kv_heads;
        a.norm_offset = static_cast<std::int64_t>(page.norms);
        a.page_size = cache.page_size;
        a.slots = p.slots;
        a.window_rows = cache.window_rows;
        a.sink = cache.window.sink;
        a.window_slots = cache.window_slots;
        a.positions = p.positions;
        a.sequences = p.sequences;
        a.kv_lens = p.kv_lens;
        int ordinal = 0;
        int multiprocessors = 0;
        Status known = cuda_status(cudaGetDevice(&ordinal), "encode");
        known = known.ok()
                    ? cuda_status(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ordinal), "encode")
                    : known;
        if (!known.ok()) {
            return known;
        }
        for (const bool value : {false, true}) {
            const SideTables& tables = value ? t.v : t.k;
            a.side = value ? side_of(tables, p.v, p.v_token_stride, p.v_head_stride, window ? cache.window_v : nullptr)
                           : side_of(tables, p.k, p.k_token_stride, p.k_head_stride, window ? cache.window_k : nullptr);
            a.side.value = value ? 1 : 0;
            const std::uintptr_t row = reinterpret_cast<std::uintptr_t>(a.side.x);
            const auto bytes = static_cast<std::int64_t>(number_bytes(p.type));
            a.aligned = (row | static_cast<std::uintptr_t>((a.side.token_stride | a.side.head_stride) * bytes)) % 16 == 0;
            a.side.codes_offset = value ? static_cast<std::int64_t>(page.v_codes) : 0;
            a.side.numbers_offset = static_cast<std::int64_t>(value ? page.v_numbers : page.norms);
            const bool scalar = tables.spec.kind == CodecKind::scalar;
            std::vector<EncodeKernel> kernels = {scalar ? scalar_encode_kernel(tables.spec, t.head_dim)
                                                        : encode_kernel(t.head_dim, tables.spec, tables.own_books)};
            if (scalar && window) {
                kernels.push_back(window_kernel(t.head_dim));
            }
            for (const EncodeKernel& kernel : kernels) {
                if (Status s = launch(kernel, a, multiprocessors, stream); !s.ok()) {
                    return s;
                }
            }
        }
        return cuda_status(cudaPeekAtLastError(), "encode");
    });
}

}  // namespace vecinfer::cuda
