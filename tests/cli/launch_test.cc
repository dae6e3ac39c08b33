// Command lines and environments of the launchers, as pure functions.
#include "launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "verb.h"

namespace vecinfer::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;
using Words = std::vector<std::string>;

LaunchRequest request(Words passthrough) {
    return {.program = "/t/llama-server",
            .model = "m.gguf",
            .scheme = "vecinfer:k4v2",
            .plugin = "/p/libggml-vecinfer.so",
            .passthrough = std::move(passthrough)};
}

TEST(BuildLaunch, AddsModelDeviceAndFlashAttentionBeforeTheUsersArguments) {
    const Launch launch = build_launch(request({"-p", "a b", "--", "-x"}));
    EXPECT_EQ(launch.program, "/t/llama-server");
    EXPECT_THAT(launch.argv,
                ElementsAre("/t/llama-server", "-m", "m.gguf", "-dev", "VecInfer", "-fa", "on", "-p", "a b", "--", "-x"));
}

TEST(BuildLaunch, SetsTheWholeEnvironment) {
    LaunchRequest with_codebooks = request({});
    with_codebooks.codebooks = "/c/m.vecinfer.gguf";
    EXPECT_THAT(build_launch(with_codebooks).environment,
                ElementsAre(Pair("LLAMA_ARG_FIT", "off"), Pair("GGML_BACKEND_PATH", "/p/libggml-vecinfer.so"),
                            Pair("VECINFER_SCHEME", "vecinfer:k4v2"), Pair("VECINFER_CODEBOOKS", "/c/m.vecinfer.gguf")));
    EXPECT_THAT(build_launch(request({})).environment.back(), Pair("VECINFER_CODEBOOKS", "none"));
}

TEST(BuildLaunch, WithoutPluginUnsetsTheEnvironmentAndNamesNoDevice) {
    LaunchRequest plain = request({});
    plain.plugin.reset();
    const Launch launch = build_launch(plain);
    EXPECT_THAT(launch.argv, ElementsAre("/t/llama-server", "-m", "m.gguf", "-fa", "on"));
    EXPECT_THAT(launch.environment, ElementsAre(Pair("GGML_BACKEND_PATH", std::nullopt), Pair("VECINFER_SCHEME", std::nullopt),
                                                Pair("VECINFER_CODEBOOKS", std::nullopt)));
}

TEST(BuildLaunch, WhatTheUserGaveIsNotAddedAgain) {
    EXPECT_THAT(build_launch(request({"-dev", "CUDA0", "-fa", "off"})).argv,
                ElementsAre("/t/llama-server", "-m", "m.gguf", "-dev", "CUDA0", "-fa", "off"));
    EXPECT_THAT(build_launch(request({"--device", "VecInfer", "--flash_attn", "on"})).argv,
                ElementsAre("/t/llama-server", "-m", "m.gguf", "--device", "VecInfer", "--flash_attn", "on"));
}

TEST(BuildLaunch, LayersStayWhereTheCacheIsCompressedUnlessTheUserSaysOtherwise) {
    const auto is_set = [](const LaunchRequest& request) {
        const Environment environment = build_launch(request).environment;
        return std::find(environment.begin(), environment.end(), Environment::value_type("LLAMA_ARG_FIT", "off")) !=
               environment.end();
    };
    EXPECT_TRUE(is_set(request({"-c", "8192", "-p", "-fit"})));
    for (const Words& words :
         {Words{"-fit", "on"}, {"--fit", "off"}, {"-fitt", "512"}, {"--fit-ctx", "4096"}, {"-dev", "CUDA0"}}) {
        EXPECT_FALSE(is_set(request(words))) << words[0];
    }
    LaunchRequest bench = request({});
    bench.value_lists = true;
    EXPECT_FALSE(is_set(bench)) << "llama-bench moves nothing by itself";
    setenv("LLAMA_ARG_FIT", "on", 1);
    EXPECT_FALSE(is_set(request({})));
    EXPECT_THAT(passthrough_notes(request({})), ElementsAre(HasSubstr("-fit on")));
    EXPECT_THAT(passthrough_notes(request({"-fit", "off"})), IsEmpty());
    unsetenv("LLAMA_ARG_FIT");
}

TEST(BuildLaunch, APromptThatLooksLikeAnOptionIsNone) {
    EXPECT_THAT(build_launch(request({"-p", "-dev", "-sys", "-fa"})).argv,
                ElementsAre("/t/llama-server", "-m", "m.gguf", "-dev", "VecInfer", "-fa", "on", "-p", "-dev", "-sys", "-fa"));
}

TEST(BuildLaunch, DefaultsOfTheVerbComeBeforeTheUsersArguments) {
    LaunchRequest bench = request({"-n", "1"});
    bench.flash_attention = "1";
    bench.defaults = {"-no-cnv"};
    EXPECT_THAT(build_launch(bench).argv,
                ElementsAre("/t/llama-server", "-m", "m.gguf", "-dev", "VecInfer", "-fa", "1", "-no-cnv", "-n", "1"));
}

TEST(PassthroughModels, SplitsAtCommasOnlyForBench) {
    const Words arguments = {"-m", "a.gguf,b.gguf", "--model", "c.gguf"};
    EXPECT_THAT(passthrough_models(arguments, true), ElementsAre("a.gguf", "b.gguf", "c.gguf"));
    EXPECT_THAT(passthrough_models(arguments, false), ElementsAre("a.gguf,b.gguf", "c.gguf"));
    EXPECT_THAT(passthrough_models(Words{"-p", "-m", "x"}, true), IsEmpty());
}

TEST(PassthroughWarnings, NameWhatKeepsTheCacheUncompressed) {
    EXPECT_THAT(passthrough_warnings(request({"-dev", "CUDA0"})), ElementsAre(HasSubstr("-dev CUDA0")));
    EXPECT_THAT(passthrough_warnings(request({"-ngl", "0"})), ElementsAre(HasSubstr("-ngl 0")));
    EXPECT_THAT(passthrough_warnings(request({"-nkvo"})), ElementsAre(HasSubstr("-nkvo")));
    EXPECT_THAT(passthrough_warnings(request({"-nkvo", "1"})), ElementsAre(HasSubstr("-nkvo")));
}

TEST(PassthroughWarnings, AreSilentWhenAllIsWell) {
    EXPECT_THAT(passthrough_warnings(request({"-dev", "CUDA0,VecInfer", "-fa", "on", "-ngl", "99", "-nkvo", "0"})), IsEmpty());
    LaunchRequest plain = request({"-dev", "CUDA0", "-fa", "off"});
    plain.plugin.reset();
    EXPECT_THAT(passthrough_warnings(plain), IsEmpty());
}

TEST(PassthroughNotes, SayThatAContextLiesInTheWindow) {
    EXPECT_THAT(passthrough_notes(request({"-c", "132"})),
                ElementsAre(AllOf(HasSubstr("-c 132"), HasSubstr("latest 128 and the first 4"))));
    EXPECT_THAT(passthrough_notes(request({"--ctx-size", "64"})), ElementsAre(HasSubstr("nothing is read from codes")));
    EXPECT_THAT(passthrough_notes(request({"-c", "133"})), IsEmpty());
    EXPECT_THAT(passthrough_notes(request({"-c", "64", "-c", "4096"})), IsEmpty()) << "the last one counts";
    EXPECT_THAT(passthrough_notes(request({"-c", "0"})), IsEmpty()) << "0 is the model's context";
    LaunchRequest wide = request({"-c", "300"});
    wide.scheme = "vecinfer:k2v2,recent=256,sink=44";
    EXPECT_THAT(passthrough_notes(wide), ElementsAre(HasSubstr("-c 300")));
    wide.scheme = "f16";
    EXPECT_THAT(passthrough_notes(wide), IsEmpty());
}

TEST(PassthroughNotes, SayThatLayersMayMove) {
    EXPECT_THAT(passthrough_notes(request({"-fit", "on"})), ElementsAre(HasSubstr("-fit on")));
    EXPECT_THAT(passthrough_notes(request({"-fitt", "100"})), ElementsAre(HasSubstr("-fit on")));
    EXPECT_THAT(passthrough_notes(request({"-fit", "off", "-fitt", "100"})), IsEmpty());
}

TEST(CheckPassthrough, RefusesWhatACompressedCacheCannotRunWith) {
    const auto message = [](Words passthrough) { return check_passthrough(request(std::move(passthrough))).message(); };
    EXPECT_EQ(
        message({"-fa", "off"}),
        "-fa: got off, expected on, as only flash attention reads a compressed cache, with scheme vecinfer:k4v2; --no-plugin "
        "runs the stock tool as it is");
    for (const Words& words : {Words{"-fa", "0"}, Words{"--flash-attn", "disabled"}, Words{"-fa", "on", "--flash_attn", "off"}}) {
        EXPECT_THAT(message(words), StartsWith("-fa: got ")) << words[0];
    }
    EXPECT_EQ(
        message({"-ctk", "q8_0"}),
        "-ctk: got q8_0, expected f16, which is what the plugin compresses, with scheme vecinfer:k4v2; --no-plugin runs the "
        "stock tool as it is");
    EXPECT_THAT(message({"--cache-type-v", "q4_0"}), StartsWith("-ctv: got q4_0"));
}

TEST(CheckPassthrough, TheLastValueCountsUnlessTheToolRunsThemAll) {
    LaunchRequest one = request({"-fa", "off", "-fa", "on", "-ctk", "q8_0", "-ctk", "f16", "-ctv", "f16"});
    EXPECT_TRUE(check_passthrough(one).ok());
    one.value_lists = true;
    EXPECT_FALSE(check_passthrough(one).ok());
    LaunchRequest lists = request({"-fa", "1,0"});
    EXPECT_TRUE(check_passthrough(lists).ok()) << "no tool but llama-bench knows lists";
    lists.value_lists = true;
    EXPECT_THAT(check_passthrough(lists).message(), StartsWith("-fa: got 0"));
    lists.passthrough = {"-ctv", "f16,q8_0"};
    EXPECT_THAT(check_passthrough(lists).message(), StartsWith("-ctv: got q8_0"));
}

TEST(CheckPassthrough, NothingIsRefusedThatIsNotCompressed) {
    const Words words = {"-fa", "off", "-ctk", "q8_0"};
    LaunchRequest plain = request(words);
    plain.plugin.reset();
    EXPECT_TRUE(check_passthrough(plain).ok());
    LaunchRequest f16 = request(words);
    f16.scheme = "f16";
    EXPECT_TRUE(check_passthrough(f16).ok());
    LaunchRequest elsewhere = request(words);
    elsewhere.passthrough.insert(elsewhere.passthrough.end(), {"-ngl", "0"});
    EXPECT_TRUE(check_passthrough(elsewhere).ok());
    EXPECT_TRUE(check_passthrough(request({"-fa", "auto", "-p", "-fa"})).ok());
}

TEST(ShellLine, QuotesEveryWordThatNeedsIt) {
    Launch launch{.program = "/t/x", .argv = {"/t/x", "it's", "", "a b", "$HOME", "plain-1.5,x=y"}};
    launch.environment = {{"VECINFER_SCHEME", "a b"}};
    EXPECT_EQ(shell_line(launch), R"(env VECINFER_SCHEME='a b' /t/x 'it'\''s' '' 'a b' '$HOME' plain-1.5,x=y)");
}

TEST(Nearest, FindsTypingMistakesOnly) {
    constexpr std::array<std::string_view, 3> kWords = {"serve", "bench", "calibrate"};
    EXPECT_EQ(nearest("srve", kWords), "serve");
    EXPECT_EQ(nearest("benhc", kWords), "bench");
    EXPECT_EQ(nearest("calib", kWords), "calibrate");
    EXPECT_EQ(nearest("teapot", kWords), "");
}

}  // namespace
}  // namespace vecinfer::cli
