// `vecinfer compare`: what is wrong is found before any work.
#include "cli/compare_fixture.h"
#include "vecinfer/scheme.h"

namespace vecinfer::test {
namespace {

TEST_F(CompareTest, UnknownSchemesAreRefusedWithTheKnownFamiliesBeforeAnyWork) {
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2,nonsense:k2v2"});
    expect_error(run, 2, "'nonsense:k2v2'");
    for (const std::string_view family : scheme_families()) {
        EXPECT_THAT(run.err, HasSubstr(std::string(family)));
    }
    EXPECT_FALSE(fs::exists(path("calls")));
    EXPECT_FALSE(fs::exists(path("out")));
    expect_error(compare({"--peers", "q8_0,q9_9"}), 2, "q9_9");
    expect_error(compare({"--peers", ""}), 2, "--peers: got nothing");
    EXPECT_EQ(run.err.find("rotated"), run.err.rfind("rotated")) << "families are listed once: " << run.err;
    expect_error(compare({"--schemes", "vecinfer:k2v2@"}), 2, "behind @");
}

TEST_F(CompareTest, WrongInputsAreFoundBeforeAnyWork) {
    write_model("other.gguf", {.name = "Other", .num_kv_heads = 2, .head_dim = 64, .weight = 3.0F});
    write_sidecar("foreign.gguf", "vecinfer:k2v2", "other.gguf");
    write("damaged.gguf", "GGUF");
    for (const auto& [scheme, message] : {std::pair{"vecinfer:k2v2@gone.gguf", "gone.gguf: cannot open"},
                                          {"vecinfer:k4v4@prepared.gguf", "cannot serve vecinfer:k4v4"},
                                          {"vecinfer:k2v2@foreign.gguf", "calibrated for another model"},
                                          {"vecinfer:k2v2@damaged.gguf", "damaged.gguf"},
                                          {"kivi@prepared.gguf", "has no use for them"},
                                          {"vecinfer:k2v2,layers=0-2:f16@free", "layers: got 0-2, expected layers 0 to 1"}}) {
        expect_error(compare({"--schemes", std::string("vecinfer:k4v2@free,") + scheme}), 1, message);
    }
    EXPECT_FALSE(fs::exists(path("calls")));
    EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(CompareTest, TextsThatDoNotFillTheirChunksAreRefusedBeforeAnyWork) {
    // llama-perplexity wants text for two chunks, even to measure one.
    expect_error(compare({"--schemes", "vecinfer:k2v2"}, {{"TOKENS", "511"}}), 1,
                 "text: text.txt has 511 tokens, expected at least 512 for 2 chunks of 256");
    expect_error(compare({"--schemes", "vecinfer:k2v2", "--ctx", "512", "--chunks", "10"}, {{"TOKENS", "5119"}}), 1,
                 "expected at least 5120 for 10 chunks of 512");
    const std::vector<std::string> calibrated = {"--schemes", "vecinfer:k2v2", "--calibration-text", "train.txt"};
    expect_error(compare(calibrated, {{"TOKENS", "512,4095"}}), 1,
                 "calibration text: train.txt has 4095 tokens, expected at least 4096 for 4 pieces of 1024");
    write("blank.txt", "\n \n");
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "blank.txt", "--out", "out"}), 1, "blank.txt is blank");
    EXPECT_FALSE(fs::exists(path("calls")));
    EXPECT_FALSE(fs::exists(path("out")));
    EXPECT_EQ(compare(calibrated, {{"TOKENS", "512,4096"}}).exit_code, 0);
    EXPECT_THAT(content("checks"), HasSubstr("--text text.txt --text train.txt --lengths 512,1024,2048 --depths 0.1,"));
}

TEST_F(CompareTest, LengthsTooShortForTheirNumbersAreRefusedBeforeAnyWork) {
    expect_error(compare({"--schemes", "vecinfer:k2v2", "--lengths", "128"}), 2,
                 "--lengths: got 128, expected at least 254 for the 5 keys");
    EXPECT_FALSE(fs::exists(path("calls")));
    EXPECT_FALSE(fs::exists(path("out")));
    EXPECT_EQ(compare({"--schemes", "vecinfer:k2v2", "--lengths", "128", "--no-retrieval"}).exit_code, 0);
}

TEST_F(CompareTest, WrongVariablesAreFoundBeforeAnyWork) {
    expect_error(compare({"--schemes", "vecinfer:k2v2"}, {{"VECINFER_ISA", "sse1"}}), 1, "VECINFER_ISA: got sse1, expected ");
    expect_error(compare({"--schemes", "vecinfer:k2v2"}, {{"VECINFER_QUIET", "x"}}), 1, "VECINFER_QUIET: got x, expected 0 or 1");
    EXPECT_FALSE(fs::exists(path("calls")));
    EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(CompareTest, NothingToCompareIsAnError) {
    for (const char* list : {"", ",", "vecinfer:k2v2@free,"}) {
        expect_error(compare({"--schemes", list}), 2, "--schemes: '': scheme: family: got nothing");
    }
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free"}, {{"REFUSE_ON", "vecinfer:"}});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.out, HasSubstr("vecinfer:k4v4@free: unsupported: heads too small"));
    EXPECT_THAT(run.err, HasSubstr("nothing but the base could be measured"));
    EXPECT_EQ(result()["rows"][0]["quality"]["ppl"], 12.5) << "what was measured is kept";
}

TEST_F(CompareTest, TheMeasuredTextIsNotACalibrationText) {
    expect_error(compare({"--calibration-text", "text.txt"}), 1, "is the text that is measured");
    write("copy.txt", "Some text.");
    expect_error(compare({"--calibration-text", "copy.txt"}), 1, "copy.txt is the text that is measured");
    EXPECT_FALSE(fs::exists(path("calls")));
}

TEST_F(CompareTest, FoldersThatCannotBeWrittenAreFoundBeforeAnyWork) {
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "text.txt", "--out", "/proc/x", "--schemes", "f16"},
                          {{"CALLS", path("calls").string()}, {"CHECKS", path("checks").string()}}),
                 1, "out: cannot make the folder /proc/x");
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "text.txt", "--out", "text.txt", "--schemes", "f16"},
                          {{"CALLS", path("calls").string()}, {"CHECKS", path("checks").string()}}),
                 1, "out: ");
    EXPECT_FALSE(fs::exists(path("calls")));
}

TEST_F(CompareTest, WrongCommandLines) {
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "text.txt", "--out", "o", "--ctx", "64"}), 2, "too few tokens");
    expect_error(compare({"--lengths", "1024,4096"}), 2, "at most the model's context of 2048");
    expect_error(compare({"--depths", "1.5"}), 2, "--depths");
    expect_error(compare({"extra"}), 2, "unexpected argument 'extra'");
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "text.txt"}), 2, "--out is required");
    expect_error(vecinfer({"compare", "-m", "gone.gguf", "-f", "text.txt", "--out", "o"}), 1, "gone.gguf does not exist");
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "gone.txt", "--out", "o"}), 1, "gone.txt does not exist");
}

}  // namespace
}  // namespace vecinfer::test
