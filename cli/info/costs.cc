#include "info/costs.h"

#include <fmt/format.h>

#include <algorithm>

namespace vecinfer::cli {
namespace {

Cost cost_of(const std::string& name, const Footprint& print) {
    return {name,
            print.code_bytes_per_token,
            print.total_bytes_per_token,
            print.effective_bits_per_value,
            print.code_bits_per_value,
            print.window_bytes,
            print.codebook_bytes};
}

std::vector<Cost> peers_of(double f16_bytes) {
    std::vector<Cost> peers;
    // Blocks of 32 values with one f16 scale: 34 and 18 bytes.
    for (const auto& [name, bits] : {std::pair{"f16", 16.0}, {"q8_0", 8.5}, {"q4_0", 4.5}}) {
        peers.push_back({name, f16_bytes * bits / 16, f16_bytes * bits / 16, bits, bits, 0, 0});
    }
    return peers;
}

// Layers that are stored alike, and one of them.
struct LayerKind {
    std::string name;
    int layer;
};

std::vector<LayerKind> layer_kinds(const Scheme& scheme) {
    std::vector<LayerKind> kinds;
    int other = 0;  // the first layer outside all ranges, which are rising
    for (const LayerOverride& own : scheme.layers) {
        const std::string range =
            own.first == own.last ? fmt::format("{}", own.first) : fmt::format("{}-{}", own.first, own.last);
        const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const LayerKind& kind) {
            return scheme_of_layer(scheme, kind.layer) == scheme_of_layer(scheme, own.first);
        });
        if (same != kinds.end()) {
            same->name += ", " + range;
        } else {
            kinds.push_back({"layers " + range, own.first});
        }
        other = other >= own.first ? own.last + 1 : other;
    }
    kinds.push_back({"other layers", other});
    return kinds;
}

}  // namespace

Result<Costs> whole_costs(const std::string& name, const Scheme& scheme, std::span<const LayerShape> layers, std::int64_t context,
                          bool calibrated) {
    const Result<Footprint> print = footprint(scheme, layers, context, calibrated);
    if (!print.ok()) {
        return print.status();
    }
    return Costs{{cost_of(name, print.value())}, peers_of(print->f16_bytes_per_token), true};
}

Result<Costs> costs_by_kind(const Scheme& scheme, LayerShape shape, std::int64_t context, bool calibrated) {
    Costs costs{{}, {}, false};
    for (const LayerKind& kind : layer_kinds(scheme)) {
        shape.layer = kind.layer;
        const Result<Footprint> print = footprint(scheme, std::span(&shape, 1), context, calibrated);
        if (!print.ok()) {
            return print.status();
        }
        costs.own.push_back(cost_of(kind.name, print.value()));
        costs.peers = peers_of(print->f16_bytes_per_token);
    }
    return costs;
}

}  // namespace vecinfer::cli
