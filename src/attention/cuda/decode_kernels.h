// The compiled decode kernels, small translation units by sub_dim and head size.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "attention/cuda/decode_args.h"
#include "vecinfer/status.h"

namespace vecinfer::cuda {

struct DecodeKernel {
    std::string_view name;
    const void* function;
    CodecSpec k;  // page_spec of the codecs that it reads
    CodecSpec v;
    bool k_own;  // a codebook per subspace
    bool v_own;
    int head_dim;
    int rows;   // query rows of a KV head that one pass takes
    int chunk;  // cells; a page must hold whole chunks unless `general`
    int threads;
    int blocks_per_multiprocessor;
    bool general;                    // soft cap, ALiBi; of vectors small pages
    std::size_t fixed_shared_bytes;  // beside 4 bytes per sequence
    int max_blocks;                  // of a grid
    std::size_t sums;                // f32 values of a partial result, without references and sums
};

std::span<const DecodeKernel> decode_kernels_d4_hd64();
std::span<const DecodeKernel> decode_kernels_d4_hd128();
std::span<const DecodeKernel> decode_kernels_d4_hd256();
std::span<const DecodeKernel> decode_kernels_d2();
std::span<const DecodeKernel> decode_kernels_d2d4();
std::span<const DecodeKernel> decode_kernels_d8();
std::span<const DecodeKernel> decode_kernels_levels3();
std::span<const DecodeKernel> decode_kernels_own();
std::span<const DecodeKernel> decode_kernels_wide();
std::span<const DecodeKernel> decode_kernels_kivi();
std::span<const DecodeKernel> decode_kernels_innerq();
std::span<const DecodeKernel> decode_kernels_innerq_wide();

/// Items (sequence, KV head, row tile) of a call. Their counters have a place of their own, whatever the shape of a call, because
/// they must be zero between calls.
inline constexpr std::size_t kMaxItems = 65536;
inline constexpr std::size_t kCounterBytes = kMaxItems * sizeof(unsigned);

/// Partition of a workspace: counters, then these.
struct WorkspaceParts {
    std::size_t stats = 0;  // bytes
    std::size_t partials = 0;
    std::size_t total() const { return kCounterBytes + stats + partials; }
};
WorkspaceParts workspace_parts(const DecodeKernel& kernel, int blocks, std::size_t items);

/// Arguments of a checked call, without workspace pointers.
DecodeArgs decode_args(const LayerCodec& codec, const CacheView& cache, const DecodeParams& params, int row_tiles);

/// Fills in the workspace pointers and launches; everything else of `args` is checked and set. `blocks`: of the grid.
Status launch_decode(const DecodeKernel& kernel, DecodeArgs args, int blocks, std::byte* workspace, Stream stream);

}  // namespace vecinfer::cuda
