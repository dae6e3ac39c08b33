// `vecinfer bench-kernels` with a stand-in for its helper: what is handed on, and what is refused before.
#include <gmock/gmock.h>

#include "cli/fixtures.h"

namespace vecinfer::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class BenchKernelsTest : public CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        write_tool("vecinfer-bench-kernels");
    }
};

TEST_F(BenchKernelsTest, HandsEverythingToTheHelper) {
    const CommandResult result = vecinfer({"bench-kernels", "--shape", "9/3x64", "--shape", "32/8x128", "--kv-len", "4096",
                                           "--scheme", "vecinfer:k4v2", "--tokens", "4", "-t", "2", "--repeats", "3"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(lines_after(result.out, "arg="),
                ElementsAre("--threads", "2", "--repeats", "3", "--tokens", "4", "--shape", "9/3x64", "--shape", "32/8x128",
                            "--kv-len", "4096", "--scheme", "vecinfer:k4v2"));
}

TEST_F(BenchKernelsTest, WrongOptionsAreWrongCommandLines) {
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
        {{"--shape", "8x64"}, "--shape: got 8x64, expected query heads/KV heads x head_dim"},
        {{"--shape", "8/3x64"}, "--shape: got 8/3x64"},
        {{"--shape", "8/2x60"}, "--shape: got 8/2x60"},
        {{"--shape", "8/2x64 "}, "--shape: got 8/2x64 "},
        {{"--kv-len", "0"}, "--kv-len"},
        {{"--kv-len", "many"}, "--kv-len"},
        {{"--scheme", "vecinfer:k9v9"}, "width: got 9"},
        {{"--scheme", "f16"}, "scheme: got f16, expected one whose keys and values have codebooks"},
        {{"--scheme", "kivi:k2v2"}, "scheme: got kivi:k2v2"},
        {{"--tokens", "2048"}, "--tokens: got 2048, expected at most the 1024 of --kv-len"},
        {{"--tokens", "64", "--kv-len", "4096", "--kv-len", "32"}, "--tokens: got 64, expected at most the 32"},
        {{"--frob"}, "--frob"},
    };
    for (const auto& [options, message] : cases) {
        std::vector<std::string> arguments = {"bench-kernels"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        const CommandResult result = vecinfer(arguments);
        EXPECT_EQ(result.exit_code, 2) << message;
        EXPECT_EQ(result.out, "") << message;
        EXPECT_THAT(result.err, AllOf(StartsWith("vecinfer: error: "), HasSubstr(message), HasSubstr("--help")));
    }
    EXPECT_EQ(vecinfer({"bench-kernels", "--tokens", "2048", "--kv-len", "2048"}).exit_code, 0);
}

TEST_F(BenchKernelsTest, AWrongInstructionSetIsFoundFirst) {
    const CommandResult result = vecinfer({"bench-kernels"}, {{"VECINFER_ISA", "sse1"}});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, StartsWith("vecinfer: error: VECINFER_ISA: got sse1"));
}

}  // namespace
}  // namespace vecinfer::test
