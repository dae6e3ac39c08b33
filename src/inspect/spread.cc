#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "inspect/inspect.h"
#include "sidecar/guard.h"
#include "vecinfer/inspect.h"

namespace vecinfer {
namespace {

struct Moments {
    std::vector<double> mean;
    std::vector<double> square;
    std::vector<float> max_abs;
};

Moments moments_of(const KvRows& rows) {
    const auto n = static_cast<std::size_t>(rows.num_kv_heads) * static_cast<std::size_t>(rows.head_dim);
    Moments m{std::vector<double>(n), std::vector<double>(n), std::vector<float>(n)};
    for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
        const float* x = rows.rows + t * rows.row_stride;
        for (std::size_t i = 0; i < n; ++i) {
            m.mean[i] += x[i];
            m.square[i] += static_cast<double>(x[i]) * x[i];
            m.max_abs[i] = std::max(m.max_abs[i], std::fabs(x[i]));
        }
    }
    for (std::size_t i = 0; i < n; ++i) {
        m.mean[i] /= static_cast<double>(rows.num_tokens);
        m.square[i] /= static_cast<double>(rows.num_tokens);
    }
    return m;
}

// E[q_i^2] per KV head and channel, the query heads of a group together.
std::vector<double> query_energy(const QueryRows& queries) {
    const int group = queries.num_qo_heads / queries.num_kv_heads;
    std::vector<double> energy(static_cast<std::size_t>(queries.num_kv_heads * queries.head_dim));
    for (std::int64_t t = 0; t < queries.num_tokens; ++t) {
        for (int h = 0; h < queries.num_qo_heads; ++h) {
            const float* q = queries.queries + t * queries.token_stride + h * queries.head_stride;
            for (int i = 0; i < queries.head_dim; ++i) {
                energy[static_cast<std::size_t>(h / group * queries.head_dim + i)] += static_cast<double>(q[i]) * q[i];
            }
        }
    }
    for (double& e : energy) {
        e /= static_cast<double>(queries.num_tokens) * group;
    }
    return energy;
}

}  // namespace

Result<std::vector<HeadTransform>> fit_transforms(const TransformSpec& spec, const KvRows& rows, const QueryRows* queries) {
    return guarded("inspection", [&]() -> Result<std::vector<HeadTransform>> {
        if (Status status = inspect::check_rows(rows, "rows"); !status.ok()) {
            return status;
        }
        if (spec.full) {
            return Status(ErrorCode::unsupported, "transform: full is only to be had from a calibration");
        }
        if (spec.optimal) {
            if (queries == nullptr) {
                return argument_error("queries", "none", "queries, which smooth-opt needs");
            }
            if (Status status = inspect::check_queries(*queries, rows); !status.ok()) {
                return status;
            }
        }
        const Moments m = moments_of(rows);
        const std::vector<double> energy = spec.optimal ? query_energy(*queries) : std::vector<double>();
        const auto dim = static_cast<std::size_t>(rows.head_dim);
        std::vector<HeadTransform> transforms;
        for (std::size_t head = 0; head < static_cast<std::size_t>(rows.num_kv_heads); ++head) {
            std::vector<float> center;
            std::vector<float> smooth;
            for (std::size_t i = head * dim; i < (head + 1) * dim; ++i) {
                if (spec.center) {
                    center.push_back(static_cast<float>(m.mean[i]));
                }
                if (spec.smooth) {
                    double factor = std::sqrt(m.max_abs[i]);
                    if (spec.optimal) {
                        const double k = std::max(m.square[i] - (spec.center ? m.mean[i] * m.mean[i] : 0.0), 0.0);
                        factor = energy[i] > 0 ? std::pow(k / energy[i], 0.25) : 1.0;
                    }
                    smooth.push_back(std::max(static_cast<float>(factor), kMinSmoothFactor));
                }
            }
            Result<HeadTransform> transform = HeadTransform::create(rows.head_dim, spec, smooth, center);
            if (!transform.ok()) {
                return transform.status();
            }
            transforms.push_back(std::move(transform).value());
        }
        return transforms;
    });
}

Result<Spread> measure_spread(const KvRows& rows, std::span<const HeadTransform> transforms, int map_tokens) {
    return guarded("inspection", [&]() -> Result<Spread> {
        if (Status status = inspect::check_rows(rows, "rows"); !status.ok()) {
            return status;
        }
        if (map_tokens < 1) {
            return argument_error("map_tokens", std::to_string(map_tokens), "at least 1");
        }
        if (transforms.size() != static_cast<std::size_t>(rows.num_kv_heads)) {
            return argument_error("transforms", std::to_string(transforms.size()),
                                  fmt::format("{}, one per head", rows.num_kv_heads));
        }
        for (const HeadTransform& transform : transforms) {
            if (transform.head_dim() != rows.head_dim) {
                return argument_error("transforms", fmt::format("head_dim {}", transform.head_dim()),
                                      std::to_string(rows.head_dim));
            }
        }
        const auto dim = static_cast<std::size_t>(rows.head_dim);
        const std::size_t n = transforms.size() * dim;
        Spread spread;
        spread.map_tokens = static_cast<int>(std::min<std::int64_t>(map_tokens, rows.num_tokens));
        spread.channel_max_abs.resize(n);
        std::vector<double> channel_sum(n);
        std::vector<double> map(static_cast<std::size_t>(spread.map_tokens) * n);
        std::vector<std::int64_t> map_counts(static_cast<std::size_t>(spread.map_tokens));
        double fourth = 0;
        double ratio = 0;
        std::int64_t vectors = 0;
        std::vector<float> y(dim);
        for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
            const auto bin = static_cast<std::size_t>(t * spread.map_tokens / rows.num_tokens);
            ++map_counts[bin];
            double token_square = 0;
            for (std::size_t head = 0; head < transforms.size(); ++head) {
                transforms[head].forward(rows.rows + t * rows.row_stride + head * dim, y.data());
                double square = 0;
                double fourth_power = 0;
                double sum = 0;
                double max = 0;
                for (std::size_t i = 0; i < dim; ++i) {
                    const double magnitude = std::fabs(y[i]);
                    const double squared = magnitude * magnitude;
                    square += squared;
                    fourth_power += squared * squared;
                    sum += magnitude;
                    max = std::max(max, magnitude);
                    channel_sum[head * dim + i] += magnitude;
                    spread.channel_max_abs[head * dim + i] = std::max(spread.channel_max_abs[head * dim + i], std::fabs(y[i]));
                    map[bin * n + head * dim + i] += magnitude;
                }
                token_square += square;
                if (square > 0) {
                    fourth += fourth_power * static_cast<double>(dim) / (square * square);
                    ratio += max * static_cast<double>(dim) / sum;
                    ++vectors;
                }
            }
            spread.token_rms.push_back(static_cast<float>(std::sqrt(token_square / static_cast<double>(n))));
        }
        for (const double sum : channel_sum) {
            spread.channel_mean_abs.push_back(static_cast<float>(sum / static_cast<double>(rows.num_tokens)));
        }
        for (std::size_t i = 0; i < map.size(); ++i) {
            spread.map.push_back(static_cast<float>(map[i] / static_cast<double>(map_counts[i / n])));
        }
        if (vectors > 0) {
            spread.kurtosis = fourth / static_cast<double>(vectors);
            spread.max_over_mean = ratio / static_cast<double>(vectors);
        }
        return spread;
    });
}

}  // namespace vecinfer
