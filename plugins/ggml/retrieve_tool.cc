// vecinfer-retrieve: hides numbers in a long text, lets a model read it from a cache of any kind, and asks for them. Prints one
// JSON line per question.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "model_session.h"
#include "retrieval/passkey.h"
#include "standard_streams.h"

namespace {

using vecinfer::ErrorCode;
using vecinfer::Result;
using vecinfer::Status;
using vecinfer::plugin::ModelSession;
using vecinfer::retrieval::Question;
using vecinfer::retrieval::Stretch;

constexpr int kMostAnswerTokens = 12;  // a blank and 7 digits, each perhaps a token of its own
constexpr int kReserve = 64;           // tokens of BOS, a question and its answer: all of it fits into the length

struct Options {
    std::string model;
    std::vector<std::string> texts;
    bool check = false;
    vecinfer::retrieval::PasskeyOptions passkeys;
    int threads = 2;
    bool stock = false;
    std::string cache_type = "f16";
};

Result<ggml_type> parse_cache_type(const std::string& name) {
    constexpr std::array kTypes = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,  GGML_TYPE_Q4_0,
                                   GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL};
    for (const ggml_type type : kTypes) {
        if (name == ggml_type_name(type)) {
            return type;
        }
    }
    return vecinfer::argument_error("cache-type", name, "a cache type of llama.cpp, e.g. q8_0");
}

// Reads tokens behind what has been read. The logits of the last one can be asked for afterwards.
Status read_tokens(const ModelSession& session, std::vector<llama_token> tokens) {
    if (tokens.empty()) {
        return {};
    }
    const int rc = llama_decode(session.context(), llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size())));
    return rc == 0 ? Status() : Status(ErrorCode::unsupported, fmt::format("llama_decode failed with {}", rc));
}

llama_token most_likely(const ModelSession& session) {
    const float* logits = llama_get_logits_ith(session.context(), -1);
    return static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(session.vocab())) - logits);
}

// Greedy answer to one question; everything from the question on is then taken out of the cache again.
Result<std::string> answer(const ModelSession& session, const Question& question) {
    llama_memory_t memory = llama_get_memory(session.context());
    const llama_pos begin = llama_memory_seq_pos_max(memory, 0) + 1;
    std::string text;
    Status status = read_tokens(session, session.tokenize(question.prompt));
    for (int i = 0; status.ok() && i < kMostAnswerTokens; ++i) {
        const llama_token token = most_likely(session);
        if (llama_vocab_is_eog(session.vocab(), token)) {
            break;
        }
        text += session.text_of(token);
        if (vecinfer::retrieval::is_finished(text)) {
            break;
        }
        status = read_tokens(session, {token});
    }
    if (!status.ok()) {
        return status;
    }
    if (!llama_memory_seq_rm(memory, 0, begin, -1)) {
        return Status(ErrorCode::unsupported,
                      "this model's cache cannot be rolled back, so questions cannot share what was read");
    }
    return text;
}

vecinfer::retrieval::CountTokens counter(const ModelSession& session) {
    return [&session](std::string_view text) { return static_cast<int>(session.tokenize(text).size()); };
}

// Counts tokens of the texts, and finds out whether the lengths hold their numbers, with the vocabulary alone.
Status check(const Options& options) {
    const Result<ModelSession> session = ModelSession::open({.model = options.model, .use_plugin = false, .vocab_only = true});
    if (!session.ok()) {
        return session.status();
    }
    if (!options.passkeys.lengths.empty()) {
        const Status status = vecinfer::retrieval::make_haystack(options.passkeys, counter(session.value())).status();
        if (!status.ok()) {
            return status;
        }
    }
    nlohmann::json tokens = nlohmann::json::array();
    for (const std::string& path : options.texts) {
        const Result<std::string> text = vecinfer::plugin::read_texts({path});
        if (!text.ok()) {
            return text.status();
        }
        tokens.push_back(session->tokenize(text.value()).size() + (llama_vocab_get_add_bos(session->vocab()) ? 1 : 0));
    }
    fmt::print("{}\n", nlohmann::json{{"tokens", tokens}}.dump());
    return {};
}

Status retrieve(const Options& options) {
    Result<ggml_type> type = parse_cache_type(options.cache_type);
    if (!type.ok()) {
        return type.status();
    }
    if (options.passkeys.lengths.empty() || options.passkeys.depths.empty()) {
        return vecinfer::argument_error("retrieval", "no lengths or no depths", "at least one of each");
    }
    const int longest = *std::max_element(options.passkeys.lengths.begin(), options.passkeys.lengths.end());
    Result<ModelSession> session = ModelSession::open({.model = options.model,
                                                       .ctx = longest,
                                                       .threads = options.threads,
                                                       .use_plugin = !options.stock,
                                                       .cache_type = type.value()});
    if (!session.ok()) {
        return session.status();
    }
    const Result<std::vector<Stretch>> haystack = vecinfer::retrieval::make_haystack(options.passkeys, counter(session.value()));
    if (!haystack.ok()) {
        return haystack.status();
    }

    if (llama_vocab_get_add_bos(session->vocab())) {
        if (Status status = read_tokens(session.value(), {llama_vocab_bos(session->vocab())}); !status.ok()) {
            return status;
        }
    }
    for (const Stretch& stretch : haystack.value()) {
        if (Status status = read_tokens(session.value(), session->tokenize(stretch.text)); !status.ok()) {
            return status;
        }
        for (const Question& question : stretch.questions) {
            const Result<std::string> text = answer(session.value(), question);
            if (!text.ok()) {
                return text.status();
            }
            const nlohmann::ordered_json line = {
                {"length", question.length}, {"depth", question.depth},
                {"name", question.name},     {"key", question.key},
                {"answer", text.value()},    {"exact", vecinfer::retrieval::is_exact(text.value(), question.key)}};
            fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
            std::fflush(stdout);
        }
    }
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    options.passkeys.reserve = kReserve;
    CLI::App app(
        "Ask a model for numbers hidden in a long text; normally started by `vecinfer compare`. The cache is what "
        "VECINFER_SCHEME and VECINFER_CODEBOOKS say.");
    app.add_option("--model", options.model, "Model (GGUF)")->required();
    app.add_option("--lengths", options.passkeys.lengths, "Tokens in the cache when a question has been answered, e.g. 1024,4096")
        ->delimiter(',')
        ->check(CLI::PositiveNumber);
    app.add_option("--depths", options.passkeys.depths, "Where the numbers are, 0 (start) to 1 (end)")
        ->delimiter(',')
        ->check(CLI::Range(0.0, 1.0));
    app.add_option("--keys", options.passkeys.keys_per_cell, "Questions per length and depth")->check(CLI::PositiveNumber);
    app.add_option("--seed", options.passkeys.seed, "Seed of the text");
    app.add_option("--threads", options.threads, "Threads")->check(CLI::PositiveNumber);
    app.add_flag("--check", options.check, "Count the tokens of texts, check lengths, and ask nothing");
    app.add_option("--text", options.texts, "With --check: plain text, may be repeated")->allow_extra_args(false);
    app.add_flag("--stock", options.stock, "llama.cpp's own CPU device instead of the plugin");
    app.add_option("--cache-type", options.cache_type, "Cache type of llama.cpp, with --stock");
    return vecinfer::cli::run_program([&] {
        CLI11_PARSE(app, argc, argv);
        const Status status = options.check ? check(options) : retrieve(options);
        if (!status.ok()) {
            // Under its own name: what "vecinfer: error:" says is taken for the plugin's word about a scheme.
            vecinfer::cli::write_error_line("error: " + status.message(), "vecinfer-retrieve");
        }
        return status.ok() ? 0 : 1;
    });
}
