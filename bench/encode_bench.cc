// What it costs to encode one token of one layer, keys and values of all KV heads, on one thread, and what its parts cost.
//
// Names: part/scheme/codec/heads x head_dim. Time is per token and layer. Parts: `encode` is everything; `transform`, `norm`,
// `search` (nearest centroids) and `shaping` stand alone, each over the keys and values that the scheme gives to it.
// Schemes: `plain` is the codec alone; `data-free` and `calibrated` do what the defaults of family vecinfer do without and with a
// calibration. Rows are N(0, 1); directions of shaping are random, with gains that fall as those of SmolLM2 do.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "codec/vq/encode.h"
#include "codec/vq/nearest.h"
#include "codec/vq/scan.h"
#include "codec/vq/shaping.h"
#include "codec/vq/tables.h"
#include "dispatch/isa.h"
#include "random.h"
#include "vecinfer/codec.h"
#include "vecinfer/scheme.h"

namespace vecinfer {
namespace {

constexpr int kTokens = 64;  // that a benchmark goes through in turn

struct Shape {
    int heads;
    int head_dim;
};

enum class Kind { plain, data_free, calibrated };

struct Case {
    Kind kind;
    CodecSpec spec;
    Shape shape;
};

std::vector<float> normals(int n, std::uint64_t seed) {
    Random random(seed);
    std::vector<float> out;
    for (int i = 0; i < n; ++i) {
        out.push_back(static_cast<float>(random.normal()));
    }
    return out;
}

template <class T>
T checked(Result<T> result) {
    if (!result.ok()) {
        std::fprintf(stderr, "%s\n", std::string(result.status().message()).c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

std::vector<float> directions(const Shape& shape) {
    const int rank = shaping_rank(shape.head_dim);
    std::vector<float> u = normals(shape.heads * rank * shape.head_dim, 3);
    for (std::size_t i = 0; i < u.size(); ++i) {
        const double r = static_cast<double>(i / shape.head_dim % rank) / rank;
        u[i] *= static_cast<float>(2.4 * std::exp(-3.0 * r) / std::sqrt(shape.head_dim));
    }
    return u;
}

class Layer {
public:
    explicit Layer(const Case& c) : shape_(c.shape), rows_(normals(kTokens * row_dim(), 1)) {
        const Norm norm = c.kind == Kind::plain ? Norm::none : Norm::vector;
        const std::vector<float> u = directions(c.shape);
        const TransformSpec value_transform{.hadamard = c.kind != Kind::plain};
        TransformSpec key_transform = value_transform;
        EncodeOptions key_options;
        if (c.kind == Kind::calibrated) {
            key_transform.smooth = key_transform.center = true;
            key_options = {.unbiased = true, .shaping = u};
        }
        key_ = make(c, key_transform, norm, key_options);
        value_ = make(c, value_transform, norm, {.unbiased = c.kind != Kind::plain});
    }

    int row_dim() const { return shape_.heads * shape_.head_dim; }
    const float* row(std::int64_t token, int head) const {
        return rows_.data() + token % kTokens * row_dim() + static_cast<std::ptrdiff_t>(head) * shape_.head_dim;
    }
    int heads() const { return shape_.heads; }
    int head_dim() const { return shape_.head_dim; }
    const RowCodec& key() const { return *key_; }
    const RowCodec& value() const { return *value_; }

private:
    std::unique_ptr<RowCodec> make(const Case& c, const TransformSpec& spec, Norm norm, const EncodeOptions& options) const {
        std::vector<float> factors(spec.smooth ? c.shape.head_dim : 0);
        for (std::size_t i = 0; i < factors.size(); ++i) {
            factors[i] = 0.5f + static_cast<float>(i % 7) / 6.0f;
        }
        const std::vector<float> center(spec.center ? c.shape.head_dim : 0, 0.1f);
        std::vector<HeadTransform> transforms(c.shape.heads,
                                              checked(HeadTransform::create(c.shape.head_dim, spec, factors, center)));
        return std::make_unique<RowCodec>(
            checked(RowCodec::create(c.spec, norm, c.shape.head_dim, std::move(transforms),
                                     {*universal_codebook(c.spec.sub_dim, c.spec.code_bits)}, options)));
    }

    Shape shape_;
    std::vector<float> rows_;
    std::unique_ptr<RowCodec> key_;
    std::unique_ptr<RowCodec> value_;
};

/// Time is per token, but heads take turns of kTokens tokens, as in a prompt that is written to a cache.
template <class PerHead>
void run(benchmark::State& state, int heads, const PerHead& per_head) {
    while (state.KeepRunningBatch(kTokens)) {
        for (int head = 0; head < heads; ++head) {
            for (int token = 0; token < kTokens; ++token) {
                per_head(token, head);
            }
        }
    }
}

void encode(benchmark::State& state, const Case& c) {
    const Layer layer(c);
    std::vector<std::uint16_t> codes(layer.head_dim());
    std::uint8_t side = 0;
    run(state, layer.heads(), [&](int token, int head) {
        layer.key().encode(head, layer.row(token, head), codes.data(), &side);
        benchmark::DoNotOptimize(codes.data());
        layer.value().encode(head, layer.row(token + 1, head), codes.data(), &side);
        benchmark::DoNotOptimize(codes.data());
    });
}

void transform(benchmark::State& state, const Case& c) {
    const Layer layer(c);
    std::vector<float> y(layer.head_dim());
    run(state, layer.heads(), [&](int token, int head) {
        layer.key().transform(head).forward(layer.row(token, head), y.data());
        benchmark::DoNotOptimize(y.data());
        layer.value().transform(head).forward(layer.row(token + 1, head), y.data());
        benchmark::DoNotOptimize(y.data());
    });
}

std::string name_of(const char* part, const Case& c) {
    const char* kind = c.kind == Kind::plain ? "plain" : c.kind == Kind::data_free ? "data-free" : "calibrated";
    return std::string(part) + "/" + kind + "/d" + std::to_string(c.spec.sub_dim) + "b" + std::to_string(c.spec.code_bits) + "/" +
           std::to_string(c.shape.heads) + "x" + std::to_string(c.shape.head_dim);
}

void add(const char* part, void (*function)(benchmark::State&, const Case&), const Case& c) {
    benchmark::RegisterBenchmark(name_of(part, c).c_str(), function, c)->Unit(benchmark::kMicrosecond);
}

// Vectors as a search meets them: of unit root mean square, every head's in a row.
void search(benchmark::State& state, const Case& c) {
    const Layer layer(c);
    const RowCodec& codec = layer.key();
    const ScanTables scan = ScanTables::for_nearest(codec.centroids_by_channel(0), c.spec.sub_dim,
                                                    searched_centroids(1 << c.spec.code_bits), codec.codebook(0).scale);
    const EncodeKernels kernels = encode_kernels(c.spec.sub_dim);
    std::vector<std::uint16_t> codes(layer.head_dim());
    run(state, 2 * layer.heads(), [&](int token, int head) {
        kernels.find_nearest(layer.row(token + head % 2, head / 2), codec.num_subspaces(), scan.table(), codes.data());
        benchmark::DoNotOptimize(codes.data());
    });
}

// One pass of improvement over the codes of every key head, as encoding does for each divisor that it tries.
void shaping(benchmark::State& state, const Case& c) {
    const Layer layer(c);
    const std::vector<float> u = directions(c.shape);
    const std::size_t per_head = u.size() / layer.heads();
    std::vector<NoiseShaping> heads;
    for (int head = 0; head < layer.heads(); ++head) {
        heads.emplace_back(std::span(u).subspan(head * per_head, per_head), layer.head_dim(), c.spec.sub_dim, c.spec.code_bits,
                           layer.key().centroids_by_channel(head), layer.key().codebook(head).scale);
    }
    const NearestFn nearest = nearest_kernel(c.spec.sub_dim);
    const int count = layer.key().num_subspaces();
    std::vector<std::uint16_t> nearest_codes(static_cast<std::size_t>(kTokens) * layer.heads() * count);
    std::vector<std::uint16_t> codes(count);
    for (int i = 0; i < kTokens * layer.heads(); ++i) {
        nearest(layer.row(i / layer.heads(), i % layer.heads()), count, layer.key().centroids_by_channel(0),
                searched_centroids(1 << c.spec.code_bits), nearest_codes.data() + static_cast<std::size_t>(i) * count, nullptr);
    }
    run(state, layer.heads(), [&](int token, int head) {
        const auto at = nearest_codes.begin() + (token % kTokens * layer.heads() + head) * count;
        std::copy(at, at + count, codes.begin());
        heads[head].improve(1, layer.row(token, head), codes.data());
        benchmark::DoNotOptimize(codes.data());
    });
}

void norm(benchmark::State& state, const Case& c) {
    const Layer layer(c);
    run(state, 2 * layer.heads(), [&](int token, int head) {
        const float* x = layer.row(token + head % 2, head / 2);
        double sum = 0;
        for (int i = 0; i < layer.head_dim(); ++i) {
            sum += static_cast<double>(x[i]) * x[i];
        }
        std::uint8_t code = encode_norm(static_cast<float>(std::sqrt(sum / layer.head_dim())));
        benchmark::DoNotOptimize(code);
    });
}

void add_all() {
    const CodecSpec specs[] = {
        {CodecKind::vq, 2, 8}, {CodecKind::vq, 4, 8}, {CodecKind::vq, 8, 8}, {CodecKind::vq, 4, 12}, {CodecKind::vq, 8, 12}};
    for (const Shape& shape : {Shape{3, 64}, Shape{8, 128}, Shape{1, 256}}) {
        const CodecSpec& usual = specs[1];
        for (const CodecSpec& spec : specs) {
            for (const Kind kind : {Kind::plain, Kind::data_free, Kind::calibrated}) {
                add("encode", encode, {kind, spec, shape});
            }
            add("search", search, {Kind::plain, spec, shape});
            add("shaping", shaping, {Kind::calibrated, spec, shape});
        }
        add("transform", transform, {Kind::data_free, usual, shape});
        add("transform", transform, {Kind::calibrated, usual, shape});
        add("norm", norm, {Kind::data_free, usual, shape});
    }
}

}  // namespace
}  // namespace vecinfer

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    benchmark::AddCustomContext("isa", std::string(vecinfer::isa_name(vecinfer::active_isa())));
    vecinfer::add_all();
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
