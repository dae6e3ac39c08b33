// A folder of its own in the system's place for temporary files, removed at the end.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace vecinfer::cli {

class TemporaryFolder {
public:
    TemporaryFolder() {
        std::error_code error;
        std::string name = (std::filesystem::temp_directory_path(error) / "vecinfer-XXXXXX").string();
        if (!error && mkdtemp(name.data()) != nullptr) {
            path_ = name;
        }
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() {
        std::error_code error;
        if (!path_.empty()) {
            std::filesystem::remove_all(path_, error);
        }
    }

    /// Empty if it could not be made.
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

}  // namespace vecinfer::cli
