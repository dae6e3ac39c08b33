// The f16 window: which rows keep an exact copy. Rows are kept by age; whether a query reads one exactly is decided by position
// when attention runs, so up to kRollbackRows rows can be rolled back without a trace. The rows of a stream are shared by its
// sequences.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "cache/stream_view.h"
#include "vecinfer/cache.h"

namespace vecinfer {

namespace {

Status check_batch(const CacheGeometry& g, int stream, std::span<const std::int32_t> cells,
                   std::span<const std::int32_t> positions) {
    if (stream < 0 || stream >= g.num_streams) {
        return argument_error("stream", std::to_string(stream), fmt::format("0 to {}", g.num_streams - 1));
    }
    if (cells.size() != positions.size()) {
        return argument_error("positions", fmt::format("{} entries", positions.size()), fmt::format("{}", cells.size()));
    }
    for (const std::int32_t cell : cells) {
        if (cell < 0 || cell >= g.num_cells) {
            return argument_error("cells", fmt::format("cell {}", cell), fmt::format("0 to {}", g.num_cells - 1));
        }
    }
    return {};
}

using SlotOfCell = std::unordered_map<std::int32_t, int>;

SlotOfCell slots_by_cell(const StreamView& view) {
    SlotOfCell slots;
    for (int i = 0; i < view.num_slots(); ++i) {
        if (view.slots()[i].cell_plus_1 != 0) {
            slots.emplace(view.slots()[i].cell_plus_1 - 1, i);
        }
    }
    return slots;
}

// Lists the groups of the plan's cells with their rows at hand; `before` is the window before the batch. Window rows that the
// plan overwrites are copied now, while no thread writes.
void add_groups(const CacheGeometry& g, const StreamView& view, const SlotOfCell& before, WritePlan& plan) {
    std::map<std::int32_t, TokenGroup> groups;
    for (std::size_t row = 0; row < plan.cells.size(); ++row) {
        const std::int32_t index = plan.cells[row] / g.codec.group;
        const auto [it, added] = groups.try_emplace(index);
        if (added) {
            it->second.index = index;
            it->second.batch_row.fill(-1);
            it->second.window_row.fill(nullptr);
        }
        it->second.batch_row[plan.cells[row] % g.codec.group] = static_cast<std::int32_t>(row);
    }
    std::vector<bool> overwritten(static_cast<std::size_t>(view.num_slots()));
    for (const WritePlan::Move& move : plan.moves) {
        overwritten[move.slot] = true;
    }
    std::vector<std::pair<const std::uint16_t**, int>> copies;  // where the pointer goes, slot
    for (auto& [index, group] : groups) {
        for (int i = 0; i < g.codec.group; ++i) {
            const auto it = before.find(index * g.codec.group + i);
            if (group.batch_row[i] >= 0 || it == before.end()) {
                continue;
            }
            group.window_row[i] = view.window_row(it->second);
            if (overwritten[it->second]) {
                copies.emplace_back(&group.window_row[i], it->second);
            }
        }
    }
    if (!copies.empty()) {
        const std::shared_ptr<std::uint16_t[]> memory(new std::uint16_t[copies.size() * static_cast<std::size_t>(g.row_dim)]);
        std::uint16_t* out = memory.get();
        for (const auto& [pointer, slot] : copies) {
            std::copy_n(view.window_row(slot), g.row_dim, out);
            *pointer = out;
            out += g.row_dim;
        }
        plan.carried = memory;
    }
    for (auto& [index, group] : groups) {
        plan.groups.push_back(group);
    }
}

}  // namespace

void WritePlan::bind_staging(std::uint16_t* memory, int row_dim) {
    staging = memory;
    // Until now the rows of `exact` that live in staging are marked by a null pointer, in staging order.
    std::size_t next = 0;
    for (ExactRow& row : exact) {
        if (row.row == nullptr) {
            row.row = memory + next * row_dim;
            ++next;
        }
    }
}

Result<WritePlan> PackedCache::plan_write(int stream, std::span<const std::int32_t> cells,
                                          std::span<const std::int32_t> positions, bool imported) {
    if (Status status = check_batch(geometry_, stream, cells, positions); !status.ok()) {
        return status;
    }
    const StreamView view(*this, memory_, stream);
    layout::Slot* slots = view.slots();
    const int num_rows = static_cast<int>(cells.size());
    WritePlan plan;
    plan.stream = stream;
    plan.cells.assign(cells.begin(), cells.end());
    if (view.num_slots() == 0) {
        return plan;
    }

    // A cell that is written again must not leave a second copy behind.
    const SlotOfCell slot_of_cell = slots_by_cell(view);
    for (const std::int32_t cell : cells) {
        if (const auto it = slot_of_cell.find(cell); it != slot_of_cell.end()) {
            slots[it->second].cell_plus_1 = 0;
        }
    }

    // Small batches overwrite only rows that no query of theirs can still want (kRollbackRows); larger ones stage every row.
    const bool staged = num_rows > kRollbackRows;
    std::vector<layout::Slot> before(slots, slots + view.num_slots());
    std::vector<int> row_in_slot(view.num_slots(), -1);
    const std::uint64_t batch = view.next_batch(imported);
    for (int row = 0; row < num_rows; ++row) {
        const std::uint64_t stamp = layout::make_stamp(batch, positions[row], imported);
        if (positions[row] == kNotForTheWindow) {
            continue;
        }
        const int slot = view.oldest_slot(view.slot_range(positions[row]));
        if (slot >= 0 && (slots[slot].cell_plus_1 == 0 || slots[slot].stamp <= stamp)) {
            slots[slot] = {cells[row] + 1, positions[row], stamp};
            row_in_slot[slot] = row;
        }
    }

    std::vector<ExactRow> carried;
    for (int slot = 0; slot < view.num_slots(); ++slot) {
        const int row = row_in_slot[slot];
        if (row < 0) {
            if (slots[slot].cell_plus_1 != 0) {
                plan.exact.push_back({slots[slot].cell_plus_1 - 1, slots[slot].position, false, view.window_row(slot)});
            }
            continue;
        }
        std::int32_t carry = -1;
        if (staged && before[slot].cell_plus_1 != 0) {
            carry = num_rows + static_cast<std::int32_t>(carried.size());
            carried.push_back({before[slot].cell_plus_1 - 1, before[slot].position, false, nullptr});
        }
        plan.moves.push_back({slot, row, carry});
        if (!staged) {
            plan.exact.push_back({cells[row], positions[row], true, view.window_row(slot)});
        }
    }
    if (staged) {
        for (int row = 0; row < num_rows; ++row) {
            plan.exact.push_back({cells[row], positions[row], true, nullptr});
        }
        plan.exact.insert(plan.exact.end(), carried.begin(), carried.end());
        plan.staging_rows = num_rows + static_cast<int>(carried.size());
    }
    if (geometry_.codec.groups_tokens()) {
        add_groups(geometry_, view, slot_of_cell, plan);
    }
    return plan;
}

void PackedCache::rewrite_rows(int stream, std::span<const std::int32_t> cells, const float* x) noexcept {
    const StreamView view(*this, memory_, stream);
    WritePlan plan;
    plan.stream = stream;
    plan.cells.assign(cells.begin(), cells.end());
    const SlotOfCell slot_of_cell = slots_by_cell(view);
    for (std::size_t row = 0; row < cells.size(); ++row) {
        if (const auto it = slot_of_cell.find(cells[row]); it != slot_of_cell.end()) {
            plan.moves.push_back({it->second, static_cast<std::int32_t>(row), -1});
        }
    }
    if (geometry_.codec.groups_tokens()) {
        add_groups(geometry_, view, slot_of_cell, plan);
    }
    write_rows(plan, x, geometry_.row_dim, 0, 1);
}

std::vector<ExactRow> PackedCache::window(int stream) const {
    const StreamView view(*this, memory_, stream);
    std::vector<ExactRow> rows;
    for (int i = 0; i < view.num_slots(); ++i) {
        if (view.slots()[i].cell_plus_1 != 0) {
            rows.push_back({view.slots()[i].cell_plus_1 - 1, view.slots()[i].position, false, view.window_row(i)});
        }
    }
    return rows;
}

}  // namespace vecinfer
