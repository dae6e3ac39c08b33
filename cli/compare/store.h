// Finished measurements on disk, so that an interrupted comparison goes on where it stopped.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "output.h"
#include "vecinfer/status.h"

namespace vecinfer::cli {

using Json = nlohmann::ordered_json;

/// Writes to a temporary file in the same folder, then renames: a reader never sees half a file. Links are followed.
Status write_file(const std::filesystem::path& path, std::string_view content);
Result<std::string> read_file(const std::filesystem::path& path);

/// 16 hexadecimal digits of hash64.
std::string hash_text(std::string_view text);
/// Hash of a file's content.
Result<std::string> hash_file(const std::filesystem::path& path);
/// What a large file is recognised by without reading it: name, size and time of change.
std::string stamp_of(const std::filesystem::path& path);
/// Letters, digits, '.' and '-' of a name, everything else as '_'.
std::string file_name_of(std::string_view name);

class ResultStore {
public:
    /// Makes the folder if needed, checks that it can be written, and keeps other comparisons out of it until destroyed. A folder
    /// that it made is removed then if nothing has been put into it.
    static Result<ResultStore> open(const std::filesystem::path& folder);
    ResultStore(ResultStore&& other) noexcept;
    ResultStore& operator=(ResultStore&&) = delete;
    ~ResultStore();

    const std::filesystem::path& folder() const { return folder_; }

    /// `inputs`: everything that decides the result; it is kept beside the result, and its hash is in the file's name.
    std::optional<Json> find(const std::string& name, const Json& inputs) const;
    Status save(const std::string& name, const Json& inputs, const Json& result) const;

private:
    explicit ResultStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
    std::filesystem::path file(const std::string& name, const Json& inputs) const;

    std::filesystem::path folder_;
    std::vector<OutputFolder> made_;  // folder_ first
    int lock_ = -1;
};

}  // namespace vecinfer::cli
