#include "model_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>

#include "ggml-backend.h"

namespace vecinfer::plugin {

Result<ModelSession> ModelSession::open(const SessionOptions& options) {
    llama_log_set(
        [](ggml_log_level level, const char* message, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                std::fputs(message, stderr);
            }
        },
        nullptr);
    ggml_backend_load_all();
    ModelSession session;
    session.plugin_ = ggml_backend_reg_by_name("VecInfer");
    if (options.use_plugin && session.plugin_ == nullptr) {
        return Status(ErrorCode::not_found, "the plugin was not loaded: set GGML_BACKEND_PATH to libggml-vecinfer.so");
    }
    llama_backend_init();

    ggml_backend_dev_t devices[] = {options.use_plugin ? ggml_backend_reg_dev_get(session.plugin_, 0) : nullptr, nullptr};
    llama_model_params model_params = llama_model_default_params();
    model_params.devices = devices;
    model_params.n_gpu_layers = options.use_plugin ? 999 : 0;
    model_params.vocab_only = options.vocab_only;
    session.model_.reset(llama_model_load_from_file(options.model.c_str(), model_params));
    if (session.model_ == nullptr) {
        return Status(ErrorCode::corrupt_data, fmt::format("model: llama.cpp cannot load {}", options.model));
    }
    session.options_ = options;
    if (Status status = options.vocab_only ? Status() : session.make_context(); !status.ok()) {
        return status;
    }
    return session;
}

Status ModelSession::make_context() {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(options_.ctx);
    params.n_batch = static_cast<std::uint32_t>(options_.ctx);
    params.n_ubatch = static_cast<std::uint32_t>(std::min(options_.ubatch, options_.ctx));
    params.n_threads = options_.threads;
    params.n_threads_batch = options_.threads;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k = options_.cache_type;
    params.type_v = options_.cache_type;
    params.swa_full = true;  // or a rollback would find cells of the sliding window overwritten
    context_.reset(llama_init_from_model(model_.get(), params));
    if (context_ == nullptr) {
        return {ErrorCode::unsupported, "llama.cpp cannot make a context for this model with flash attention"};
    }
    return {};
}

void* ModelSession::plugin_proc(const char* name) const {
    return plugin_ == nullptr ? nullptr : ggml_backend_reg_get_proc_address(plugin_, name);
}

Status ModelSession::renew(const std::string& scheme, const std::string& codebooks) {
    const auto configure = reinterpret_cast<vecinfer_configure_fn>(plugin_proc("vecinfer_configure"));
    if (configure == nullptr) {
        return {ErrorCode::mismatch, "the loaded plugin is of another version: it cannot be configured again"};
    }
    context_.reset();
    setenv("VECINFER_SCHEME", scheme.c_str(), 1);
    setenv("VECINFER_CODEBOOKS", codebooks.c_str(), 1);
    if (!configure()) {
        return argument_error("scheme", scheme, "one that the plugin takes (its message is above)");
    }
    return make_context();
}

std::string ModelSession::rope_name() const {
    switch (llama_model_rope_type(model_.get())) {
        case LLAMA_ROPE_TYPE_NONE: return "none";
        case LLAMA_ROPE_TYPE_NORM: return "norm";
        case LLAMA_ROPE_TYPE_NEOX: return "neox";
        default: return "other";
    }
}

std::vector<llama_token> ModelSession::tokenize(std::string_view text, bool parse_special) const {
    const auto size = static_cast<std::int32_t>(std::min<std::size_t>(text.size(), INT32_MAX));
    std::vector<llama_token> tokens(text.size() + 8);
    const int n =
        llama_tokenize(vocab(), text.data(), size, tokens.data(), static_cast<std::int32_t>(tokens.size()), false, parse_special);
    tokens.resize(static_cast<std::size_t>(std::max(n, 0)));
    return tokens;
}

std::string ModelSession::text_of(llama_token token) const {
    std::string text(64, '\0');
    int n = llama_token_to_piece(vocab(), token, text.data(), static_cast<std::int32_t>(text.size()), 0, false);
    if (n < 0) {
        text.resize(static_cast<std::size_t>(-n));
        n = llama_token_to_piece(vocab(), token, text.data(), static_cast<std::int32_t>(text.size()), 0, false);
    }
    text.resize(static_cast<std::size_t>(std::max(n, 0)));
    return text;
}

Status ModelSession::set_capture(vecinfer_capture_fn fn, void* user_data) const {
    const auto set = reinterpret_cast<vecinfer_set_capture_fn>(plugin_proc("vecinfer_set_capture"));
    if (set == nullptr) {
        return {ErrorCode::mismatch, "the loaded plugin is of another version: it cannot capture"};
    }
    set(fn, user_data);
    return {};
}

Status ModelSession::run_chunks(const std::vector<llama_token>& tokens, int ctx, int chunks, int positions,
                                const std::function<Status(int chunk)>& after_chunk) const {
    std::vector<llama_token> chunk(static_cast<std::size_t>(ctx));
    std::vector<llama_pos> at(chunk.size());
    const int last_start = std::max(0, std::min(positions, llama_model_n_ctx_train(model_.get())) - ctx);
    for (int i = 0; i < chunks; ++i) {
        const double share = std::fmod(i * 0.6180339887498949, 1.0);  // golden section: evenly spread for any number of chunks
        std::iota(at.begin(), at.end(), static_cast<llama_pos>(share * share * last_start));
        std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(i) * ctx, ctx, chunk.begin());
        if (llama_vocab_get_add_bos(vocab())) {
            chunk[0] = llama_vocab_bos(vocab());
        }
        llama_memory_clear(llama_get_memory(context()), true);
        llama_batch batch = llama_batch_get_one(chunk.data(), ctx);
        batch.pos = at.data();
        if (const int rc = llama_decode(context(), batch); rc != 0) {
            return {ErrorCode::unsupported, fmt::format("llama_decode failed with {} in chunk {}", rc, i)};
        }
        if (Status status = after_chunk(i); !status.ok()) {
            return status;
        }
    }
    return {};
}

Result<std::string> read_texts(const std::vector<std::string>& paths) {
    std::string all;
    for (const std::string& path : paths) {
        std::ifstream in(path, std::ios::binary);
        const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
        if (!in.good() && !in.eof()) {
            return Status{ErrorCode::io_error, fmt::format("text: cannot read {}", path)};
        }
        all += text;
    }
    return all;
}

}  // namespace vecinfer::plugin
