#include "compare/machine.h"

#include <sched.h>

#include <array>
#include <chrono>
#include <fstream>
#include <thread>

namespace vecinfer::cli {
namespace {

struct Ticks {
    double all = 0;
    double idle = 0;
};

// First line of /proc/stat; zeros where there is none.
Ticks ticks() {
    std::ifstream stat("/proc/stat");
    std::string label;
    stat >> label;
    Ticks sum;
    for (int i = 0; i < 8; ++i) {
        double value = 0;
        stat >> value;
        sum.all += value;
        sum.idle += i == 3 || i == 4 ? value : 0;
    }
    return sum;
}

}  // namespace

std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("model name")) {
            const std::size_t at = line.find(": ");
            return at == std::string::npos ? "unknown CPU" : line.substr(at + 2);
        }
    }
    return "unknown CPU";
}

int usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
    return 1;
}

bool machine_is_quiet() {
    constexpr double kBusy = 0.2;
    constexpr int kTries = 6;
    for (int i = 0; i < kTries; ++i) {
        const Ticks before = ticks();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        const Ticks after = ticks();
        const double all = after.all - before.all;
        if (all <= 0 || 1 - (after.idle - before.idle) / all < kBusy) {
            return true;
        }
    }
    return false;
}

}  // namespace vecinfer::cli
