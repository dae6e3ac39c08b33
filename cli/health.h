// What doctor finds out: tools, plugin, environment, and what is wrong with them.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace vecinfer::cli {

struct Problem {
    bool is_error = true;  // else a warning: something optional is missing or has no effect
    std::string what;
    std::string remedy;
};

struct ToolHealth {
    std::string name;
    std::string path;          // empty: not found
    std::string version;       // as `--version` prints it
    std::string ggml_library;  // libggml-base that the loader finds for it; empty if it has none
    std::string ggml_version;  // from that library's file name
};

// A helper program of VecInfer, or gnuplot.
struct HelperHealth {
    std::string name;
    std::string path;  // empty: not found
};

struct VariableHealth {
    std::string name;
    std::string value;
    std::string checked_as;  // what the value is or should be; empty: VecInfer does not use the variable
    std::string problem;     // empty: none
};

struct Health {
    std::string isa;  // empty: VECINFER_ISA is wrong
    std::vector<ToolHealth> tools;
    std::string plugin;                // empty: not found
    std::string plugin_built_for;      // "<ggml version> (<commit>)", empty: unknown
    std::optional<bool> plugin_loads;  // whether a tool lists its device; nullopt: not tried
    std::vector<HelperHealth> helpers;
    std::vector<VariableHealth> variables;
    std::vector<Problem> problems;

    bool ok() const;
};

Health examine(const std::string& tools_dir);

}  // namespace vecinfer::cli
