// Widths per layer from measured sensitivity: what every candidate width of every layer's keys and values does to the model's
// predictions while the rest of the cache is exact, then the best choice under a budget.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model_session.h"
#include "vecinfer/allocation.h"
#include "vecinfer/calibrate.h"
#include "vecinfer/sidecar.h"

namespace vecinfer::plugin {

struct BitSearchOptions {
    double target_bits = 0;             // mean code bits per value
    std::vector<CodecSpec> candidates;  // rising widths
    int ctx = 512;
    std::vector<llama_token> tokens;  // chunks of ctx, to measure on
};

struct BitSearchResult {
    std::vector<LayerCosts> costs;  // nats per token over the widest candidate
    std::vector<LayerChoice> choices;
    double code_bits = 0;
    double kld = 0;  // of the choice, measured on the same tokens with a short window
};

/// `sidecar` brings scheme, model and facts; its scheme and layers become those of the choice. The session's context is replaced.
Result<BitSearchResult> search_bits(ModelSession& session, const Calibrator& calibrator, const BitSearchOptions& options,
                                    Sidecar& sidecar, const std::function<void(const char* stage, double share)>& progress);

}  // namespace vecinfer::plugin
