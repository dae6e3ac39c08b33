// Standard streams that are full or closed: what could not be written is an error, and nothing else takes their place.
#include <gmock/gmock.h>

#include "cli/fixtures.h"

namespace vecinfer::test {
namespace {

using testing::StartsWith;

class StreamsTest : public CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        write_model("m.gguf");
    }
    /// Runs the command in a shell, with `redirections` behind it.
    CommandResult shell(const std::string& arguments, const std::string& redirections) const {
        return run({"/bin/sh", "-c", "\"$0\" " + arguments + " " + redirections, VECINFER_COMMAND},
                   {{"VECINFER_TOOLS", path("tools").string()}, {"VECINFER_PLUGIN", path("plugin.so").string()}});
    }
};

constexpr const char* kPrinting[] = {"--help",
                                     "--version",
                                     "info --help",
                                     "info --scheme vecinfer:k2v2",
                                     "info --scheme vecinfer:k2v2 --json",
                                     "doctor --json",
                                     "serve -m m.gguf --dry-run"};

TEST_F(StreamsTest, OutputThatIsLostIsOneLineOfErrorAndStatus1) {
    write_tool("llama-server");
    for (const char* arguments : kPrinting) {
        for (const auto& [redirection, reason] :
             {std::pair{"> /dev/full", "No space left on device"}, {">&-", "Bad file descriptor"}}) {
            const CommandResult result = shell(arguments, redirection);
            EXPECT_EQ(result.exit_code, 1) << arguments << redirection;
            const std::vector<std::string> errors = lines_after(result.err, "vecinfer: error: ");
            ASSERT_EQ(errors.size(), 1u) << arguments << redirection << result.err;
            EXPECT_EQ(errors[0], std::string("cannot write to stdout: ") + reason) << arguments;
        }
    }
}

TEST_F(StreamsTest, WithoutStderrTooItEndsQuietly) {
    for (const char* arguments : kPrinting) {
        const CommandResult result = shell(arguments, ">&- 2>&-");
        EXPECT_EQ(result.exit_code, 1) << arguments;
    }
    EXPECT_EQ(shell("no-such-verb", "2>&-").exit_code, 2);
    EXPECT_EQ(shell("info --scheme vecinfer:k2v2", "2>&-").exit_code, 0);
}

TEST_F(StreamsTest, AClosedStreamIsNotTakenByAFileThatIsOpened) {
    // The tool says what its stdout is. Were the closed one free, the command's first file would have got it.
    write("tools/llama-server", "#!/bin/sh\ntarget=$(readlink /proc/$$/fd/1)\necho \"$target\" >&2\n");
    std::filesystem::permissions(path("tools/llama-server"), std::filesystem::perms::owner_all);
    EXPECT_THAT(lines_after(shell("serve -m m.gguf", ">&-").err, "/"), testing::ElementsAre("dev/null"));
}

TEST_F(StreamsTest, PathsThatHoldLineBreaksStayOneLine) {
    EXPECT_THAT(shell("info \"$(printf 'a\\nb')\"", "").err, StartsWith("vecinfer: error: "));
    EXPECT_EQ(lines_after(shell("info \"$(printf 'a\\nb')\"", "").err, "").size(), 1u);
}

}  // namespace
}  // namespace vecinfer::test
