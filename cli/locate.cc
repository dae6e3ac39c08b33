#include "locate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "process.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBuiltForMarker = "VECINFER_PLUGIN_BUILT_FOR=";

bool is_file(const fs::path& path) {
    std::error_code error;
    return fs::is_regular_file(path, error);
}

bool is_executable(const fs::path& path) {
    return is_file(path) && access(path.c_str(), X_OK) == 0;
}

fs::path full_path(const fs::path& path) {
    std::error_code error;
    const fs::path result = fs::absolute(path, error);
    return error ? path : result.lexically_normal();
}

std::vector<fs::path> path_folders() {
    std::vector<fs::path> folders;
    const std::string path = environment_value("PATH").value_or("");
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find(':', begin), path.size());
        if (end > begin) {
            folders.emplace_back(path.substr(begin, end - begin));
        }
        begin = end + 1;
    }
    return folders;
}

Result<fs::path> find_in(const std::string& folder, std::string_view name, std::string_view named_by) {
    const fs::path candidate = fs::path(folder) / name;
    if (is_executable(candidate)) {
        return full_path(candidate);
    }
    return Status(ErrorCode::not_found,
                  fmt::format("{}: no executable {} in {} (folder given by {})", name, name, folder, named_by));
}

}  // namespace

fs::path own_folder() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    return error ? fs::path() : self.parent_path();
}

Result<fs::path> find_tool(std::string_view name, const std::string& tools_dir) {
    if (!tools_dir.empty()) {
        return find_in(tools_dir, name, "--tools-dir");
    }
    if (const auto folder = environment_value("VECINFER_TOOLS")) {
        return find_in(*folder, name, "VECINFER_TOOLS");
    }
    for (const fs::path& folder : path_folders()) {
        if (is_executable(folder / name)) {
            return full_path(folder / name);
        }
    }
    return Status(
        ErrorCode::not_found,
        fmt::format("{}: not found on PATH; say where llama.cpp's tools are with --tools-dir DIR or VECINFER_TOOLS", name));
}

Result<fs::path> find_plugin() {
    for (const char* variable : {"VECINFER_PLUGIN", "GGML_BACKEND_PATH"}) {
        const auto value = environment_value(variable);
        if (!value) {
            continue;
        }
        if (is_file(*value)) {
            return full_path(*value);
        }
        return Status(ErrorCode::not_found, fmt::format("plugin: {} names {}, which is not a file", variable, *value));
    }
    const fs::path self = own_folder();
    for (const char* folder : {".", "../plugins/ggml", "../lib", "../lib/vecinfer", "../lib64", "../lib64/vecinfer"}) {
        const fs::path candidate = self / folder / kPluginFile;
        if (is_file(candidate)) {
            return full_path(candidate);
        }
    }
    // Debian-style library folders, ../lib/<architecture>/vecinfer.
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(self / "../lib", error)) {
        for (const fs::path& candidate : {entry.path() / kPluginFile, entry.path() / "vecinfer" / kPluginFile}) {
            if (is_file(candidate)) {
                return full_path(candidate);
            }
        }
    }
    return Status(
        ErrorCode::not_found,
        fmt::format("plugin: {} not found near {}; build it with -DVECINFER_LLAMA_CPP=<llama.cpp source tree> or name it in "
                    "VECINFER_PLUGIN",
                    kPluginFile, self.string()));
}

Result<fs::path> find_helper(std::string_view name, const std::string& tools_dir) {
    const fs::path self = own_folder();
    std::vector<fs::path> folders;
    if (!tools_dir.empty()) {
        folders.emplace_back(tools_dir);
    }
    if (const auto folder = environment_value("VECINFER_TOOLS")) {
        folders.emplace_back(*folder);
    }
    for (const char* folder : {".", "../libexec/vecinfer", "../plugins/ggml"}) {
        folders.push_back(self / folder);
    }
    for (const fs::path& folder : folders) {
        if (is_executable(folder / name)) {
            return full_path(folder / name);
        }
    }
    return Status(
        ErrorCode::not_found,
        fmt::format("{}: not found near {}; it is built with the plugin, see -DVECINFER_LLAMA_CPP", name, self.string()));
}

std::optional<std::string> plugin_built_for(const fs::path& plugin) {
    std::ifstream file(plugin, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const std::size_t marker = bytes.find(kBuiltForMarker);
    if (marker == std::string::npos) {
        return std::nullopt;
    }
    const std::size_t begin = marker + kBuiltForMarker.size();
    const std::size_t end = bytes.find('\0', begin);
    constexpr std::size_t kLongest = 200;
    if (end == std::string::npos || end == begin || end - begin > kLongest) {
        return std::nullopt;
    }
    return bytes.substr(begin, end - begin);
}

}  // namespace vecinfer::cli
