#include <fmt/format.h>

#include "attention/exactness.h"

namespace vecinfer {

Status check_attention(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& p) {
    const int num_kv_heads = k.codec().num_heads();
    if (v.codec().num_heads() != num_kv_heads) {
        return argument_error("num_kv_heads of v", std::to_string(v.codec().num_heads()),
                              fmt::format("{} as k has", num_kv_heads));
    }
    if (stream < 0 || stream >= k.geometry().num_streams || stream >= v.geometry().num_streams) {
        return argument_error("stream", std::to_string(stream), fmt::format("0 to {}", k.geometry().num_streams - 1));
    }
    if (p.num_tokens < 1) {
        return argument_error("num_tokens", std::to_string(p.num_tokens), "at least 1");
    }
    if (p.num_qo_heads < 1 || p.num_qo_heads % num_kv_heads != 0) {
        return argument_error("num_qo_heads", std::to_string(p.num_qo_heads),
                              fmt::format("a multiple of {} KV heads", num_kv_heads));
    }
    if (p.kv_len < 1 || p.kv_len > k.geometry().num_cells || p.kv_len > v.geometry().num_cells) {
        return argument_error("kv_len", std::to_string(p.kv_len), fmt::format("1 to {} cells", k.geometry().num_cells));
    }
    if (k.codec().head_dim() % 8 != 0 || v.codec().head_dim() % 8 != 0) {
        return argument_error("head_dim", fmt::format("{} and {}", k.codec().head_dim(), v.codec().head_dim()), "multiples of 8");
    }
    if (p.q == nullptr || p.out == nullptr) {
        return argument_error(p.q == nullptr ? "q" : "out", "null", "a pointer");
    }
    if (p.mask != nullptr && (p.mask_heads < 1 || p.num_qo_heads % p.mask_heads != 0)) {
        return argument_error("mask_heads", std::to_string(p.mask_heads),
                              fmt::format("a divisor of {} query heads", p.num_qo_heads));
    }
    for (const auto& [name, list] : {std::pair("k_exact", p.k_exact), std::pair("v_exact", p.v_exact)}) {
        for (const ExactRow& row : list) {
            if (row.row == nullptr) {
                return argument_error(name, "a row without data", "rows of a plan whose staging is bound");
            }
        }
    }
    return {};
}

}  // namespace vecinfer
