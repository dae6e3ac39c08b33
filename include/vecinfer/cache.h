// Packed cache: the codes of one side (K or V) of one layer for all streams, in memory that the caller owns.
//
// All state lives in that memory and all-zero bytes are a valid empty cache, so clearing is memset and copying is memcpy.
// The byte layout is defined in src/cache/layout.h and told in docs/cache_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vecinfer/codec.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer {

/// Tokens per code block: codes of kBlockTokens cells lie together, subspace by subspace.
inline constexpr int kBlockTokens = 64;
/// Window rows kept beyond `recent`, so that up to this many rejected draft tokens can be rolled back without losing one.
inline constexpr int kRollbackRows = 16;
/// Sequences of one stream whose sinks are kept; with more, the sinks of the oldest fall back to codes.
inline constexpr int kSinkSequences = 4;

/// What decides the bytes. Known before the number of heads is: a row of `row_dim` channels can be sized by itself.
struct CacheGeometry {
    int row_dim = 0;         // num_heads * head_dim, a multiple of 8
    int sub_dim = 4;
    int code_bits = 8;
    int norms_per_row = 0;   // one per KV head; 0 without norms
    int num_cells = 0;       // per stream
    int num_streams = 1;
    WindowSpec window;

    int window_rows() const noexcept;       // per stream: recent + kRollbackRows + kSinkSequences * sink, 0 without a window
    std::size_t row_bytes() const noexcept;  // codes and norms of one cell
    std::size_t stream_bytes() const noexcept;
    std::size_t total_bytes() const noexcept;
};

/// A token whose row is at hand in f16: in the window, or written by the current batch.
struct ExactRow {
    std::int32_t cell;
    std::int32_t position;
    const std::uint16_t* row;  // row_dim f16 values, original space
};

/// Where one batch's rows go in the window; made once, before threads start, then carried out by write_rows.
class WindowPlan {
public:
    struct Move {
        std::int32_t slot;  // window slot
        std::int32_t row;   // batch row
    };
    std::vector<Move> moves;
    std::vector<ExactRow> exact;   // every row with an f16 copy once the batch is written
    std::vector<Move> carried;     // slots overwritten by this batch that its queries still read; copied to staging first
    std::vector<std::uint16_t> staging;  // f16 copies of batch rows and carried rows, if the batch is larger than the slack
};

class PackedCache {
public:
    PackedCache() = default;
    /// `memory`: geometry.total_bytes() bytes, 64-byte aligned, zeroed for an empty cache; owned by the caller, who outlives this.
    /// `codec` may be null while only sizes, clearing and stream copies are needed.
    PackedCache(const CacheGeometry& geometry, const RowCodec* codec, std::byte* memory);

    const CacheGeometry& geometry() const noexcept { return geometry_; }
    const RowCodec* codec() const noexcept { return codec_; }
    std::byte* memory() const noexcept { return memory_; }

    /// Encodes rows ith, ith + nth, ... of x, layout (n, row_dim) with `row_stride` floats between rows, into `cells`.
    /// Threads may call this at once with different ith. Codes depend on the row alone.
    void write_codes(int stream, std::span<const std::int32_t> cells, const float* x, std::ptrdiff_t row_stride, int ith,
                     int nth) const noexcept;

    /// Rows of `head` for cells [begin, end) in code space, layout (end - begin, head_dim).
    void decode(int stream, int head, int begin, int end, float* y) const noexcept;
    /// The same in the original space.
    void decode_original(int stream, int head, int begin, int end, float* x) const noexcept;

    std::byte* block(int stream, int head, int block) const noexcept;  // codes of 64 cells of one head, see layout.h

private:
    CacheGeometry geometry_;
    const RowCodec* codec_ = nullptr;
    std::byte* memory_ = nullptr;
};

}  // namespace vecinfer
