// Numbers out of what the tools print.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "compare/store.h"
#include "vecinfer/status.h"

namespace vecinfer::cli {

/// "ppl" of `llama-perplexity`.
Result<Json> scrape_perplexity(std::string_view text);
/// ppl, ppl_ratio, kld_mean with its standard error kld_mean_err, kld_p99, kld_max (nats) and top1 (0 to 1) of `llama-perplexity
/// --kl-divergence`.
Result<Json> scrape_divergence(std::string_view text);
/// [{kind: "prompt" | "decode", tokens, depth, tps, tps_min, tps_max}] of `llama-bench -o json`; tps is the median.
Result<Json> scrape_bench(std::string_view text);
/// {exact, total, cells: [{length, depth, exact, total}]} of the lines of vecinfer-retrieve.
Result<Json> scrape_retrieval(std::string_view text);

/// Why a tool failed: its "vecinfer: error: " line if there is one (`is_refusal`: the plugin or a helper refused, which another
/// try would not change), else its last line.
struct Failure {
    std::string reason;
    bool is_refusal = false;
};
Failure failure_of(std::string_view output, int exit_code);

}  // namespace vecinfer::cli
