// The launchers as a user runs them, with stand-ins for the llama.cpp tools.
#include <gmock/gmock.h>

#include "cli/fixtures.h"

namespace vecinfer::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

MATCHER(IsOneErrorLine, "is one line of error") {
    return arg.starts_with("vecinfer: error: ") && arg.find('\n') == arg.size() - 1;
}

class ToolVerbTest : public CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        write_model("m.gguf");
        for (const char* name : {"llama-completion", "llama-cli", "llama-server", "llama-perplexity", "llama-bench"}) {
            write_tool(name);
        }
    }
};

TEST_F(ToolVerbTest, PassesArgumentsThroughUntouched) {
    const CommandResult result = vecinfer({"serve", "-m", "m.gguf", "--", "-p", "it's \"so\"  $HOME\\n", "", "--", "*", "-m2"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(lines_after(result.out, "arg="), ElementsAre("-m", "m.gguf", "-dev", "VecInfer", "-fa", "on", "-p",
                                                             "it's \"so\"  $HOME\\n", "", "--", "*", "-m2"));
    EXPECT_THAT(lines_after(result.out, "path="), ElementsAre(path("plugin.so").string()));
    EXPECT_THAT(lines_after(result.out, "scheme="), ElementsAre("vecinfer:k2v2"));
    EXPECT_THAT(lines_after(result.out, "codebooks="), ElementsAre("none"));
    EXPECT_EQ(result.err, "vecinfer: scheme vecinfer:k2v2, data-free codebooks (no m.vecinfer.gguf beside the model)\n");
}

TEST_F(ToolVerbTest, EachVerbStartsItsTool) {
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {{{"run"}, "llama-completion"},
                                                                                 {{"run", "--chat"}, "llama-cli"},
                                                                                 {{"serve"}, "llama-server"},
                                                                                 {{"perplexity"}, "llama-perplexity"},
                                                                                 {{"bench"}, "llama-bench"}};
    for (const auto& [verb, tool] : cases) {
        std::vector<std::string> arguments = verb;
        arguments.insert(arguments.end(), {"-m", "m.gguf", "--dry-run"});
        const CommandResult result = vecinfer(arguments);
        EXPECT_EQ(result.exit_code, 0) << result.err;
        EXPECT_THAT(result.out, HasSubstr("/" + tool + "' -m m.gguf -dev VecInfer -fa " + (tool == "llama-bench" ? "1" : "on")));
    }
}

TEST_F(ToolVerbTest, RunCompletesUnlessAConversationIsAskedFor) {
    EXPECT_THAT(lines_after(vecinfer({"run", "-m", "m.gguf", "--", "-n", "1"}).out, "arg="),
                ElementsAre("-m", "m.gguf", "-dev", "VecInfer", "-fa", "on", "-no-cnv", "-n", "1"));
    EXPECT_THAT(lines_after(vecinfer({"run", "-m", "m.gguf", "--", "-cnv"}).out, "arg="),
                ElementsAre("-m", "m.gguf", "-dev", "VecInfer", "-fa", "on", "-cnv"));
    EXPECT_THAT(lines_after(vecinfer({"run", "-m", "m.gguf", "--chat"}).out, "arg="),
                ElementsAre("-m", "m.gguf", "-dev", "VecInfer", "-fa", "on"));
}

TEST_F(ToolVerbTest, ExitCodesComeBack) {
    write_tool("llama-bench", 37);
    EXPECT_EQ(vecinfer({"bench", "-m", "m.gguf"}).exit_code, 37);
    write("tools/llama-bench", "#!/bin/sh\nkill -TERM $$\n");
    EXPECT_EQ(vecinfer({"bench", "-m", "m.gguf"}).exit_code, -15);
}

TEST_F(ToolVerbTest, DryRunLineDoesTheSameInAShell) {
    const std::vector<std::string> rest = {"-p", "it's  \"so\" $HOME", "", "*"};
    std::vector<std::string> arguments = {"serve", "-m", "m.gguf", "--scheme", "vecinfer:k4v2,sink=0", "--"};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    const CommandResult direct = vecinfer(arguments);
    arguments.insert(arguments.begin() + 1, "--dry-run");
    const CommandResult printed = vecinfer(arguments);
    EXPECT_EQ(printed.exit_code, 0);
    const CommandResult replayed = run({"/bin/sh", "-c", printed.out}, {});
    EXPECT_EQ(replayed.exit_code, 0) << printed.out << replayed.err;
    EXPECT_EQ(replayed.out, direct.out);
    EXPECT_THAT(direct.out, HasSubstr("scheme=vecinfer:k4v2,sink=0\n"));
}

TEST_F(ToolVerbTest, NoPluginIsThePlainTool) {
    const CommandResult result =
        vecinfer({"bench", "-m", "m.gguf", "--no-plugin", "--", "-n", "1"},
                 {{"VECINFER_PLUGIN", ""}, {"GGML_BACKEND_PATH", "/somewhere"}, {"VECINFER_SCHEME", "rubbish"}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "arg=-m\narg=m.gguf\narg=-fa\narg=1\narg=-n\narg=1\npath=unset\nscheme=unset\ncodebooks=unset\n");
    const CommandResult both = vecinfer({"bench", "-m", "m.gguf", "--no-plugin", "--scheme", "f16"});
    EXPECT_EQ(both.exit_code, 2);
    EXPECT_THAT(both.err, AllOf(IsOneErrorLine(), HasSubstr("--no-plugin"), HasSubstr("--scheme")));
}

TEST_F(ToolVerbTest, F16GoesThroughThePlugin) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    const CommandResult result = vecinfer({"perplexity", "-m", "m.gguf", "--scheme", "f16"});
    EXPECT_THAT(result.out, AllOf(HasSubstr("scheme=f16\ncodebooks=none\n"), HasSubstr("path=" + path("plugin.so").string())));
}

TEST_F(ToolVerbTest, TheSidecarBesideTheModelIsUsedAndNamed) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    const CommandResult result = vecinfer({"serve", "-m", "m.gguf"});
    EXPECT_THAT(lines_after(result.out, "codebooks="), ElementsAre(path("m.vecinfer.gguf").string()));
    EXPECT_EQ(result.err, "vecinfer: scheme vecinfer:k2v2, codebooks m.vecinfer.gguf\n");
    EXPECT_THAT(vecinfer({"serve", "-m", "m.gguf", "--codebooks", "none"}).out, HasSubstr("codebooks=none\n"));
}

TEST_F(ToolVerbTest, AWrongSidecarIsRefusedBeforeTheLaunch) {
    write_model("other.gguf", {.name = "Other", .weight = 3.0F});
    write_sidecar("c.gguf", "vecinfer:k2v2", "other.gguf");
    const CommandResult result = vecinfer({"serve", "-m", "m.gguf", "--codebooks", "c.gguf"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err,
                AllOf(IsOneErrorLine(), HasSubstr("c.gguf"), HasSubstr("m.gguf"), HasSubstr("'Other'"), HasSubstr("'Tiny'")));
}

TEST_F(ToolVerbTest, DefaultsComeFromTheEnvironment) {
    const CommandResult result =
        vecinfer({"serve", "-m", "m.gguf"}, {{"VECINFER_SCHEME", "vecinfer:k4v4"}, {"VECINFER_CODEBOOKS", "none"}});
    EXPECT_THAT(result.out, HasSubstr("scheme=vecinfer:k4v4\ncodebooks=none\n"));
    EXPECT_THAT(vecinfer({"serve", "-m", "m.gguf", "--scheme", "f16"}, {{"VECINFER_SCHEME", "vecinfer:k4v4"}}).out,
                HasSubstr("scheme=f16\n"));
}

TEST_F(ToolVerbTest, TheModelMayBeGivenAfterTheSeparator) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    const CommandResult result = vecinfer({"bench", "--", "-m", "m.gguf"});
    EXPECT_THAT(lines_after(result.out, "arg="), ElementsAre("-dev", "VecInfer", "-fa", "1", "-m", "m.gguf"));
    EXPECT_THAT(lines_after(result.out, "codebooks="), ElementsAre(path("m.vecinfer.gguf").string()));
    EXPECT_EQ(vecinfer({"bench", "-m", "m.gguf", "--", "-m", "m.gguf"}).exit_code, 2);
}

TEST_F(ToolVerbTest, SeveralModelsShareNoCodebooks) {
    write_model("n.gguf");
    const CommandResult result = vecinfer({"bench", "--", "-m", "m.gguf,n.gguf"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(IsOneErrorLine(), HasSubstr("2 models"), HasSubstr("--codebooks none")));
    EXPECT_EQ(vecinfer({"bench", "--codebooks", "none", "--", "-m", "m.gguf,n.gguf"}).exit_code, 0);
}

TEST_F(ToolVerbTest, FailuresOfFilesGiveOneLineAndStatus1) {
    write("text.gguf", "hello");
    write("empty.gguf", "");
    std::filesystem::create_directory(path("folder.gguf"));
    const std::vector<std::pair<std::string, std::string>> cases = {{"missing.gguf", "missing.gguf does not exist"},
                                                                    {"text.gguf", "text.gguf is not a GGUF file"},
                                                                    {"empty.gguf", "empty.gguf is not a GGUF file"},
                                                                    {"folder.gguf", "folder.gguf is not a file"}};
    for (const auto& [model, message] : cases) {
        const CommandResult result = vecinfer({"run", "-m", model});
        EXPECT_EQ(result.exit_code, 1) << model;
        EXPECT_EQ(result.out, "") << model;
        EXPECT_THAT(result.err, AllOf(IsOneErrorLine(), HasSubstr(message)));
    }
}

TEST_F(ToolVerbTest, MissingToolsAndPluginSayWhereTheyWereLookedFor) {
    std::filesystem::remove(path("tools/llama-server"));
    const CommandResult tool = vecinfer({"serve", "-m", "m.gguf"});
    EXPECT_EQ(tool.exit_code, 1);
    EXPECT_THAT(tool.err, AllOf(IsOneErrorLine(), HasSubstr("llama-server"), HasSubstr("VECINFER_TOOLS"),
                                HasSubstr(path("tools").string())));
    const CommandResult on_path = vecinfer({"serve", "-m", "m.gguf"}, {{"VECINFER_TOOLS", ""}, {"PATH", "/nowhere"}});
    EXPECT_THAT(on_path.err, AllOf(IsOneErrorLine(), HasSubstr("PATH"), HasSubstr("--tools-dir")));
    const CommandResult plugin = vecinfer({"bench", "-m", "m.gguf"}, {{"VECINFER_PLUGIN", "/nowhere/p.so"}});
    EXPECT_EQ(plugin.exit_code, 1);
    EXPECT_THAT(plugin.err, AllOf(IsOneErrorLine(), HasSubstr("VECINFER_PLUGIN"), HasSubstr("/nowhere/p.so")));
}

TEST_F(ToolVerbTest, ToolsDirComesBeforeTheEnvironment) {
    std::filesystem::create_directory(path("more tools"));
    std::filesystem::rename(path("tools/llama-server"), path("more tools/llama-server"));
    EXPECT_EQ(vecinfer({"serve", "-m", "m.gguf", "--tools-dir", "more tools"}).exit_code, 0);
    EXPECT_EQ(vecinfer({"bench", "-m", "m.gguf", "--tools-dir", "more tools"}).exit_code, 1);
}

TEST_F(ToolVerbTest, WrongCommandLinesGiveOneLineAndStatus2) {
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
        {{}, "no verb"},
        {{"srve"}, "did you mean 'serve'?"},
        {{"teapot"}, "run, serve, perplexity"},
        {{"--frob"}, "--frob"},
        {{"serve"}, "-m MODEL"},
        {{"serve", "-m"}, "--model"},
        {{"serve", "-m", "m.gguf", "--port", "1"}, "arguments for llama-server go after `--`"},
        {{"serve", "-m", "m.gguf", "--scheme", "vecinfer:k9v2"}, "9"},
        {{"serve", "-m", "m.gguf", "--scheme", "kivy:k2v2"}, "kivy"},
        {{"info", "--scheme", "f16", "--", "x"}, "no arguments after `--`"},
    };
    for (const auto& [arguments, message] : cases) {
        const CommandResult result = vecinfer(arguments);
        EXPECT_EQ(result.exit_code, 2) << message;
        EXPECT_EQ(result.out, "") << message;
        EXPECT_THAT(result.err, AllOf(IsOneErrorLine(), HasSubstr(message), HasSubstr("--help")));
    }
}

TEST_F(ToolVerbTest, WarnsThatADeviceLeavesTheCacheAlone) {
    const CommandResult result = vecinfer({"serve", "-m", "m.gguf", "--", "-dev", "CUDA0"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("warning: -dev CUDA0 leaves out VecInfer"));
}

TEST_F(ToolVerbTest, WhatACompressedCacheCannotRunWithIsRefusedBeforeTheLaunch) {
    for (const std::vector<std::string>& words : {std::vector<std::string>{"-fa", "off"}, {"-fa", "0"}, {"-ctv", "q8_0"}}) {
        std::vector<std::string> arguments = {"run", "-m", "m.gguf", "--", "-p", "x"};
        arguments.insert(arguments.end(), words.begin(), words.end());
        const CommandResult result = vecinfer(arguments);
        EXPECT_EQ(result.exit_code, 2);
        EXPECT_EQ(result.out, "");
        EXPECT_THAT(result.err, AllOf(IsOneErrorLine(), HasSubstr(words[0] + ": got " + words[1])));
        arguments.insert(arguments.begin() + 1, {"--scheme", "f16"});
        EXPECT_EQ(vecinfer(arguments).exit_code, 0);
    }
    const CommandResult variable = vecinfer({"serve", "-m", "m.gguf"}, {{"LLAMA_ARG_CACHE_TYPE_K", "q4_0"}});
    EXPECT_EQ(variable.exit_code, 2);
    EXPECT_THAT(variable.err, AllOf(IsOneErrorLine(), HasSubstr("LLAMA_ARG_CACHE_TYPE_K: got q4_0")));
    EXPECT_EQ(vecinfer({"serve", "-m", "m.gguf", "--", "-ctk", "f16"}, {{"LLAMA_ARG_CACHE_TYPE_K", "q4_0"}}).exit_code, 0);
}

TEST_F(ToolVerbTest, SchemeErrorsNameTheVariableAndTheHelpThatListsOptions) {
    const CommandResult variable = vecinfer({"run", "-m", "m.gguf"}, {{"VECINFER_SCHEME", "vecinfer:k9v2"}});
    EXPECT_EQ(variable.exit_code, 2);
    EXPECT_THAT(variable.err, AllOf(IsOneErrorLine(), HasSubstr("VECINFER_SCHEME: scheme: width: got 9"),
                                    HasSubstr("(see `vecinfer --help`)")));
    const CommandResult option = vecinfer({"run", "-m", "m.gguf", "--scheme", ""}, {{"VECINFER_SCHEME", "vecinfer:k4v2"}});
    EXPECT_EQ(option.exit_code, 2);
    EXPECT_THAT(option.err,
                AllOf(IsOneErrorLine(), HasSubstr("scheme: family: got nothing"), HasSubstr("(see `vecinfer --help`)")));
    const std::string help = vecinfer({"--help"}).out;
    for (const char* listed : {"recent=N", "sink=N", "layers=", "prefill=", "encode=", "innerq", "rotated"}) {
        EXPECT_THAT(help, HasSubstr(listed));
    }
}

TEST_F(ToolVerbTest, WrongVariablesAreRefusedBeforeTheLaunch) {
    write("broken.gguf", "GGUF");
    write_sidecar("good.gguf", "vecinfer:k2v2", "m.gguf");
    const std::string good = path("good.gguf").string();
    const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> cases = {
        {{"VECINFER_ISA", "sse1"}, "VECINFER_ISA: got sse1, expected "},
        {{"VECINFER_QUIET", "yes"}, "VECINFER_QUIET: got yes, expected 0 or 1"},
        {{"VECINFER_PLUGIN", "/nowhere/p.so"}, "VECINFER_PLUGIN: got /nowhere/p.so, expected the file of VecInfer's plugin"},
        {{"VECINFER_PLUGIN", "/bin/true"}, "VECINFER_PLUGIN: got /bin/true, expected the file of VecInfer's plugin"},
        {{"VECINFER_TOOLS", "/nowhere"}, "VECINFER_TOOLS: got /nowhere, expected a folder"},
        {{"VECINFER_CODEBOOKS", good + ":broken.gguf"}, "VECINFER_CODEBOOKS: broken.gguf"},
        {{"VECINFER_CODEBOOKS", good + ":"}, "VECINFER_CODEBOOKS: list of sidecars: got "},
    };
    for (const auto& [variable, message] : cases) {
        for (const char* verb : {"run", "serve", "perplexity", "bench"}) {
            const CommandResult result = vecinfer({verb, "-m", "m.gguf"}, {variable});
            EXPECT_EQ(result.exit_code, 1) << verb << message;
            EXPECT_EQ(result.out, "") << verb << message;
            EXPECT_THAT(result.err, AllOf(IsOneErrorLine(), HasSubstr(message)));
        }
    }
    // What is not used is not checked.
    EXPECT_EQ(vecinfer({"serve", "-m", "m.gguf", "--no-plugin"},
                       {{"VECINFER_ISA", "sse1"}, {"VECINFER_QUIET", "yes"}, {"VECINFER_CODEBOOKS", "broken.gguf"}})
                  .exit_code,
              0);
    EXPECT_EQ(vecinfer({"serve", "-m", "m.gguf", "--codebooks", "none"}, {{"VECINFER_CODEBOOKS", "broken.gguf"}}).exit_code, 0);
    EXPECT_EQ(vecinfer({"serve", "-m", "m.gguf", "--tools-dir", "tools"}, {{"VECINFER_TOOLS", "/nowhere"}}).exit_code, 0);
}

TEST_F(ToolVerbTest, NothingIsNoNameOfCodebooks) {
    const CommandResult result = vecinfer({"serve", "-m", "m.gguf", "--codebooks", ""});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(IsOneErrorLine(), HasSubstr("--codebooks: got nothing, expected a sidecar file or none")));
}

TEST_F(ToolVerbTest, NotesTellWhatASmallContextMeasures) {
    const CommandResult result = vecinfer({"perplexity", "-m", "m.gguf", "--", "-c", "100"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("vecinfer: note: with -c 100 nothing is read from codes"));
    EXPECT_EQ(vecinfer({"perplexity", "-m", "m.gguf", "--", "-c", "2048"}).err.find("note:"), std::string::npos);
}

TEST_F(ToolVerbTest, LayersBeyondTheModelAreRefused) {
    for (const char* verb : {"run", "serve"}) {
        const CommandResult result = vecinfer({verb, "-m", "m.gguf", "--scheme", "vecinfer:k2v2,layers=0:k4v4/1-2:f16"});
        EXPECT_EQ(result.exit_code, 2);
        EXPECT_THAT(result.err, AllOf(IsOneErrorLine(), HasSubstr("layers: got 1-2, expected layers 0 to 1: the model has 2")));
    }
    EXPECT_EQ(vecinfer({"run", "-m", "m.gguf", "--scheme", "vecinfer:k2v2,layers=0-1:k4v4"}).exit_code, 0);
}

TEST_F(ToolVerbTest, HelpAndVersion) {
    EXPECT_THAT(vecinfer({"--version"}).out, StartsWith("vecinfer 0."));
    for (const char* verb : {"run", "serve", "perplexity", "bench", "calibrate", "info", "doctor"}) {
        EXPECT_THAT(vecinfer({"--help"}).out, HasSubstr(std::string("\n  ") + verb + " "));
        const CommandResult help = vecinfer({verb, "--help"});
        EXPECT_EQ(help.exit_code, 0);
        EXPECT_EQ(help.err, "");
        EXPECT_THAT(help.out, AllOf(HasSubstr("Examples:"), HasSubstr(std::string("  vecinfer ") + verb), EndsWith("\n")));
        EXPECT_EQ(vecinfer({"help", verb}).out, help.out);
    }
}

}  // namespace
}  // namespace vecinfer::test
