// `vecinfer calibrate`: everything that can go wrong is found before the hours of work start.
#include <gmock/gmock.h>

#include "cli/fixtures.h"

namespace vecinfer::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CalibrateTest : public CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        write_model("my model.gguf");
        write("text.txt", "Some text.");
        write("more.txt", "More text.");
        write_tool("vecinfer-calibrate");
    }

    void expect_failure(const std::vector<std::string>& arguments, int exit_code, const std::string& message) const {
        std::vector<std::string> argv = {"calibrate"};
        argv.insert(argv.end(), arguments.begin(), arguments.end());
        const CommandResult result = vecinfer(argv);
        EXPECT_EQ(result.exit_code, exit_code) << message;
        EXPECT_EQ(result.out, "") << message;
        EXPECT_THAT(result.err, AllOf(StartsWith("vecinfer: error: "), HasSubstr(message)));
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    }
};

TEST_F(CalibrateTest, TargetBitsAreHandedOnWithTheirWidths) {
    const CommandResult result = vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt", "--target-bits", "2.25",
                                           "--widths", "1,2,2.5,4", "--measure-chunks", "3", "--no-recall", "--dry-run"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("--target-bits 2.25 --widths 1,2,2.5,4 --measure-chunks 3 --no-recall"));
    EXPECT_THAT(vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt", "--dry-run"}).out, Not(HasSubstr("--widths")));
}

TEST_F(CalibrateTest, TextsAreUtf8) {
    const std::pair<const char*, int> bad[] = {{"caf\xe9 au lait", 4}, {"ab\xff\xfe", 2},   {"cut \xe2\x82", 6},
                                               {"\xc0\x80", 0},        {"\xed\xa0\x80", 1}, {"\xf4\x90\x80\x80", 1}};
    for (const auto& [text, byte] : bad) {
        write("bad.txt", text);
        expect_failure({"-m", "my model.gguf", "-f", "bad.txt"}, 1, "text: bad.txt is not UTF-8 at byte " + std::to_string(byte));
    }
    write("good.txt", "na\u00efve \u20ac \U0001f600 \u4e2d");
    EXPECT_EQ(vecinfer({"calibrate", "-m", "my model.gguf", "-f", "good.txt", "--dry-run"}).exit_code, 0);
}

TEST_F(CalibrateTest, DevicesAreNotReplaced) {
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "/dev/null"}, 1, "out: /dev/null is a device or pipe");
}

TEST_F(CalibrateTest, ImpossibleTargetBits) {
    const auto fails = [&](const std::vector<std::string>& options, const std::string& message) {
        std::vector<std::string> arguments = {"-m", "my model.gguf", "-f", "text.txt"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        expect_failure(arguments, 2, message);
    };
    fails({"--target-bits", "4.5"}, "--target-bits: got 4.5, expected 1 to 4, as the widths 1,2,4 allow");
    fails({"--target-bits", "1.5", "--widths", "2,4"}, "--target-bits: got 1.5, expected 2 to 4");
    fails({"--target-bits", "nan"}, "--target-bits: got nan, expected 0.5 to 16");
    fails({"--target-bits", "2.5", "--widths", "2,7"}, "--widths: scheme: width: got 7");
    fails({"--target-bits", "2.5", "--scheme", "vecinfer:k2v2,layers=0:f16"}, "one without layers=");
    fails({"--target-bits", "2.5", "--widths", "3,4", "--scheme", "innerq:k3v3"}, "widths of a family with codebooks");
}

TEST_F(CalibrateTest, WidthsAreAListAndNeedATarget) {
    const std::vector<std::string> start = {"-m", "my model.gguf", "-f", "text.txt"};
    const auto fails = [&](std::vector<std::string> options, const std::string& message) {
        options.insert(options.begin(), start.begin(), start.end());
        expect_failure(options, 2, message);
    };
    fails({"--widths", "1,4"}, "--widths requires --target-bits");
    fails({"--measure-chunks", "4"}, "--measure-chunks requires --target-bits");
    fails({"--no-recall"}, "--no-recall requires --target-bits");
    for (const char* list : {"1,,4", ",4", "4,", ""}) {
        fails({"--target-bits", "2", "--widths", list}, "--widths: got ");
    }
    fails({"--target-bits", "2", "--widths", "1,,4"}, "--widths: got 1,,4, expected widths with one comma between them");
}

TEST_F(CalibrateTest, ContextsBeyondTheModelsAreRefusedInADryRunToo) {
    for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--dry-run"}}) {
        std::vector<std::string> arguments = {"-m", "my model.gguf", "-f", "text.txt", "--ctx", "100000"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        expect_failure(arguments, 1, "--ctx: got 100000, expected at most the model's context of 2048");
    }
    EXPECT_EQ(vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt", "--ctx", "2048"}).exit_code, 0);
}

TEST_F(CalibrateTest, ALinkIsFollowedToTheFileThatIsWritten) {
    std::filesystem::create_directory(path("store"));
    std::filesystem::create_symlink("store/real.gguf", path("link.gguf"));
    std::filesystem::create_symlink("link.gguf", path("link to link.gguf"));
    const CommandResult result = vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt", "-o", "link to link.gguf"});
    EXPECT_THAT(lines_after(result.out, "arg=store/"), ElementsAre("real.gguf"));
    std::filesystem::remove(path("store"));
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "link.gguf"}, 1, "folder store does not exist");
}

TEST_F(CalibrateTest, WrongVariablesAreFoundBeforeAnyWork) {
    const CommandResult isa = vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt"}, {{"VECINFER_ISA", "sse1"}});
    EXPECT_EQ(isa.exit_code, 1);
    EXPECT_EQ(isa.out, "");
    EXPECT_THAT(isa.err, StartsWith("vecinfer: error: VECINFER_ISA: got sse1, expected "));
    const CommandResult quiet = vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt"}, {{"VECINFER_QUIET", "2"}});
    EXPECT_EQ(quiet.exit_code, 1);
    EXPECT_THAT(quiet.err, StartsWith("vecinfer: error: VECINFER_QUIET: got 2, expected 0 or 1"));
}

TEST_F(CalibrateTest, HandsEverythingToTheHelper) {
    const CommandResult result = vecinfer({"calibrate",
                                           "-m",
                                           "my model.gguf",
                                           "-f",
                                           "text.txt",
                                           "-f",
                                           "more.txt",
                                           "-o",
                                           "o.gguf",
                                           "--scheme",
                                           "vecinfer:k4v2,recent=64",
                                           "--chunks",
                                           "3",
                                           "--ctx",
                                           "128",
                                           "--seed",
                                           "18446744073709551615",
                                           "-t",
                                           "2",
                                           "--json"},
                                          {{"VECINFER_CODEBOOKS", "/stale"}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string scheme = to_long_string(resolve(parse_scheme("vecinfer:k4v2,recent=64").value(), true).value());
    EXPECT_THAT(
        lines_after(result.out, "arg="),
        ElementsAre("--model", "my model.gguf", "--text", "text.txt", "--text", "more.txt", "--out", "o.gguf", "--scheme", scheme,
                    "--chunks", "3", "--ctx", "128", "--seed", "18446744073709551615", "--threads", "2", "--json"));
    EXPECT_THAT(lines_after(result.out, "path="), ElementsAre(path("plugin.so").string()));
    EXPECT_THAT(lines_after(result.out, "codebooks="), ElementsAre("unset"));
}

TEST_F(CalibrateTest, DefaultsAreThePapersAmountOfTextInLongPiecesAndAFileBesideTheModel) {
    const CommandResult result = vecinfer({"calibrate", "-m", path("my model.gguf").string(), "-f", "text.txt"});
    EXPECT_THAT(result.out, AllOf(HasSubstr("arg=--out\narg=" + path("my model.vecinfer.gguf").string() + "\n"),
                                  HasSubstr("arg=--chunks\narg=128\narg=--ctx\narg=1024\narg=--seed\narg=0\narg=--threads\n")));
}

TEST_F(CalibrateTest, ExitCodeComesBack) {
    write_tool("vecinfer-calibrate", 9);
    EXPECT_EQ(vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt"}).exit_code, 9);
}

TEST_F(CalibrateTest, DryRunChecksButStartsNothing) {
    const CommandResult result = vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt", "--dry-run"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(StartsWith("env GGML_BACKEND_PATH="), HasSubstr("--model 'my model.gguf' --text text.txt")));
    expect_failure({"-m", "my model.gguf", "-f", "gone.txt", "--dry-run"}, 1, "gone.txt does not exist");
}

TEST_F(CalibrateTest, BadFilesAreNamed) {
    write("empty.txt", "");
    write("not.gguf", "hello hello");
    expect_failure({"-m", "gone.gguf", "-f", "text.txt"}, 1, "gone.gguf does not exist");
    expect_failure({"-m", "not.gguf", "-f", "text.txt"}, 1, "not.gguf is not a GGUF file");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-f", "empty.txt"}, 1, "empty.txt is empty");
    expect_failure({"-m", "my model.gguf", "-f", "tools"}, 1, "tools is not a file");
    write("blank.txt", " \n\t\r\n  ");
    expect_failure({"-m", "my model.gguf", "-f", "blank.txt"}, 1, "blank.txt is blank");
}

TEST_F(CalibrateTest, AModelWithoutLayersIsRefusedHere) {
    write("broken.gguf", "GGUF");
    expect_failure({"-m", "broken.gguf", "-f", "text.txt"}, 1, "broken.gguf");
    write_sidecar("sidecar.gguf", "vecinfer:k2v2", "my model.gguf");
    expect_failure({"-m", "sidecar.gguf", "-f", "text.txt"}, 1, "sidecar");
}

TEST_F(CalibrateTest, AnOutputThatCannotBeWrittenIsFoundAtOnce) {
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "gone/o.gguf"}, 1, "folder gone does not exist");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "text.txt/o.gguf"}, 1, "folder text.txt does not exist");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "tools"}, 1, "tools is a folder");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "my model.gguf"}, 1, "is the model itself");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "text.txt"}, 1, "also given as text");
}

TEST_F(CalibrateTest, AFolderThatTakesNoFilesIsFoundAtOnce) {
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "-o", "/proc/o.gguf"}, 1, "cannot write in folder /proc");
}

TEST_F(CalibrateTest, NothingIsLeftBehindByTheChecks) {
    EXPECT_EQ(vecinfer({"calibrate", "-m", "my model.gguf", "-f", "text.txt"}).exit_code, 0);
    for (const auto& entry : std::filesystem::directory_iterator(path("."))) {
        EXPECT_EQ(entry.path().filename().string().find("trial"), std::string::npos) << entry.path();
    }
}

TEST_F(CalibrateTest, WrongCommandLines) {
    expect_failure({"-f", "text.txt"}, 2, "--model is required");
    expect_failure({"-m", "my model.gguf"}, 2, "--file is required");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "more.txt"}, 2, "unexpected argument 'more.txt'");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "--scheme", "vecinfer:k7v2"}, 2, "7");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "--scheme", "f16"}, 2, "got f16");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "--chunks", "0"}, 2, "--chunks");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "--ctx", "many"}, 2, "--ctx");
    expect_failure({"-m", "my model.gguf", "-f", "text.txt", "--seed", "-1"}, 2, "--seed");
}

TEST_F(CalibrateTest, AMissingHelperSaysWhatItComesWith) {
    std::filesystem::remove(path("tools/vecinfer-calibrate"));
    std::filesystem::create_directory(path("bin"));
    std::filesystem::copy_file(VECINFER_COMMAND, path("bin/vecinfer"));
    const std::map<std::string, std::string> environment = {{"VECINFER_PLUGIN", path("plugin.so").string()}};
    const std::vector<std::string> argv = {path("bin/vecinfer").string(), "calibrate", "-m", "my model.gguf", "-f", "text.txt"};
    const CommandResult missing = run(argv, environment);
    EXPECT_EQ(missing.exit_code, 1);
    EXPECT_THAT(missing.err, AllOf(HasSubstr("vecinfer-calibrate"), HasSubstr("VECINFER_LLAMA_CPP")));

    write_tool("helper");
    std::filesystem::create_directories(path("libexec/vecinfer"));
    std::filesystem::rename(path("tools/helper"), path("libexec/vecinfer/vecinfer-calibrate"));
    EXPECT_EQ(run(argv, environment).exit_code, 0);
}

TEST_F(CalibrateTest, ThePluginOfTheInstallTreeIsFound) {
    std::filesystem::create_directory(path("bin"));
    std::filesystem::copy_file(VECINFER_COMMAND, path("bin/vecinfer"));
    std::filesystem::create_directories(path("lib/some-arch"));
    const std::vector<std::string> argv = {path("bin/vecinfer").string(), "calibrate", "-m", "my model.gguf", "-f", "text.txt"};
    const std::map<std::string, std::string> environment = {{"VECINFER_TOOLS", path("tools").string()}};
    EXPECT_EQ(run(argv, environment).exit_code, 1);
    std::filesystem::copy_file(path("plugin.so"), path("lib/some-arch/libggml-vecinfer.so"));
    EXPECT_THAT(run(argv, environment).out, HasSubstr("path=" + path("lib/some-arch/libggml-vecinfer.so").string()));
}

}  // namespace
}  // namespace vecinfer::test
