// `vecinfer compare` with stand-ins for the tools: what is run, kept, reused and written.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "cli/compare_fixture.h"
#include "vecinfer/scheme.h"

namespace vecinfer::test {
namespace {

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
    EXPECT_EQ(row["quality"]["kld_mean_err"], 0.0001);
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
        "kld_mean_err,kld_p99,kld_max,top1,retrieval_exact,retrieval_total,pareto,prompt_tps_0,decode_tps_0,prompt_tps_2048,"
        "decode_tps_2048");
    EXPECT_THAT(lines[1], StartsWith("\"f16, stock\",base,,ok,,16.0,"));
    EXPECT_THAT(lines[2], AllOf(StartsWith("\"vecinfer:k2v2,sink=0@free\",scheme,data-free,ok,,2.125,"),
                                HasSubstr(",13.75,1.1,0.05,0.0001,1.25,3.25,0.875,2,3,true,505.0,51.0,400.0,35.0")));
    EXPECT_THAT(lines[3], StartsWith("q4_0,peer,,ok,,4.5,"));
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
    for (const auto& [signal, exit_code] : {std::pair{"INT", 130}, {"TERM", 143}}) {
        forget_calls();
        write_script(
            "interrupt",
            std::string("#!/bin/sh\n(while ! grep -q 'perplexity vecinfer' \"$CALLS\" 2>/dev/null; do sleep 0.05; done; kill -") +
                signal + " $$) &\nexec \"$@\"\n");
        const CommandResult run =
            CliTest::run({path("tools/interrupt").string(), VECINFER_COMMAND, "compare", "-m", "m.gguf", "-f", "text.txt",
                          "--out", "out", "--ctx", "256", "--chunks", "1", "--schemes", "vecinfer:k2v2@free"},
                         {{"VECINFER_TOOLS", path("tools").string()},
                          {"VECINFER_PLUGIN", path("plugin.so").string()},
                          {"CALLS", path("calls").string()},
                          {"CHECKS", path("checks").string()},
                          {"SLEEP_ON", slow}});
        EXPECT_EQ(run.exit_code, exit_code);
        EXPECT_EQ(run.out, "");
        EXPECT_THAT(run.err, AllOf(HasSubstr("interrupted"), HasSubstr("same command goes on")));
    }
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
    EXPECT_THAT(calibrations[0], AllOf(HasSubstr("--text train.txt"), HasSubstr("--chunks 4 --ctx 1024")));
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

TEST_F(CompareTest, WhatTheRetrievalHelperGetsWrongIsNoFaultOfTheScheme) {
    write_script("vecinfer-retrieve",
                 "#!/bin/sh\ncase \" $* \" in *' --check '*) echo '{\"tokens\":[10000]}'; exit 0;; esac\n"
                 "echo 'vecinfer-retrieve: error: disk is on fire' >&2\nexit 1\n");
    const CommandResult run = compare({"--schemes", "vecinfer:k2v2@free"});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_EQ(result()["rows"][1]["status"], "failed");
    EXPECT_THAT(result()["rows"][1]["reason"], HasSubstr("retrieval: exit code 1: vecinfer-retrieve: error: disk is on fire"));
    EXPECT_EQ(result()["rows"][1]["quality"]["ppl"], 13.75);
}

TEST_F(CompareTest, TheToolsMoveNoLayers) {
    write_script("llama-bench", std::string(kBench) + "echo \"fit ${LLAMA_ARG_FIT-unset}\" >> \"$CALLS\"\n");
    ASSERT_EQ(compare({"--schemes", "vecinfer:k2v2@free"}, {{"LLAMA_ARG_FIT", "on"}}).exit_code, 0);
    EXPECT_THAT(lines_after(content("calls"), "fit "), ElementsAre("off", "off"));
}

TEST_F(CompareTest, TheTableStaysAlignedAndSaysHowLittleWasMeasured) {
    write_sidecar("caf\u00e9.gguf", "vecinfer:k2v2", "m.gguf");
    const CommandResult run = compare(
        {"--schemes", "vecinfer:k2v2@caf\u00e9.gguf,vecinfer:k2v2,recent=256,sink=16,layers=0:k4v4,encode=nearest@free,f16",
         "--no-speed"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    // In every row the column before the last ends where its header does.
    const std::vector<std::string> lines = lines_after(run.out, "");
    const auto columns = [](const std::string& text) {
        return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
    };
    ASSERT_THAT(lines[0], HasSubstr("  top-1  retrieval"));
    const auto width = columns(lines[0]);
    for (int i = 1; i <= 4; ++i) {
        EXPECT_EQ(columns(lines[i]), width) << lines[i];
    }
    EXPECT_THAT(run.out, AllOf(HasSubstr("KLD mean      +/-"), HasSubstr("0.00010"), HasSubstr("Only 1 chunk was measured")));
    EXPECT_THAT(content("out/report.html"), HasSubstr("Only 1 chunk was measured"));
    const CommandResult two = compare({"--chunks", "2", "--schemes", "f16", "--no-speed"});
    EXPECT_THAT(two.out, AllOf(HasSubstr("KLD mean"), Not(HasSubstr("Only 1 chunk"))));
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
                                         {{"CALLS", path("calls").string()}, {"CHECKS", path("checks").string()}});
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
    EXPECT_FALSE(fs::exists(path("out/results"))) << "nothing was finished";
    EXPECT_TRUE(fs::exists(path("out/logs")));
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

}  // namespace
}  // namespace vecinfer::test
