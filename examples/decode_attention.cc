// One layer's KV cache at 4 bits, filled with a prompt and then decoded token by token; prints how far attention over the packed
// cache is from attention over the same keys and values in f32, and what the cache takes. docs/library.md walks through it.
#include <vecinfer/attention.h>
#include <vecinfer/cache.h>
#include <vecinfer/scheme.h>
#include <vecinfer/sidecar.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace {

constexpr int kKvHeads = 2;
constexpr int kQoHeads = 8;  // 4 query heads share a KV head
constexpr int kHeadDim = 64;
constexpr int kRowDim = kKvHeads * kHeadDim;
constexpr int kCells = 1024;
constexpr int kPrompt = 900;
constexpr int kSteps = 20;
constexpr float kScale = 0.125F;  // 1 / sqrt(kHeadDim)

// Every function of the library returns a Status, or a Result with a value or a Status.
void check(const vecinfer::Status& status) {
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().c_str());
        std::exit(1);
    }
}

template <class T>
T check(vecinfer::Result<T> result) {
    check(result.status());
    return std::move(result).value();
}

// One side (keys or values) of one layer: the caller owns the codec and the memory of the codes.
class Side {
public:
    Side(vecinfer::RowCodec codec, const vecinfer::Scheme& scheme)
        : codec_(std::make_unique<vecinfer::RowCodec>(std::move(codec))) {
        vecinfer::CacheGeometry geometry;
        geometry.row_dim = codec_->row_dim();
        geometry.codec = codec_->spec();
        geometry.num_heads = codec_->num_heads();
        geometry.norm = codec_->has_norm();
        geometry.num_cells = kCells;
        geometry.window = scheme.window;
        memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, geometry.total_bytes())));
        std::fill_n(memory_.get(), geometry.total_bytes(), std::byte{0});  // an empty cache is all zeros
        cache_ = check(vecinfer::PackedCache::create(geometry, codec_.get(), memory_.get()));
    }

    // Rows of the tokens `begin`.., in cells of the same numbers. Any number of threads may share write_rows.
    void append(const float* rows, int begin, int n) {
        std::vector<std::int32_t> cells(static_cast<std::size_t>(n));
        std::iota(cells.begin(), cells.end(), begin);
        vecinfer::WritePlan plan = check(cache_.plan_write(0, cells, cells));
        std::vector<std::uint16_t> staging(static_cast<std::size_t>(plan.staging_rows) * kRowDim);
        plan.bind_staging(staging.data(), kRowDim);
        cache_.write_rows(plan, rows, kRowDim, 0, 1);
    }

    const vecinfer::PackedCache& cache() const { return cache_; }

private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::unique_ptr<vecinfer::RowCodec> codec_;
    std::unique_ptr<std::byte[], Free> memory_;
    vecinfer::PackedCache cache_;
};

// The same attention over f32 keys and values, one query token.
void exact_attention(const float* q, const std::vector<float>& k, const std::vector<float>& v, int len, float* out) {
    for (int head = 0; head < kQoHeads; ++head) {
        const int column = head / (kQoHeads / kKvHeads) * kHeadDim;
        std::vector<double> weights(static_cast<std::size_t>(len));
        double sum = 0;
        for (int t = 0; t < len; ++t) {
            const float* key = k.data() + t * kRowDim + column;
            weights[t] = std::exp(kScale * std::inner_product(key, key + kHeadDim, q + head * kHeadDim, 0.0));
            sum += weights[t];
        }
        for (int i = 0; i < kHeadDim; ++i) {
            double value = 0;
            for (int t = 0; t < len; ++t) {
                value += weights[t] / sum * v[t * kRowDim + column + i];
            }
            out[head * kHeadDim + i] = static_cast<float>(value);
        }
    }
}

}  // namespace

int main() {
    // A scheme is parsed from its spelling, then resolved: with a sidecar (load_sidecar) or, as here, data-free.
    const vecinfer::Scheme scheme = check(vecinfer::resolve(check(vecinfer::parse_scheme("vecinfer:k4v4")), false));
    const vecinfer::LayerShape shape{0, kKvHeads, kHeadDim, kHeadDim};
    Side keys(check(vecinfer::make_key_codec(scheme, shape, nullptr)), scheme);
    Side values(check(vecinfer::make_value_codec(scheme, shape, nullptr)), scheme);

    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    const auto random = [&](int n) {
        std::vector<float> x(static_cast<std::size_t>(n));
        std::generate(x.begin(), x.end(), [&] { return normal(rng); });
        return x;
    };
    const std::vector<float> k = random((kPrompt + kSteps) * kRowDim);
    const std::vector<float> v = random((kPrompt + kSteps) * kRowDim);
    keys.append(k.data(), 0, kPrompt);
    values.append(v.data(), 0, kPrompt);

    double error = 0;
    double energy = 0;
    for (int len = kPrompt + 1; len <= kPrompt + kSteps; ++len) {
        keys.append(k.data() + (len - 1) * kRowDim, len - 1, 1);
        values.append(v.data() + (len - 1) * kRowDim, len - 1, 1);
        const std::vector<float> q = random(kQoHeads * kHeadDim);
        std::vector<float> out(q.size());
        std::vector<float> wanted(q.size());
        // Rows in the window are read in f16: those of the last `recent` and the first `sink` positions.
        const std::vector<vecinfer::ExactRow> k_window = keys.cache().window(0);
        const std::vector<vecinfer::ExactRow> v_window = values.cache().window(0);
        const std::int32_t position = len - 1;
        vecinfer::AttentionParams params;
        params.num_tokens = 1;
        params.num_qo_heads = kQoHeads;
        params.kv_len = len;
        params.sm_scale = kScale;
        params.q = q.data();
        params.q_token_stride = kQoHeads * kHeadDim;
        params.q_head_stride = kHeadDim;
        params.out = out.data();
        params.out_token_stride = kQoHeads * kHeadDim;
        params.out_head_stride = kHeadDim;
        params.k_exact = k_window;
        params.v_exact = v_window;
        params.positions = &position;
        params.window = scheme.window;
        check(vecinfer::attention(keys.cache(), values.cache(), 0, params));

        exact_attention(q.data(), k, v, len, wanted.data());
        for (std::size_t i = 0; i < out.size(); ++i) {
            error += (out[i] - wanted[i]) * (out[i] - wanted[i]);
            energy += wanted[i] * wanted[i];
        }
    }
    const vecinfer::Footprint bytes = check(vecinfer::footprint(scheme, std::span(&shape, 1), kCells, false));
    const double relative = std::sqrt(error / energy);
    std::printf("relative error of the outputs: %.3f\n", relative);
    std::printf("bytes per token: %.0f as codes, %.0f in f16\n", bytes.code_bytes_per_token, bytes.f16_bytes_per_token);
    return relative < 0.2 ? 0 : 1;
}
