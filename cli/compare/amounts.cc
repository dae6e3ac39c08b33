#include "compare/amounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "compare/scrape.h"
#include "compare/session.h"
#include "process.h"

namespace vecinfer::cli {
namespace {

constexpr int kTimeoutSeconds = 600;
constexpr std::int64_t kFewestChunks = 2;  // llama-perplexity wants text for two, even to measure one

Status check_text_fills(const std::string& file, std::int64_t tokens, std::int64_t chunks, std::int64_t context,
                        std::string_view argument, std::string_view pieces) {
    if (tokens >= chunks * context) {
        return {};
    }
    return Status(ErrorCode::mismatch, fmt::format("{}: {} has {} tokens, expected at least {} for {} {} of {}", argument, file,
                                                   tokens, chunks * context, chunks, pieces, context));
}

std::optional<Json> answer_of(const std::string& output) {
    for (std::size_t begin = 0; begin < output.size();) {
        const std::size_t end = std::min(output.find('\n', begin), output.size());
        const Json json = Json::parse(output.substr(begin, end - begin), nullptr, false);
        if (json.is_object() && json.contains("tokens") && json["tokens"].is_array()) {
            return json["tokens"];
        }
        begin = end + 1;
    }
    return std::nullopt;
}

}  // namespace

Status check_amounts(const CompareOptions& options, const std::filesystem::path& helper, bool calibrates) {
    std::vector<std::string> argv = {helper.string(), "--check", "--model", options.model, "--text", options.text};
    if (calibrates) {
        argv.insert(argv.end(), {"--text", options.calibration_text});
    }
    if (options.retrieval) {
        argv.insert(argv.end(), {"--lengths", fmt::format("{}", fmt::join(options.lengths, ",")), "--depths",
                                 fmt::format("{}", fmt::join(options.depths, ",")), "--keys", std::to_string(options.keys),
                                 "--seed", std::to_string(options.seed)});
    }
    const Environment environment = {
        {"GGML_BACKEND_PATH", std::nullopt}, {"VECINFER_SCHEME", std::nullopt}, {"VECINFER_CODEBOOKS", std::nullopt}};
    const Result<Captured> ran = capture(argv, environment, kTimeoutSeconds);
    if (!ran.ok()) {
        return ran.status();
    }
    const std::optional<Json> tokens = answer_of(ran->output);
    if (ran->exit_code != 0 || !tokens || tokens->size() < (calibrates ? 2u : 1u)) {
        constexpr std::string_view kOwnError = "vecinfer-retrieve: error: ";
        const std::size_t at = ran->output.find(kOwnError);
        if (at == std::string::npos) {
            return Status(ErrorCode::unsupported, fmt::format("cannot count tokens with {}: {}", helper.string(),
                                                              failure_of(ran->output, ran->exit_code).reason));
        }
        const std::size_t begin = at + kOwnError.size();
        const std::string reason = ran->output.substr(begin, std::min(ran->output.find('\n', begin), ran->output.size()) - begin);
        const bool is_option = reason.starts_with("lengths: ") || reason.starts_with("keys: ");
        return Status(is_option ? ErrorCode::invalid_argument : ErrorCode::unsupported, (is_option ? "--" : "") + reason);
    }
    Status status = check_text_fills(options.text, tokens->at(0), std::max<std::int64_t>(options.chunks, kFewestChunks),
                                     options.context, "text", "chunks");
    if (status.ok() && calibrates) {
        status = check_text_fills(options.calibration_text, tokens->at(1), options.calibration_chunks,
                                  options.calibration_context, "calibration text", "pieces");
    }
    return status;
}

}  // namespace vecinfer::cli
