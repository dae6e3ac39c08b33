#include "interruption.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "standard_streams.h"

namespace vecinfer::plugin {
namespace {

struct State {
    std::mutex mutex;
    std::string scratch_file;
};

// Never destroyed: the thread that waits for signals may outlive main().
State& state() {
    static State* const kState = new State;
    return *kState;
}

[[noreturn]] void wait_and_end(sigset_t signals) {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0) {
    }
    const auto held = hold_interrupts();
    if (!state().scratch_file.empty()) {
        unlink(state().scratch_file.c_str());
    }
    if (isatty(STDERR_FILENO)) {
        std::fputc('\n', stderr);  // behind the line of progress
    }
    cli::write_error_line("interrupted, nothing written");
    _exit(128 + signal);
}

}  // namespace

void end_on_interrupt() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::thread(wait_and_end, signals).detach();
}

std::unique_lock<std::mutex> hold_interrupts() {
    return std::unique_lock(state().mutex);
}

void set_scratch_file(const std::string& path) {
    state().scratch_file = path;
}

}  // namespace vecinfer::plugin
