#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "inspect/inspect.h"
#include "sidecar/guard.h"
#include "vecinfer/cache.h"
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

// Codecs that group tokens have no codes of a single row: the rows go through a cache of their own.
Result<std::vector<float>> reconstruct_in_cache(const RowCodec& codec, const KvRows& rows) {
    const auto n = static_cast<std::int32_t>(rows.num_tokens);
    CacheGeometry geometry{
        .row_dim = codec.row_dim(), .codec = codec.spec(), .num_heads = codec.num_heads(), .norm = codec.has_norm()};
    geometry.num_cells = (n + kBlockCells - 1) / kBlockCells * kBlockCells;
    geometry.window = {.recent = codec.spec().group, .sink = 0};
    struct Block {
        alignas(64) std::byte bytes[64];
    };
    std::vector<Block> memory((geometry.total_bytes() + sizeof(Block) - 1) / sizeof(Block), Block{});
    Result<PackedCache> cache = PackedCache::create(geometry, &codec, memory.front().bytes);
    if (!cache.ok()) {
        return cache.status();
    }
    std::vector<std::int32_t> cells(static_cast<std::size_t>(n));
    std::iota(cells.begin(), cells.end(), 0);
    Result<WritePlan> plan = cache->plan_write(0, cells, cells);
    if (!plan.ok()) {
        return plan.status();
    }
    std::vector<std::uint16_t> staging(static_cast<std::size_t>(plan->staging_rows) * static_cast<std::size_t>(codec.row_dim()));
    plan->bind_staging(staging.data(), codec.row_dim());
    cache->write_rows(plan.value(), rows.rows, rows.row_stride, 0, 1);

    std::vector<float> decoded(static_cast<std::size_t>(n) * static_cast<std::size_t>(codec.row_dim()));
    std::vector<float> head_rows(static_cast<std::size_t>(n) * static_cast<std::size_t>(codec.head_dim()));
    for (int head = 0; head < codec.num_heads(); ++head) {
        cache->decode_original(0, head, 0, n, head_rows.data());
        for (std::ptrdiff_t t = 0; t < n; ++t) {
            std::copy_n(head_rows.data() + t * codec.head_dim(), codec.head_dim(),
                        decoded.data() + t * codec.row_dim() + static_cast<std::ptrdiff_t>(head) * codec.head_dim());
        }
    }
    return decoded;
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
        if (codec.spec().kind != CodecKind::vq) {
            return Status(ErrorCode::unsupported, "code usage: scalar codecs have no centroids");
        }
        // Product quantization: every subspace has a codebook of its own.
        const auto books = static_cast<std::size_t>(codec.centroid_stride() != 0 ? codec.num_subspaces() : 1);
        std::vector<CodeUsage> usage;
        std::vector<std::uint16_t> codes(static_cast<std::size_t>(codec.num_subspaces()));
        std::vector<std::uint8_t> side(static_cast<std::size_t>(codec.side_bytes()));
        for (int head = 0; head < codec.num_heads(); ++head) {
            std::vector<std::vector<std::int64_t>> counts(books, std::vector<std::int64_t>(std::size_t{1} << codec.code_bits()));
            for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
                codec.encode(head, rows.rows + t * rows.row_stride + static_cast<std::ptrdiff_t>(head) * rows.head_dim,
                             codes.data(), side.data());
                for (std::size_t m = 0; m < codes.size(); ++m) {
                    ++counts[m % books][codes[m]];
                }
            }
            CodeUsage own{.num_centroids = static_cast<int>(books) << codec.code_bits(),
                          .codes = rows.num_tokens * codec.num_subspaces()};
            for (const std::vector<std::int64_t>& book : counts) {
                for (const std::int64_t count : book) {
                    const double p = static_cast<double>(count) * static_cast<double>(books) / static_cast<double>(own.codes);
                    own.dead += count == 0 ? 1 : 0;
                    own.entropy_bits -= count == 0 ? 0 : p * std::log2(p) / static_cast<double>(books);
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
        if (codec.spec().groups_tokens()) {
            return reconstruct_in_cache(codec, rows);
        }
        std::vector<float> decoded(static_cast<std::size_t>(rows.num_tokens) * static_cast<std::size_t>(codec.row_dim()));
        std::vector<std::uint16_t> codes(static_cast<std::size_t>(codec.num_subspaces()));
        std::vector<std::uint8_t> side(static_cast<std::size_t>(codec.side_bytes()));
        for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
            for (int head = 0; head < codec.num_heads(); ++head) {
                const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(head) * codec.head_dim();
                codec.encode(head, rows.rows + t * rows.row_stride + offset, codes.data(), side.data());
                codec.decode_original(head, codes.data(), side.data(), decoded.data() + t * codec.row_dim() + offset);
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
