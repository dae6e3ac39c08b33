// `vecinfer info`: the numbers are checked against sums done by hand.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/fixtures.h"

namespace vecinfer::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class InfoTest : public CliTest {
protected:
    json info(std::vector<std::string> arguments) const {
        arguments.insert(arguments.begin(), "info");
        arguments.push_back("--json");
        const CommandResult result = vecinfer(arguments);
        EXPECT_EQ(result.exit_code, 0) << result.err;
        return json::parse(result.out, nullptr, false);
    }
};

TEST_F(InfoTest, BytesOfASchemeForHeadDim128) {
    const json data = info({"--scheme", "vecinfer:k4v2", "--ctx", "1000"});
    // 8 heads of 128: keys 4 bits, values 2 bits, one norm byte per head and side.
    EXPECT_EQ(data["kv_bytes_per_token"], 8 * (128 * 4 / 8 + 128 * 2 / 8 + 2));
    EXPECT_EQ(data["code_bits"], 3.0);
    EXPECT_EQ(data["calibrated"], false);
    EXPECT_EQ(data["key"]["sub_dim"], 2);
    EXPECT_EQ(data["value"]["sub_dim"], 4);
    EXPECT_EQ(data["f16"]["kv_bytes_per_token"], 2 * 8 * 128 * 2);
    EXPECT_EQ(data["f16"]["effective_bits"], 16.0);
    // Blocks of 32 values: 34 bytes and 18 bytes.
    EXPECT_EQ(data["q8_0"]["kv_bytes_per_token"], 2 * 8 * 128 / 32 * 34);
    EXPECT_EQ(data["q4_0"]["kv_bytes_per_token"], 2 * 8 * 128 / 32 * 18);
}

TEST_F(InfoTest, TheTotalCountsWindowAndCodebooks) {
    const json data = info({"--scheme", "vecinfer:k2v2", "--ctx", "4096"});
    const double total = data["kv_bytes_per_token_total"];
    const double fixed = data["window_bytes"].get<double>() + data["codebook_bytes"].get<double>();
    EXPECT_NEAR(total, data["kv_bytes_per_token"].get<double>() + fixed / 4096, 2.0);
    EXPECT_NEAR(data["effective_bits"].get<double>(), total * 8 / (2 * 8 * 128), 1e-9);
    EXPECT_NEAR(data["cache_bytes"].get<double>(), total * 4096, 1e-3);
    EXPECT_GT(data["window_bytes"], 128 * 2 * 8 * 128 * 2) << "at least the latest 128 keys and values in f16";
    EXPECT_LT(info({"--scheme", "vecinfer:k2v2", "--ctx", "65536"})["kv_bytes_per_token_total"], total);
}

TEST_F(InfoTest, LayersAndContextComeFromTheModel) {
    write_model("m.gguf", {.num_layers = 3, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16});
    const json data = info({"-m", "m.gguf"});
    EXPECT_EQ(data["scheme"], "vecinfer:k2v2");
    EXPECT_EQ(data["context"], 2048);
    EXPECT_EQ(data["num_layers"], 3);
    EXPECT_EQ(data["kv_bytes_per_token"], 3 * 2 * 2 * (16 * 2 / 8 + 1));
    EXPECT_EQ(data["model"]["name"], "Tiny");
    EXPECT_EQ(info({"-m", "m.gguf", "--scheme", "f16", "--ctx", "10"})["kv_bytes_per_token"], 3 * 2 * 2 * 16 * 2);
}

TEST_F(InfoTest, ExplainsASidecar) {
    write_model("m.gguf");
    write_sidecar("c.gguf", "vecinfer:k2v2", "m.gguf");
    const json data = info({"c.gguf", "--ctx", "512"});
    EXPECT_EQ(data["calibrated"], true);
    EXPECT_EQ(data["sidecar"]["model"]["architecture"], "llama");
    EXPECT_EQ(data["sidecar"]["calibration"]["tokens"], 4096);
    EXPECT_EQ(data["sidecar"]["calibration"]["seed"], 7);
    EXPECT_EQ(data["sidecar"]["calibration"]["text_hash"], "0000000000001234");
    ASSERT_EQ(data["sidecar"]["layers"].size(), 2);
    EXPECT_EQ(data["sidecar"]["layers"][1]["num_kv_heads"], 2);
    EXPECT_EQ(data["sidecar"]["layers"][1]["head_dim_k"], 16);
    // At least the centroids of keys and values, 256 of 4 bytes, per layer (and per head, if the scope is head).
    const int books = data["scope"] == "head" ? 2 : 1;
    EXPECT_GE(data["codebook_bytes"], 2 * 2 * books * 256 * 4);
    const CommandResult text = vecinfer({"info", "c.gguf"});
    EXPECT_EQ(text.exit_code, 0);
    EXPECT_THAT(text.out,
                AllOf(HasSubstr("4096 tokens"), HasSubstr("'Tiny'"), HasSubstr("q4_0"), HasSubstr("vecinfer:k=d4b8,v=d4b8")));
}

TEST_F(InfoTest, AHostileModelNameDoesNotBreakJson) {
    write_model("m.gguf", {.name = "Ti\xff\"ny"});
    const json data = info({"-m", "m.gguf"});
    EXPECT_FALSE(data.is_discarded());
    EXPECT_THAT(data["model"]["name"].get<std::string>(), HasSubstr("\"ny"));
}

TEST_F(InfoTest, ASchemeThatNeedsCalibrationIsCountedCalibrated) {
    const json data = info({"--scheme", "vecinfer:k2v2,kt=smooth+hadamard", "--ctx", "1000"});
    EXPECT_EQ(data["calibrated"], true);
    EXPECT_EQ(data["key"]["transform"], "smooth+hadamard");
}

TEST_F(InfoTest, CalibratedCountsWhatASidecarOfTheSchemeHas) {
    write_model("m.gguf");
    write_sidecar("c.gguf", "vecinfer:k2v2", "m.gguf");
    const json of_file = info({"c.gguf", "-m", "m.gguf", "--ctx", "4096"});
    const json of_scheme = info({"--scheme", "vecinfer:k2v2", "--calibrated", "-m", "m.gguf", "--ctx", "4096"});
    const json data_free = info({"--scheme", "vecinfer:k2v2", "-m", "m.gguf", "--ctx", "4096"});
    EXPECT_EQ(of_scheme["calibrated"], true);
    for (const char* name : {"scheme_long", "codebook_bytes", "effective_bits"}) {
        EXPECT_EQ(of_scheme[name], of_file[name]) << name;
        EXPECT_NE(of_scheme[name], data_free[name]) << name;
    }
}

TEST_F(InfoTest, WithoutAModelLayersOfTheirOwnAreShownByKind) {
    const std::string scheme = "vecinfer:k2v2,recent=0,sink=0,layers=0-1:k4v4/5:f16/7:k4v4";
    const json data = info({"--scheme", scheme});
    EXPECT_TRUE(data["kv_bytes_per_token"].is_null());
    EXPECT_TRUE(data["cache_bytes"].is_null());
    ASSERT_EQ(data["layer_kinds"].size(), 3u);
    // One layer of 8 heads of 128: 4 and 2 bits with a byte of norm, and f16.
    EXPECT_EQ(data["layer_kinds"][0]["layers"], "layers 0-1, 7");
    EXPECT_EQ(data["layer_kinds"][0]["kv_bytes_per_token"], 2 * 8 * (128 * 4 / 8 + 1));
    EXPECT_EQ(data["layer_kinds"][1]["layers"], "layers 5");
    EXPECT_EQ(data["layer_kinds"][1]["kv_bytes_per_token"], 2 * 8 * 128 * 2);
    EXPECT_EQ(data["layer_kinds"][2]["layers"], "other layers");
    EXPECT_EQ(data["layer_kinds"][2]["kv_bytes_per_token"], 2 * 8 * (128 * 2 / 8 + 1));
    EXPECT_EQ(data["f16"]["kv_bytes_per_token"], 2 * 8 * 128 * 2);
    EXPECT_THAT(vecinfer({"info", "--scheme", scheme}).out, AllOf(HasSubstr("one layer of each kind"), HasSubstr("-m MODEL"),
                                                                  HasSubstr("  layers 0-1, 7  "), HasSubstr("  other layers  ")));

    write_model("m.gguf", {.num_layers = 8});
    const json whole = info({"--scheme", scheme, "-m", "m.gguf"});
    EXPECT_FALSE(whole.contains("layer_kinds"));
    EXPECT_EQ(whole["kv_bytes_per_token"], 2 * 2 * (3 * (16 * 4 / 8 + 1) + 16 * 2 + 4 * (16 * 2 / 8 + 1)));
}

TEST_F(InfoTest, TransformsAreNamedForPeopleAndPrograms) {
    struct Case {
        std::string options;
        std::string key;
        std::string value;
        std::string key_text;
        std::string value_text;
    };
    const std::vector<Case> cases = {
        {"", "center+smooth-opt+hadamard", "hadamard",
         "subtract the mean, then smooth factors balanced against queries, then Hadamard", "Hadamard"},
        {",kt=none,vt=none", "none", "none", "none", "none"},
        {",kt=center+smooth-opt+hadamard,vt=center+hadamard", "center+smooth-opt+hadamard", "center+hadamard",
         "subtract the mean, then smooth factors balanced against queries, then Hadamard", "subtract the mean, then Hadamard"},
        {",kt=center+full,vt=full", "center+full", "full", "subtract the mean, then calibrated matrix", "calibrated matrix"},
        {",kt=smooth,vt=center", "smooth", "center", "smooth factors", "subtract the mean"}};
    write_model("m.gguf");
    for (const Case& c : cases) {
        write_sidecar("c.gguf", "vecinfer:k2v2" + c.options, "m.gguf");
        const json data = info({"c.gguf"});
        EXPECT_EQ(data["key"]["transform"], c.key);
        EXPECT_EQ(data["value"]["transform"], c.value);
        const std::string text = vecinfer({"info", "c.gguf"}).out;
        EXPECT_THAT(lines_after(text, "keys "), testing::ElementsAre(testing::EndsWith("; transform: " + c.key_text)));
        EXPECT_THAT(lines_after(text, "values "), testing::ElementsAre(testing::EndsWith("; transform: " + c.value_text)));
        // 2 KV heads of 16 channels in f32, and 16 x 16 matrices.
        const json& layer = data["sidecar"]["layers"][1];
        const auto has = [](const std::string& all, const std::string& step) { return all.find(step) != std::string::npos; };
        EXPECT_EQ(layer["smooth_factors"], has(c.key, "smooth") ? 2 * 16 : 0) << c.options;
        EXPECT_EQ(layer["key_center"], has(c.key, "center") ? 2 * 16 : 0) << c.options;
        EXPECT_EQ(layer["value_center"], has(c.value, "center") ? 2 * 16 : 0) << c.options;
        EXPECT_EQ(layer["key_matrix"], has(c.key, "full") ? 2 * 16 * 16 : 0) << c.options;
        EXPECT_EQ(layer["value_matrix"], has(c.value, "full") ? 2 * 16 * 16 : 0) << c.options;
    }
}

TEST_F(InfoTest, Errors) {
    write_model("m.gguf");
    write_model("other.gguf", {.name = "Other", .weight = 5.0F});
    write_sidecar("c.gguf", "vecinfer:k2v2", "other.gguf");
    write("bad.gguf", "GGUFgarbage");
    const CommandResult truncated = vecinfer({"info", "bad.gguf"});
    EXPECT_EQ(truncated.err.find("sidecar"), truncated.err.rfind("sidecar")) << truncated.err;
    const std::vector<std::tuple<std::vector<std::string>, int, std::string>> cases = {
        {{"info"}, 2, "nothing to explain"},
        {{"info", "--scheme", "vecinfer:k2"}, 2, "k2"},
        {{"info", "--scheme", ""}, 2, "scheme: family: got nothing, expected one of f16, vecinfer"},
        {{"info", "--scheme", "vecinfer:layers=2:f16", "-m", "m.gguf"}, 2, "layers: got 2, expected layers 0 to 1"},
        {{"info", "c.gguf", "--scheme", "f16"}, 2, "excludes"},
        {{"info", "c.gguf", "--calibrated"}, 2, "excludes"},
        {{"info", "--scheme", "f16", "--ctx", "0"}, 2, "--ctx"},
        {{"info", "gone.gguf"}, 1, "gone.gguf"},
        {{"info", "bad.gguf"}, 1, "bad.gguf"},
        {{"info", "m.gguf"}, 1, "m.gguf"},
        {{"info", "-m", "bad.gguf"}, 1, "bad.gguf"},
        {{"info", "-m", "c.gguf"}, 1, "sidecar"},
        {{"info", "c.gguf", "-m", "m.gguf"}, 1, "another model"},
    };
    for (const auto& [arguments, exit_code, message] : cases) {
        const CommandResult result = vecinfer(arguments);
        EXPECT_EQ(result.exit_code, exit_code) << message;
        EXPECT_EQ(result.out, "") << message;
        EXPECT_THAT(result.err, AllOf(testing::StartsWith("vecinfer: error: "), HasSubstr(message)));
        EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    }
}

}  // namespace
}  // namespace vecinfer::test
