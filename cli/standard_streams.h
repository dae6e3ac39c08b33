// main() of the command and of its helper programs: output that could not be written is an error like any other, and files that
// are opened never take the place of a standard stream that the caller closed.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

namespace vecinfer::cli {

/// Writes "<program>: <text>" as a line to stderr. Never throws: there may be no stderr.
inline void write_error_line(std::string_view text, std::string_view program = "vecinfer") noexcept {
    std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(program.size()), program.data(), static_cast<int>(text.size()),
                 text.data());
}

/// Opens /dev/null for reading on those of the descriptors 0 to 2 that are closed, so that writing to them goes on failing.
inline void reserve_standard_streams() noexcept {
    for (int stream = 0; stream <= STDERR_FILENO; ++stream) {
        if (fcntl(stream, F_GETFD) == -1 && errno == EBADF && open("/dev/null", O_RDONLY) != stream) {
            _exit(1);
        }
    }
}

/// Runs `body` and returns its exit code; 1, with an error line, if it throws or if anything written to stdout got lost.
template <class Body>
int run_program(Body body) {
    constexpr int kFailure = 1;
    reserve_standard_streams();
    int exit_code = kFailure;
    std::string thrown;
    try {
        exit_code = body();
    } catch (const std::exception& error) {
        thrown = error.what();
    }
    errno = 0;
    const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
    if (lost) {
        // The reason of an earlier failure is forgotten by now.
        const std::string reason = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
        write_error_line("error: cannot write to stdout" + reason);
    } else if (!thrown.empty()) {
        write_error_line("error: " + thrown);
    }
    return lost && exit_code == 0 ? kFailure : exit_code;
}

}  // namespace vecinfer::cli
