// vecinfer-calibrate: runs text through a model with stock libllama and trains a sidecar from what the plugin sees of keys and
// values.
#include <fmt/format.h>
#include <llama.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "capture.h"
#include "ggml-backend.h"
#include "vecinfer/calibrate.h"
#include "vecinfer/sidecar.h"
#include "vecinfer/version.h"

namespace {

using vecinfer::Calibrator;
using vecinfer::ErrorCode;
using vecinfer::Result;
using vecinfer::Scheme;
using vecinfer::Status;

struct Options {
    std::string model;
    std::vector<std::string> texts;
    std::string out;
    std::string scheme;
    int chunks = 256;
    int ctx = 512;
    int positions = 8192;
    std::uint64_t seed = 0;
    int threads = 2;
    bool json = false;
};

// One line that is rewritten on a terminal; nothing in a pipe.
class Progress {
public:
    void operator()(const char* stage, double share) {
        const auto now = std::chrono::steady_clock::now();
        if (!isatty(STDERR_FILENO) || (share < 1 && now - last_ < std::chrono::milliseconds(200))) {
            return;
        }
        last_ = now;
        fmt::print(stderr, "\r{:<28} {:5.1f}%{}", stage, 100 * share, share >= 1 ? "\n" : "");
    }

private:
    std::chrono::steady_clock::time_point last_;
};

struct Observer {
    Calibrator* calibrator = nullptr;
    Status status;
};

void observe(void* user_data, const vecinfer_capture* c) {
    auto& observer = *static_cast<Observer*>(user_data);
    if (!observer.status.ok() || observer.calibrator == nullptr) {
        return;
    }
    const vecinfer::KvRows rows{c->layer,      c->num_kv_heads, c->head_dim,
                                c->num_tokens, c->rows,         static_cast<std::ptrdiff_t>(c->row_stride)};
    if (c->side == 1) {
        observer.status = observer.calibrator->observe_values(rows);
    } else if (c->num_qo_heads == 0) {
        observer.status = observer.calibrator->observe_keys(rows);
    } else {
        observer.status = observer.calibrator->observe_attention(rows,
                                                                 {c->layer, c->num_kv_heads, c->num_qo_heads, c->head_dim,
                                                                  c->num_tokens, c->queries, c->q_token_stride, c->q_head_stride},
                                                                 c->sm_scale);
    }
}

Result<std::string> read_texts(const std::vector<std::string>& paths) {
    std::string all;
    for (const std::string& path : paths) {
        std::ifstream in(path, std::ios::binary);
        std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
        if (!in.good() && !in.eof()) {
            return Status{ErrorCode::io_error, fmt::format("text: cannot read {}", path)};
        }
        all += text;
    }
    return all;
}

std::vector<llama_token> tokenize(const llama_vocab* vocab, const std::string& text) {
    const auto size = static_cast<std::int32_t>(std::min<std::size_t>(text.size(), INT32_MAX));
    std::vector<llama_token> tokens(text.size() + 8);
    const int n = llama_tokenize(vocab, text.data(), size, tokens.data(), static_cast<std::int32_t>(tokens.size()), false, false);
    tokens.resize(std::max(n, 0));
    return tokens;
}

std::string rope_name(const llama_model* model) {
    switch (llama_model_rope_type(model)) {
        case LLAMA_ROPE_TYPE_NONE: return "none";
        case LLAMA_ROPE_TYPE_NORM: return "norm";
        case LLAMA_ROPE_TYPE_NEOX: return "neox";
        default: return "other";
    }
}

// Every chunk is its own sequence, starting with the model's BOS token if it wants one. RoPE scores depend on distances alone, so
// a chunk may stand anywhere: spread over the context, denser at its start, they show the keys of long texts at the price of
// short ones.
Status run_chunks(llama_context* ctx, const llama_model* model, const std::vector<llama_token>& tokens, const Options& options,
                  int chunks, Observer& observer, Progress& progress) {
    const llama_vocab* vocab = llama_model_get_vocab(model);
    std::vector<llama_token> chunk(options.ctx);
    const int last_start = std::max(0, std::min(options.positions, llama_model_n_ctx_train(model)) - options.ctx);
    std::vector<llama_pos> positions(options.ctx);
    for (int i = 0; i < chunks; ++i) {
        const double share = std::fmod(i * 0.6180339887498949, 1.0);  // golden section: evenly spread for any number of chunks
        std::iota(positions.begin(), positions.end(), static_cast<llama_pos>(share * share * last_start));
        std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(i) * options.ctx, options.ctx, chunk.begin());
        if (llama_vocab_get_add_bos(vocab)) {
            chunk[0] = llama_vocab_bos(vocab);
        }
        llama_memory_clear(llama_get_memory(ctx), true);
        llama_batch batch = llama_batch_get_one(chunk.data(), options.ctx);
        batch.pos = positions.data();
        if (const int rc = llama_decode(ctx, batch); rc != 0) {
            return {ErrorCode::unsupported, fmt::format("llama_decode failed with {} in chunk {}", rc, i)};
        }
        if (!observer.status.ok()) {
            return observer.status;
        }
        progress("reading text", (i + 1.0) / chunks);
    }
    return {};
}

struct Freed {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
};

Status calibrate(const Options& options) {
    Result<Scheme> scheme = vecinfer::parse_scheme(options.scheme);
    if (scheme.ok()) {
        scheme = vecinfer::resolve(scheme.value(), true);
    }
    if (!scheme.ok()) {
        return scheme.status();
    }
    Result<vecinfer::ModelInfo> info = vecinfer::read_model_info(options.model);
    if (!info.ok()) {
        return {info.status().code(), fmt::format("model {}: {}", options.model, info.status().message())};
    }
    Result<std::string> text = read_texts(options.texts);
    if (!text.ok()) {
        return text.status();
    }

    llama_log_set(
        [](ggml_log_level level, const char* message, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                std::fputs(message, stderr);
            }
        },
        nullptr);
    setenv("VECINFER_SCHEME", "f16", 1);
    setenv("VECINFER_QUIET", "1", 1);
    unsetenv("VECINFER_CODEBOOKS");
    ggml_backend_load_all();
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("VecInfer");
    if (reg == nullptr) {
        return {ErrorCode::not_found, "the plugin was not loaded: set GGML_BACKEND_PATH to libggml-vecinfer.so"};
    }
    llama_backend_init();

    ggml_backend_dev_t devices[] = {ggml_backend_reg_dev_get(reg, 0), nullptr};
    llama_model_params model_params = llama_model_default_params();
    model_params.devices = devices;
    model_params.n_gpu_layers = 999;
    const std::unique_ptr<llama_model, Freed> model(llama_model_load_from_file(options.model.c_str(), model_params));
    if (model == nullptr) {
        return {ErrorCode::corrupt_data, fmt::format("model: llama.cpp cannot load {}", options.model)};
    }
    llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = options.ctx;
    context_params.n_batch = options.ctx;
    context_params.n_ubatch = options.ctx;
    context_params.n_threads = options.threads;
    context_params.n_threads_batch = options.threads;
    context_params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    const std::unique_ptr<llama_context, Freed> ctx(llama_init_from_model(model.get(), context_params));
    if (ctx == nullptr) {
        return {ErrorCode::unsupported, "llama.cpp cannot make a context for this model with flash attention"};
    }

    const llama_vocab* vocab = llama_model_get_vocab(model.get());
    const std::vector<llama_token> tokens = tokenize(vocab, text.value());
    const int chunks = static_cast<int>(std::min<std::size_t>(options.chunks, tokens.size() / options.ctx));
    if (chunks == 0) {
        return vecinfer::argument_error("text", fmt::format("{} tokens", tokens.size()),
                                        fmt::format("at least one chunk of {}", options.ctx));
    }
    if (chunks < options.chunks) {
        fmt::print(stderr, "vecinfer: the text fills {} of {} chunks\n", chunks, options.chunks);
    }

    vecinfer::CalibratorOptions calibrator_options;
    calibrator_options.scheme = scheme.value();
    calibrator_options.seed = options.seed;
    calibrator_options.num_threads = options.threads;
    Result<Calibrator> calibrator = Calibrator::create(calibrator_options);
    if (!calibrator.ok()) {
        return calibrator.status();
    }
    Observer observer{&calibrator.value(), {}};
    const auto set_capture =
        reinterpret_cast<vecinfer_set_capture_fn>(ggml_backend_reg_get_proc_address(reg, "vecinfer_set_capture"));
    if (set_capture == nullptr) {
        return {ErrorCode::mismatch, "the loaded plugin is of another version: it cannot capture"};
    }
    Progress progress;
    set_capture(observe, &observer);
    Status status = run_chunks(ctx.get(), model.get(), tokens, options, chunks, observer, progress);
    set_capture(nullptr, nullptr);
    if (!status.ok()) {
        return status;
    }

    Result<std::vector<vecinfer::LayerCalibration>> layers = calibrator->finish([&](double share) {
        progress("training codebooks", share);
        return true;
    });
    if (!layers.ok()) {
        return layers.status();
    }
    progress("training codebooks", 1);
    vecinfer::Sidecar sidecar;
    sidecar.scheme = scheme.value();
    sidecar.model = info->identity;
    sidecar.model.rope = rope_name(model.get());
    sidecar.facts = {vecinfer::hash64(std::as_bytes(std::span(text.value()))), calibrator->tokens(), options.seed,
                     fmt::format("vecinfer {}", vecinfer::version())};
    sidecar.layers = std::move(layers).value();
    if (status = vecinfer::save_sidecar(sidecar, options.out); !status.ok()) {
        return status;
    }
    if (options.json) {
        std::cout << nlohmann::json{{"sidecar", options.out},          {"scheme", vecinfer::to_string(sidecar.scheme)},
                                    {"tokens", sidecar.facts.tokens},  {"chunks", chunks},
                                    {"layers", sidecar.layers.size()}, {"seed", options.seed}}
                         .dump()
                  << '\n';
    } else {
        fmt::print(stderr, "vecinfer: wrote {} ({}, {} tokens, {} layers)\n", options.out, vecinfer::to_string(sidecar.scheme),
                   sidecar.facts.tokens, sidecar.layers.size());
    }
    return {};
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Train a VecInfer sidecar; normally started by `vecinfer calibrate`.");
    app.add_option("--model", options.model, "Model (GGUF)")->required();
    app.add_option("--text", options.texts, "Plain text, may be repeated")->required();
    app.add_option("--out", options.out, "Sidecar to write")->required();
    app.add_option("--scheme", options.scheme, "Scheme to calibrate")->required();
    app.add_option("--chunks", options.chunks, "Chunks of text")->check(CLI::PositiveNumber);
    app.add_option("--ctx", options.ctx, "Tokens per chunk")->check(CLI::Range(16, 1 << 20));
    app.add_option("--positions", options.positions, "Chunks stand at positions below this")->check(CLI::Range(16, 1 << 30));
    app.add_option("--seed", options.seed, "Seed");
    app.add_option("--threads", options.threads, "Threads")->check(CLI::PositiveNumber);
    app.add_flag("--json", options.json, "Report as JSON on stdout");
    CLI11_PARSE(app, argc, argv);
    const Status status = calibrate(options);
    if (!status.ok()) {
        fmt::print(stderr, "vecinfer: error: {}\n", status.message());
        return 1;
    }
    return 0;
}
