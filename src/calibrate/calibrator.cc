#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calibrate/full_transform.h"
#include "calibrate/relevance.h"
#include "codec/f16.h"
#include "vecinfer/calibrate.h"
#include "vecinfer/codec.h"

namespace vecinfer {

namespace {

constexpr int kSubspaceIterations = 25;  // as published for product quantization of KV caches
// Sub-vectors that a codebook is trained on, per centroid; more move it by less than another text would.
constexpr std::int64_t kSamplesPerCentroid = 256;

// splitmix64: small, and the same everywhere.
struct Random {
    std::uint64_t state;

    std::uint64_t next() {
        std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
};

// One side of one layer: an even sample of its rows, and the largest magnitude of each channel over all of them.
struct Reservoir {
    int num_heads = 0;
    int head_dim = 0;
    std::int64_t seen = 0;
    Random random{0};
    std::vector<std::uint16_t> rows;  // f16, layout (kept, num_heads * head_dim)
    std::vector<float> max_abs;       // layout (num_heads, head_dim), as the sums
    std::vector<double> sum;
    std::vector<double> square_sum;

    int row_dim() const { return num_heads * head_dim; }
    std::int64_t kept() const { return static_cast<std::int64_t>(rows.size()) / std::max(row_dim(), 1); }

    void start(int heads, int dim, std::uint64_t seed) {
        num_heads = heads;
        head_dim = dim;
        random.state = seed;
        max_abs.assign(row_dim(), 0.0f);
        sum.assign(row_dim(), 0.0);
        square_sum.assign(row_dim(), 0.0);
    }

    void add(const float* row, std::int64_t capacity) {
        for (int i = 0; i < row_dim(); ++i) {
            max_abs[i] = std::max(max_abs[i], std::fabs(row[i]));
            sum[i] += row[i];
            square_sum[i] += static_cast<double>(row[i]) * row[i];
        }
        std::int64_t slot = seen++;
        if (slot >= capacity) {
            slot = static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(seen));
            if (slot >= capacity) {
                return;
            }
        } else {
            rows.resize(rows.size() + row_dim());
        }
        std::uint16_t* out = rows.data() + slot * row_dim();
        for (int i = 0; i < row_dim(); ++i) {
            out[i] = f32_to_f16(row[i]);
        }
    }
};

struct Layer {
    Reservoir keys;
    Reservoir values;
    Reservoir queries;
    Relevance relevance;
};

HeadSamples sample_of(const Reservoir& r) {
    return {r.num_heads, r.head_dim, r.rows};
}

std::vector<float> mean(const Reservoir& r) {
    std::vector<float> m;
    for (const double s : r.sum) {
        m.push_back(static_cast<float>(s / static_cast<double>(r.seen)));
    }
    return m;
}

// What the key transform is made from, per KV head: weighted by attention where that was seen, else every row alike.
struct KeyStatistics {
    std::vector<double> key_mean;                // layout (num_kv_heads, head_dim), as the next
    std::vector<double> key_square;              // E[k_i^2]
    std::vector<Eigen::MatrixXd> query_moments;  // E[q q^T] over the query heads of a group; none without queries
};

Eigen::MatrixXd query_moment(const Reservoir& queries, int first_head, int num_heads) {
    const int dim = queries.head_dim;
    Eigen::MatrixXd q(queries.kept() * num_heads, dim);
    for (std::int64_t i = 0; i < q.rows(); ++i) {
        const std::uint16_t* in = queries.rows.data() + i / num_heads * queries.row_dim() +
                                  (first_head + i % num_heads) * static_cast<std::ptrdiff_t>(dim);
        for (int d = 0; d < dim; ++d) {
            q(i, d) = f16_to_f32(in[d]);
        }
    }
    return q.transpose() * q / static_cast<double>(std::max<std::ptrdiff_t>(q.rows(), 1));
}

KeyStatistics key_statistics(const Layer& layer) {
    KeyStatistics out;
    const Reservoir& keys = layer.keys;
    if (!layer.relevance.empty()) {
        for (const Relevance::Head& head : layer.relevance.heads()) {
            for (int d = 0; d < keys.head_dim; ++d) {
                out.key_mean.push_back(head.key_sum[d] / head.key_weight);
                out.key_square.push_back(head.key_square_sum[d] / head.key_weight);
            }
            out.query_moments.emplace_back(head.query_moment / head.query_weight);
        }
        return out;
    }
    for (int i = 0; i < keys.row_dim(); ++i) {
        out.key_mean.push_back(keys.sum[i] / static_cast<double>(keys.seen));
        out.key_square.push_back(keys.square_sum[i] / static_cast<double>(keys.seen));
    }
    if (layer.queries.seen > 0 && layer.queries.head_dim == keys.head_dim && layer.queries.num_heads % keys.num_heads == 0) {
        const int group = layer.queries.num_heads / keys.num_heads;
        for (int head = 0; head < keys.num_heads; ++head) {
            out.query_moments.push_back(query_moment(layer.queries, head * group, group));
        }
    }
    return out;
}

std::vector<float> smooth_factors(const Reservoir& keys, const TransformSpec& spec, const KeyStatistics& statistics) {
    std::vector<float> factors;
    for (int i = 0; i < keys.row_dim(); ++i) {
        double factor = std::sqrt(keys.max_abs[i]);
        if (spec.optimal) {
            const double m = spec.center ? statistics.key_mean[i] : 0.0;
            const double k = std::max(statistics.key_square[i] - m * m, 0.0);
            const int channel = i % keys.head_dim;
            const double q = statistics.query_moments[i / keys.head_dim](channel, channel);
            factor = q > 0 ? std::pow(k / q, 0.25) : 1.0;
        }
        factors.push_back(std::max(static_cast<float>(factor), kMinSmoothFactor));
    }
    return factors;
}

// Sub-vectors of one head in code space, as the codec will see them: transformed, and divided by their norm if the scheme stores
// norms. `num_rows` of the reservoir's rows, evenly spread.
void append_samples(const Reservoir& reservoir, std::int64_t num_rows, int head, const HeadTransform& transform, bool norm,
                    std::vector<float>& samples) {
    std::vector<float> x(reservoir.head_dim);
    for (std::int64_t row = 0; row < num_rows; ++row) {
        const std::uint16_t* in =
            reservoir.rows.data() + row * reservoir.kept() / num_rows * reservoir.row_dim() + head * reservoir.head_dim;
        for (int i = 0; i < reservoir.head_dim; ++i) {
            x[i] = f16_to_f32(in[i]);
        }
        transform.forward(x.data(), x.data());
        if (norm) {
            double sum = 0;
            for (const float v : x) {
                sum += static_cast<double>(v) * v;
            }
            const float scale = decode_norm(encode_norm(static_cast<float>(std::sqrt(sum / reservoir.head_dim))));
            if (scale == 0) {
                continue;
            }
            for (float& v : x) {
                v /= scale;
            }
        }
        samples.insert(samples.end(), x.begin(), x.end());
    }
}

}  // namespace

struct Calibrator::State {
    CalibratorOptions options;
    std::map<int, Layer> layers;

    Status observe(const KvRows& r, bool keys);
    /// Rows kept of one side. A subspace of product quantization is trained on one sub-vector per row, so that wide codes need
    /// more.
    std::int64_t capacity(int layer, bool keys) const {
        const Scheme scheme = scheme_of_layer(options.scheme, layer);
        const CodecSpec& spec = keys ? scheme.key : scheme.value;
        const std::int64_t wanted = options.scheme.scope == Scope::subspace ? std::int64_t{4} << spec.code_bits : 0;
        return std::max<std::int64_t>(options.tokens_per_layer, wanted);
    }
    Result<std::vector<Codebook>> train_side(const Reservoir& reservoir, const Scheme& scheme, const CodecSpec& spec,
                                             const std::vector<HeadTransform>& transforms,
                                             const std::function<bool(double)>& progress) const;
};

Calibrator::Calibrator() = default;
Calibrator::Calibrator(Calibrator&&) noexcept = default;
Calibrator& Calibrator::operator=(Calibrator&&) noexcept = default;
Calibrator::~Calibrator() = default;

Result<Calibrator> Calibrator::create(const CalibratorOptions& options) {
    if (options.scheme.is_f16()) {
        return argument_error("scheme", "f16", "a scheme with codebooks");
    }
    if (options.tokens_per_layer < 1) {
        return argument_error("tokens_per_layer", std::to_string(options.tokens_per_layer), "at least 1");
    }
    Result<Scheme> scheme = resolve(options.scheme, true);
    if (!scheme.ok()) {
        return scheme.status();
    }
    if (!learns(scheme.value())) {
        return argument_error("scheme", to_string(options.scheme),
                              "one with codebooks, center, smooth or full: nothing to learn");
    }
    Calibrator calibrator;
    calibrator.state_ = std::make_unique<State>();
    calibrator.state_->options = options;
    calibrator.state_->options.scheme = scheme.value();
    return calibrator;
}

namespace {

// Shapes must be sane and must not change; `reservoir` starts with the first call.
Status start_or_check(Reservoir& reservoir, std::string_view what, int layer, int num_heads, int head_dim, std::uint64_t seed) {
    constexpr int kMost = 65536;
    const std::string name = fmt::format("layer {} {}", layer, what);
    const std::string got = fmt::format("{} heads of {}", num_heads, head_dim);
    if (num_heads < 1 || head_dim < 1 || num_heads > kMost || head_dim > kMost) {
        return argument_error(name, got, fmt::format("1 to {} heads of 1 to {}", kMost, kMost));
    }
    if (reservoir.seen == 0) {
        reservoir.start(num_heads, head_dim, seed + static_cast<std::uint64_t>(layer) * 0x10001);
    }
    if (reservoir.num_heads != num_heads || reservoir.head_dim != head_dim) {
        return argument_error(name, got, fmt::format("{} heads of {} as before", reservoir.num_heads, reservoir.head_dim));
    }
    return {};
}

Status check_finite(const float* row, int n, std::string_view what, int layer) {
    for (int i = 0; i < n; ++i) {
        if (!std::isfinite(row[i])) {
            return argument_error(fmt::format("layer {} {}", layer, what), fmt::format("{} in channel {}", row[i], i),
                                  "finite rows");
        }
    }
    return {};
}

}  // namespace

Status Calibrator::State::observe(const KvRows& r, bool keys) {
    const char* what = keys ? "keys" : "values";
    Layer& layer = layers[r.layer];
    Reservoir& reservoir = keys ? layer.keys : layer.values;
    if (Status status = start_or_check(reservoir, what, r.layer, r.num_kv_heads, r.head_dim, options.seed * 2 + (keys ? 0 : 1));
        !status.ok()) {
        return status;
    }
    const std::int64_t kept = options.scheme.is_f16(r.layer) ? 0 : capacity(r.layer, keys);
    for (std::int64_t t = 0; t < r.num_tokens; ++t) {
        const float* row = r.rows + t * r.row_stride;
        if (Status status = check_finite(row, reservoir.row_dim(), what, r.layer); !status.ok()) {
            return status;
        }
        reservoir.add(row, kept);
    }
    return {};
}

Status Calibrator::observe_queries(const QueryRows& r) {
    if (r.num_kv_heads < 1 || r.num_qo_heads < 1 || r.num_qo_heads % r.num_kv_heads != 0) {
        return argument_error(fmt::format("layer {} query heads", r.layer), std::to_string(r.num_qo_heads),
                              fmt::format("a multiple of {} KV heads", r.num_kv_heads));
    }
    Reservoir& queries = state_->layers[r.layer].queries;
    if (Status status = start_or_check(queries, "queries", r.layer, r.num_qo_heads, r.head_dim, state_->options.seed * 3 + 2);
        !status.ok()) {
        return status;
    }
    std::vector<float> row(queries.row_dim());
    for (std::int64_t t = 0; t < r.num_tokens; ++t) {
        for (int h = 0; h < r.num_qo_heads; ++h) {
            std::copy_n(r.queries + t * r.token_stride + h * r.head_stride, r.head_dim,
                        row.begin() + static_cast<std::ptrdiff_t>(h) * r.head_dim);
        }
        if (Status status = check_finite(row.data(), queries.row_dim(), "queries", r.layer); !status.ok()) {
            return status;
        }
        queries.add(row.data(), state_->options.tokens_per_layer / 4 + 1);
    }
    return {};
}

Status Calibrator::observe_attention(const KvRows& keys, const QueryRows& queries, float sm_scale) {
    if (keys.layer != queries.layer || keys.head_dim != queries.head_dim || keys.num_kv_heads != queries.num_kv_heads ||
        keys.num_tokens != queries.num_tokens) {
        return argument_error(
            fmt::format("layer {} queries", queries.layer),
            fmt::format("{} tokens for {} KV heads of {}", queries.num_tokens, queries.num_kv_heads, queries.head_dim),
            fmt::format("{} tokens for {} KV heads of {}, as the keys of layer {}", keys.num_tokens, keys.num_kv_heads,
                        keys.head_dim, keys.layer));
    }
    if (!(sm_scale > 0) || !std::isfinite(sm_scale)) {
        return argument_error("sm_scale", fmt::format("{}", sm_scale), "a positive number");
    }
    if (Status status = observe_keys(keys); !status.ok()) {
        return status;
    }
    if (Status status = observe_queries(queries); !status.ok()) {
        return status;
    }
    state_->layers[keys.layer].relevance.add(keys, queries, state_->options.scheme.window, sm_scale);
    return {};
}

Status Calibrator::observe_keys(const KvRows& rows) {
    return state_->observe(rows, true);
}
Status Calibrator::observe_values(const KvRows& rows) {
    return state_->observe(rows, false);
}

std::int64_t Calibrator::tokens() const noexcept {
    std::int64_t most = 0;
    for (const auto& [index, layer] : state_->layers) {
        most = std::max({most, layer.keys.seen, layer.values.seen});
    }
    return most;
}

Result<std::vector<Codebook>> Calibrator::State::train_side(const Reservoir& reservoir, const Scheme& scheme,
                                                            const CodecSpec& spec, const std::vector<HeadTransform>& transforms,
                                                            const std::function<bool(double)>& progress) const {
    if (spec.kind == CodecKind::scalar) {
        return std::vector<Codebook>();
    }
    const bool norm = scheme.norm == Norm::vector;
    const Scope scope = scheme.scope;
    const auto num_books = static_cast<double>(codebook_count(spec, scope, reservoir.num_heads, reservoir.head_dim));
    std::vector<Codebook> books;
    const auto train = [&](std::vector<float>& samples) {
        if (samples.empty()) {
            samples.assign(spec.sub_dim, 0.0f);  // a head that is always zero
        }
        KMeansOptions kmeans;
        kmeans.seed = options.seed;
        kmeans.num_threads = options.num_threads;
        kmeans.max_iterations = scope == Scope::subspace ? kSubspaceIterations : kmeans.max_iterations;
        kmeans.progress = [&](double share) { return progress((static_cast<double>(books.size()) + share) / num_books); };
        Result<Codebook> trained = train_codebook(samples, {}, spec.sub_dim, spec.code_bits, kmeans);
        if (trained.ok()) {
            books.push_back(std::move(trained).value());
            return Status();
        }
        return trained.status();
    };
    std::vector<float> samples;
    const std::int64_t per_row = static_cast<std::int64_t>(scope == Scope::subspace ? 1 : reservoir.head_dim / spec.sub_dim) *
                                 (scope == Scope::layer ? reservoir.num_heads : 1);
    const std::int64_t num_rows = std::min(reservoir.kept(), (kSamplesPerCentroid << spec.code_bits) / per_row + 1);
    for (int head = 0; head < reservoir.num_heads; ++head) {
        append_samples(reservoir, num_rows, head, transforms[head], norm, samples);
        if (scope == Scope::layer && head + 1 < reservoir.num_heads) {
            continue;
        }
        if (scope != Scope::subspace) {
            if (Status status = train(samples); !status.ok()) {
                return status;
            }
        }
        for (int begin = 0; scope == Scope::subspace && begin < reservoir.head_dim; begin += spec.sub_dim) {
            std::vector<float> part;
            for (std::size_t row = 0; row < samples.size(); row += reservoir.head_dim) {
                const auto from = samples.begin() + static_cast<std::ptrdiff_t>(row) + begin;
                part.insert(part.end(), from, from + spec.sub_dim);
            }
            if (Status status = train(part); !status.ok()) {
                return status;
            }
        }
        samples.clear();
    }
    return books;
}

Result<std::vector<LayerCalibration>> Calibrator::finish(const std::function<bool(double)>& progress) const {
    return train(state_->options.scheme, progress);
}

Result<std::vector<LayerCalibration>> Calibrator::finish_with(const CodecSpec& key, const CodecSpec& value,
                                                              const std::function<bool(double)>& progress) const {
    Scheme scheme = state_->options.scheme;
    scheme.key = key;
    scheme.value = value;
    scheme.layers.clear();
    if (Status status = validate(scheme); !status.ok()) {
        return status;
    }
    return train(scheme, progress);
}

Result<std::vector<LayerCalibration>> Calibrator::train(const Scheme& whole, const std::function<bool(double)>& progress) const {
    std::vector<LayerCalibration> result;
    double done = 0;
    const double total = 2.0 * static_cast<double>(state_->layers.size());
    for (const auto& [index, layer] : state_->layers) {
        const Scheme scheme = scheme_of_layer(whole, index);
        if (scheme.is_f16()) {
            done += 2;
            continue;
        }
        if (layer.keys.seen == 0 || layer.values.seen == 0 || layer.keys.num_heads != layer.values.num_heads) {
            return argument_error(fmt::format("layer {}", index),
                                  fmt::format("{} keys and {} values", layer.keys.seen, layer.values.seen),
                                  "keys and values of the same heads");
        }
        LayerCalibration out;
        out.shape = {index, layer.keys.num_heads, layer.keys.head_dim, layer.values.head_dim};
        if ((scheme.key_transform.optimal || scheme.key_transform.full || shapes_keys(scheme)) &&
            (layer.queries.seen == 0 || layer.queries.head_dim != layer.keys.head_dim ||
             layer.queries.num_heads % layer.keys.num_heads != 0)) {
            return argument_error(
                fmt::format("layer {} queries", index),
                layer.queries.seen == 0 ? "none" : fmt::format("{} heads of {}", layer.queries.num_heads, layer.queries.head_dim),
                fmt::format("queries of every layer, which smooth-opt, full and shaped need, for {} KV heads of {}",
                            layer.keys.num_heads, layer.keys.head_dim));
        }
        const KeyStatistics statistics = key_statistics(layer);
        if (scheme.key_transform.center) {
            out.key_center.assign(statistics.key_mean.begin(), statistics.key_mean.end());
        }
        if (scheme.value_transform.center) {
            out.value_center = mean(layer.values);
        }
        if (scheme.key_transform.smooth) {
            out.smooth_factors = smooth_factors(layer.keys, scheme.key_transform, statistics);
        }
        if (scheme.key_transform.full) {
            out.key_matrix = full_matrices(sample_of(layer.keys), sample_of(layer.queries), out.key_center, scheme.key.sub_dim);
        }
        if (scheme.value_transform.full) {
            out.value_matrix = full_matrices(sample_of(layer.values), {}, out.value_center, scheme.value.sub_dim);
        }
        std::vector<HeadTransform> key_transforms;
        std::vector<HeadTransform> value_transforms;
        for (int head = 0; head < out.shape.num_kv_heads; ++head) {
            const auto of_head = [head](const std::vector<float>& all, int per_head) {
                return all.empty() ? std::span<const float>()
                                   : std::span(all).subspan(static_cast<std::size_t>(head) * per_head, per_head);
            };
            const int dk = out.shape.head_dim_k;
            const int dv = out.shape.head_dim_v;
            Result<HeadTransform> k = HeadTransform::create(dk, scheme.key_transform, of_head(out.smooth_factors, dk),
                                                            of_head(out.key_center, dk), of_head(out.key_matrix, dk * dk));
            Result<HeadTransform> v = HeadTransform::create(dv, scheme.value_transform, {}, of_head(out.value_center, dv),
                                                            of_head(out.value_matrix, dv * dv));
            if (!k.ok() || !v.ok()) {
                return k.ok() ? v.status() : k.status();
            }
            key_transforms.push_back(std::move(k).value());
            value_transforms.push_back(std::move(v).value());
        }
        if (shapes_keys(scheme)) {
            out.key_shaping = shaping_directions(statistics.query_moments, key_transforms);
        }
        const auto report = [&](double share) { return !progress || progress((done + share) / total); };
        Result<std::vector<Codebook>> keys = state_->train_side(layer.keys, scheme, scheme.key, key_transforms, report);
        done += 1;
        if (!keys.ok()) {
            return keys.status();
        }
        Result<std::vector<Codebook>> values = state_->train_side(layer.values, scheme, scheme.value, value_transforms, report);
        done += 1;
        if (!values.ok()) {
            return values.status();
        }
        out.key_codebooks = std::move(keys).value();
        out.value_codebooks = std::move(values).value();
        result.push_back(std::move(out));
    }
    if (result.empty()) {
        return argument_error("observations", "none", "keys and values of at least one layer");
    }
    return result;
}

}  // namespace vecinfer
