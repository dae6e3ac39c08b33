// Widths per layer from measured sensitivity: what every candidate width of every layer's keys and values does to the model's
// predictions while the rest of the cache is exact, then the best choice under a budget.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "divergence.h"
#include "model_session.h"
#include "vecinfer/allocation.h"
#include "vecinfer/calibrate.h"
#include "vecinfer/sidecar.h"

namespace vecinfer::plugin {

struct BitSearchOptions {
    double target_bits = 0;             // mean code bits per value
    std::vector<CodecSpec> candidates;  // rising widths
    std::vector<Passage> text;          // to measure predictions on
    std::vector<Passage> recall;        // with questions, whose answers count as much as the text; may be empty
};

struct BitSearchResult {
    std::vector<LayerCosts> costs;  // nats over the widest candidate: per token of the text, and of the answers
    std::vector<LayerChoice> choices;
    double code_bits = 0;
    // Of the choice, measured on the same passages with a short window, nats per prediction.
    double kld = 0;
    double recall_kld = 0;
};

/// `sidecar` brings scheme, model and facts; its scheme and layers become those of the choice. The session's context is replaced.
Result<BitSearchResult> search_bits(ModelSession& session, const Calibrator& calibrator, const BitSearchOptions& options,
                                    Sidecar& sidecar, const std::function<void(const char* stage, double share)>& progress);

}  // namespace vecinfer::plugin
