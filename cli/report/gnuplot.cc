#include "report/gnuplot.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "compare/store.h"
#include "locate.h"
#include "process.h"
#include "temporary_folder.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kTimeoutSeconds = 60;

}  // namespace

std::string_view series_colour(std::size_t index) {
    constexpr std::array<std::string_view, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                          "#56b4e9", "#b8860b", "#5e3c99", "#4d4d4d"};
    return kColours[index % kColours.size()];
}

std::string gnuplot_string(std::string_view text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
        }
        quoted += c == '\n' ? ' ' : c;
    }
    return quoted + "\"";
}

Result<std::string> draw(const Picture& picture) {
    const Result<fs::path> gnuplot = find_on_path("gnuplot");
    if (!gnuplot.ok()) {
        return Status(ErrorCode::not_found, "gnuplot is not installed (Debian package gnuplot-nox)");
    }
    const TemporaryFolder folder;
    if (folder.path().empty()) {
        return Status(ErrorCode::io_error, "cannot make a temporary folder for gnuplot");
    }
    const fs::path script = folder.path() / "picture.gnuplot";
    const fs::path svg = folder.path() / "picture.svg";
    const std::string head = fmt::format(
        "set terminal svg size {},{} dynamic noenhanced font 'sans-serif,13' name '{}' background '#ffffff'\n"
        "set output {}\nset encoding utf8\n",
        picture.width, picture.height, picture.name, gnuplot_string(svg.string()));
    if (const Status status = write_file(script, head + picture.script + "\nset output\n"); !status.ok()) {
        return status;
    }
    const Result<Captured> ran = capture({gnuplot->string(), script.string()}, {{"LC_ALL", "C.UTF-8"}}, kTimeoutSeconds);
    if (!ran.ok()) {
        return ran.status();
    }
    const Result<std::string> text = read_file(svg);
    const std::size_t begin = text.ok() ? text->find("<svg") : std::string::npos;
    if (ran->exit_code != 0 || begin == std::string::npos) {
        return Status(ErrorCode::io_error, fmt::format("gnuplot failed on picture {}: {}", picture.name, ran->output));
    }
    return text->substr(begin);
}

}  // namespace vecinfer::cli
