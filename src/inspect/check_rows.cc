#include <fmt/format.h>

#include <cmath>

#include "inspect/inspect.h"

namespace vecinfer::inspect {
namespace {

constexpr int kMost = 65536;

Status check_finite(const float* x, int n, std::string_view name, std::int64_t token) {
    for (int i = 0; i < n; ++i) {
        if (!std::isfinite(x[i])) {
            return argument_error(name, fmt::format("{} at token {}", x[i], token), "finite entries");
        }
    }
    return {};
}

}  // namespace

Status check_rows(const KvRows& rows, std::string_view name) {
    if (rows.num_kv_heads < 1 || rows.head_dim < 1 || rows.num_kv_heads > kMost || rows.head_dim > kMost) {
        return argument_error(name, fmt::format("{} heads of {}", rows.num_kv_heads, rows.head_dim),
                              fmt::format("1 to {} heads of 1 to {}", kMost, kMost));
    }
    const int row_dim = rows.num_kv_heads * rows.head_dim;
    if (rows.num_tokens < 1 || rows.rows == nullptr || rows.row_stride < row_dim) {
        return argument_error(name, fmt::format("{} tokens, row stride {}", rows.num_tokens, rows.row_stride),
                              fmt::format("at least one token, row stride {} or more", row_dim));
    }
    for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
        if (Status status = check_finite(rows.rows + t * rows.row_stride, row_dim, name, t); !status.ok()) {
            return status;
        }
    }
    return {};
}

Status check_queries(const QueryRows& queries, const KvRows& keys) {
    const bool fits = queries.num_kv_heads == keys.num_kv_heads && queries.head_dim == keys.head_dim &&
                      queries.num_tokens == keys.num_tokens && queries.num_qo_heads >= keys.num_kv_heads &&
                      queries.num_qo_heads % keys.num_kv_heads == 0 && queries.queries != nullptr;
    if (!fits) {
        return argument_error(
            "queries",
            fmt::format("{} tokens of {} heads of {} over {} KV heads", queries.num_tokens, queries.num_qo_heads,
                        queries.head_dim, queries.num_kv_heads),
            fmt::format("{} tokens of heads of {}, a multiple of {} of them", keys.num_tokens, keys.head_dim, keys.num_kv_heads));
    }
    for (std::int64_t t = 0; t < queries.num_tokens; ++t) {
        for (int h = 0; h < queries.num_qo_heads; ++h) {
            const float* q = queries.queries + t * queries.token_stride + h * queries.head_stride;
            if (Status status = check_finite(q, queries.head_dim, "queries", t); !status.ok()) {
                return status;
            }
        }
    }
    return {};
}

}  // namespace vecinfer::inspect
