// A folder with a tiny model, sidecars, stand-ins for the llama.cpp tools and a plugin file, and a way to run the command there.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "vecinfer/sidecar.h"

namespace vecinfer::test {

struct CommandResult {
    int exit_code = 0;
    std::string out;
    std::string err;
};

struct TinyModel {
    std::string architecture = "llama";
    std::string name = "Tiny";
    int num_layers = 2;
    int num_heads = 4;
    int num_kv_heads = 2;
    int head_dim = 16;
    float weight = 1.0F;  // of every attn_norm entry; another weight is another model
};

class CliTest : public testing::Test {
protected:
    void SetUp() override;
    void TearDown() override;

    std::filesystem::path path(const std::string& name) const { return folder_ / name; }
    void write(const std::string& name, const std::string& content) const;
    void write_model(const std::string& name, const TinyModel& model = {}) const;
    /// A sidecar calibrated for `model` under `scheme`.
    Sidecar sidecar(const std::string& scheme, const std::string& model) const;
    void write_sidecar(const std::string& name, const std::string& scheme, const std::string& model) const;
    /// A shell script in tools/ that prints its arguments and the variables that the command sets, and exits with `exit_code`.
    void write_tool(const std::string& name, int exit_code = 0) const;

    /// Runs `vecinfer` in the folder. Only `environment`, the tools folder and the plugin are set; no variable of the test's own.
    CommandResult vecinfer(const std::vector<std::string>& arguments,
                           const std::map<std::string, std::string>& environment = {}) const;
    CommandResult run(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment) const;

private:
    std::filesystem::path folder_;
};

/// Lines of `text` that start with `prefix`, without it.
std::vector<std::string> lines_after(const std::string& text, const std::string& prefix);

}  // namespace vecinfer::test
