// Bit allocation: which layers get which widths under a bit budget, given what each width costs in each layer.
#pragma once

#include <span>
#include <vector>

#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

/// Measured cost of every candidate codec in one layer, in any unit that adds up over layers and sides, such as the KL divergence
/// that the codec causes while the rest of the cache is exact.
struct LayerCosts {
    LayerShape shape;
    std::vector<double> key;    // one per candidate
    std::vector<double> value;  // one per candidate
};

/// Candidates chosen for one layer, by index.
struct LayerChoice {
    int layer = 0;
    int key = 0;
    int value = 0;

    bool operator==(const LayerChoice&) const = default;
};

/// The choice with the least sum of costs whose mean code bits per value (norms and window apart) are at most `target_bits`.
/// Exact, by dynamic programming over the budget; a budget of more than 2^16 steps is coarsened, never exceeded. Errors:
/// no candidates or layers, costs that are not finite, a target below the narrowest candidate.
Result<std::vector<LayerChoice>> allocate_bits(std::span<const CodecSpec> candidates, std::span<const LayerCosts> layers,
                                               double target_bits);

/// `scheme` with these codecs: the pair that most layers have becomes its own, the others go into `layers`.
Scheme with_choices(Scheme scheme, std::span<const CodecSpec> candidates, std::span<const LayerChoice> choices);

/// Mean code bits per value of a choice.
double mean_code_bits(std::span<const CodecSpec> candidates, std::span<const LayerCosts> layers,
                      std::span<const LayerChoice> choices);

}  // namespace VECINFER_API
