// Which cells a query reads from f16 rows; shared by the kernels and the reference. And the checks of an attention call.
#pragma once

#include "vecinfer/attention.h"

namespace vecinfer {

inline constexpr std::uint16_t kF16MinusInfinity = 0xfc00;

struct Exactness {
    const AttentionParams& p;

    /// Whatever the token.
    bool always(const ExactRow& row) const {
        return p.positions == nullptr || row.position < p.window.sink || (row.in_batch && p.prefill == Prefill::exact);
    }
    bool operator()(const ExactRow& row, int token) const {
        return always(row) || p.positions[token] - row.position < p.window.recent;
    }
};

Status check_attention(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& p);

}  // namespace vecinfer
