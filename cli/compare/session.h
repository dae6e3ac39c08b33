// Runs the measurements of a comparison one after the other; those that are finished are taken from the store.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compare/options.h"
#include "compare/progress.h"
#include "compare/store.h"
#include "compare/subject.h"
#include "launch.h"
#include "vecinfer/sidecar.h"

namespace vecinfer::cli {

// Small batches: nearly all keys that a query reads then come from the cache, as they do when decoding.
inline constexpr const char* kPerplexityBatch = "64";
inline constexpr int kPromptTokens = 128;
inline constexpr int kDecodeTokens = 16;
inline constexpr int kRepeats = 3;
inline constexpr std::uint64_t kCalibrationSeed = 0;

/// Programs that a comparison starts; empty where it does not need one.
struct CompareTools {
    std::filesystem::path perplexity;
    std::filesystem::path bench;
    std::filesystem::path retrieve;
    std::filesystem::path calibrate;
    std::filesystem::path plugin;
};

struct Row {
    Subject subject;
    Json quality;                       // of scrape_divergence; null if not measured
    Json retrieval;                     // of scrape_retrieval
    Json speed;                         // {"quiet": bool, "runs": of scrape_bench}
    std::vector<std::string> failures;  // measurements that went wrong, with the reason
    bool refused = false;               // the plugin refused this model, see subject.problem
};

class CompareSession {
public:
    CompareSession(const CompareOptions& options, const ModelInfo& model, const CompareTools& tools, const ResultStore& store);

    /// Fills `rows`, whose first is the base. Errors are those that stop everything: the base failed, the folder cannot be
    /// written, or ErrorCode::cancelled after an interrupt.
    Status run(std::vector<Row>& rows);

private:
    struct Output {
        std::string out;
        std::string all;  // stdout and stderr
        int exit_code = 0;
        double seconds = 0;
    };

    /// One kind of measurement of one row.
    struct Measurement {
        std::string kind;  // "quality", "retrieval" or "speed"
        Json inputs;       // what decides the result
        Json* result;      // in the row
    };
    using Scrape = std::function<Result<Json>(const Output& output)>;

    std::vector<std::string> stages(const Subject& subject) const;
    Status measure(Row& row);
    Status quality(Row& row, bool& skip_rest);
    Status retrieval(Row& row, bool& skip_rest);
    Status speed(Row& row, bool& skip_rest);
    /// Whether the store has the result already.
    bool reuse(const Row& row, const Measurement& measurement);
    /// Runs `argv`, and keeps what `scrape` makes of its output; a failure is noted in the row.
    Status run_tool(Row& row, const Measurement& measurement, const std::vector<std::string>& argv, const Scrape& scrape,
                    bool& skip_rest);
    Status write_base_logits();
    Status calibration(Row& row);

    Json subject_inputs(const Subject& subject) const;
    Json quality_inputs(const Subject& subject) const;
    Json retrieval_inputs(const Subject& subject) const;
    Json speed_inputs(const Subject& subject) const;
    Json calibration_inputs(const Subject& subject) const;
    std::filesystem::path sidecar_path(const Subject& subject) const;
    std::filesystem::path logits_path() const;
    Environment environment(const Subject& subject) const;
    void add_cache_arguments(const Subject& subject, std::vector<std::string>& argv) const;

    Result<Output> start(const std::string& what, const std::string& log, const std::vector<std::string>& argv,
                         const Environment& environment);
    Status keep(const std::string& name, const Json& inputs, Json result, double seconds);
    void fail_row(Row& row, std::string_view what, const Output& output, const Status& status, bool& skip_rest) const;

    const CompareOptions& options_;
    const CompareTools& tools_;
    const ResultStore& store_;
    std::string text_hash_;
    std::string calibration_text_hash_;
    std::string plugin_hash_;
    Json common_;
    Progress progress_{{}};
};

}  // namespace vecinfer::cli
