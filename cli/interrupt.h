// SIGINT and SIGTERM while a child works: noted, so that the verb can tidy up and say what is kept.
#pragma once

namespace vecinfer::cli {

inline constexpr int kExitSignal = 128;  // plus the signal's number, as shells have it

/// From now on these signals are noted and do not end the process.
void note_interrupts();
/// The first signal that was noted; 0: none.
int interrupt_signal();

}  // namespace vecinfer::cli
