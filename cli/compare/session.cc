#include "compare/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "compare/machine.h"
#include "compare/scrape.h"
#include "interrupt.h"
#include "vecinfer/version.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

bool keep_going() {
    return interrupt_signal() == 0;
}

std::string list_text(const auto& values) {
    return fmt::format("{}", fmt::join(values, ","));
}

// Of n_chunk chunks, the second half of each but its last token, at 16 bits a value.
std::uintmax_t expected_logits_bytes(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    char magic[8];
    std::uint32_t n_ctx = 0;
    std::int32_t n_vocab = 0;
    std::int32_t n_chunk = 0;
    file.read(magic, sizeof magic);
    file.read(reinterpret_cast<char*>(&n_ctx), sizeof n_ctx);
    file.read(reinterpret_cast<char*>(&n_vocab), sizeof n_vocab);
    file.read(reinterpret_cast<char*>(&n_chunk), sizeof n_chunk);
    if (!file || std::memcmp(magic, "_logits_", sizeof magic) != 0 || n_vocab < 1 || n_chunk < 1 || n_ctx < 2) {
        return 0;
    }
    const std::uintmax_t row = 2 * ((static_cast<std::uintmax_t>(n_vocab) + 1) / 2) + 4;
    const auto chunks = static_cast<std::uintmax_t>(n_chunk);
    return 20 + chunks * n_ctx * 4 + chunks * (n_ctx - 1 - n_ctx / 2) * row * 2;
}

}  // namespace

std::vector<std::string> CompareSession::stages(const Subject& subject) const {
    std::vector<std::string> all;
    if (!subject.problem.empty()) {
        return all;
    }
    if (subject.codebooks == Codebooks::made) {
        all.emplace_back("calibration");
    }
    all.emplace_back("quality");
    if (options_.retrieval) {
        all.emplace_back("retrieval");
    }
    if (options_.speed) {
        all.emplace_back("speed");
    }
    return all;
}

Result<CompareSession::Output> CompareSession::start(const std::string& what, const std::string& log,
                                                     const std::vector<std::string>& argv, const Environment& environment) {
    const fs::path out = store_.folder() / "logs" / (file_name_of(log) + ".out");
    const fs::path err = store_.folder() / "logs" / (file_name_of(log) + ".err");
    progress_.begin(what);
    const auto begin = std::chrono::steady_clock::now();
    const Result<int> code = run_logged(argv, environment, out, err, [&] {
        progress_.tick();
        return keep_going();
    });
    progress_.end();
    if (!code.ok() || !keep_going()) {
        return !keep_going() ? Status(ErrorCode::cancelled, "interrupted") : code.status();
    }
    Output output{.exit_code = code.value(),
                  .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
    const Result<std::string> out_text = read_file(out);
    const Result<std::string> err_text = read_file(err);
    if (!out_text.ok() || !err_text.ok()) {
        return out_text.ok() ? err_text.status() : out_text.status();
    }
    output.out = out_text.value();
    output.all = output.out + "\n" + err_text.value();
    return output;
}

Status CompareSession::keep(const std::string& name, const Json& inputs, Json result, double seconds) {
    result["seconds"] = seconds;
    return store_.save(name, inputs, result);
}

void CompareSession::fail_row(Row& row, std::string_view what, const Output& output, const Status& status,
                              bool& skip_rest) const {
    Failure failure = failure_of(output.all, output.exit_code);
    if (!failure.is_refusal && output.exit_code == 0) {
        failure.reason = status.message();
    }
    if (failure.is_refusal) {
        row.refused = true;
        row.subject.problem = failure.reason;
    } else {
        row.failures.push_back(fmt::format("{}: {}", what, failure.reason));
    }
    skip_rest = failure.is_refusal;
}

Status CompareSession::write_base_logits() {
    const fs::path part = logits_path().string() + ".part";
    const std::vector<std::string> argv = {tools_.perplexity.string(),
                                           "-m",
                                           options_.model,
                                           "-f",
                                           options_.text,
                                           "--chunks",
                                           std::to_string(options_.chunks),
                                           "--kl-divergence-base",
                                           part.string(),
                                           "-c",
                                           std::to_string(options_.context),
                                           "-b",
                                           std::to_string(options_.context),
                                           "-ub",
                                           kPerplexityBatch,
                                           "-fa",
                                           "on",
                                           "-t",
                                           std::to_string(options_.threads)};
    const Result<Output> output = start("f16, stock: quality", "base.quality", argv, environment(base_subject()));
    std::error_code error;
    if (!output.ok()) {
        fs::remove(part, error);
        return output.status();
    }
    const Result<Json> scraped = scrape_perplexity(output->all);
    if (output->exit_code != 0 || !scraped.ok()) {
        fs::remove(part, error);
        const Failure failure = failure_of(output->all, output->exit_code);
        return Status(ErrorCode::unsupported, fmt::format("the f16 base failed, so nothing can be compared: {} (log: {})",
                                                          output->exit_code == 0 ? scraped.status().message() : failure.reason,
                                                          (store_.folder() / "logs" / "base.quality.err").string()));
    }
    const std::uintmax_t size = fs::file_size(part, error);
    const std::uintmax_t expected = expected_logits_bytes(part);
    if (error || expected == 0 || size != expected) {
        fs::remove(part, error);
        return Status(ErrorCode::io_error,
                      fmt::format("{}: {} of {} bytes of the base's log-probabilities were written; is the disk full?",
                                  store_.folder().string(), size, expected));
    }
    fs::rename(part, logits_path(), error);
    if (error) {
        return Status(ErrorCode::io_error, fmt::format("cannot write {}: {}", logits_path().string(), error.message()));
    }
    progress_.learn("quality", output->seconds);
    return keep(base_subject().name + ".quality", quality_inputs(base_subject()), scraped.value(), output->seconds);
}

bool CompareSession::reuse(const Row& row, const Measurement& measurement) {
    const auto found = store_.find(fmt::format("{}.{}", row.subject.name, measurement.kind), measurement.inputs);
    if (!found) {
        return false;
    }
    *measurement.result = *found;
    progress_.learn(measurement.kind, found->value("seconds", 0.0));
    progress_.end();
    return true;
}

Status CompareSession::run_tool(Row& row, const Measurement& measurement, const std::vector<std::string>& argv,
                                const Scrape& scrape, bool& skip_rest) {
    const std::string name = fmt::format("{}.{}", row.subject.name, measurement.kind);
    const Result<Output> output =
        start(fmt::format("{}: {}", row.subject.name, measurement.kind), name, argv, environment(row.subject));
    if (!output.ok()) {
        return output.status();
    }
    const Result<Json> scraped = scrape(output.value());
    if (output->exit_code != 0 || !scraped.ok()) {
        fail_row(row, measurement.kind, output.value(), scraped.status(), skip_rest);
        return {};
    }
    *measurement.result = scraped.value();
    progress_.learn(measurement.kind, output->seconds);
    return keep(name, measurement.inputs, scraped.value(), output->seconds);
}

Status CompareSession::quality(Row& row, bool& skip_rest) {
    const Subject& subject = row.subject;
    const Measurement measurement{"quality", quality_inputs(subject), &row.quality};
    if (reuse(row, measurement)) {
        return {};
    }
    std::error_code error;
    const bool is_base = subject.kind == SubjectKind::base;
    if (is_base || !fs::exists(logits_path(), error)) {
        if (const Status status = write_base_logits(); !status.ok()) {
            return status;
        }
        if (is_base) {
            row.quality = store_.find(subject.name + ".quality", measurement.inputs).value_or(Json());
            return {};
        }
    }
    std::vector<std::string> argv = {tools_.perplexity.string(),
                                     "-m",
                                     options_.model,
                                     "--kl-divergence",
                                     "--kl-divergence-base",
                                     logits_path().string(),
                                     "-c",
                                     std::to_string(options_.context),
                                     "-b",
                                     std::to_string(options_.context),
                                     "-ub",
                                     kPerplexityBatch,
                                     "-fa",
                                     "on",
                                     "-t",
                                     std::to_string(options_.threads)};
    add_cache_arguments(subject, argv);
    return run_tool(
        row, measurement, argv, [](const Output& output) { return scrape_divergence(output.all); }, skip_rest);
}

Status CompareSession::retrieval(Row& row, bool& skip_rest) {
    const Subject& subject = row.subject;
    const Measurement measurement{"retrieval", retrieval_inputs(subject), &row.retrieval};
    if (reuse(row, measurement)) {
        return {};
    }
    std::vector<std::string> argv = {tools_.retrieve.string(),
                                     "--model",
                                     options_.model,
                                     "--lengths",
                                     list_text(options_.lengths),
                                     "--depths",
                                     list_text(options_.depths),
                                     "--keys",
                                     std::to_string(options_.keys),
                                     "--seed",
                                     std::to_string(options_.seed),
                                     "--threads",
                                     std::to_string(options_.threads)};
    if (subject.kind != SubjectKind::scheme) {
        argv.insert(argv.end(), {"--stock", "--cache-type", subject.cache_type});
    }
    return run_tool(
        row, measurement, argv, [](const Output& output) { return scrape_retrieval(output.out); }, skip_rest);
}

Status CompareSession::speed(Row& row, bool& skip_rest) {
    const Subject& subject = row.subject;
    const Measurement measurement{"speed", speed_inputs(subject), &row.speed};
    if (reuse(row, measurement)) {
        return {};
    }
    std::vector<std::string> argv = {tools_.bench.string(),
                                     "-m",
                                     options_.model,
                                     "-p",
                                     std::to_string(kPromptTokens),
                                     "-n",
                                     std::to_string(kDecodeTokens),
                                     "-d",
                                     list_text(options_.speed_depths),
                                     "-r",
                                     std::to_string(kRepeats),
                                     "-fa",
                                     "on",
                                     "-t",
                                     std::to_string(options_.threads),
                                     "-o",
                                     "json"};
    add_cache_arguments(subject, argv);
    const bool quiet = machine_is_quiet();
    const auto scrape = [quiet](const Output& output) -> Result<Json> {
        const Result<Json> runs = scrape_bench(output.out);
        if (!runs.ok()) {
            return runs;
        }
        const bool steady = std::all_of(runs->begin(), runs->end(), [](const Json& run) {
            return run["tps_max"].get<double>() < 1.3 * run["tps_min"].get<double>();
        });
        return Json{{"quiet", quiet && steady}, {"runs", runs.value()}};
    };
    return run_tool(row, measurement, argv, scrape, skip_rest);
}

Status CompareSession::calibration(Row& row) {
    const Subject& subject = row.subject;
    const fs::path path = sidecar_path(subject);
    if (load_sidecar(path).ok()) {
        progress_.end();
        return {};
    }
    const std::vector<std::string> argv = {tools_.calibrate.string(),
                                           "--model",
                                           options_.model,
                                           "--text",
                                           options_.calibration_text,
                                           "--out",
                                           path.string(),
                                           "--scheme",
                                           to_long_string(calibration_scheme(subject)),
                                           "--chunks",
                                           std::to_string(options_.calibration_chunks),
                                           "--ctx",
                                           std::to_string(options_.calibration_context),
                                           "--seed",
                                           std::to_string(kCalibrationSeed),
                                           "--threads",
                                           std::to_string(options_.threads)};
    Environment variables = environment(base_subject());
    variables.emplace_back("GGML_BACKEND_PATH", tools_.plugin.string());
    const Result<Output> output = start(subject.name + ": calibration", subject.name + ".calibration", argv, variables);
    if (!output.ok()) {
        return output.status();
    }
    if (output->exit_code != 0) {
        const Failure failure = failure_of(output->all, output->exit_code);
        row.refused = failure.is_refusal;
        row.subject.problem = "calibration: " + failure.reason;
        if (!failure.is_refusal) {
            row.failures.push_back(row.subject.problem);
        }
        return {};
    }
    progress_.learn("calibration", output->seconds);
    return {};
}

Status CompareSession::measure(Row& row) {
    if (row.subject.codebooks == Codebooks::made) {
        if (const Status status = calibration(row); !status.ok() || !row.subject.problem.empty()) {
            return status;
        }
    }
    bool skip_rest = false;
    Status status = quality(row, skip_rest);
    if (status.ok() && options_.retrieval && !skip_rest) {
        status = retrieval(row, skip_rest);
    }
    if (status.ok() && options_.speed && !skip_rest) {
        status = speed(row, skip_rest);
    }
    return status;
}

Status CompareSession::run(std::vector<Row>& rows) {
    note_interrupts();
    std::vector<std::string> all;
    std::vector<std::size_t> ends;
    for (const Row& row : rows) {
        const std::vector<std::string> own = stages(row.subject);
        all.insert(all.end(), own.begin(), own.end());
        ends.push_back(all.size());
    }
    progress_ = Progress(all);
    Status status;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].subject.problem.empty()) {
            status = measure(rows[i]);
        }
        progress_.skip_to(ends[i]);
        if (!status.ok()) {
            break;
        }
    }
    progress_.clear();
    if (status.ok()) {
        std::error_code error;
        fs::remove(logits_path(), error);  // hundreds of megabytes
    }
    return status;
}

}  // namespace vecinfer::cli
