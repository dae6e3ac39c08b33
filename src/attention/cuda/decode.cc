// Decode attention: checks, choice of a kernel, launch.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <tuple>
#include <vector>

#include "attention/cuda/decode_kernels.h"
#include "codec/cuda/checks.h"
#include "codec/cuda/pack.h"
#include "codec/cuda/tables.h"
#include "scheme/spelling.h"
#include "sidecar/guard.h"

namespace vecinfer::cuda {
namespace {

constexpr int kMaxQueryTokens = 16;
constexpr int kMaxBatch = 4096;

std::size_t align256(std::size_t n) {
    return (n + 255) / 256 * 256;
}

Status check_params(const LayerCodec& codec, const DecodeParams& p) {
    Status s = check_range("batch", p.batch, 1, kMaxBatch);
    s = s.ok() ? check_range("num_q", p.num_q, 1, kMaxQueryTokens) : s;
    if (s.ok() && (p.num_qo_heads < 1 || p.num_qo_heads % codec.num_kv_heads() != 0)) {
        s = argument_error("num_qo_heads", fmt::format("{}", p.num_qo_heads),
                           fmt::format("a positive multiple of {} KV heads", codec.num_kv_heads()));
    }
    s = s.ok() ? check_pointer("kv_lens", p.kv_lens, 4) : s;
    s = s.ok() ? check_pointer("q", p.q, number_bytes(p.q_type)) : s;
    s = s.ok() ? check_pointer("out", p.out, number_bytes(p.out_type)) : s;
    if (s.ok() && !(p.soft_cap >= 0)) {
        s = argument_error("soft_cap", fmt::format("{}", p.soft_cap), "0 or more");
    }
    if (s.ok() && !(p.sm_scale > 0 && p.sm_scale < 1e10f)) {
        s = argument_error("sm_scale", fmt::format("{}", p.sm_scale), "a positive number");
    }
    return s.ok() ? check_range("sliding_window", p.sliding_window, 0, INT_MAX) : s;
}

/// Kernels for a layer's codecs and head size.
std::vector<const DecodeKernel*> kernels_of(const LayerCodec& codec) {
    std::vector<const DecodeKernel*> found;
    for (const std::span<const DecodeKernel> table :
         {decode_kernels_d4_hd64(), decode_kernels_d4_hd128(), decode_kernels_d4_hd256(), decode_kernels_d2(),
          decode_kernels_d2d4(), decode_kernels_d8(), decode_kernels_own(), decode_kernels_wide(), decode_kernels_levels3(),
          decode_kernels_kivi(), decode_kernels_innerq(), decode_kernels_innerq_wide()}) {
        for (const DecodeKernel& k : table) {
            const LayerCodec::Tables& t = codec.tables();
            if (k.head_dim == t.head_dim && k.k == page_spec(t.k.spec) && k.v == page_spec(t.v.spec) &&
                k.k_own == t.k.own_books && k.v_own == t.v.own_books) {
                found.push_back(&k);
            }
        }
    }
    return found;
}

struct Device {
    int multiprocessors = 0;
    int shared_bytes = 0;  // that a block may have
    int major = 0;
    int minor = 0;
};

Status ask_device(Device& d) {
    int ordinal = 0;
    if (Status s = cuda_status(cudaGetDevice(&ordinal), "asking for the current device"); !s.ok()) {
        return s;
    }
    const std::pair<cudaDeviceAttr, int*> wanted[] = {{cudaDevAttrMultiProcessorCount, &d.multiprocessors},
                                                      {cudaDevAttrMaxSharedMemoryPerBlockOptin, &d.shared_bytes},
                                                      {cudaDevAttrComputeCapabilityMajor, &d.major},
                                                      {cudaDevAttrComputeCapabilityMinor, &d.minor}};
    for (const auto& [attribute, out] : wanted) {
        if (Status s = cuda_status(cudaDeviceGetAttribute(out, attribute, ordinal), "asking for a device attribute"); !s.ok()) {
            return s;
        }
    }
    return d.major >= 8 ? Status()
                        : Status(ErrorCode::unsupported,
                                 fmt::format("device: got compute capability {}.{}, expected 8.0 or more", d.major, d.minor));
}

struct Choice {
    const DecodeKernel* kernel = nullptr;
    int blocks = 0;
    int row_tiles = 0;
    std::size_t shared_bytes = 0;
    std::string note;
};

int grid_blocks(const DecodeKernel& kernel, int multiprocessors) {
    return std::min(multiprocessors * kernel.blocks_per_multiprocessor, kernel.max_blocks);
}

// The smallest kernel that takes all query rows, else the largest; general only where it must be.
Status choose(const LayerCodec& codec, int batch, int rows, bool general, const Device& device, Choice& out) {
    const DecodeKernel* best = nullptr;
    for (const DecodeKernel* kernel : kernels_of(codec)) {
        const DecodeKernel& k = *kernel;
        if ((general && !k.general) || k.fixed_shared_bytes + 4u * (batch + 1u) > static_cast<unsigned>(device.shared_bytes)) {
            continue;
        }
        // Fewest passes over the codes, then fewest idle rows, then without what is not needed.
        const auto cost = [&](const DecodeKernel& x) { return std::tuple((rows + x.rows - 1) / x.rows, x.rows, x.general); };
        best = best == nullptr || cost(k) < cost(*best) ? &k : best;
    }
    if (best == nullptr) {
        const LayerCodec::Tables& t = codec.tables();
        if (kernels_of(codec).empty()) {
            return {ErrorCode::unsupported,
                    fmt::format("decode attention: got {} keys, {} values{} and head_dim {}, for which no kernel was built",
                                spelling::codec_name(t.k.spec), spelling::codec_name(t.v.spec),
                                t.k.own_books || t.v.own_books ? " with codebooks per subspace" : "", t.head_dim)};
        }
        return {ErrorCode::unsupported, fmt::format("decode attention: got a device with {} bytes of shared memory per block, "
                                                    "expected more for head_dim {} and batch {}",
                                                    device.shared_bytes, codec.head_dim(), batch)};
    }
    out.kernel = best;
    out.row_tiles = (rows + best->rows - 1) / best->rows;
    out.blocks = grid_blocks(*best, device.multiprocessors);
    out.shared_bytes = best->fixed_shared_bytes + 4u * (static_cast<std::size_t>(batch) + 1);
    if (out.row_tiles > 1) {
        out.note = fmt::format("{} query rows per KV head read the codes {} times", rows, out.row_tiles);
    }
    return {};
}

bool needs_general(const DecodeParams& p, const CacheView& c) {
    return p.soft_cap != 0 || p.alibi_slopes != nullptr || c.page_size < 64;
}

Status plan(const LayerCodec& codec, const CacheView& cache, const DecodeParams& p, Choice& choice, Device& device) {
    Status s = check_params(codec, p);
    s = s.ok() ? check_cache(codec, cache, p.batch, p.num_q) : s;
    if (const std::size_t bytes = s.ok() ? codec.page_bytes(cache.page_size) : 0; bytes > UINT32_MAX) {
        s = argument_error("page_size", fmt::format("{}, which is {} bytes a page", cache.page_size, bytes),
                           "at most 4 GiB a page");
    }
    s = s.ok() ? ask_device(device) : s;
    const int rows = p.num_qo_heads / std::max(codec.num_kv_heads(), 1) * p.num_q;
    return s.ok() ? choose(codec, p.batch, rows, needs_general(p, cache), device, choice) : s;
}

}  // namespace

WorkspaceParts workspace_parts(const DecodeKernel& kernel, int blocks, std::size_t items) {
    const std::size_t slots = (static_cast<std::size_t>(blocks) + items) * 2;
    return {align256(slots * kernel.rows * sizeof(float2)), align256(slots * kernel.sums * sizeof(float))};
}

Status launch_decode(const DecodeKernel& kernel, DecodeArgs args, int blocks, std::byte* workspace, Stream stream) {
    // An error that the caller has not looked at yet is not ours to overwrite.
    if (Status s = cuda_status(cudaPeekAtLastError(), "decode attention, an earlier call"); !s.ok()) {
        return s;
    }
    const std::size_t items = static_cast<std::size_t>(args.batch) * args.num_kv_heads * args.row_tiles;
    const WorkspaceParts parts = workspace_parts(kernel, blocks, items);
    args.counters = reinterpret_cast<unsigned*>(workspace);
    args.stats = reinterpret_cast<float2*>(workspace + kCounterBytes);
    args.partials = reinterpret_cast<float*>(workspace + kCounterBytes + parts.stats);
    const std::size_t shared = kernel.fixed_shared_bytes + 4u * (static_cast<std::size_t>(args.batch) + 1);
    // Per device and cheap, and allowed while a stream is captured.
    if (Status s = cuda_status(
            cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
            "decode attention");
        !s.ok()) {
        return s;
    }
    void* arguments[] = {&args};
    if (Status s = cuda_status(cudaLaunchKernel(kernel.function, dim3(blocks), dim3(kernel.threads), arguments, shared,
                                                static_cast<cudaStream_t>(stream)),
                               "decode attention");
        !s.ok()) {
        return s;
    }
    return cuda_status(cudaPeekAtLastError(), "decode attention");
}

Result<std::size_t> decode_workspace_bytes(const LayerCodec& codec, int batch, int num_qo_heads, int num_q) {
    return guarded("decode_workspace_bytes", [&]() -> Result<std::size_t> {
        Device device;
        Status s = check_range("batch", batch, 1, kMaxBatch);
        s = s.ok() ? check_range("num_q", num_q, 1, kMaxQueryTokens) : s;
        if (s.ok() && (num_qo_heads < 1 || num_qo_heads % codec.num_kv_heads() != 0)) {
            s = argument_error("num_qo_heads", fmt::format("{}", num_qo_heads),
                               fmt::format("a positive multiple of {} KV heads", codec.num_kv_heads()));
        }
        s = s.ok() ? ask_device(device) : s;
        if (!s.ok()) {
            return s;
        }
        std::size_t most = 0;
        for (const DecodeKernel* kernel : kernels_of(codec)) {
            const DecodeKernel& k = *kernel;
            const int rows = num_qo_heads / codec.num_kv_heads() * num_q;
            const std::size_t items = static_cast<std::size_t>(batch) * codec.num_kv_heads() * ((rows + k.rows - 1) / k.rows);
            most = std::max(most, workspace_parts(k, grid_blocks(k, device.multiprocessors), items).total());
        }
        return most;
    });
}

Status init_decode_workspace(void* workspace, std::size_t bytes, Stream stream) {
    if (Status s = check_pointer("workspace", workspace, 256); !s.ok()) {
        return s;
    }
    if (bytes < kCounterBytes) {
        return argument_error("bytes", fmt::format("{}", bytes), "what decode_workspace_bytes says");
    }
    return cuda_status(cudaMemsetAsync(workspace, 0, kCounterBytes, static_cast<cudaStream_t>(stream)), "init_decode_workspace");
}

Result<DecodePlan> plan_decode(const LayerCodec& codec, const CacheView& cache, const DecodeParams& params) {
    return guarded("plan_decode", [&]() -> Result<DecodePlan> {
        Choice choice;
        Device device;
        if (Status s = plan(codec, cache, params, choice, device); !s.ok()) {
            return s;
        }
        return DecodePlan{fmt::format("{}/sm{}{}", choice.kernel->name, device.major, device.minor), choice.blocks,
                          choice.kernel->threads, choice.shared_bytes, choice.note};
    });
}

DecodeArgs decode_args(const LayerCodec& codec, const CacheView& c, const DecodeParams& p, int row_tiles) {
    const LayerCodec::Tables& t = codec.tables();
    const PageParts page = page_parts(t, c.page_size);
    DecodeArgs a = {};
    a.pages = static_cast<const std::uint8_t*>(c.pages);
    a.head_bytes = static_cast<std::uint32_t>(page.bytes);  // plan: a page fits into 32 bits
    a.page_bytes = a.head_bytes * t.num_kv_heads;
    a.v_offset = static_cast<std::uint32_t>(page.v_codes);
    a.norm_offset = static_cast<std::uint32_t>(page.norms);
    a.v_numbers_offset = static_cast<std::uint32_t>(page.v_numbers);
    a.block_table = c.block_table;
    a.table_stride = c.table_stride;
    a.page_shift = c.block_table != nullptr ? std::countr_zero(static_cast<unsigned>(c.page_size)) : 30;
    a.window_k = static_cast<const std::uint16_t*>(c.window_k);
    a.window_v = static_cast<const std::uint16_t*>(c.window_v);
    a.window_slots = c.window_slots;
    a.window_rows = c.window_rows;
    a.sink = c.window.sink;
    a.recent = c.window.recent;
    a.batch = p.batch;
    a.num_kv_heads = t.num_kv_heads;
    a.group = p.num_qo_heads / t.num_kv_heads;
    a.num_q = p.num_q;
    a.row_tiles = row_tiles;
    a.kv_lens = p.kv_lens;
    a.sliding_window = p.sliding_window == 0 ? INT_MAX : p.sliding_window;
    a.q = p.q;
    a.q_seq_stride = p.q_seq_stride;
    a.q_token_stride = p.q_token_stride;
    a.q_head_stride = p.q_head_stride;
    a.q_type = p.q_type;
    a.out = p.out;
    a.out_seq_stride = p.out_seq_stride;
    a.out_token_stride = p.out_token_stride;
    a.out_head_stride = p.out_head_stride;
    a.out_type = p.out_type;
    a.lse = p.lse;
    a.k_words = t.k.words.get();
    a.v_words = t.v.words.get();
    a.k_steps = t.k.steps.get();
    a.v_steps = t.v.steps.get();
    a.k_scale = t.k.scales.get();
    a.v_scale = t.v.scales.get();
    a.q_factors = t.k.factors.get();
    a.k_center = t.k.center.get();
    a.v_center = t.v.center.get();
    a.k_hadamard = t.k.hadamard ? 1 : 0;
    a.v_hadamard = t.v.hadamard ? 1 : 0;
    a.sm_scale = p.sm_scale;
    a.soft_cap = p.soft_cap;
    a.alibi_slopes = p.alibi_slopes;
    a.sinks = p.sinks;
    return a;
}

Status decode_attention(const LayerCodec& codec, const CacheView& cache, const DecodeParams& params, void* workspace,
                        std::size_t workspace_bytes, Stream stream) {
    return guarded("decode_attention", [&]() -> Status {
        Choice choice;
        Device device;
        if (Status s = plan(codec, cache, params, choice, device); !s.ok()) {
            return s;
        }
        if (Status s = check_pointer("workspace", workspace, 256); !s.ok()) {
            return s;
        }
        const std::size_t items = static_cast<std::size_t>(params.batch) * codec.num_kv_heads() * choice.row_tiles;
        if (items > kMaxItems) {
            return argument_error(
                "batch", fmt::format("{} with {} passes over {} KV heads", params.batch, choice.row_tiles, codec.num_kv_heads()),
                fmt::format("at most {} passes in all", kMaxItems));
        }
        const std::size_t needed = workspace_parts(*choice.kernel, choice.blocks, items).total();
        if (workspace_bytes < needed) {
            return argument_error("workspace_bytes", fmt::format("{}", workspace_bytes), fmt::format("at least {}", needed));
        }
        return launch_decode(*choice.kernel, decode_args(codec, cache, params, choice.row_tiles), choice.blocks,
                             static_cast<std::byte*>(workspace), stream);
    });
}

}  // namespace vecinfer::cuda
