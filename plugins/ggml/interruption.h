// SIGINT and SIGTERM end a helper at once, even in the middle of a batch, and leave no temporary file behind.
#pragma once

#include <mutex>
#include <string>

namespace vecinfer::plugin {

/// From now on these signals end the process with 128 + signal and one line. Call it before any other thread is started.
void end_on_interrupt();

/// While the lock is held signals wait: a file is written as a whole or not at all.
std::unique_lock<std::mutex> hold_interrupts();

/// A file that is removed if a signal ends the process; "" for none. Call it with interrupts held.
void set_scratch_file(const std::string& path);

}  // namespace vecinfer::plugin
