#include "compare/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace vecinfer::cli {

Progress::Progress(std::vector<std::string> stages) : stages_(std::move(stages)) {}

void Progress::learn(const std::string& kind, double seconds) {
    auto& [sum, count] = known_[kind];
    sum += seconds;
    ++count;
}

void Progress::begin(const std::string& what) {
    what_ = what;
    started_ = Clock::now();
    shown_ = {};
    running_ = true;
    tick();
}

void Progress::end() {
    running_ = false;
    ++done_;
}

double Progress::expected(const std::string& kind) const {
    if (const auto found = known_.find(kind); found != known_.end()) {
        return found->second.first / found->second.second;
    }
    double sum = 0;
    for (const auto& [name, seconds] : known_) {
        sum += seconds.first / seconds.second;
    }
    return known_.empty() ? -1 : sum / static_cast<double>(known_.size());
}

double Progress::seconds_left() const {
    if (known_.empty()) {
        return -1;
    }
    double left = 0;
    for (std::size_t i = done_; i < stages_.size(); ++i) {
        left += expected(stages_[i]);
    }
    if (running_ && done_ < stages_.size()) {
        const double spent = std::chrono::duration<double>(Clock::now() - started_).count();
        left -= std::min(spent, expected(stages_[done_]));
    }
    return left;
}

void Progress::tick() {
    const auto now = Clock::now();
    if (!isatty(STDERR_FILENO) || now - shown_ < std::chrono::milliseconds(500)) {
        return;
    }
    shown_ = now;
    const double left = seconds_left();
    fmt::print(stderr, "\r\033[K[{}/{}] {:<44.44} {:>7}  {}", std::min(done_ + 1, stages_.size()), stages_.size(), what_,
               duration_text(std::chrono::duration<double>(now - started_).count()),
               left < 0 ? "" : fmt::format("about {} left", duration_text(left)));
    std::fflush(stderr);
}

void Progress::clear() {
    if (isatty(STDERR_FILENO)) {
        fmt::print(stderr, "\r\033[K");
        std::fflush(stderr);
    }
}

std::string duration_text(double seconds) {
    const long whole = std::lround(std::max(seconds, 0.0));
    if (whole >= 3600) {
        return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
    }
    return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace vecinfer::cli
