// KL divergence of a model's predictions under a packed cache from those under its f16 cache, within one process.
#pragma once

#include <string>
#include <vector>

#include "model_session.h"

namespace vecinfer::plugin {

class Divergence {
public:
    /// Runs `tokens` (chunks of the session's ctx) with the f16 cache and keeps the predictions of the second half of every
    /// chunk: ctx / 2 x vocabulary floats per chunk. The session must outlive this object and is changed by it.
    static Result<Divergence> create(ModelSession& session, int ctx, std::vector<llama_token> tokens);

    /// Mean KL divergence in nats per token.
    Result<double> measure(const std::string& scheme, const std::string& codebooks);

private:
    Divergence(ModelSession& session, int ctx, std::vector<llama_token> tokens)
        : session_(&session), ctx_(ctx), tokens_(std::move(tokens)) {}
    /// Calls use(index of the prediction, its logits) for each prediction.
    template <typename Use>
    Status run(const Use& use);

    ModelSession* session_;
    int ctx_;
    std::vector<llama_token> tokens_;
    std::vector<float> log_probs_;  // layout (predictions, vocabulary)
};

}  // namespace vecinfer::plugin
