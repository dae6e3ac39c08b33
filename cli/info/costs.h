// What a cache takes under a scheme, beside f16 and types of llama.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace vecinfer::cli {

/// One row of the comparison.
struct Cost {
    std::string name;
    double code_bytes_per_token;
    double total_bytes_per_token;
    double effective_bits;
    double code_bits;
    std::size_t window_bytes;
    std::size_t codebook_bytes;
};

struct Costs {
    std::vector<Cost> own;    // the whole cache, or one layer of each kind
    std::vector<Cost> peers;  // the same in f16, q8_0 and q4_0
    bool is_whole = true;
};

/// Of a cache with these layers. `scheme` is resolved; `name` is the row's.
Result<Costs> whole_costs(const std::string& name, const Scheme& scheme, std::span<const LayerShape> layers, std::int64_t context,
                          bool calibrated);

/// For a scheme whose `layers` have codecs of their own, when nobody knows how many layers there are: of one layer of each kind,
/// all of the same shape.
Result<Costs> costs_by_kind(const Scheme& scheme, LayerShape shape, std::int64_t context, bool calibrated);

}  // namespace vecinfer::cli
