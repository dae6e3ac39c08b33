// Where the parts are found: llama.cpp's tools, the plugin and the helper programs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vecinfer/status.h"

namespace vecinfer::cli {

inline constexpr std::string_view kPluginFile = "libggml-vecinfer.so";
inline constexpr std::string_view kCalibrateHelper = "vecinfer-calibrate";
inline constexpr std::string_view kRetrieveHelper = "vecinfer-retrieve";
inline constexpr std::string_view kInspectHelper = "vecinfer-inspect";
inline constexpr std::string_view kBenchKernelsHelper = "vecinfer-bench-kernels";

/// Folder of the running vecinfer binary, links resolved.
std::filesystem::path own_folder();

/// An absolute path to an executable of llama.cpp: in `tools_dir` if it is not empty, else in the folder that VECINFER_TOOLS
/// names if it is set, else on PATH. The first place that is named decides, so that tools of two llama.cpp builds are never
/// mixed.
Result<std::filesystem::path> find_tool(std::string_view name, const std::string& tools_dir);

/// An absolute path to a program on PATH.
Result<std::filesystem::path> find_on_path(std::string_view name);

/// The plugin: VECINFER_PLUGIN, else GGML_BACKEND_PATH, else in the build or install tree of this binary. A variable that names
/// a missing file is an error.
Result<std::filesystem::path> find_plugin();

/// A helper program that is built and installed with the plugin: in `tools_dir`, VECINFER_TOOLS, beside this binary, in
/// ../libexec/vecinfer, or in the build tree.
Result<std::filesystem::path> find_helper(std::string_view name, const std::string& tools_dir);

/// "<ggml version> (<commit>)" that a plugin file says it was built for, without loading it; nullopt if it does not say.
std::optional<std::string> plugin_built_for(const std::filesystem::path& plugin);

}  // namespace vecinfer::cli
