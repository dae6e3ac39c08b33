// What decides a result, and how a cache is set up: the names of finished measurements are hashes of these.
#include <fmt/format.h>
#include <unistd.h>

#include "compare/machine.h"
#include "compare/session.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

// What the program `tool` computes with, by its libraries' stamps.
std::string tool_stamp(const fs::path& tool) {
    std::error_code error;
    const fs::path real = fs::canonical(tool, error);
    std::string stamp = stamp_of(error ? tool : real);
    for (const char* library : {"libllama.so", "libggml-base.so", "libggml-cpu.so"}) {
        const fs::path path = real.parent_path() / library;
        if (fs::exists(path, error)) {
            stamp += "; " + stamp_of(path);
        }
    }
    return stamp;
}

std::string hash_or_empty(const fs::path& path) {
    const Result<std::string> hash = path.empty() ? Status(ErrorCode::not_found, "") : hash_file(path);
    return hash.ok() ? hash.value() : "";
}

}  // namespace

CompareSession::CompareSession(const CompareOptions& options, const ModelInfo& model, const CompareTools& tools,
                               const ResultStore& store)
    : options_(options),
      tools_(tools),
      store_(store),
      text_hash_(hash_or_empty(options.text)),
      calibration_text_hash_(hash_or_empty(options.calibration_text)),
      plugin_hash_(hash_or_empty(tools.plugin)) {
    std::string identity = model.identity.architecture + model.identity.name;
    for (const std::uint64_t hash : model.identity.layer_hashes) {
        identity += fmt::format(" {:x}", hash);
    }
    common_ = {{"model", stamp_of(options.model)}, {"model_identity", hash_text(identity)}};
}

Json CompareSession::subject_inputs(const Subject& subject) const {
    Json inputs = common_;
    inputs["cache"] = subject.cache_type;
    if (subject.kind == SubjectKind::scheme) {
        const bool calibrated = subject.codebooks == Codebooks::made || subject.codebooks == Codebooks::file;
        inputs["scheme"] = to_long_string(subject.resolved);
        inputs["calibrated"] = calibrated;
        inputs["plugin"] = plugin_hash_;
        inputs["isa"] = environment_value("VECINFER_ISA").value_or("");
    }
    if (subject.codebooks == Codebooks::file) {
        inputs["codebooks"] = hash_or_empty(subject.sidecar);
    } else if (subject.codebooks == Codebooks::made) {
        inputs["codebooks"] = calibration_inputs(subject);
    }
    return inputs;
}

Json CompareSession::calibration_inputs(const Subject& subject) const {
    return {{"model_identity", common_["model_identity"]},
            {"scheme", to_long_string(calibration_scheme(subject))},
            {"text", calibration_text_hash_},
            {"chunks", options_.calibration_chunks},
            {"ctx", std::to_string(options_.calibration_context)},
            {"seed", kCalibrationSeed},
            {"helper", stamp_of(tools_.calibrate)}};
}

Json CompareSession::quality_inputs(const Subject& subject) const {
    Json inputs = subject_inputs(subject);
    inputs["text"] = text_hash_;
    inputs["ctx"] = options_.context;
    inputs["chunks"] = options_.chunks;
    inputs["ubatch"] = kPerplexityBatch;
    inputs["tool"] = tool_stamp(tools_.perplexity);
    return inputs;
}

Json CompareSession::retrieval_inputs(const Subject& subject) const {
    Json inputs = subject_inputs(subject);
    inputs["lengths"] = options_.lengths;
    inputs["depths"] = options_.depths;
    inputs["keys"] = options_.keys;
    inputs["seed"] = options_.seed;
    inputs["tool"] = tool_stamp(tools_.retrieve);
    return inputs;
}

Json CompareSession::speed_inputs(const Subject& subject) const {
    Json inputs = subject_inputs(subject);
    inputs["depths"] = options_.speed_depths;
    inputs["tokens"] = {kPromptTokens, kDecodeTokens, kRepeats};
    inputs["threads"] = options_.threads;
    inputs["cpu"] = cpu_name();
    inputs["tool"] = tool_stamp(tools_.bench);
    return inputs;
}

fs::path CompareSession::sidecar_path(const Subject& subject) const {
    return store_.folder() / fmt::format("{}.{}.vecinfer.gguf", file_name_of(to_string(calibration_scheme(subject))),
                                         hash_text(calibration_inputs(subject).dump()));
}

fs::path CompareSession::logits_path() const {
    return store_.folder() / fmt::format("base.{}.logits", hash_text(quality_inputs(base_subject()).dump()));
}

Environment CompareSession::environment(const Subject& subject) const {
    // Settings of the caller's shell must not reach the measurements, above all not the stock baseline.
    Environment variables;
    for (char** entry = environ; *entry; ++entry) {
        const std::string_view text = *entry;
        const std::string name(text.substr(0, text.find('=')));
        if (name.starts_with("LLAMA_ARG_") || name == "GGML_BACKEND_PATH" ||
            (name.starts_with("VECINFER_") && name != "VECINFER_ISA")) {
            variables.emplace_back(name, std::nullopt);
        }
    }
    // Layers that do not fit into memory are a failure, and not moved to another cache.
    variables.emplace_back("LLAMA_ARG_FIT", "off");
    if (subject.kind == SubjectKind::scheme) {
        std::error_code error;
        std::string codebooks = "none";
        if (subject.codebooks == Codebooks::file) {
            codebooks = fs::absolute(subject.sidecar, error).string();
        } else if (subject.codebooks == Codebooks::made) {
            codebooks = fs::absolute(sidecar_path(subject), error).string();
        }
        variables.emplace_back("GGML_BACKEND_PATH", tools_.plugin.string());
        variables.emplace_back("VECINFER_SCHEME", to_long_string(subject.resolved));
        variables.emplace_back("VECINFER_CODEBOOKS", codebooks);
        variables.emplace_back("VECINFER_QUIET", "1");
    }
    return variables;
}

void CompareSession::add_cache_arguments(const Subject& subject, std::vector<std::string>& argv) const {
    if (subject.kind == SubjectKind::scheme) {
        argv.insert(argv.end(), {"-dev", std::string(kDevice)});
    } else if (subject.kind == SubjectKind::peer) {
        argv.insert(argv.end(), {"-ctk", subject.cache_type, "-ctv", subject.cache_type});
    }
}

}  // namespace vecinfer::cli
