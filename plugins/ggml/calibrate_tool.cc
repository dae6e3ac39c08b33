// vecinfer-calibrate: runs text through a model with stock libllama and trains a sidecar from what the plugin sees of keys and
// values.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bit_search.h"
#include "capture.h"
#include "interruption.h"
#include "model_session.h"
#include "recall.h"
#include "standard_streams.h"
#include "vecinfer/calibrate.h"
#include "vecinfer/sidecar.h"
#include "vecinfer/version.h"

namespace {

using vecinfer::Calibrator;
using vecinfer::ErrorCode;
using vecinfer::Result;
using vecinfer::Scheme;
using vecinfer::Status;
using vecinfer::cli::write_error_line;
using vecinfer::plugin::ModelSession;

struct Options {
    std::string model;
    std::vector<std::string> texts;
    std::string out;
    std::string scheme;
    int chunks = 128;
    int ctx = 1024;
    int positions = 8192;
    std::uint64_t seed = 0;
    int threads = 2;
    double target_bits = 0;  // 0: the scheme's widths everywhere
    std::vector<std::string> widths;
    int measure_chunks = 1;
    bool measure_recall = true;
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

// The codecs of the family that have these widths, narrowest first.
Result<std::vector<vecinfer::CodecSpec>> candidates(const std::string& family, const std::vector<std::string>& widths) {
    std::vector<vecinfer::CodecSpec> specs;
    for (const std::string& width : widths) {
        const Result<Scheme> scheme = vecinfer::parse_scheme(fmt::format("{}:k{}v{}", family, width, width));
        if (!scheme.ok()) {
            return Status{scheme.status().code(), fmt::format("widths: {}", scheme.status().message())};
        }
        specs.push_back(scheme->key);
    }
    std::sort(specs.begin(), specs.end(),
              [](const auto& a, const auto& b) { return a.code_bits * b.sub_dim < b.code_bits * a.sub_dim; });
    return specs;
}

// What stands behind the chunks of the calibration, or their last ones if the text ends there.
std::vector<llama_token> held_out(const std::vector<llama_token>& tokens, const Options& options, int chunks) {
    const auto ctx = static_cast<std::size_t>(options.ctx);
    const std::size_t wanted = std::min(static_cast<std::size_t>(options.measure_chunks) * ctx, tokens.size() / ctx * ctx);
    const std::size_t begin = std::min(static_cast<std::size_t>(chunks) * ctx, tokens.size() / ctx * ctx - wanted);
    return {tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.begin() + static_cast<std::ptrdiff_t>(begin + wanted)};
}

std::size_t measured(const std::vector<vecinfer::plugin::Passage>& passages) {
    std::size_t count = 0;
    for (const vecinfer::plugin::Passage& passage : passages) {
        count += passage.text.tokens.size() - passage.text.first_scored;
    }
    return count;
}

Result<vecinfer::plugin::BitSearchOptions> plan_search(const ModelSession& session, const Options& options,
                                                       std::vector<vecinfer::CodecSpec> candidates,
                                                       const std::vector<llama_token>& text) {
    vecinfer::plugin::BitSearchOptions search{.target_bits = options.target_bits,
                                              .candidates = std::move(candidates),
                                              .text = vecinfer::plugin::chunk_passages(text, options.ctx),
                                              .recall = {}};
    if (options.measure_recall) {
        Result<vecinfer::plugin::Passage> recall = vecinfer::plugin::recall_passage(session, options.ctx, options.seed);
        if (!recall.ok()) {
            return recall.status();
        }
        if (recall->continuations.empty()) {
            write_error_line(fmt::format("chunks of {} tokens are too short to measure recall in", options.ctx));
        } else {
            search.recall.push_back(std::move(recall).value());
        }
    }
    return search;
}

nlohmann::ordered_json report_of(const vecinfer::plugin::BitSearchResult& bits,
                                 const vecinfer::plugin::BitSearchOptions& search) {
    const auto width = [&](int choice) {
        const vecinfer::CodecSpec& spec = search.candidates[choice];
        return static_cast<double>(spec.code_bits) / spec.sub_dim;
    };
    nlohmann::ordered_json layers = nlohmann::json::array();
    for (std::size_t i = 0; i < bits.costs.size(); ++i) {
        layers.push_back({{"layer", bits.costs[i].shape.layer},
                          {"key_cost", bits.costs[i].key},
                          {"value_cost", bits.costs[i].value},
                          {"key_width", width(bits.choices[i].key)},
                          {"value_width", width(bits.choices[i].value)}});
    }
    return {{"target_bits", search.target_bits},
            {"code_bits", bits.code_bits},
            {"kld", bits.kld},
            {"measured_tokens", measured(search.text)},
            {"recall_kld", bits.recall_kld},
            {"measured_answers", search.recall.empty() ? 0 : search.recall.front().continuations.size()},
            {"layers", layers}};
}

Status observe_text(const ModelSession& session, const std::vector<llama_token>& tokens, const Options& options, int chunks,
                    Calibrator& calibrator, Progress& progress) {
    Observer observer{&calibrator, {}};
    if (Status status = session.set_capture(observe, &observer); !status.ok()) {
        return status;
    }
    const Status status = session.run_chunks(tokens, options.ctx, chunks, options.positions, [&](int chunk) {
        progress("reading text", (chunk + 1.0) / chunks);
        return observer.status;
    });
    const Status stopped = session.set_capture(nullptr, nullptr);
    return status.ok() ? stopped : status;
}

Status calibrate(Options options) {
    Result<Scheme> scheme = vecinfer::parse_scheme(options.scheme);
    if (scheme.ok()) {
        scheme = vecinfer::resolve(scheme.value(), true);
    }
    if (!scheme.ok()) {
        return scheme.status();
    }
    Result<std::vector<vecinfer::CodecSpec>> specs = candidates(scheme->family, options.widths);
    if (!specs.ok()) {
        return specs.status();
    }
    Result<vecinfer::ModelInfo> info = vecinfer::read_model_info(options.model);
    if (!info.ok()) {
        return {info.status().code(), fmt::format("model {}: {}", options.model, info.status().message())};
    }
    Result<std::string> text = vecinfer::plugin::read_texts(options.texts);
    if (!text.ok()) {
        return text.status();
    }

    setenv("VECINFER_SCHEME", "f16", 1);
    setenv("VECINFER_QUIET", "1", 1);
    unsetenv("VECINFER_CODEBOOKS");
    Result<ModelSession> session =
        ModelSession::open({.model = options.model, .ctx = options.ctx, .ubatch = options.ctx, .threads = options.threads});
    if (!session.ok()) {
        return session.status();
    }

    const std::vector<llama_token> tokens = session->tokenize(text.value());
    const int chunks = static_cast<int>(std::min<std::size_t>(options.chunks, tokens.size() / options.ctx));
    if (chunks == 0) {
        return vecinfer::argument_error("text", fmt::format("{} tokens", tokens.size()),
                                        fmt::format("at least one chunk of {}", options.ctx));
    }
    if (chunks < options.chunks) {
        write_error_line(fmt::format("the text fills {} of {} chunks", chunks, options.chunks));
    }

    vecinfer::CalibratorOptions calibrator_options;
    calibrator_options.scheme = scheme.value();
    calibrator_options.seed = options.seed;
    calibrator_options.num_threads = options.threads;
    Result<Calibrator> calibrator = Calibrator::create(calibrator_options);
    if (!calibrator.ok()) {
        return calibrator.status();
    }
    Progress progress;
    if (Status status = observe_text(session.value(), tokens, options, chunks, calibrator.value(), progress); !status.ok()) {
        return status;
    }

    vecinfer::Sidecar sidecar;
    sidecar.scheme = scheme.value();
    sidecar.model = info->identity;
    sidecar.model.rope = session->rope_name();
    sidecar.facts = {vecinfer::hash64(std::as_bytes(std::span(text.value()))), calibrator->tokens(), options.seed,
                     fmt::format("vecinfer {}", vecinfer::version())};
    nlohmann::ordered_json report;
    if (options.target_bits > 0) {
        const Result<vecinfer::plugin::BitSearchOptions> search =
            plan_search(session.value(), options, specs.value(), held_out(tokens, options, chunks));
        if (!search.ok()) {
            return search.status();
        }
        const Result<vecinfer::plugin::BitSearchResult> bits =
            vecinfer::plugin::search_bits(session.value(), calibrator.value(), search.value(), sidecar, std::ref(progress));
        if (!bits.ok()) {
            return bits.status();
        }
        report = report_of(bits.value(), search.value());
    } else {
        Result<std::vector<vecinfer::LayerCalibration>> layers = calibrator->finish([&](double share) {
            progress("training codebooks", share);
            return true;
        });
        if (!layers.ok()) {
            return layers.status();
        }
        progress("training codebooks", 1);
        sidecar.layers = std::move(layers).value();
    }
    vecinfer::plugin::hold_interrupts().release();  // for good: from here on something is written
    if (const Status status = vecinfer::save_sidecar(sidecar, options.out); !status.ok()) {
        return status;
    }
    if (options.json) {
        nlohmann::ordered_json all = {{"sidecar", options.out},          {"scheme", vecinfer::to_string(sidecar.scheme)},
                                      {"tokens", sidecar.facts.tokens},  {"chunks", chunks},
                                      {"layers", sidecar.layers.size()}, {"seed", options.seed}};
        if (!report.is_null()) {
            all["bits"] = report;
        }
        std::cout << all.dump() << '\n';
    } else {
        write_error_line(fmt::format("wrote {} ({}, {} tokens, {} layers)", options.out, vecinfer::to_string(sidecar.scheme),
                                     sidecar.facts.tokens, sidecar.layers.size()));
        if (!report.is_null()) {
            std::string line = fmt::format("{:.3f} code bits per value of {:g} allowed; KL divergence {:.4f} on {} tokens",
                                           report["code_bits"].get<double>(), options.target_bits, report["kld"].get<double>(),
                                           report["measured_tokens"].get<std::size_t>());
            if (const auto answers = report["measured_answers"].get<std::size_t>(); answers > 0) {
                line += fmt::format(", {:.4f} in {} answers", report["recall_kld"].get<double>(), answers);
            }
            write_error_line(line);
        }
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
    app.add_option("--target-bits", options.target_bits, "Choose widths per layer under this mean of code bits per value");
    app.add_option("--widths", options.widths, "Widths to choose from")->delimiter(',');
    app.add_option("--measure-chunks", options.measure_chunks, "Chunks to measure widths on")->check(CLI::PositiveNumber);
    app.add_flag("!--no-recall", options.measure_recall, "Measure widths on text alone, not on numbers to be found again");
    app.add_flag("--json", options.json, "Report as JSON on stdout");
    return vecinfer::cli::run_program([&] {
        CLI11_PARSE(app, argc, argv);
        vecinfer::plugin::end_on_interrupt();
        const Status status = calibrate(options);
        if (!status.ok()) {
            write_error_line("error: " + status.message());
        }
        return status.ok() ? 0 : 1;
    });
}
