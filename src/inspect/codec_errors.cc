#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "inspect/inspect.h"
#include "sidecar/guard.h"
#include "vecinfer/inspect.h"

namespace vecinfer {
namespace {

Status check_codec(const RowCodec& codec, const KvRows& rows) {
    if (Status status = inspect::check_rows(rows, "rows"); !status.ok()) {
        return status;
    }
    if (codec.num_heads() != rows.num_kv_heads || codec.head_dim() != rows.head_dim) {
        return argument_error("rows", fmt::format("{} heads of {}", rows.num_kv_heads, rows.head_dim),
                              fmt::format("{} heads of {} as the codec", codec.num_heads(), codec.head_dim()));
    }
    return {};
}

Status check_pair(const KvRows& rows, const KvRows& decoded) {
    if (Status status = inspect::check_rows(rows, "rows"); !status.ok()) {
        return status;
    }
    if (Status status = inspect::check_rows(decoded, "decoded"); !status.ok()) {
        return status;
    }
    if (rows.num_kv_heads != decoded.num_kv_heads || rows.head_dim != decoded.head_dim || rows.num_tokens != decoded.num_tokens) {
        return argument_error("decoded",
                              fmt::format("{} x {} heads of {}", decoded.num_tokens, decoded.num_kv_heads, decoded.head_dim),
                              fmt::format("{} x {} heads of {}", rows.num_tokens, rows.num_kv_heads, rows.head_dim));
    }
    return {};
}

double dot(const float* a, const float* b, int n) {
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += static_cast<double>(a[i]) * b[i];
    }
    return sum;
}

// Sum of squared differences from the mean.
double scatter(const std::vector<double>& values) {
    double mean = 0;
    for (const double v : values) {
        mean += v;
    }
    mean /= static_cast<double>(values.size());
    double sum = 0;
    for (const double v : values) {
        sum += (v - mean) * (v - mean);
    }
    return sum;
}

}  // namespace

Result<std::vector<CodeUsage>> measure_code_usage(const RowCodec& codec, const KvRows& rows) {
    return guarded("inspection", [&]() -> Result<std::vector<CodeUsage>> {
        if (Status status = check_codec(codec, rows); !status.ok()) {
            return status;
        }
        std::vector<CodeUsage> usage;
        std::vector<std::uint16_t> codes(static_cast<std::size_t>(codec.num_subspaces()));
        for (int head = 0; head < codec.num_heads(); ++head) {
            std::vector<std::int64_t> counts(std::size_t{1} << codec.code_bits());
            for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
                std::uint8_t norm = 0;
                codec.encode(head, rows.rows + t * rows.row_stride + static_cast<std::ptrdiff_t>(head) * rows.head_dim,
                             codes.data(), &norm);
                for (const std::uint16_t code : codes) {
                    ++counts[code];
                }
            }
            CodeUsage own{.num_centroids = static_cast<int>(counts.size()), .codes = rows.num_tokens * codec.num_subspaces()};
            for (const std::int64_t count : counts) {
                if (count == 0) {
                    ++own.dead;
                } else {
                    const double p = static_cast<double>(count) / static_cast<double>(own.codes);
                    own.entropy_bits -= p * std::log2(p);
                }
            }
            usage.push_back(own);
        }
        return usage;
    });
}

Result<std::vector<float>> reconstruct(const RowCodec& codec, const KvRows& rows) {
    return guarded("inspection", [&]() -> Result<std::vector<float>> {
        if (Status status = check_codec(codec, rows); !status.ok()) {
            return status;
        }
        std::vector<float> decoded(static_cast<std::size_t>(rows.num_tokens) * static_cast<std::size_t>(codec.row_dim()));
        std::vector<std::uint16_t> codes(static_cast<std::size_t>(codec.num_subspaces()));
        for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
            for (int head = 0; head < codec.num_heads(); ++head) {
                const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(head) * codec.head_dim();
                std::uint8_t norm = 0;
                codec.encode(head, rows.rows + t * rows.row_stride + offset, codes.data(), &norm);
                codec.decode_original(head, codes.data(), norm, decoded.data() + t * codec.row_dim() + offset);
            }
        }
        return decoded;
    });
}

Result<std::vector<double>> relative_mse(const KvRows& rows, const KvRows& decoded) {
    return guarded("inspection", [&]() -> Result<std::vector<double>> {
        if (Status status = check_pair(rows, decoded); !status.ok()) {
            return status;
        }
        std::vector<double> errors;
        for (int head = 0; head < rows.num_kv_heads; ++head) {
            double error = 0;
            double energy = 0;
            for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
                const float* x = rows.rows + t * rows.row_stride + static_cast<std::ptrdiff_t>(head) * rows.head_dim;
                const float* y = decoded.rows + t * decoded.row_stride + static_cast<std::ptrdiff_t>(head) * rows.head_dim;
                for (int i = 0; i < rows.head_dim; ++i) {
                    const double difference = static_cast<double>(x[i]) - y[i];
                    error += difference * difference;
                    energy += static_cast<double>(x[i]) * x[i];
                }
            }
            errors.push_back(error == 0 ? 0 : error / energy);
        }
        return errors;
    });
}

Result<std::vector<ScoreError>> measure_score_error(const KvRows& keys, const KvRows& decoded, const QueryRows& queries,
                                                    int max_queries) {
    return guarded("inspection", [&]() -> Result<std::vector<ScoreError>> {
        if (Status status = check_pair(keys, decoded); !status.ok()) {
            return status;
        }
        if (Status status = inspect::check_queries(queries, keys); !status.ok()) {
            return status;
        }
        if (max_queries < 1 || keys.num_tokens < 2) {
            return argument_error("max_queries, tokens", fmt::format("{}, {}", max_queries, keys.num_tokens), "at least 1 and 2");
        }
        const std::int64_t candidates = keys.num_tokens - 1;
        const std::int64_t drawn = std::min<std::int64_t>(max_queries, candidates);
        const int group = queries.num_qo_heads / queries.num_kv_heads;
        const double scale = 1 / std::sqrt(static_cast<double>(keys.head_dim));
        std::vector<ScoreError> errors;
        for (int head = 0; head < keys.num_kv_heads; ++head) {
            const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(head) * keys.head_dim;
            double error_scatter = 0;
            double score_scatter = 0;
            std::int64_t count = 0;
            for (std::int64_t i = 0; i < drawn; ++i) {
                const std::int64_t token = 1 + (2 * i + 1) * candidates / (2 * drawn);
                for (int member = 0; member < group; ++member) {
                    const float* q =
                        queries.queries + token * queries.token_stride + (head * group + member) * queries.head_stride;
                    std::vector<double> scores;
                    std::vector<double> differences;
                    for (std::int64_t t = 0; t <= token; ++t) {
                        const double score = scale * dot(q, keys.rows + t * keys.row_stride + offset, keys.head_dim);
                        scores.push_back(score);
                        differences.push_back(scale * dot(q, decoded.rows + t * decoded.row_stride + offset, keys.head_dim) -
                                              score);
                    }
                    error_scatter += scatter(differences);
                    score_scatter += scatter(scores);
                    count += token + 1;
                }
            }
            errors.push_back(
                {std::sqrt(error_scatter / static_cast<double>(count)), std::sqrt(score_scatter / static_cast<double>(count))});
        }
        return errors;
    });
}

}  // namespace vecinfer
