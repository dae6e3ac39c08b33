// Typed access to the parts of one stream of a packed cache.
#pragma once

#include <limits>

#include "cache/layout.h"

namespace vecinfer {

/// In place of a position, for imported rows that have left the window.
inline constexpr std::int32_t kNotForTheWindow = std::numeric_limits<std::int32_t>::min();

class StreamView {
public:
    StreamView(const PackedCache& cache, std::byte* memory, int stream)
        : geometry_(cache.geometry()), codec_(cache.codec()), base_(memory + stream * geometry_.stream_bytes()) {}

    layout::Slot* slots() const { return reinterpret_cast<layout::Slot*>(base_); }
    int num_slots() const { return geometry_.window_rows(); }
    std::uint16_t* window_row(int slot) const {
        return reinterpret_cast<std::uint16_t*>(base_ + layout::slots_bytes(geometry_)) +
               static_cast<std::size_t>(slot) * geometry_.row_dim;
    }
    std::uint8_t* block(int head, int block) const {
        const std::size_t bytes = layout::block_bytes(codec_.spec(), codec_.has_norm(), 1, codec_.head_dim());
        return reinterpret_cast<std::uint8_t*>(base_ + layout::slots_bytes(geometry_) + layout::rows_bytes(geometry_)) +
               (head * layout::num_blocks(geometry_) + block) * bytes;
    }
    /// Slot that holds `cell`, or -1.
    int find_slot(int cell) const {
        for (int i = 0; i < num_slots(); ++i) {
            if (slots()[i].cell_plus_1 == cell + 1) {
                return i;
            }
        }
        return -1;
    }
    /// Slots [begin, end) that a row at `position` may take: sinks and recent rows have their own.
    std::pair<int, int> slot_range(int position) const {
        const int recent = layout::num_recent_slots(geometry_);
        return position < geometry_.window.sink ? std::pair(recent, num_slots()) : std::pair(0, recent);
    }
    /// The free or least recently written slot of a range, or -1 if the range is empty.
    int oldest_slot(std::pair<int, int> range) const {
        int best = -1;
        for (int i = range.first; i < range.second; ++i) {
            if (slots()[i].cell_plus_1 == 0) {
                return i;
            }
            if (best < 0 || slots()[i].stamp < slots()[best].stamp) {
                best = i;
            }
        }
        return best;
    }
    /// Number of the batch about to be written; a run of imports shares one.
    std::uint64_t next_batch(bool imported) const {
        std::uint64_t last = 0;
        for (int i = 0; i < num_slots(); ++i) {
            last = slots()[i].stamp > last ? slots()[i].stamp : last;
        }
        const bool last_imported = (last >> 31 & 1) != 0;
        return (last >> 32) + (imported && last_imported ? 0 : 1);
    }

private:
    const CacheGeometry& geometry_;
    const RowCodec& codec_;
    std::byte* base_;
};

}  // namespace vecinfer
