#include "output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace vecinfer::cli {
namespace fs = std::filesystem;

fs::path behind_links(const fs::path& path) {
    constexpr int kMostLinks = 40;  // as many as Linux follows
    std::error_code error;
    fs::path target = path;
    for (int i = 0; i < kMostLinks && fs::is_symlink(target, error); ++i) {
        const fs::path next = fs::read_symlink(target, error);
        if (error) {
            return path;
        }
        target = target.parent_path() / next;  // `next` alone if it is absolute
    }
    return target;
}

Status check_writable(const fs::path& folder) {
    std::string trial = (folder / ".vecinfer-trial-XXXXXX").string();
    const int file = mkstemp(trial.data());
    if (file < 0) {
        return {ErrorCode::io_error, fmt::format("out: cannot write in folder {}", folder.string())};
    }
    close(file);
    unlink(trial.c_str());
    return {};
}

Result<OutputFolder> OutputFolder::open(const fs::path& folder) {
    OutputFolder output;
    std::error_code error;
    std::vector<fs::path> missing;
    for (fs::path part = folder; !part.empty() && !fs::exists(part, error); part = part.parent_path()) {
        if (part.has_filename()) {  // not so behind a '/' at the end
            missing.push_back(part);
        }
    }
    std::reverse(missing.begin(), missing.end());
    for (const fs::path& part : missing) {
        if (fs::create_directory(part, error)) {
            output.made_.push_back(part);
        }
    }
    if (error || !fs::is_directory(folder, error)) {
        return Status(ErrorCode::io_error, fmt::format("out: cannot make the folder {}: {}", folder.string(),
                                                       error ? error.message() : "there is a file of that name"));
    }
    const Status writable = check_writable(folder);
    return writable.ok() ? Result<OutputFolder>(std::move(output)) : Result<OutputFolder>(writable);
}

OutputFolder::~OutputFolder() {
    std::error_code error;
    for (auto part = made_.rbegin(); part != made_.rend(); ++part) {
        fs::remove(*part, error);
    }
}

}  // namespace vecinfer::cli
