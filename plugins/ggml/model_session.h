// What the helper programs share: loading a model with stock libllama, with or without the plugin, and running text through it.
#pragma once

#include <llama.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "capture.h"
#include "vecinfer/status.h"

namespace vecinfer::plugin {

struct SessionOptions {
    std::string model;
    int ctx = 512;
    int ubatch = 512;
    int threads = 2;
    bool use_plugin = true;                // the device VecInfer, as its environment configures it; else the stock CPU device
    ggml_type cache_type = GGML_TYPE_F16;  // of keys and values; anything else needs use_plugin = false
    bool vocab_only = false;               // no weights and no context: tokens can be counted
};

class ModelSession {
public:
    /// Loads plugins (GGML_BACKEND_PATH), the model and a context with flash attention. llama.cpp's own messages are dropped
    /// except errors.
    static Result<ModelSession> open(const SessionOptions& options);

    llama_context* context() const { return context_.get(); }
    const llama_vocab* vocab() const { return llama_model_get_vocab(model_.get()); }
    std::string rope_name() const;
    std::vector<llama_token> tokenize(std::string_view text, bool parse_special = false) const;
    std::string text_of(llama_token token) const;

    /// Sends captures to `fn` until it is called with null. Error if the plugin is not loaded or cannot.
    Status set_capture(vecinfer_capture_fn fn, void* user_data) const;

    /// Replaces the context by one whose cache is what VECINFER_SCHEME and VECINFER_CODEBOOKS say now. Error if the plugin is not
    /// loaded or refuses.
    Status renew(const std::string& scheme, const std::string& codebooks);

    /// Every chunk of ctx tokens is its own sequence, starting with the model's BOS token if it wants one. `after_chunk` may stop
    /// the run. RoPE scores depend on distances alone, so a chunk may stand anywhere: they start at positions spread over
    /// [0, positions - ctx], denser at its start, and show the keys of long texts at the price of short ones.
    Status run_chunks(const std::vector<llama_token>& tokens, int ctx, int chunks, int positions,
                      const std::function<Status(int chunk)>& after_chunk) const;

private:
    struct Freed {
        void operator()(llama_model* m) const { llama_model_free(m); }
        void operator()(llama_context* c) const { llama_free(c); }
    };
    Status make_context();
    void* plugin_proc(const char* name) const;

    SessionOptions options_;
    ggml_backend_reg_t plugin_ = nullptr;
    std::unique_ptr<llama_model, Freed> model_;
    std::unique_ptr<llama_context, Freed> context_;
};

/// All files, one after the other.
Result<std::string> read_texts(const std::vector<std::string>& paths);

}  // namespace vecinfer::plugin
