// `vecinfer inspect` with a stand-in for its helper: what it is asked, and what is made of its answer.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/fixtures.h"

namespace vecinfer::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

json spread(const std::string& transform, double kurtosis, bool detail) {
    json one = {{"transform", transform}, {"kurtosis", kurtosis}, {"max_over_mean", 4.5}};
    if (detail) {
        one["channel_mean_abs"] = {0.5, 0.25, 0.25, 3.0};
        one["channel_max_abs"] = {1, 1, 1, 5};
        one["token_rms"] = {1, 2};
        one["map_tokens"] = 2;
        one["map"] = {0.5, 0.25, 0.25, 3, 0.5, 0.25, 0.25, 3};
    }
    return one;
}

json answer() {
    json layers = json::array();
    for (int layer = 0; layer < 2; ++layer) {
        const json usage = {{{"num_centroids", 256}, {"codes", 32}, {"dead", 230}, {"entropy_bits", 4.25}},
                            {{"num_centroids", 256}, {"codes", 32}, {"dead", 228}, {"entropy_bits", 4.75}}};
        layers.push_back({{"layer", layer},
                          {"num_kv_heads", 2},
                          {"num_qo_heads", 4},
                          {"head_dim_k", 2},
                          {"head_dim_v", 2},
                          {"keys",
                           {{"spread", {spread("none", 17.5, false), spread("hadamard", 2.75, false)}},
                            {"relative_mse", {0.125, 0.375}},
                            {"score_rms", {0.5, 1.5}},
                            {"score_std", {2, 3}},
                            {"code_usage", usage}}},
                          {"values",
                           {{"spread", {spread("none", 3.5, false), spread("hadamard", 2.75, false)}},
                            {"relative_mse", {0.0625, 0.0625}},
                            {"code_usage", usage}}}});
    }
    return {{"format", "vecinfer-inspect"},
            {"version", 1},
            {"scheme", "vecinfer:k2v2"},
            {"codebooks", nullptr},
            {"tokens", 512},
            {"layers", layers},
            {"detail",
             {{"layer", 1},
              {"chosen", "largest score error"},
              {"keys", {spread("none", 17.5, true), spread("hadamard", 2.75, true)}}}}};
}

class InspectTest : public CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        write_model("m.gguf", {.head_dim = 64});
        write("text.txt", "Some text.");
        write("answer.json", answer().dump());
        write_script(
            "#!/bin/sh\nfor a in \"$@\"; do echo \"arg=$a\"; done > \"$CALLS\"\necho \"scheme=${VECINFER_SCHEME-unset}\" >> "
            "\"$CALLS\"\n"
            "cat answer.json\n");
    }
    void write_script(const std::string& script) const {
        write("tools/vecinfer-inspect", script);
        fs::permissions(path("tools/vecinfer-inspect"), fs::perms::owner_all);
    }
    CommandResult inspect(std::vector<std::string> more, std::map<std::string, std::string> environment = {}) const {
        more.insert(more.begin(), "inspect");
        environment.emplace("CALLS", path("calls").string());
        return vecinfer(more, environment);
    }
    std::string content(const std::string& name) const {
        std::ifstream file(path(name));
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    void expect_error(const CommandResult& result, int exit_code, const std::string& message) const {
        EXPECT_EQ(result.exit_code, exit_code) << result.err;
        EXPECT_EQ(result.out, "");
        EXPECT_THAT(result.err, AllOf(StartsWith("vecinfer: error: "), HasSubstr(message)));
    }
};

TEST_F(InspectTest, TablesShowWhatTheHelperFound) {
    const CommandResult run =
        inspect({"-m", "m.gguf", "-f", "text.txt", "--layer", "1", "-t", "3"}, {{"VECINFER_CODEBOOKS", "none"}});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(content("calls"),
                AllOf(HasSubstr("arg=--model\narg=m.gguf\narg=--text\narg=text.txt\n"), HasSubstr("arg=--codebooks\narg=none\n"),
                      HasSubstr("arg=--ctx\narg=512\narg=--threads\narg=3\narg=--layer\narg=1\n"), HasSubstr("scheme=unset")));
    // Mean and worst head of keys, scores and values; bits used; the outlier channel.
    EXPECT_THAT(run.out, AllOf(HasSubstr("17.5"), HasSubstr("0.2500"), HasSubstr("0.3750"), HasSubstr("1.000"),
                               HasSubstr("1.500"), HasSubstr("0.0625"), HasSubstr("4.50"), HasSubstr("229"),
                               HasSubstr("Keys of layer 1"), HasSubstr("head 1 ch. 1")));
    EXPECT_FALSE(fs::exists(path("inspect.html")));
}

TEST_F(InspectTest, OutGetsPageAndJson) {
    const CommandResult run = inspect({"-m", "m.gguf", "-f", "text.txt", "--out", "look"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const json doc = json::parse(content("look/inspect.json"));
    EXPECT_EQ(doc["layers"].size(), 2u);
    EXPECT_EQ(doc["model"]["file"], "m.gguf");
    if (fs::exists("/usr/bin/gnuplot")) {
        EXPECT_EQ(run.err, "");
        const std::string page = content("look/inspect.html");
        std::size_t pictures = 0;
        for (std::size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1)) {
            ++pictures;
        }
        EXPECT_EQ(pictures, 4u);
        EXPECT_THAT(page, Not(HasSubstr("<script src")));
    }
}

TEST_F(InspectTest, AMissingGnuplotIsSaid) {
    fs::create_directory(path("empty"));
    fs::create_symlink("/bin/cat", path("empty/cat"));
    const CommandResult run = inspect({"-m", "m.gguf", "-f", "text.txt", "--out", "look"}, {{"PATH", path("empty").string()}});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(run.err, "vecinfer: inspect.html has no pictures: gnuplot is not installed (Debian package gnuplot-nox)\n");
    EXPECT_THAT(content("look/inspect.html"), HasSubstr("No pictures"));
}

TEST_F(InspectTest, JsonGoesToStdout) {
    const CommandResult run = inspect({"-m", "m.gguf", "-f", "text.txt", "--json"});
    EXPECT_EQ(json::parse(run.out)["detail"]["layer"], 1);
}

TEST_F(InspectTest, WhatTheHelperRefusesIsTheError) {
    write_script("#!/bin/sh\necho 'vecinfer: error: layer: got 7, expected one of the 2 layers' >&2\nexit 1\n");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "--layer", "7"}), 1, "layer: got 7");
    write_script("#!/bin/sh\nkill -SEGV $$\n");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt"}), 1, "signal 11");
}

TEST_F(InspectTest, AFailureLeavesNoFolderOfItsOwnBehind) {
    write_script("#!/bin/sh\necho 'vecinfer: error: no' >&2\nexit 1\n");
    EXPECT_EQ(inspect({"-m", "m.gguf", "-f", "text.txt", "--out", "new/look"}).exit_code, 1);
    EXPECT_FALSE(fs::exists(path("new")));
    fs::create_directory(path("old"));
    EXPECT_EQ(inspect({"-m", "m.gguf", "-f", "text.txt", "--out", "old"}).exit_code, 1);
    EXPECT_TRUE(fs::is_empty(path("old")));
}

TEST_F(InspectTest, LinksAmongTheResultsAreFollowed) {
    fs::create_directory(path("look"));
    write("real.json", "old");
    fs::create_symlink("../real.json", path("look/inspect.json"));
    ASSERT_EQ(inspect({"-m", "m.gguf", "-f", "text.txt", "--out", "look"}).exit_code, 0);
    EXPECT_TRUE(fs::is_symlink(path("look/inspect.json")));
    EXPECT_EQ(json::parse(content("real.json"))["layers"].size(), 2u);
}

TEST_F(InspectTest, AnInterruptWritesNothing) {
    fs::create_directory(path("temporary"));
    for (const auto& [signal, exit_code] : {std::pair{"INT", 130}, {"TERM", 143}}) {
        // The helper ends its parent, which then must end the helper.
        write_script(std::string("#!/bin/sh\nkill -") + signal + " $PPID\nexec sleep 60\n");
        const CommandResult run =
            inspect({"-m", "m.gguf", "-f", "text.txt", "--out", "look"}, {{"TMPDIR", path("temporary").string()}});
        EXPECT_EQ(run.exit_code, exit_code);
        EXPECT_EQ(run.out, "");
        EXPECT_EQ(run.err, "vecinfer: interrupted, nothing written\n");
        EXPECT_FALSE(fs::exists(path("look")));
        EXPECT_TRUE(fs::is_empty(path("temporary")));
    }
}

TEST_F(InspectTest, WrongVariablesAreFoundBeforeAnyWork) {
    write("broken.gguf", "GGUF");
    for (const auto& [variable, message] :
         {std::pair{std::pair<std::string, std::string>{"VECINFER_ISA", "sse1"}, "VECINFER_ISA: got sse1"},
          {{"VECINFER_QUIET", "x"}, "VECINFER_QUIET: got x"},
          {{"VECINFER_CODEBOOKS", "broken.gguf"}, "VECINFER_CODEBOOKS: broken.gguf"}}) {
        expect_error(inspect({"-m", "m.gguf", "-f", "text.txt"}, {variable}), 1, message);
    }
    EXPECT_FALSE(fs::exists(path("calls")));
}

TEST_F(InspectTest, WrongInput) {
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "--ctx", "4096"}), 1,
                 "--ctx: got 4096, expected at most the model's context of 2048");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "--codebooks", ""}), 2, "--codebooks: got nothing, expected ");

    expect_error(inspect({"-m", "m.gguf"}), 2, "--file is required");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "--layer", "-1"}), 2, "--layer");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "--scheme", "f16"}), 2, "got f16");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "--scheme", "nonsense"}), 2, "nonsense");
    expect_error(inspect({"-m", "m.gguf", "-f", "gone.txt"}), 1, "gone.txt does not exist");
    write("empty.txt", "");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "-f", "empty.txt"}), 1, "text: empty.txt is empty");
    expect_error(inspect({"-m", "gone.gguf", "-f", "text.txt"}), 1, "gone.gguf does not exist");
    expect_error(inspect({"-m", "m.gguf", "-f", "text.txt", "--out", "/proc/x"}), 1, "cannot make the folder /proc/x");
}

}  // namespace
}  // namespace vecinfer::test
