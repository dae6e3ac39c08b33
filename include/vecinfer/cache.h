// Packed cache: codes and window of one side (K or V) of one layer for all streams, in memory that the caller owns.
//
// All state lives in that memory and all-zero bytes are a valid empty cache, so clearing is memset and copying a stream is
// memcpy. Layout of the bytes: src/cache/layout.h, told in docs/cache_format.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
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
inline constexpr int kRollbackRows = 8;
/// Sequences of one stream whose sinks are kept; with more, the oldest sequences read theirs from codes.
inline constexpr int kSinkSequences = 4;

/// What decides the size. A row can be sized before it is known how many heads share it.
struct CacheGeometry {
    int row_dim = 0;  // num_kv_heads * head_dim, a multiple of 8, at least 64
    CodecSpec codec;
    int num_heads = 1;  // KV heads that share a row, or the most that could: room for what is stored per head
    bool norm = false;  // one norm byte per head and cell
    int num_cells = 0;  // per stream
    int num_streams = 1;
    WindowSpec window;  // a codec that groups tokens needs recent >= codec.group

    int window_rows() const noexcept;  // per stream: recent + kRollbackRows + kSinkSequences * sink; 0 if recent and sink are 0
    std::size_t block_bytes() const noexcept;  // kBlockCells cells of all heads: codes and what goes with them
    double row_bytes() const noexcept;         // the same per cell
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

/// A group of cells that a batch writes to, for codecs that group tokens: where the rows of its cells are at hand.
struct TokenGroup {
    std::int32_t index = 0;                                    // the group has cells [index * group, (index + 1) * group)
    std::array<std::int32_t, kBlockCells> batch_row;           // [group] row of the batch, or -1
    std::array<const std::uint16_t*, kBlockCells> window_row;  // [group] f16 row that the batch does not write, or null
};

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
    std::vector<TokenGroup> groups;                  // every group that holds one of `cells`; empty for other codecs
    std::shared_ptr<const std::uint16_t[]> carried;  // window rows of `groups` that this batch is about to overwrite

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
    /// Codecs that group tokens encode a group anew whenever one of its cells is written, from all its rows at hand (the batch
    /// and the window before it). A group whose rows are all at hand gets the codes it would get at once. A row that is not at
    /// hand any more keeps its code if the new rows fit into the group's range; else the range grows and its decoded value is
    /// rounded again, which adds at most half a step of the new range.
    void write_rows(const WritePlan& plan, const float* x, std::ptrdiff_t row_stride, int ith, int nth) const noexcept;

    /// Rows of one head from codes, cells [begin, end), layout (end - begin, head_dim).
    void decode(int stream, int head, int begin, int end, float* y) const noexcept;           // in code space
    void decode_original(int stream, int head, int begin, int end, float* x) const noexcept;  // in the original space

    /// One row in the original space, from the window if it is there, else from codes.
    void read_row(int stream, int cell, float* x) const noexcept;
    /// Encodes cells anew; window rows of them are replaced too and keep their places and positions (K-shift). x: layout
    /// (cells.size(), row_dim). Rows of one token group should come together.
    void rewrite_rows(int stream, std::span<const std::int32_t> cells, const float* x) noexcept;
    void rewrite_row(int stream, int cell, const float* x) noexcept;
    /// Adds `delta` to the position of a cell's window row, if it has one.
    void move_position(int stream, int cell, std::int32_t delta) noexcept;
    /// Window rows of a stream.
    std::vector<ExactRow> window(int stream) const;

    /// Self-describing form of one row in `row_dim * 2` bytes, the size of an f16 row: import restores codes, window row and
    /// position exactly. Rows of codecs that group tokens that are not in the window are exported as decoded and rounded to f16;
    /// import encodes them again, so that they come back up to that rounding if all rows of their group come together.
    void export_row(int stream, int cell, std::byte* out) const noexcept;
    /// ErrorCode::mismatch if the row was not exported by a cache with an equal codec.
    Status check_row(const std::byte* in) const;
    /// `in`: one exported row per cell, cells distinct. Changes nothing on an error, which is that of check_row for the first row
    /// that is refused.
    Status import_rows(int stream, std::span<const std::int32_t> cells, const std::byte* in);
    Status import_row(int stream, int cell, const std::byte* in);

    void copy_stream(int from, int to) noexcept;
    void clear() noexcept;

    /// Codes of block `block` (kBlockCells cells) of one head, see layout.h.
    const std::uint8_t* code_block(int stream, int head, int block) const noexcept;

private:
    void write_groups(const WritePlan& plan, const float* x, std::ptrdiff_t row_stride, int ith, int nth) const noexcept;

    CacheGeometry geometry_;
    const RowCodec* codec_ = nullptr;
    std::byte* memory_ = nullptr;
};

}  // namespace VECINFER_API
