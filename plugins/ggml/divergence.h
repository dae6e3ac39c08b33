// KL divergence of a model's predictions under a packed cache from those under its f16 cache, within one process.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model_session.h"

namespace vecinfer::plugin {

/// Tokens of one sequence. Predictions made after reading token `first_scored` and each one behind it are compared.
struct Reading {
    std::vector<llama_token> tokens;
    std::size_t first_scored = 0;  // tokens.size(): none
};

/// A text from position 0, and what is read behind it: each continuation is taken out of the cache again before the next.
struct Passage {
    Reading text;
    std::vector<Reading> continuations;
};

/// Chunks of `ctx` tokens, a passage each, scored in their second half. Tokens that fill no chunk are left out.
std::vector<Passage> chunk_passages(const std::vector<llama_token>& tokens, int ctx);

class Divergence {
public:
    /// Runs the passages with the f16 cache and keeps its predictions, (vocabulary) floats each. The session must outlive this
    /// object, have room for the longest passage with a continuation, and is changed by it. Error if nothing is scored.
    static Result<Divergence> create(ModelSession& session, std::vector<Passage> passages);

    /// Mean KL divergence in nats per prediction.
    Result<double> measure(const std::string& scheme, const std::string& codebooks);

    std::size_t predictions() const;

private:
    Divergence(ModelSession& session, std::vector<Passage> passages) : session_(&session), passages_(std::move(passages)) {}
    /// Calls use(index of the prediction, its logits) for each prediction.
    template <typename Use>
    Status run(const Use& use);

    ModelSession* session_;
    std::vector<Passage> passages_;
    std::vector<float> log_probs_;  // layout (predictions, vocabulary)
};

}  // namespace vecinfer::plugin
