// `vecinfer compare` with stand-ins for the tools: what is run, kept, reused, refused and written.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cli/fixtures.h"
#include "vecinfer/scheme.h"

namespace vecinfer::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Says what it was asked, in a file of all calls. The base writes a file of log-probabilities of the right size: 1 chunk of 256
// tokens, 2 words: 20 + 256 * 4 + 127 * (2 + 4) * 2 bytes.
constexpr const char* kPerplexity = R"sh(#!/bin/sh
echo "perplexity ${VECINFER_SCHEME-stock} $*" >> "$CALLS"
if [ -n "$SLEEP_ON" ] && [ "$VECINFER_SCHEME" = "$SLEEP_ON" ]; then sleep 60; fi
case "$VECINFER_SCHEME" in *"$REFUSE_ON"*) if [ -n "$REFUSE_ON" ]; then echo "vecinfer: error: heads too small" >&2; exit 0; fi;; esac
case "$VECINFER_SCHEME" in *"$CRASH_ON"*) if [ -n "$CRASH_ON" ]; then kill -SEGV $$; fi;; esac
divergence=0
while [ $# -gt 0 ]; do
    case "$1" in
        --kl-divergence) divergence=1;;
        --kl-divergence-base) base="$2"; shift;;
    esac
    shift
done
if [ $divergence = 0 ]; then
    { printf '_logits_\000\001\000\000\002\000\000\000\001\000\000\000'; head -c "${LOGITS_BYTES-2548}" /dev/zero; } > "$base"
    echo "0.10.912.477 I Final estimate: PPL = 12.5000 +/- 0.10" >&2
else
    [ -s "$base" ] || exit 3
    cat <<END
====== Perplexity statistics ======
Mean PPL(Q)                   :  13.750000 ±   0.100000
Mean PPL(base)                :  12.500000 ±   0.100000
Mean ln(PPL(Q)/PPL(base))     :   0.095310 ±   0.001000
Mean PPL(Q)/PPL(base)         :   1.100000 ±   0.001000
====== KL divergence statistics ======
Mean    KLD:   0.0${KLD-5} ±   0.000100
Maximum KLD:   3.250000
99.9%   KLD:   2.500000
99.0%   KLD:   1.250000
Same top p: 87.500 ± 0.500 %
END
fi
)sh";
constexpr const char* kBench = R"sh(#!/bin/sh
echo "bench ${VECINFER_SCHEME-stock} $*" >> "$CALLS"
echo '[{"n_prompt":256,"n_gen":0,"n_depth":0,"samples_ts":[500,510,505]},{"n_prompt":0,"n_gen":16,"n_depth":0,"samples_ts":[50,52,51]},'
echo '{"n_prompt":256,"n_gen":0,"n_depth":2048,"samples_ts":[400,400]},{"n_prompt":0,"n_gen":16,"n_depth":2048,"samples_ts":[30,40]}]'
)sh";
constexpr const char* kRetrieve = R"sh(#!/bin/sh
echo "retrieve ${VECINFER_SCHEME-stock} $*" >> "$CALLS"
echo '{"length":1024,"depth":0.1,"name":"a","key":"12345","answer":" 12345.","exact":true}'
echo '{"length":1024,"depth":0.1,"name":"b","key":"12346","answer":" 1234.","exact":false}'
echo '{"length":1024,"depth":0.9,"name":"c","key":"12347","answer":" 12347.","exact":true}'
)sh";
constexpr const char* kCalibrate = R"sh(#!/bin/sh
echo "calibrate $*" >> "$CALLS"
while [ $# -gt 0 ]; do [ "$1" = --out ] && cp prepared.gguf "$2"; shift; done
)sh";

class CompareTest : public CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        write_model("m.gguf", {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64});
        write("text.txt", "Some text.");
        write("train.txt", "Other text.");
        write_sidecar("prepared.gguf", "vecinfer:k2v2", "m.gguf");
        write_script("llama-perplexity", kPerplexity);
        write_script("llama-bench", kBench);
        write_script("vecinfer-retrieve", kRetrieve);
        write_script("vecinfer-calibrate", kCalibrate);
    }

    void write_script(const std::string& name, const std::string& script) const {
        write("tools/" + name, script);
        fs::permissions(path("tools/" + name), fs::perms::owner_all);
    }

    CommandResult compare(std::vector<std::string> more, std::map<std::string, std::string> environment = {}) const {
        std::vector<std::string> argv = {"compare", "-m",    "m.gguf", "-f",       "text.txt", "--out",
                                         "out",     "--ctx", "256",    "--chunks", "1"};
        argv.insert(argv.end(), more.begin(), more.end());
        environment.emplace("CALLS", path("calls").string());
        return vecinfer(argv, environment);
    }

    std::string content(const std::string& name) const {
        std::ifstream file(path(name));
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    std::vector<std::string> calls() const { return lines_after(content("calls"), ""); }
    void forget_calls() const { fs::remove(path("calls")); }
    json result() const { return json::parse(content("out/compare.json")); }

    void expect_error(const CommandResult& result, int exit_code, const std::string& message) const {
        EXPECT_EQ(result.exit_code, exit_code) << result.err;
        EXPECT_EQ(result.out, "");
        EXPECT_THAT(result.err, AllOf(StartsWith("vecinfer: error: "), HasSubstr(message)));
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    }
};

TEST_F(CompareTest, MeasuresEachSchemeAgainstTheStockBase) {
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4,recent=64@free", "--peers", "q8_0"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::vector<std::string> all = calls();
    ASSERT_EQ(all.size(), 12u) << content("calls");
    EXPECT_THAT(all[0], AllOf(StartsWith("perplexity stock -m m.gguf -f text.txt --chunks 1 --kl-divergence-base "),
                              HasSubstr(" -c 256 -b 256 -ub 64 -fa on"), Not(HasSubstr("VecInfer"))));
    EXPECT_THAT(all[1], AllOf(StartsWith("retrieve stock "), HasSubstr("--lengths 512,1024,2048 --depths 0.1,0.3,0.5,0.7,0.9"),
                              HasSubstr("--stock --cache-type f16")));
    EXPECT_THAT(all[2], AllOf(StartsWith("bench stock "), HasSubstr("-d 0,2048"), Not(HasSubstr("-ctk"))));
    EXPECT_THAT(all[3], AllOf(StartsWith("perplexity vecinfer:"), HasSubstr("recent=128"), HasSubstr("--kl-divergence "),
                              HasSubstr("-dev VecInfer")));
    EXPECT_THAT(all[6], AllOf(StartsWith("perplexity vecinfer:"), HasSubstr("recent=64")));
    EXPECT_THAT(all[9], AllOf(StartsWith("perplexity stock "), HasSubstr("-ctk q8_0 -ctv q8_0"), Not(HasSubstr("-dev"))));
    EXPECT_THAT(all[10], HasSubstr("--stock --cache-type q8_0"));

    const json doc = result();
    EXPECT_EQ(doc["format"], "vecinfer-compare");
    EXPECT_EQ(doc["version"], 1);
    ASSERT_EQ(doc["rows"].size(), 4u);
    EXPECT_EQ(doc["rows"][0]["kind"], "base");
    EXPECT_EQ(doc["rows"][0]["quality"]["ppl"], 12.5);
    const json& row = doc["rows"][1];
    EXPECT_EQ(row["name"], "vecinfer:k2v2@free");
    EXPECT_EQ(row["codebooks"], "data-free");
    EXPECT_EQ(row["status"], "ok");
    EXPECT_EQ(row["quality"]["ppl"], 13.75);
    EXPECT_EQ(row["quality"]["ppl_ratio"], 1.1);
    EXPECT_EQ(row["quality"]["kld_mean"], 0.05);
    EXPECT_EQ(row["quality"]["kld_p99"], 1.25);
    EXPECT_EQ(row["quality"]["kld_max"], 3.25);
    EXPECT_EQ(row["quality"]["top1"], 0.875);
    EXPECT_EQ(row["retrieval"]["exact"], 2);
    EXPECT_EQ(row["retrieval"]["total"], 3);
    EXPECT_EQ(row["retrieval"]["cells"][0], json({{"length", 1024}, {"depth", 0.1}, {"exact", 1}, {"total", 2}}));
    EXPECT_EQ(row["speed"]["runs"][0]["tps"], 505);
    EXPECT_EQ(row["speed"]["runs"][3]["tps"], 35);
    // 2 layers of 2 heads of 64: 2 bits and a byte of norm per head.
    EXPECT_DOUBLE_EQ(row["bits"], 2 + 8.0 / 64);
    EXPECT_DOUBLE_EQ(row["bytes_per_token"], 2 * 2 * 2 * (64 * 2 / 8 + 1));
    EXPECT_GT(row["effective_bits"], row["bits"]);
    EXPECT_EQ(doc["rows"][3]["bits"], 8.5);
    EXPECT_EQ(doc["rows"][3]["effective_bytes_per_token"], 2 * 2 * 2 * 64 * 8.5 / 8);

    EXPECT_THAT(run.out,
                AllOf(HasSubstr("f16, stock"), HasSubstr("vecinfer:k2v2@free"), HasSubstr("vecinfer:k4v4,recent=64@free"),
                      HasSubstr("q8_0"), HasSubstr("0.05000"), HasSubstr("87.5%"), HasSubstr("2/3")));
    EXPECT_FALSE(fs::exists(path("out/base")));
    for (const auto& entry : fs::directory_iterator(path("out"))) {
        EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("logits")));
    }
}

TEST_F(CompareTest, CsvHasOneLinePerRowAndAColumnPerFigure) {
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2,sink=0@free", "--peers", "q4_0"}).exit_code, 0);
    const std::vector<std::string> lines = lines_after(content("out/compare.csv"), "");
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(
        lines[0],
        "name,kind,codebooks,status,reason,bits,bytes_per_token,effective_bits,effective_bytes_per_token,ppl,ppl_ratio,kld_mean,"
        "kld_p99,kld_max,top1,retrieval_exact,retrieval_total,pareto,prompt_tps_0,decode_tps_0,prompt_tps_2048,decode_tps_2048");
    EXPECT_THAT(lines[1], StartsWith("\"f16, stock\",base,,ok,,16.0,"));
    EXPECT_THAT(lines[2], AllOf(StartsWith("\"vecinfer:k2v2,sink=0@free\",scheme,data-free,ok,,2.125,"),
                                HasSubstr(",13.75,1.1,0.05,1.25,3.25,0.875,2,3,true,505.0,51.0,400.0,35.0")));
    EXPECT_THAT(lines[3], StartsWith("q4_0,peer,,ok,,4.5,"));
}

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

TEST_F(CompareTest, FinishedMeasurementsAreReused) {
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@free"}).exit_code, 0);
    const std::string first = content("out/compare.csv");
    forget_calls();
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@free"}).exit_code, 0);
    EXPECT_FALSE(fs::exists(path("calls"))) << content("calls");
    EXPECT_EQ(content("out/compare.csv"), first);

    // Another scheme needs the base's log-probabilities again, and nothing else of what is known.
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free", "--no-speed", "--no-retrieval"}).exit_code, 0);
    EXPECT_THAT(calls(),
                ElementsAre(StartsWith("perplexity stock"), AllOf(StartsWith("perplexity vecinfer:"), HasSubstr("d2b8"))));

    // What decides a result is part of its name.
    forget_calls();
    write("text.txt", "Changed text.");
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@free"}).exit_code, 0);
    EXPECT_THAT(calls(), ElementsAre(StartsWith("perplexity stock"), StartsWith("perplexity vecinfer")));
}

TEST_F(CompareTest, AKilledRunLosesNothingThatWasFinished) {
    const std::string slow = to_long_string(resolve(parse_scheme("vecinfer:k4v4").value(), false).value());
    const pid_t child = fork();
    if (child == 0) {
        compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free"}, {{"SLEEP_ON", slow}});
        _exit(0);
    }
    for (int i = 0; i < 200 && lines_after(content("calls"), "perplexity").size() < 3; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ASSERT_EQ(lines_after(content("calls"), "perplexity").size(), 3u);
    // The command is the child's only child.
    const std::string task = "/proc/" + std::to_string(child) + "/task/" + std::to_string(child) + "/children";
    std::ifstream children(task);
    pid_t command = 0;
    if (!(children >> command)) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        GTEST_SKIP() << task << " cannot be read";
    }
    kill(command, SIGKILL);
    waitpid(child, nullptr, 0);
    forget_calls();

    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(calls(), ElementsAre(AllOf(StartsWith("perplexity vecinfer"), HasSubstr("d2b8")), StartsWith("retrieve vecinfer"),
                                     StartsWith("bench vecinfer")));
    EXPECT_EQ(result()["rows"].size(), 3u);
}

TEST_F(CompareTest, AnInterruptSaysHowToGoOn) {
    const std::string slow = to_long_string(resolve(parse_scheme("vecinfer:k2v2").value(), false).value());
    write_script(
        "interrupt",
        "#!/bin/sh\n(while ! grep -q 'perplexity vecinfer' \"$CALLS\" 2>/dev/null; do sleep 0.05; done; kill -INT $$) &\n"
        "exec \"$@\"\n");
    const CommandResult run =
        CliTest::run({path("tools/interrupt").string(), VECINFER_COMMAND, "compare", "-m", "m.gguf", "-f", "text.txt", "--out",
                      "out", "--ctx", "256", "--chunks", "1", "--schemes", "vecinfer:k2v2@free"},
                     {{"VECINFER_TOOLS", path("tools").string()},
                      {"VECINFER_PLUGIN", path("plugin.so").string()},
                      {"CALLS", path("calls").string()},
                      {"SLEEP_ON", slow}});
    EXPECT_EQ(run.exit_code, 130);
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, AllOf(HasSubstr("interrupted"), HasSubstr("same command goes on")));
}

TEST_F(CompareTest, DamagedResultsAreMeasuredAgain) {
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@free", "--no-speed", "--no-retrieval"}).exit_code, 0);
    forget_calls();
    for (const auto& entry : fs::directory_iterator(path("out/results"))) {
        std::ofstream(entry.path()) << "{\"format\": 1, \"result\"";
    }
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@free", "--no-speed", "--no-retrieval"}).exit_code, 0);
    EXPECT_EQ(calls().size(), 2u);
}

TEST_F(CompareTest, OneCalibrationServesAllSchemesOfAKind) {
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2,vecinfer:k2v2,sink=0,vecinfer:k4v4@free", "--calibration-text",
                                       "train.txt", "--no-speed", "--no-retrieval"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::vector<std::string> calibrations = lines_after(content("calls"), "calibrate ");
    ASSERT_EQ(calibrations.size(), 1u) << content("calls");
    EXPECT_THAT(calibrations[0], AllOf(HasSubstr("--text train.txt"), HasSubstr("--chunks 8 --ctx 512")));
    EXPECT_EQ(result()["rows"][1]["codebooks"], "calibrated");
    EXPECT_EQ(result()["rows"][3]["codebooks"], "data-free");
    forget_calls();
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2", "--calibration-text", "train.txt"}).exit_code, 0);
    EXPECT_THAT(calls(), Not(Contains(StartsWith("calibrate"))));
}

TEST_F(CompareTest, WithoutCalibrationTextSchemesAreDataFreeAndSaySo) {
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2,vecinfer:k2v2,kt=smooth", "--no-speed", "--no-retrieval"}).exit_code, 0);
    const json doc = result();
    EXPECT_EQ(doc["rows"][1]["name"], "vecinfer:k2v2@free");
    EXPECT_EQ(doc["rows"][2]["status"], "unsupported");
    EXPECT_THAT(doc["rows"][2]["reason"], HasSubstr("--calibration-text"));
}

TEST_F(CompareTest, ASidecarOfTheUsersIsUsed) {
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@prepared.gguf,vecinfer:k2v2,encode=nearest@prepared.gguf", "--no-speed",
                       "--no-retrieval"})
                  .exit_code,
              0);
    const json doc = result();
    EXPECT_EQ(doc["rows"][1]["codebooks"], "prepared.gguf");
    EXPECT_EQ(doc["rows"][1]["status"], "ok");
    EXPECT_EQ(doc["rows"][2]["status"], "ok");
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

TEST_F(CompareTest, ASchemeThatCannotServeTheModelNamesTheReasonAndTheOthersGoOn) {
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free"}, {{"REFUSE_ON", "d4b8"}});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("vecinfer:k2v2@free: unsupported: heads too small"));
    const json doc = result();
    EXPECT_EQ(doc["rows"][1]["reason"], "heads too small");
    EXPECT_TRUE(doc["rows"][1]["retrieval"].is_null());
    EXPECT_EQ(doc["rows"][2]["status"], "ok");

    write_model("small.gguf", {.num_heads = 4, .num_kv_heads = 2, .head_dim = 20});
    const CommandResult small = vecinfer({"compare", "-m", "small.gguf", "-f", "text.txt", "--out", "small", "--ctx", "256",
                                          "--chunks", "1", "--schemes", "vecinfer:k1v1@free", "--peers", "q8_0"},
                                         {{"CALLS", path("calls").string()}});
    EXPECT_EQ(small.exit_code, 1);
    EXPECT_EQ(small.out, "");
    EXPECT_THAT(small.err, AllOf(HasSubstr("nothing can be compared on this model: vecinfer:k1v1@free: "),
                                 HasSubstr("; q8_0: layer 0 has heads of 20")));
    EXPECT_FALSE(fs::exists(path("small")));
}

TEST_F(CompareTest, AToolThatDiesIsReportedAndTriedAgainNextTime) {
    const CommandResult run =
        compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free", "--no-speed"}, {{"CRASH_ON", "d4b8"}});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.out, HasSubstr("vecinfer:k2v2@free: failed: quality: ended by signal 11"));
    EXPECT_EQ(result()["rows"][1]["retrieval"]["exact"], 2);  // what can be had is had
    EXPECT_EQ(result()["rows"][2]["status"], "ok");
    forget_calls();
    EXPECT_EQ(compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free", "--no-speed"}).exit_code, 0);
    EXPECT_EQ(calls().size(), 2u) << content("calls");
}

TEST_F(CompareTest, AFailedBaseStopsEverything) {
    write_script("llama-perplexity", "#!/bin/sh\necho 'you need at least 512 tokens' >&2\nexit 1\n");
    expect_error(compare({"--schemes", "vecinfer:k2v2@free"}), 1, "you need at least 512 tokens");
}

TEST_F(CompareTest, CutOffLogProbabilitiesAreNoticed) {
    expect_error(compare({"--schemes", "vecinfer:k2v2@free"}, {{"LOGITS_BYTES", "1000"}}), 1, "is the disk full?");
    EXPECT_TRUE(fs::is_empty(path("out/results")));
}

TEST_F(CompareTest, FoldersThatCannotBeWrittenAreFoundBeforeAnyWork) {
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "text.txt", "--out", "/proc/x", "--schemes", "f16"},
                          {{"CALLS", path("calls").string()}}),
                 1, "out: cannot make the folder /proc/x");
    expect_error(vecinfer({"compare", "-m", "m.gguf", "-f", "text.txt", "--out", "text.txt", "--schemes", "f16"},
                          {{"CALLS", path("calls").string()}}),
                 1, "out: ");
    EXPECT_FALSE(fs::exists(path("calls")));
}

TEST_F(CompareTest, WithoutGnuplotTheReportComesWithoutPicturesAndSaysSo) {
    fs::create_directory(path("empty"));
    // Only what the stand-ins need.
    for (const char* program : {"sh", "cat", "head", "cp", "sleep", "grep"}) {
        for (const char* folder : {"/usr/bin/", "/bin/"}) {
            if (fs::exists(folder + std::string(program))) {
                fs::create_symlink(folder + std::string(program), path("empty") / program);
                break;
            }
        }
    }
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free"}, {{"PATH", path("empty").string()}});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "vecinfer: report.html has no pictures: gnuplot is not installed (Debian package gnuplot-nox)\n");
    EXPECT_THAT(content("out/report.html"), AllOf(HasSubstr("No pictures: gnuplot is not installed"), Not(HasSubstr("<svg"))));
}

TEST_F(CompareTest, TheReportStandsAlone) {
    if (!fs::exists("/usr/bin/gnuplot")) {
        GTEST_SKIP() << "no gnuplot";
    }
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free,vecinfer:k4v4@free", "--peers", "q4_0"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "");
    const std::string page = content("out/report.html");
    std::size_t pictures = 0;
    for (std::size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1)) {
        ++pictures;
    }
    EXPECT_EQ(pictures, 3u);
    EXPECT_THAT(page, AllOf(Not(HasSubstr("src=")), Not(HasSubstr("<script src")), Not(HasSubstr("@import")),
                            HasSubstr("vecinfer:k2v2@free")));
}

TEST_F(CompareTest, JsonGoesToStdoutAlone) {
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free", "--json"});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(json::parse(run.out), result());
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
