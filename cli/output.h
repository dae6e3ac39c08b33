// Files and folders that a verb writes for the user.
#pragma once

#include <filesystem>
#include <vector>

#include "vecinfer/status.h"

namespace vecinfer::cli {

/// Where a file written to `path` belongs: behind all symbolic links, even if the last one leads to nothing yet.
std::filesystem::path behind_links(const std::filesystem::path& path);

/// Whether files can be made in a folder that exists. Makes one and removes it, which tells more than permission bits do
/// (read-only mounts, access lists). ErrorCode::io_error names the folder.
Status check_writable(const std::filesystem::path& folder);

/// A folder for results. Those that it had to make are removed again at the end if they have stayed empty.
class OutputFolder {
public:
    /// Makes the folder if needed, and checks that files can be written there.
    static Result<OutputFolder> open(const std::filesystem::path& folder);
    OutputFolder(OutputFolder&& other) noexcept : made_(std::move(other.made_)) { other.made_.clear(); }
    OutputFolder& operator=(OutputFolder&&) = delete;
    ~OutputFolder();

    /// Whether open() made the folder itself.
    bool is_new() const { return !made_.empty(); }

private:
    OutputFolder() = default;
    std::vector<std::filesystem::path> made_;  // outermost first
};

}  // namespace vecinfer::cli
