// Stand-ins for the tools that `vecinfer compare` runs.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/fixtures.h"

namespace vecinfer::test {

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
inline constexpr const char* kPerplexity = R"sh(#!/bin/sh
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
inline constexpr const char* kBench = R"sh(#!/bin/sh
echo "bench ${VECINFER_SCHEME-stock} $*" >> "$CALLS"
echo '[{"n_prompt":256,"n_gen":0,"n_depth":0,"samples_ts":[500,510,505]},{"n_prompt":0,"n_gen":16,"n_depth":0,"samples_ts":[50,52,51]},'
echo '{"n_prompt":256,"n_gen":0,"n_depth":2048,"samples_ts":[400,400]},{"n_prompt":0,"n_gen":16,"n_depth":2048,"samples_ts":[30,40]}]'
)sh";
// With --check it says how many tokens the texts have, and it refuses lengths of 128.
inline constexpr const char* kRetrieve = R"sh(#!/bin/sh
case " $* " in *" --check "*)
    echo "check $*" >> "$CHECKS"
    case " $* " in *" --lengths 128"*) echo "vecinfer-retrieve: error: lengths: got 128, expected at least 254 for the 5 keys" >&2; exit 1;; esac
    echo "{\"tokens\":[${TOKENS-100000,100000}]}"
    exit 0;;
esac
echo "retrieve ${VECINFER_SCHEME-stock} $*" >> "$CALLS"
echo '{"length":1024,"depth":0.1,"name":"a","key":"12345","answer":" 12345.","exact":true}'
echo '{"length":1024,"depth":0.1,"name":"b","key":"12346","answer":" 1234.","exact":false}'
echo '{"length":1024,"depth":0.9,"name":"c","key":"12347","answer":" 12347.","exact":true}'
)sh";
inline constexpr const char* kCalibrate = R"sh(#!/bin/sh
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
        std::vector<std::string> argv = {"compare", "-m", "m.gguf", "-f", "text.txt", "--out", "out"};
        for (const auto& [option, value] : {std::pair{"--ctx", "256"}, {"--chunks", "1"}}) {
            if (std::find(more.begin(), more.end(), option) == more.end()) {
                argv.insert(argv.end(), {option, value});
            }
        }
        argv.insert(argv.end(), more.begin(), more.end());
        environment.emplace("CALLS", path("calls").string());
        environment.emplace("CHECKS", path("checks").string());
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

}  // namespace vecinfer::test
