#include "interrupt.h"

#include <csignal>

namespace vecinfer::cli {
namespace {

volatile std::sig_atomic_t noted = 0;

void on_signal(int signal) {
    if (noted == 0) {
        noted = signal;
    }
}

}  // namespace

void note_interrupts() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
}

int interrupt_signal() {
    return noted;
}

}  // namespace vecinfer::cli
