#include "process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace vecinfer::cli {
namespace {

constexpr std::size_t kMaxOutput = 1 << 20;

int wait_for(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

[[noreturn]] void run_child(const std::vector<std::string>& argv, const Environment& environment, int output, int errors) {
    const int input = open("/dev/null", O_RDONLY);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    apply(environment);
    std::vector<char*> pointers;
    pointers.reserve(argv.size() + 1);
    for (const std::string& argument : argv) {
        pointers.push_back(const_cast<char*>(argument.c_str()));
    }
    pointers.push_back(nullptr);
    execv(pointers[0], pointers.data());
    _exit(127);
}

}  // namespace

void apply(const Environment& environment) {
    for (const auto& [name, value] : environment) {
        if (value) {
            setenv(name.c_str(), value->c_str(), 1);
        } else {
            unsetenv(name.c_str());
        }
    }
}

std::optional<std::string> environment_value(const char* name) {
    const char* value = std::getenv(name);
    if (!value || !*value) {
        return std::nullopt;
    }
    return std::string(value);
}

Result<Captured> capture(const std::vector<std::string>& argv, const Environment& environment, int timeout_seconds) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return Status(ErrorCode::io_error, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    }
    const pid_t child = fork();
    if (child < 0) {
        close(ends[0]);
        close(ends[1]);
        return Status(ErrorCode::io_error, fmt::format("cannot start {}: {}", argv[0], std::strerror(errno)));
    }
    if (child == 0) {
        run_child(argv, environment, ends[1], ends[1]);
    }
    close(ends[1]);

    Captured captured;
    bool timed_out = false;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_seconds);
    for (;;) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
        pollfd waiting{ends[0], POLLIN, 0};
        const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
        if (ready < 0 && errno == EINTR) {
            continue;
        }
        if (ready <= 0) {
            timed_out = true;
            kill(child, SIGKILL);
            break;
        }
        char buffer[4096];
        const ssize_t got = read(ends[0], buffer, sizeof buffer);
        if (got <= 0) {
            break;
        }
        if (captured.output.size() < kMaxOutput) {
            captured.output.append(buffer, static_cast<std::size_t>(got));
        }
    }
    close(ends[0]);
    captured.exit_code = wait_for(child);
    if (timed_out) {
        return Status(ErrorCode::cancelled, fmt::format("{} did not end within {} s", argv[0], timeout_seconds));
    }
    return captured;
}

Result<int> run_logged(const std::vector<std::string>& argv, const Environment& environment, const std::filesystem::path& out,
                       const std::filesystem::path& err, const std::function<bool()>& keep_going) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    const int output = open(out.c_str(), kFlags, 0666);
    const int errors = output < 0 ? -1 : open(err.c_str(), kFlags, 0666);
    if (errors < 0) {
        const Status status(ErrorCode::io_error,
                            fmt::format("cannot write {}: {}", (output < 0 ? out : err).string(), std::strerror(errno)));
        if (output >= 0) {
            close(output);
        }
        return status;
    }
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_child(argv, environment, output, errors);
    }
    close(output);
    close(errors);
    if (child < 0) {
        return Status(ErrorCode::io_error, fmt::format("cannot start {}: {}", argv[0], std::strerror(errno)));
    }
    for (;;) {
        siginfo_t info{};
        if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child) {
            return wait_for(child);
        }
        if (!keep_going()) {
            kill(child, SIGKILL);
            wait_for(child);
            return Status(ErrorCode::cancelled, fmt::format("{} was ended", argv[0]));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

}  // namespace vecinfer::cli
