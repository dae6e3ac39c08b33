// Packed cache: codes and window of one side (K or V) of one layer for all streams, in memory that the caller owns.
//
// All state lives in that memory and all-zero bytes are a valid empty cache, so clearing is memset and copying a stream is
// memcpy. Layout of the bytes: src/cache/layout.h, told in docs/cache_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vecinfer/codec.h"
#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

/// Cells per code block: the codes of kBlockCells cells lie together, subspace by subspace.
inline constexpr int kBlockCells = 64;
/// Window rows kept beyond `recent`, so that up to this many rejected draft tokens can be rolled back without losing one.
inline constexpr int kRollbackRows = 16;
/// Sequences of one stream whose sinks are kept; with more, the oldest sequences read theirs from codes.
inline constexpr int kSinkSequences = 4;

/// What decides the size. A row can be sized before it is known how many heads share it.
struct CacheGeometry {
    int row_dim = 0;  // num_kv_heads * head_dim, a multiple of 8, at least 64
    int sub_dim = 4;
    int code_bits = 8;
    int norms_per_row = 0;  // bytes reserved for norms: at least one per KV head, 0 without norms
    int num_cells = 0;      // per stream
    int num_streams = 1;
    WindowSpec window;

    int window_rows() const noexcept;  // per stream: recent + kRollbackRows + kSinkSequences * sink; 0 if recent and sink are 0
    std::size_t row_bytes() const noexcept;  // codes and norms of one cell
    std::size_t stream_bytes() const noexcept;
    std::size_t total_bytes() const noexcept;  // num_streams * stream_bytes()
};

/// A token whose row is at hand in f16: in the window, or written by the current batch.
struct ExactRow {
    std::int32_t cell = 0;
    std::int32_t position = 0;
    bool in_batch = false;               // written by the current batch
    const std::uint16_t* row = nullptr;  // row_dim f16 values in the original space
};

class PackedCache;

/// How one batch of rows enters one stream. Made by PackedCache::plan_write before threads start, carried out by write_rows.
struct WritePlan {
    struct Move {
        std::int32_t slot;     // window slot that is written
        std::int32_t row;      // batch row that goes there
        std::int32_t carried;  // staging row that first takes the slot's old content, or -1
    };
    int stream = 0;
    std::vector<std::int32_t> cells;  // [n] cell of each batch row
    std::vector<Move> moves;
    std::vector<ExactRow> exact;  // every f16 row at hand once the batch is written
    int staging_rows = 0;         // rows of row_dim f16 that `staging` must hold; 0 for batches up to kRollbackRows
    std::uint16_t* staging = nullptr;

    /// `memory` must hold staging_rows * row_dim f16 values until the last attention over this batch is done.
    void bind_staging(std::uint16_t* memory, int row_dim);
};

class PackedCache {
public:
    PackedCache() = default;
    /// `memory`: geometry.total_bytes() bytes, 64-byte aligned, zeroed for an empty cache; it and `codec` outlive this object.
    static Result<PackedCache> create(const CacheGeometry& geometry, const RowCodec* codec, std::byte* memory);

    const CacheGeometry& geometry() const noexcept { return geometry_; }
    const RowCodec& codec() const noexcept { return *codec_; }

    /// Decides where a batch goes and updates the window's index; rows are written later by write_rows. `cells`: distinct, in
    /// [0, num_cells). `positions`: token position of each row in its sequence. `imported`: the rows come from a saved cache, in
    /// any order. Not thread-safe.
    Result<WritePlan> plan_write(int stream, std::span<const std::int32_t> cells, std::span<const std::int32_t> positions,
                                 bool imported = false);

    /// Thread ith of nth carries out its share of the plan. x: layout (n, row_dim) f32 in the original space with `row_stride`
    /// floats between rows. Rows are rounded to f16 (non-finite to 0, the first 64 channels to 9 mantissa bits: the freed bit
    /// marks exported rows), then encoded: a row's codes depend on the row alone, not on the batch.
    void write_rows(const WritePlan& plan, const float* x, std::ptrdiff_t row_stride, int ith, int nth) const noexcept;

    /// Rows of one head from codes, cells [begin, end), layout (end - begin, head_dim).
    void decode(int stream, int head, int begin, int end, float* y) const noexcept;           // in code space
    void decode_original(int stream, int head, int begin, int end, float* x) const noexcept;  // in the original space

    /// One row in the original space, from the window if it is there, else from codes.
    void read_row(int stream, int cell, float* x) const noexcept;
    /// Encodes a cell anew; a window row of it is replaced too and keeps its place and position (K-shift).
    void rewrite_row(int stream, int cell, const float* x) noexcept;
    /// Adds `delta` to the position of a cell's window row, if it has one.
    void move_position(int stream, int cell, std::int32_t delta) noexcept;
    /// Window rows of a stream.
    std::vector<ExactRow> window(int stream) const;

    /// Self-describing form of one row in `row_dim * 2` bytes, the size of an f16 row: import restores codes, window row and
    /// position exactly.
    void export_row(int stream, int cell, std::byte* out) const noexcept;
    /// ErrorCode::mismatch, changing nothing, if the row was not exported by a cache with an equal codec.
    Status import_row(int stream, int cell, const std::byte* in);

    void copy_stream(int from, int to) noexcept;
    void clear() noexcept;

    /// Codes of block `block` (kBlockCells cells) of one head, see layout.h.
    const std::uint8_t* code_block(int stream, int head, int block) const noexcept;

private:
    CacheGeometry geometry_;
    const RowCodec* codec_ = nullptr;
    std::byte* memory_ = nullptr;
};

}  // namespace VECINFER_API
