#include "recall.h"

#include <algorithm>
#include <string>

#include "retrieval/passkey.h"

namespace vecinfer::plugin {

namespace {

constexpr int kReserve = 64;          // tokens of BOS, a question and its answer
constexpr int kTokensPerNumber = 96;  // so that numbers are a third of the text at most
constexpr int kNumbersPerDepth = 2;

// The question and its answer in one piece, as a tokenizer may join them; scored from the first token that only the answer has.
Reading asked_and_answered(const ModelSession& session, const retrieval::Question& question) {
    const std::vector<llama_token> asked = session.tokenize(question.prompt);
    Reading out{session.tokenize(question.prompt + " " + question.key), 0};
    const auto differ = std::mismatch(asked.begin(), asked.end(), out.tokens.begin(), out.tokens.end()).second;
    out.first_scored = static_cast<std::size_t>(std::max<std::ptrdiff_t>(differ - out.tokens.begin() - 1, 0));
    out.tokens.pop_back();  // nothing is asked behind the last digit
    return out;
}

}  // namespace

Result<Passage> recall_passage(const ModelSession& session, int ctx, std::uint64_t seed) {
    retrieval::PasskeyOptions options{.lengths = {ctx},
                                      .depths = {0.1, 0.3, 0.5, 0.7, 0.9},
                                      .keys_per_cell = kNumbersPerDepth,
                                      .reserve = kReserve,
                                      .seed = seed};
    const auto numbers = static_cast<int>(options.depths.size()) * kNumbersPerDepth;
    if (ctx - kReserve < numbers * kTokensPerNumber) {
        return Passage{};
    }
    const Result<std::vector<retrieval::Stretch>> haystack =
        retrieval::make_haystack(options, [&](std::string_view text) { return static_cast<int>(session.tokenize(text).size()); });
    if (!haystack.ok()) {
        return haystack.status();
    }
    Passage passage;
    passage.text.tokens = session.tokenize("\n" + haystack->front().text);  // the line break gives way to BOS
    passage.text.first_scored = passage.text.tokens.size();
    for (const retrieval::Question& question : haystack->front().questions) {
        passage.continuations.push_back(asked_and_answered(session, question));
    }
    return passage;
}

}  // namespace vecinfer::plugin
