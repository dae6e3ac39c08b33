#include "vecinfer/allocation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace vecinfer {

namespace {

constexpr std::int64_t kMaxSteps = 1 << 16;

// One side of one layer: a choice among the candidates.
struct Item {
    std::int64_t values;  // per token
    const std::vector<double>* costs;
};

std::vector<Item> items_of(std::span<const LayerCosts> layers) {
    std::vector<Item> items;
    for (const LayerCosts& layer : layers) {
        const auto heads = static_cast<std::int64_t>(layer.shape.num_kv_heads);
        items.push_back({heads * layer.shape.head_dim_k, &layer.key});
        items.push_back({heads * layer.shape.head_dim_v, &layer.value});
    }
    return items;
}

// Bits of a codec for 8 values, so that every width is whole: sub_dim divides 8.
std::int64_t bits_of_8(const CodecSpec& spec) {
    return std::int64_t{8} / spec.sub_dim * spec.code_bits;
}

Status check(std::span<const CodecSpec> candidates, std::span<const LayerCosts> layers, double target_bits) {
    if (candidates.empty()) {
        return argument_error("candidates", "none", "at least one codec");
    }
    if (layers.empty()) {
        return argument_error("layers", "none", "at least one layer");
    }
    for (const LayerCosts& layer : layers) {
        for (const std::vector<double>* costs : {&layer.key, &layer.value}) {
            if (costs->size() != candidates.size()) {
                return argument_error(fmt::format("layer {} costs", layer.shape.layer), fmt::format("{}", costs->size()),
                                      fmt::format("{}, one per candidate", candidates.size()));
            }
            for (const double cost : *costs) {
                if (!std::isfinite(cost)) {
                    return argument_error(fmt::format("layer {} cost", layer.shape.layer), fmt::format("{}", cost),
                                          "a finite number");
                }
            }
        }
    }
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const CodecSpec& spec : candidates) {
        least = std::min(least, bits_of_8(spec));
    }
    if (!(target_bits * 8 >= static_cast<double>(least)) || !std::isfinite(target_bits)) {
        return argument_error("target bits", fmt::format("{}", target_bits),
                              fmt::format("at least {}, the narrowest width", static_cast<double>(least) / 8));
    }
    return {};
}

}  // namespace

Result<std::vector<LayerChoice>> allocate_bits(std::span<const CodecSpec> candidates, std::span<const LayerCosts> layers,
                                               double target_bits) {
    if (Status s = check(candidates, layers, target_bits); !s.ok()) {
        return s;
    }
    const std::vector<Item> items = items_of(layers);
    // Budget in bits of 8 tokens above what the narrowest candidate takes everywhere.
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    std::int64_t most = 0;
    std::int64_t step = 0;
    std::int64_t values = 0;
    for (const CodecSpec& spec : candidates) {
        least = std::min(least, bits_of_8(spec));
        most = std::max(most, bits_of_8(spec));
    }
    for (const Item& item : items) {
        values += item.values;
        for (const CodecSpec& spec : candidates) {
            step = std::gcd(step, (bits_of_8(spec) - least) * item.values);
        }
    }
    const double wanted = std::floor((target_bits * 8 - static_cast<double>(least)) * static_cast<double>(values) + 1e-6);
    const std::int64_t budget = std::min(static_cast<std::int64_t>(wanted), (most - least) * values);
    step = std::max({step, std::int64_t{1}, (budget + kMaxSteps - 1) / kMaxSteps});
    const std::int64_t steps = budget / step;

    // best[s]: least cost of the items so far with at most s steps; picks[i][s]: what item i takes there.
    std::vector<double> best(static_cast<std::size_t>(steps) + 1, 0.0);
    std::vector<std::vector<std::uint8_t>> picks;
    for (const Item& item : items) {
        std::vector<double> next(best.size(), std::numeric_limits<double>::infinity());
        std::vector<std::uint8_t> pick(best.size(), 0);
        for (std::size_t c = 0; c < candidates.size(); ++c) {
            const std::int64_t weight = ((bits_of_8(candidates[c]) - least) * item.values + step - 1) / step;
            for (std::int64_t s = weight; s <= steps; ++s) {
                const double cost = best[s - weight] + (*item.costs)[c];
                if (cost < next[s]) {
                    next[s] = cost;
                    pick[s] = static_cast<std::uint8_t>(c);
                }
            }
        }
        best = std::move(next);
        picks.push_back(std::move(pick));
    }

    std::vector<LayerChoice> choices(layers.size());
    std::int64_t s = steps;
    for (std::size_t i = items.size(); i-- > 0;) {
        const int c = picks[i][s];
        s -= ((bits_of_8(candidates[c]) - least) * items[i].values + step - 1) / step;
        LayerChoice& choice = choices[i / 2];
        choice.layer = layers[i / 2].shape.layer;
        (i % 2 == 0 ? choice.key : choice.value) = c;
    }
    return choices;
}

Scheme with_choices(Scheme scheme, std::span<const CodecSpec> candidates, std::span<const LayerChoice> choices) {
    std::map<std::pair<int, int>, int> count;
    for (const LayerChoice& choice : choices) {
        ++count[{choice.key, choice.value}];
    }
    const auto common =
        std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    scheme.layers.clear();
    if (common == count.end()) {
        return scheme;
    }
    scheme.key = candidates[common->first.first];
    scheme.value = candidates[common->first.second];
    for (const LayerChoice& choice : choices) {
        if (std::pair(choice.key, choice.value) == common->first) {
            continue;
        }
        const LayerOverride next{choice.layer, choice.layer, false, candidates[choice.key], candidates[choice.value]};
        LayerOverride* last = scheme.layers.empty() ? nullptr : &scheme.layers.back();
        if (last != nullptr && last->last + 1 == next.first && last->key == next.key && last->value == next.value) {
            last->last = next.last;
        } else {
            scheme.layers.push_back(next);
        }
    }
    return scheme;
}

double mean_code_bits(std::span<const CodecSpec> candidates, std::span<const LayerCosts> layers,
                      std::span<const LayerChoice> choices) {
    double bits = 0;
    double values = 0;
    for (std::size_t i = 0; i < layers.size() && i < choices.size(); ++i) {
        const double heads = layers[i].shape.num_kv_heads;
        const double key = heads * layers[i].shape.head_dim_k;
        const double value = heads * layers[i].shape.head_dim_v;
        bits += key * static_cast<double>(bits_of_8(candidates[choices[i].key])) / 8 +
                value * static_cast<double>(bits_of_8(candidates[choices[i].value])) / 8;
        values += key + value;
    }
    return values > 0 ? bits / values : 0;
}

}  // namespace vecinfer
