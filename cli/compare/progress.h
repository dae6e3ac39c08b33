// How far a long run is and how long it will still take: one line that is rewritten on a terminal, nothing in a pipe.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace vecinfer::cli {

class Progress {
public:
    /// `stages`: the kind of every step still to do, in order. Steps of a kind are expected to take as long as those before.
    explicit Progress(std::vector<std::string> stages);

    /// Seconds that a step of `kind` took in an earlier run.
    void learn(const std::string& kind, double seconds);
    void begin(const std::string& what);
    /// Rewrites the line; call as often as wanted.
    void tick();
    /// The step that was begun is done, or will not be done.
    void end();
    /// `count` steps from the first are behind us, whether they were done or not.
    void skip_to(std::size_t count) { done_ = count; }
    /// Takes the line away.
    void clear();

    /// Expected seconds from now; negative if there is nothing to go by.
    double seconds_left() const;

private:
    using Clock = std::chrono::steady_clock;
    double expected(const std::string& kind) const;

    std::vector<std::string> stages_;
    std::size_t done_ = 0;
    std::map<std::string, std::pair<double, int>> known_;  // sum of seconds and count by kind
    std::string what_;
    Clock::time_point started_ = Clock::now();
    Clock::time_point shown_;
    bool running_ = false;
};

/// "4:05" or "1:02:03".
std::string duration_text(double seconds);

}  // namespace vecinfer::cli
