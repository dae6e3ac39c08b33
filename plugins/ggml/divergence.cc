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

// Reads tokens behind position `begin` and hands out the logits of those that are scored.
template <typename Use>
Status read(llama_context* context, const Reading& reading, std::size_t begin, const Use& use) {
    const auto count = static_cast<std::int32_t>(reading.tokens.size());
    llama_batch batch = llama_batch_init(std::max(count, 1), 0, 1);
    const std::unique_ptr<llama_batch, void (*)(llama_batch*)> guard(&batch, [](llama_batch* b) { llama_batch_free(*b); });
    batch.n_tokens = count;
    for (std::int32_t i = 0; i < count; ++i) {
        batch.token[i] = reading.tokens[i];
        batch.pos[i] = static_cast<llama_pos>(begin) + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = static_cast<std::int8_t>(static_cast<std::size_t>(i) >= reading.first_scored);
    }
    if (const int rc = llama_decode(context, batch); rc != 0) {
        return {ErrorCode::unsupported, fmt::format("llama_decode failed with {}", rc)};
    }
    for (auto i = static_cast<std::int32_t>(reading.first_scored); i < count; ++i) {
        use(llama_get_logits_ith(context, i));
    }
    return {};
}

std::size_t scored(const Reading& reading) {
    return reading.tokens.size() - std::min(reading.first_scored, reading.tokens.size());
}

}  // namespace

std::vector<Passage> chunk_passages(const std::vector<llama_token>& tokens, int ctx) {
    std::vector<Passage> passages;
    for (auto begin = tokens.begin(); tokens.end() - begin >= ctx; begin += ctx) {
        passages.push_back({{{begin, begin + ctx}, static_cast<std::size_t>(ctx) / 2}, {}});
    }
    return passages;
}

std::size_t Divergence::predictions() const {
    std::size_t count = 0;
    for (const Passage& passage : passages_) {
        count += scored(passage.text);
        for (const Reading& continuation : passage.continuations) {
            count += scored(continuation);
        }
    }
    return count;
}

template <typename Use>
Status Divergence::run(const Use& use) {
    llama_context* context = session_->context();
    llama_memory_t memory = llama_get_memory(context);
    std::size_t prediction = 0;
    const auto count = [&](const float* logits) { use(prediction++, logits); };
    for (const Passage& passage : passages_) {
        llama_memory_clear(memory, true);
        if (Status status = read(context, passage.text, 0, count); !status.ok()) {
            return status;
        }
        const std::size_t end = passage.text.tokens.size();
        for (const Reading& continuation : passage.continuations) {
            if (Status status = read(context, continuation, end, count); !status.ok()) {
                return status;
            }
            if (!llama_memory_seq_rm(memory, 0, static_cast<llama_pos>(end), -1)) {
                return {ErrorCode::unsupported,
                        "this model's cache cannot be rolled back, so questions cannot share what was read"};
            }
        }
    }
    return {};
}

Result<Divergence> Divergence::create(ModelSession& session, std::vector<Passage> passages) {
    if (llama_vocab_get_add_bos(session.vocab())) {
        for (Passage& passage : passages) {
            passage.text.tokens.front() = llama_vocab_bos(session.vocab());
        }
    }
    Divergence out(session, std::move(passages));
    if (out.predictions() == 0) {
        return argument_error("text", "no whole chunk", "at least one");
    }
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
