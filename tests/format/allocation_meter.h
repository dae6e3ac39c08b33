// Counts what operator new hands out, to show that a damaged file cannot ask for much memory.
#pragma once

#include <cstddef>

namespace vecinfer {

/// Starts a measurement.
void reset_allocation_meter() noexcept;
/// Highest number of bytes in use at one time since then, on top of what was in use at its start.
std::size_t peak_allocation() noexcept;

}  // namespace vecinfer
