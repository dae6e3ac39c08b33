#include "divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>

namespace vecinfer::plugin {

namespace {

double log_sum_exp(const float* logits, int n) {
    const float most = *std::max_element(logits, logits + n);
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += std::exp(logits[i] - most);
    }
    return most + std::log(sum);
}

}  // namespace

template <typename Use>
Status Divergence::run(const Use& use) {
    struct Free {
        void operator()(llama_batch* b) const {
            llama_batch_free(*b);
            delete b;
        }
    };
    const std::unique_ptr<llama_batch, Free> batch(new llama_batch(llama_batch_init(ctx_, 0, 1)));
    const bool bos = llama_vocab_get_add_bos(session_->vocab());
    const int half = ctx_ / 2;
    std::size_t prediction = 0;
    for (std::size_t begin = 0; begin + ctx_ <= tokens_.size(); begin += ctx_) {
        llama_memory_clear(llama_get_memory(session_->context()), true);
        batch->n_tokens = ctx_;
        for (int i = 0; i < ctx_; ++i) {
            batch->token[i] = i == 0 && bos ? llama_vocab_bos(session_->vocab()) : tokens_[begin + i];
            batch->pos[i] = i;
            batch->n_seq_id[i] = 1;
            batch->seq_id[i][0] = 0;
            batch->logits[i] = static_cast<std::int8_t>(i >= half);
        }
        if (const int rc = llama_decode(session_->context(), *batch); rc != 0) {
            return {ErrorCode::unsupported, fmt::format("llama_decode failed with {}", rc)};
        }
        for (int i = half; i < ctx_; ++i) {
            use(prediction++, llama_get_logits_ith(session_->context(), i));
        }
    }
    return {};
}

Result<Divergence> Divergence::create(ModelSession& session, int ctx, std::vector<llama_token> tokens) {
    if (tokens.size() < static_cast<std::size_t>(ctx)) {
        return argument_error("text", fmt::format("{} tokens", tokens.size()), fmt::format("at least one chunk of {}", ctx));
    }
    Divergence out(session, ctx, std::move(tokens));
    const int vocab = llama_vocab_n_tokens(session.vocab());
    if (Status status = session.renew("f16", "none"); !status.ok()) {
        return status;
    }
    const Status status = out.run([&](std::size_t, const float* logits) {
        const double norm = log_sum_exp(logits, vocab);
        for (int i = 0; i < vocab; ++i) {
            out.log_probs_.push_back(static_cast<float>(logits[i] - norm));
        }
    });
    if (!status.ok()) {
        return status;
    }
    return out;
}

Result<double> Divergence::measure(const std::string& scheme, const std::string& codebooks) {
    if (Status status = session_->renew(scheme, codebooks); !status.ok()) {
        return status;
    }
    const int vocab = llama_vocab_n_tokens(session_->vocab());
    double sum = 0;
    std::size_t count = 0;
    const Status status = run([&](std::size_t prediction, const float* logits) {
        const float* base = log_probs_.data() + prediction * static_cast<std::size_t>(vocab);
        const double norm = log_sum_exp(logits, vocab);
        for (int i = 0; i < vocab; ++i) {
            sum += std::exp(base[i]) * (base[i] - (logits[i] - norm));
        }
        ++count;
    });
    if (!status.ok()) {
        return status;
    }
    return sum / static_cast<double>(count);
}

}  // namespace vecinfer::plugin
