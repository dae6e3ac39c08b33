// Pass-key retrieval: a haystack of invented sentences in which numbers are hidden, and the scoring of the answers.
//
// One haystack serves every length and depth: the model reads it once, and at each length it is asked for the keys that lie at
// the wanted depths of what it has read so far. The keys of the other lengths are distractors, so a model must tell apart what
// they are numbers of.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vecinfer/status.h"

namespace vecinfer::retrieval {

struct PasskeyOptions {
    std::vector<int> lengths;    // tokens that have been read when a question is asked; positive
    std::vector<double> depths;  // 0: at the start of what was read, 1: at its end
    int keys_per_cell = 1;       // questions per length and depth
    int reserve = 0;             // tokens of each length that are kept free, for a question and its answer
    std::uint64_t seed = 1;      // same seed, options and tokenizer: same haystack
};

struct Question {
    int length = 0;
    double depth = 0;
    std::string name;    // what the key is the number of; unique in a haystack
    std::string key;     // 5 to 7 digits
    std::string prompt;  // follows the text read so far; the answer should continue with the key
};

/// What is read between two stops, and what is asked at the second.
struct Stretch {
    std::string text;
    std::vector<Question> questions;
};

/// Tokens of `text` by the model's tokenizer.
using CountTokens = std::function<int(std::string_view text)>;

/// Stretches in order of length. Errors: no lengths or depths, a length too short for its keys, more keys than there are names.
Result<std::vector<Stretch>> make_haystack(const PasskeyOptions& options, const CountTokens& count_tokens);

/// Whether the first number in `completion` is exactly `key`: leading blanks are skipped, digits are taken as far as they go.
bool is_exact(std::string_view completion, std::string_view key);
/// Whether `completion` holds a whole answer, so that generating can stop: a non-digit after the first digits, or a line break.
bool is_finished(std::string_view completion);

}  // namespace vecinfer::retrieval
