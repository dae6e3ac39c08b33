// Which codebooks a launch takes.
#include "sidecar_choice.h"

#include <gmock/gmock.h>

#include "cli/fixtures.h"

namespace vecinfer::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class SidecarChoiceTest : public test::CliTest {
protected:
    void SetUp() override {
        CliTest::SetUp();
        write_model("m.gguf");
    }
    Result<SidecarChoice> choose(const std::optional<std::string>& scheme,
                                 const std::optional<std::string>& codebooks = std::nullopt) const {
        std::optional<Scheme> parsed;
        if (scheme) {
            parsed = parse_scheme(*scheme).value();
        }
        return choose_sidecar(path("m.gguf"), parsed, codebooks);
    }
};

TEST(ModelStem, LeavesOutSuffixAndSplitNumber) {
    EXPECT_EQ(model_stem("/a/b.Q4_1.gguf"), "b.Q4_1");
    EXPECT_EQ(model_stem("b-00001-of-00003.gguf"), "b");
    EXPECT_EQ(model_stem("b-0001-of-00003.gguf"), "b-0001-of-00003");
    EXPECT_EQ(model_stem("plain"), "plain");
    EXPECT_EQ(default_sidecar("/a/b.gguf"), "/a/b.vecinfer.gguf");
    EXPECT_EQ(default_sidecar("b.gguf"), "b.vecinfer.gguf");
}

TEST_F(SidecarChoiceTest, NothingBesideTheModelIsDataFree) {
    const auto choice = choose(std::nullopt);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_FALSE(choice->path);
    EXPECT_EQ(to_string(choice->scheme), "vecinfer:k2v2");
    EXPECT_THAT(choice->explanation, AllOf(HasSubstr("data-free"), HasSubstr("m.vecinfer.gguf")));
}

TEST_F(SidecarChoiceTest, FindsTheFileBesideTheModel) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    const auto choice = choose("vecinfer:k2v2");
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->path, path("m.vecinfer.gguf"));
    EXPECT_THAT(choice->explanation, HasSubstr("m.vecinfer.gguf"));
}

TEST_F(SidecarChoiceTest, WindowAndPrefillNeedNotMatch) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    const auto choice = choose("vecinfer:k2v2,recent=32,sink=0,prefill=exact");
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->path, path("m.vecinfer.gguf"));
    EXPECT_EQ(choice->scheme.window.recent, 32);
}

TEST_F(SidecarChoiceTest, PicksTheOneWhoseSchemeFits) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    write_sidecar("m.k4v4.vecinfer.gguf", "vecinfer:k4v4", "m.gguf");
    write_sidecar("m.k4v2.vecinfer.gguf", "vecinfer:k4v2", "m.gguf");
    EXPECT_EQ(choose("vecinfer:k4v4").value().path, path("m.k4v4.vecinfer.gguf"));
    EXPECT_EQ(choose("vecinfer:k4v2").value().path, path("m.k4v2.vecinfer.gguf"));
    EXPECT_EQ(choose("vecinfer:k2v2").value().path, path("m.vecinfer.gguf"));
}

TEST_F(SidecarChoiceTest, OtherModelsFilesAreNotLookedAt) {
    write("m2.vecinfer.gguf", "garbage");
    write("m-more.vecinfer.gguf", "garbage");
    const auto choice = choose(std::nullopt);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_FALSE(choice->path);
}

TEST_F(SidecarChoiceTest, AnotherSchemeBesideTheModelMeansDataFreeAndSaysSo) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    const auto choice = choose("vecinfer:k4v4");
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_FALSE(choice->path);
    EXPECT_THAT(choice->explanation, AllOf(HasSubstr("data-free"), HasSubstr("m.vecinfer.gguf is for vecinfer:k2v2")));
}

TEST_F(SidecarChoiceTest, ThePlainNameBringsItsSchemeIfNoneIsAskedFor) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2,layers=1:k4v2", "m.gguf");
    write_sidecar("m.other.vecinfer.gguf", "vecinfer:k4v4", "m.gguf");
    const auto choice = choose(std::nullopt);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    ASSERT_TRUE(choice->path);
    EXPECT_EQ(choice->path->filename(), "m.vecinfer.gguf");
    EXPECT_EQ(choice->scheme.layers.size(), 1u);
    EXPECT_FALSE(choose("vecinfer:k2v2")->path) << "asked for another one";
    // A file that fits the default scheme goes first.
    write_sidecar("m.two.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    EXPECT_EQ(choose(std::nullopt)->path->filename(), "m.two.vecinfer.gguf");
}

TEST_F(SidecarChoiceTest, DamagedFileBesideTheModelIsAnError) {
    write("m.vecinfer.gguf", "GGUF but not really");
    const auto choice = choose(std::nullopt);
    ASSERT_FALSE(choice.ok());
    EXPECT_THAT(choice.status().message(), AllOf(HasSubstr("m.vecinfer.gguf"), HasSubstr("--codebooks none")));
}

TEST_F(SidecarChoiceTest, FileOfAnotherModelBesideTheModelIsAnError) {
    write_model("other.gguf", {.name = "Other", .weight = 2.0F});
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "other.gguf");
    const auto choice = choose(std::nullopt);
    ASSERT_FALSE(choice.ok());
    EXPECT_EQ(choice.status().code(), ErrorCode::mismatch);
    EXPECT_THAT(choice.status().message(), AllOf(HasSubstr("'Other'"), HasSubstr("'Tiny'"), HasSubstr("layer 0")));
}

TEST_F(SidecarChoiceTest, ADamagedFileDoesNotHideAGoodOne) {
    write("m.vecinfer.gguf", "garbage");
    write_sidecar("m.k2v2.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    EXPECT_EQ(choose("vecinfer:k2v2").value().path, path("m.k2v2.vecinfer.gguf"));
}

TEST_F(SidecarChoiceTest, ASchemeWithoutCodebooksOpensNoFile) {
    write("m.vecinfer.gguf", "GGUF but not really");
    for (const char* scheme : {"kivi:k2v2", "innerq:k3v3,kt=none", "f16"}) {
        const auto choice = choose(scheme);
        ASSERT_TRUE(choice.ok()) << choice.status().message();
        EXPECT_FALSE(choice->path);
        EXPECT_THAT(choice->explanation, Not(HasSubstr("data-free")));
        EXPECT_EQ(choose(scheme, path("m.vecinfer.gguf").string()).status().message(),
                  "codebooks: got " + path("m.vecinfer.gguf").string() + ", expected none: scheme " +
                      to_string(parse_scheme(scheme).value()) + " has no use for them");
    }
    EXPECT_FALSE(choose("innerq:k3v3").ok()) << "its channel norm could be in the file";
}

TEST_F(SidecarChoiceTest, ACalibrationForShapedServesTheOtherEncodings) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    for (const char* scheme : {"vecinfer:k2v2,encode=nearest", "vecinfer:k2v2,encode=unbiased"}) {
        const auto choice = choose(scheme);
        ASSERT_TRUE(choice.ok()) << choice.status().message();
        EXPECT_EQ(choice->path, path("m.vecinfer.gguf"));
        EXPECT_EQ(to_string(choice->scheme), scheme);
    }
    write_sidecar("n.gguf", "vecinfer:k2v2,encode=nearest", "m.gguf");
    EXPECT_THAT(choose("vecinfer:k2v2", path("n.gguf").string()).status().message(),
                testing::EndsWith("scheme: got encode=shaped, but the sidecar was calibrated for encode=nearest"));
}

TEST_F(SidecarChoiceTest, LayersMustBeInTheModel) {
    for (const std::optional<std::string>& codebooks : {std::optional<std::string>(), std::optional<std::string>("none")}) {
        EXPECT_EQ(choose("vecinfer:k2v2,layers=2:f16", codebooks).status().message(),
                  "scheme: layers: got 2, expected layers 0 to 1: the model has 2");
        EXPECT_TRUE(choose("vecinfer:k2v2,layers=1:f16", codebooks).ok());
    }
}

TEST_F(SidecarChoiceTest, NoneForcesDataFree) {
    write_sidecar("m.vecinfer.gguf", "vecinfer:k2v2", "m.gguf");
    const auto choice = choose("vecinfer:k2v2", "none");
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_FALSE(choice->path);
}

TEST_F(SidecarChoiceTest, ASchemeThatNeedsCalibrationIsRefusedWithoutOne) {
    const auto choice = choose("vecinfer:k2v2,kt=smooth+hadamard", "none");
    ASSERT_FALSE(choice.ok());
    EXPECT_THAT(choice.status().message(), HasSubstr("vecinfer calibrate"));
    // A line that can be copied; the folder's name has blanks.
    EXPECT_THAT(
        choose("million:k4v2").status().message(),
        AllOf(HasSubstr("million:k4v2 needs a calibration (no m.vecinfer.gguf beside the model)"),
              testing::EndsWith("`vecinfer calibrate -m '" + path("m.gguf").string() + "' -f TEXT --scheme million:k4v2`")));
}

TEST_F(SidecarChoiceTest, ANamedFileDecidesTheSchemeIfNoneIsGiven) {
    write_sidecar("c.gguf", "vecinfer:k4v2", "m.gguf");
    const auto choice = choose(std::nullopt, path("c.gguf").string());
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->path, path("c.gguf"));
    EXPECT_EQ(choice->scheme.key, (CodecSpec{.sub_dim = 2, .code_bits = 8}));
}

TEST_F(SidecarChoiceTest, ANamedFileForAnotherSchemeIsAnErrorThatNamesBoth) {
    write_sidecar("c.gguf", "vecinfer:k2v2", "m.gguf");
    const auto choice = choose("vecinfer:k4v4", path("c.gguf").string());
    ASSERT_FALSE(choice.ok());
    EXPECT_EQ(choice.status().code(), ErrorCode::mismatch);
    EXPECT_THAT(choice.status().message(), AllOf(HasSubstr("c.gguf"), HasSubstr("k2v2"), HasSubstr("k4v4")));
}

TEST_F(SidecarChoiceTest, ANamedFileOfAnotherShapeIsAnErrorThatNamesBoth) {
    write_model("wide.gguf", {.name = "Wide", .num_kv_heads = 4});
    write_sidecar("c.gguf", "vecinfer:k2v2", "wide.gguf");
    const auto choice = choose(std::nullopt, path("c.gguf").string());
    ASSERT_FALSE(choice.ok());
    EXPECT_THAT(choice.status().message(), AllOf(HasSubstr("4 KV heads"), HasSubstr("2 KV heads")));
}

TEST_F(SidecarChoiceTest, OtherDepthAndArchitectureAreErrors) {
    write_model("deep.gguf", {.num_layers = 3});
    write_sidecar("deep.sidecar", "vecinfer:k2v2", "deep.gguf");
    EXPECT_THAT(choose(std::nullopt, path("deep.sidecar").string()).status().message(), HasSubstr("layer 2"));
    write_model("qwen.gguf", {.architecture = "qwen2"});
    write_sidecar("qwen.sidecar", "vecinfer:k2v2", "qwen.gguf");
    EXPECT_THAT(choose(std::nullopt, path("qwen.sidecar").string()).status().message(),
                HasSubstr("architecture qwen2 against llama"));
}

TEST_F(SidecarChoiceTest, OfSeveralNamedFilesTheFirstThatFitsIsTaken) {
    write_sidecar("two.gguf", "vecinfer:k2v2", "m.gguf");
    write_sidecar("four.gguf", "vecinfer:k4v4", "m.gguf");
    const std::string list = path("two.gguf").string() + ":" + path("four.gguf").string();
    EXPECT_EQ(choose("vecinfer:k4v4", list).value().path, path("four.gguf"));
    EXPECT_THAT(choose("vecinfer:k1v1", list).status().message(), HasSubstr("two.gguf"));
}

TEST_F(SidecarChoiceTest, MissingNamedFileIsAnError) {
    const auto choice = choose(std::nullopt, path("gone.gguf").string());
    ASSERT_FALSE(choice.ok());
    EXPECT_EQ(choice.status().code(), ErrorCode::not_found);
    EXPECT_THAT(choice.status().message(), HasSubstr("gone.gguf"));
}

TEST_F(SidecarChoiceTest, F16TakesNoCodebooks) {
    EXPECT_FALSE(choose("f16").value().path);
    EXPECT_THAT(choose("f16").value().explanation, Not(HasSubstr("data-free")));
    EXPECT_EQ(choose("f16", "c.gguf").status().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace vecinfer::cli
