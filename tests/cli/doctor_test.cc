// `vecinfer doctor`: every fault is named with a remedy, and only faults change the exit status.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/fixtures.h"

namespace vecinfer::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class DoctorTest : public CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        for (const char* name :
             {"llama-completion", "llama-cli", "llama-server", "llama-perplexity", "llama-bench", "vecinfer-calibrate",
              "vecinfer-retrieve", "vecinfer-inspect", "vecinfer-bench-kernels", "gnuplot"}) {
            write_tool(name);
        }
        write_bench("echo '  VecInfer: compressed cache'");
    }

    void write_bench(const std::string& list_devices) const {
        write("tools/llama-bench",
              "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'version: 1.2.3 (fake)'; exit 0; fi\n" + list_devices + "\n");
    }

    json doctor(int exit_code, std::map<std::string, std::string> environment = {}) const {
        environment.emplace("PATH", path("tools").string() + ":/usr/bin:/bin");
        const CommandResult result = vecinfer({"doctor", "--json"}, environment);
        EXPECT_EQ(result.exit_code, exit_code) << result.out;
        return json::parse(result.out, nullptr, false);
    }

    /// The problem whose text contains `what`.
    static json problem(const json& report, const std::string& what) {
        for (const json& entry : report["problems"]) {
            if (entry["what"].get<std::string>().find(what) != std::string::npos) {
                return entry;
            }
        }
        ADD_FAILURE() << "no problem with '" << what << "' in " << report.dump(2);
        return {};
    }
};

TEST_F(DoctorTest, AHealthySetUpHasNoProblems) {
    const json report = doctor(0);
    EXPECT_EQ(report["ok"], true);
    EXPECT_TRUE(report["problems"].empty()) << report["problems"];
    EXPECT_EQ(report["plugin"]["path"], path("plugin.so").string());
    EXPECT_EQ(report["plugin"]["built_for"], "0.9.9 (abc1234)");
    EXPECT_EQ(report["plugin"]["loads"], true);
    ASSERT_EQ(report["tools"].size(), 5);
    EXPECT_EQ(report["tools"][0]["version"], "1.2.3 (fake)");
    EXPECT_EQ(report["isa"]["available"][0], "scalar");
    std::vector<std::string> helpers;
    for (const json& helper : report["helpers"]) {
        helpers.push_back(helper["name"]);
        EXPECT_EQ(helper["path"], path("tools/" + helpers.back()).string());
    }
    EXPECT_EQ(helpers, (std::vector<std::string>{"vecinfer-calibrate", "vecinfer-retrieve", "vecinfer-inspect",
                                                 "vecinfer-bench-kernels", "gnuplot"}));
    EXPECT_THAT(vecinfer({"doctor"}, {{"PATH", path("tools").string() + ":/usr/bin:/bin"}}).out,
                AllOf(HasSubstr("everything is in place"), HasSubstr("\nvecinfer-bench-kernels " + path("tools").string())));
}

TEST_F(DoctorTest, MissingToolsAreAWarningUntilNoneIsLeft) {
    std::filesystem::remove(path("tools/llama-server"));
    const json some = doctor(0);
    EXPECT_EQ(problem(some, "llama-server")["severity"], "warning");
    std::filesystem::remove_all(path("tools"));
    const json none = doctor(1);
    EXPECT_EQ(problem(none, "no llama.cpp tool")["severity"], "error");
    EXPECT_EQ(problem(none, "VECINFER_TOOLS: ")["severity"], "error");
}

TEST_F(DoctorTest, AToolThatDoesNotRunIsBroken) {
    write("tools/llama-cli", "#!/bin/sh\necho 'cannot open shared object file' >&2\nexit 127\n");
    const json broken = problem(doctor(1), "llama-cli does not run");
    EXPECT_EQ(broken["severity"], "error");
    EXPECT_FALSE(broken["remedy"].get<std::string>().empty());
}

TEST_F(DoctorTest, APluginThatDoesNotLoadIsBrokenAndItsReasonIsShown) {
    write_bench("echo 'load_backend: failed to load plugin.so: wrong version' >&2; echo 'Available devices:'");
    const json report = doctor(1);
    EXPECT_EQ(report["plugin"]["loads"], false);
    EXPECT_THAT(problem(report, "does not load")["what"].get<std::string>(), HasSubstr("wrong version"));
    EXPECT_THAT(problem(report, "does not load")["remedy"].get<std::string>(), HasSubstr("VECINFER_LLAMA_CPP"));
}

TEST_F(DoctorTest, AFileThatIsNoPluginIsBroken) {
    write("plugin.so", "something else");
    EXPECT_EQ(problem(doctor(1), "does not say which llama.cpp")["severity"], "error");
    EXPECT_EQ(problem(doctor(1, {{"VECINFER_PLUGIN", "/nowhere/p.so"}}), "/nowhere/p.so")["severity"], "error");
}

TEST_F(DoctorTest, WrongVariablesAreBroken) {
    const json report = doctor(1, {{"VECINFER_SCHEME", "vecinfer:k9v9"},
                                   {"VECINFER_CODEBOOKS", "/nowhere/c.gguf"},
                                   {"VECINFER_ISA", "sse1"},
                                   {"VECINFER_QUIET", "yes"},
                                   {"VECINFER_SCEHME", "f16"},
                                   {"VECINFER_OWN_NOTES", "anything"}});
    for (const char* name : {"VECINFER_SCHEME: ", "VECINFER_CODEBOOKS: ", "VECINFER_ISA: ", "VECINFER_QUIET: "}) {
        EXPECT_EQ(problem(report, name)["severity"], "error") << name;
    }
    EXPECT_EQ(problem(report, "VECINFER_SCEHME")["severity"], "warning");
    EXPECT_THAT(problem(report, "VECINFER_SCEHME")["what"].get<std::string>(), HasSubstr("VECINFER_SCHEME"));
    EXPECT_EQ(report["problems"].size(), 5) << report["problems"];
    EXPECT_TRUE(report["isa"]["selected"].is_null());
}

TEST_F(DoctorTest, RightVariablesAreNot) {
    write_model("m.gguf");
    write_sidecar("c.gguf", "vecinfer:k2v2", "m.gguf");
    const json report = doctor(0, {{"VECINFER_SCHEME", "vecinfer:k2v2"},
                                   {"VECINFER_CODEBOOKS", path("c.gguf").string()},
                                   {"VECINFER_ISA", "scalar"},
                                   {"VECINFER_QUIET", "1"}});
    EXPECT_TRUE(report["problems"].empty()) << report["problems"];
    EXPECT_EQ(report["isa"]["selected"], "scalar");
}

TEST_F(DoctorTest, EachVariableShowsWhatIsCheckedAboutIt) {
    const std::map<std::string, std::string> environment = {{"PATH", path("tools").string() + ":/usr/bin:/bin"},
                                                            {"VECINFER_MODEL_TINY", "/nowhere/tiny.gguf"},
                                                            {"VECINFER_QUIET", "1"},
                                                            {"VECINFER_ISA", "sse1"}};
    EXPECT_THAT(vecinfer({"doctor"}, environment).out,
                AllOf(HasSubstr("VECINFER_MODEL_TINY=/nowhere/tiny.gguf (not used by vecinfer)\n"),
                      HasSubstr("VECINFER_QUIET=1 (valid: 0 or 1)\n"), HasSubstr("VECINFER_ISA=sse1 (wrong, see below)\n"),
                      HasSubstr("VECINFER_PLUGIN=" + path("plugin.so").string() + " (valid: the file of VecInfer's plugin)\n")));
    const json report = doctor(1, environment);
    for (const json& variable : report["environment"]) {
        EXPECT_EQ(variable["checked_as"].is_null(), variable["name"] == "VECINFER_MODEL_TINY") << variable;
    }
}

TEST_F(DoctorTest, ASchemeThatNeedsASidecarIsNotComplete) {
    const json unset = doctor(0, {{"VECINFER_SCHEME", "million:k4v4"}});
    EXPECT_EQ(problem(unset, "million:k4v4 needs a sidecar")["severity"], "warning");
    EXPECT_THAT(problem(unset, "needs a sidecar")["remedy"].get<std::string>(), HasSubstr("vecinfer calibrate -m MODEL"));
    EXPECT_EQ(problem(doctor(1, {{"VECINFER_SCHEME", "million:k4v4"}, {"VECINFER_CODEBOOKS", "none"}}),
                      "do not go together")["severity"],
              "error");
    write_model("m.gguf", {.head_dim = 64});
    write_sidecar("two.gguf", "vecinfer:k2v2", "m.gguf");
    write_sidecar("four.gguf", "vecinfer:k4v4", "m.gguf");
    const std::string both = path("two.gguf").string() + ":" + path("four.gguf").string();
    EXPECT_THAT(problem(doctor(1, {{"VECINFER_SCHEME", "million:k4v4"}, {"VECINFER_CODEBOOKS", path("two.gguf").string()}}),
                        "do not go together")["what"]
                    .get<std::string>(),
                HasSubstr("cannot serve million:k4v4"));
    EXPECT_TRUE(doctor(0, {{"VECINFER_SCHEME", "vecinfer:k2v2"}, {"VECINFER_CODEBOOKS", both}})["problems"].empty());
}

TEST_F(DoctorTest, MissingHelpersAreWarningsThatSayWhoNeedsThem) {
    // A copy outside the build tree, where the real helpers may exist.
    std::filesystem::create_directory(path("bin"));
    std::filesystem::copy_file(VECINFER_COMMAND, path("bin/vecinfer"));
    for (const char* name :
         {"vecinfer-calibrate", "vecinfer-retrieve", "vecinfer-inspect", "vecinfer-bench-kernels", "gnuplot"}) {
        std::filesystem::remove(path(std::string("tools/") + name));
    }
    // The tools of this test are shell scripts.
    std::filesystem::create_directory(path("shell"));
    std::filesystem::create_symlink("/bin/sh", path("shell/sh"));
    const CommandResult result =
        run({path("bin/vecinfer").string(), "doctor", "--json"}, {{"VECINFER_TOOLS", path("tools").string()},
                                                                  {"VECINFER_PLUGIN", path("plugin.so").string()},
                                                                  {"PATH", path("shell").string()}});
    EXPECT_EQ(result.exit_code, 0) << result.out;
    const json report = json::parse(result.out, nullptr, false);
    for (const auto& [name, needed_by] : {std::pair{"vecinfer-calibrate", "vecinfer calibrate"},
                                          {"vecinfer-retrieve", "vecinfer compare"},
                                          {"vecinfer-inspect", "vecinfer inspect"},
                                          {"vecinfer-bench-kernels", "vecinfer bench-kernels"},
                                          {"gnuplot", "vecinfer compare"}}) {
        EXPECT_EQ(problem(report, name)["severity"], "warning");
        EXPECT_THAT(problem(report, name)["remedy"].get<std::string>(), HasSubstr(needed_by));
    }
    for (const json& helper : report["helpers"]) {
        EXPECT_TRUE(helper["path"].is_null()) << helper;
    }
}

}  // namespace
}  // namespace vecinfer::test
