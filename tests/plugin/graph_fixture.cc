#include "graph_fixture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

namespace vecinfer::plugin_test {

/// Bytes that go into input tensors once they have memory.
struct Inputs {
    struct Item {
        ggml_tensor* tensor;
        const void* data;
    };
    std::vector<Item> items;

    ggml_tensor* add(ggml_tensor* t, const void* data) {
        ggml_set_input(t);
        items.push_back({t, data});
        return t;
    }
};

namespace {

Context make_context() {
    return Context(ggml_init({256 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
}

float scale_of(const Shape& shape) {
    return 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
}

// Tells the plugin the positions, as the RoPE of any model does; what it rotates does not matter here.
ggml_tensor* positions_node(ggml_context* ctx, Inputs& inputs, const std::vector<std::int32_t>& positions,
                            const std::vector<float>& zeros) {
    const auto n = static_cast<std::int64_t>(positions.size());
    ggml_tensor* x = inputs.add(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 2, 1, n), zeros.data());
    return ggml_rope(ctx, x, inputs.add(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n), positions.data()), 2, 0);
}

}  // namespace

ggml_backend_dev_t device() {
    static ggml_backend_dev_t dev = [] {
        ggml_backend_reg_t reg = ggml_backend_load(VECINFER_PLUGIN_FILE);
        return reg != nullptr ? ggml_backend_reg_dev_get(reg, 0) : nullptr;
    }();
    return dev;
}

std::string scheme() {
    const char* value = std::getenv("VECINFER_SCHEME");
    return value != nullptr ? value : "";
}

std::vector<float> normal(std::size_t n, unsigned seed, float scale) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> distribution(0.0f, scale);
    std::vector<float> x(n);
    std::generate(x.begin(), x.end(), [&] { return distribution(generator); });
    return x;
}

float round_f16(float x) {
    return ggml_fp16_to_fp32(ggml_fp32_to_fp16(x));
}

CachePair::CachePair(const Shape& shape)
    : shape_(shape), backend_(ggml_backend_dev_init(device(), nullptr)), context_(make_context()) {
    const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device()), "ggml_backend_set_n_threads"));
    set_threads(backend_.get(), 2);
    k_ = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F16, shape.row_dim(), shape.cells, shape.streams);
    v_ = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F16, shape.row_dim(), shape.cells, shape.streams);
    ggml_set_name(k_, "cache_k_l0");
    ggml_set_name(v_, "cache_v_l0");
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context_.get(), ggml_backend_dev_buffer_type(device())));
    if (buffer_ != nullptr) {
        clear();
    }
}

ggml_status CachePair::compute(ggml_context* ctx, std::span<ggml_tensor* const> outputs, const Inputs& inputs,
                               std::vector<float>* last_output) {
    const Buffer buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type()));
    for (const Inputs::Item& item : inputs.items) {
        ggml_backend_tensor_set(item.tensor, item.data, 0, ggml_nbytes(item.tensor));
    }
    ggml_cgraph* graph = ggml_new_graph(ctx);
    for (ggml_tensor* output : outputs) {
        ggml_build_forward_expand(graph, output);
    }
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), graph);
    if (last_output != nullptr) {
        last_output->resize(static_cast<std::size_t>(ggml_nelements(outputs.back())));
        ggml_backend_tensor_get(outputs.back(), last_output->data(), 0, ggml_nbytes(outputs.back()));
    }
    return status;
}

// llama.cpp's view of a cache for attention: (head_dim, cells, heads, streams).
ggml_tensor* CachePair::heads_view(ggml_context* ctx, ggml_tensor* t, int first_stream, int num_streams) const {
    const std::size_t head = ggml_row_size(t->type, shape_.head_dim);
    ggml_tensor* view = ggml_view_4d(ctx, t, shape_.head_dim, shape_.kv_heads, shape_.cells, num_streams, head, t->nb[1],
                                     t->nb[2], t->nb[2] * static_cast<std::size_t>(first_stream));
    return ggml_permute(ctx, view, 0, 2, 1, 3);
}

ggml_status CachePair::run(const Batch& batch, std::vector<float>* out) {
    const Context context = make_context();
    ggml_context* ctx = context.get();
    Inputs inputs;
    std::vector<ggml_tensor*> outputs;
    const auto n = static_cast<std::int64_t>(batch.rows.size());
    const std::vector<float> zeros(batch.rows.size() * 2);
    if (n > 0) {
        outputs.push_back(positions_node(ctx, inputs, batch.positions, zeros));
        for (auto [cache, rows] : {std::pair(k_, batch.k), std::pair(v_, batch.v)}) {
            ggml_tensor* current =
                inputs.add(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, shape_.head_dim, shape_.kv_heads, n), rows.data());
            ggml_tensor* flat = ggml_view_2d(ctx, current, shape_.row_dim(), n, current->nb[2], 0);
            ggml_tensor* index = inputs.add(ggml_new_tensor_1d(ctx, GGML_TYPE_I64, n), batch.rows.data());
            ggml_tensor* all = shape_.streams > 1
                                   ? ggml_reshape_2d(ctx, cache, shape_.row_dim(), std::int64_t{shape_.cells} * shape_.streams)
                                   : cache;
            outputs.push_back(ggml_set_rows(ctx, all, flat, index));
        }
    }
    std::vector<ggml_fp16_t> mask;
    if (!batch.q.empty()) {
        std::transform(batch.visible.begin(), batch.visible.end(), std::back_inserter(mask),
                       [](std::uint8_t seen) { return ggml_fp32_to_fp16(seen != 0 ? 0.0f : -INFINITY); });
        const auto queries = static_cast<std::int64_t>(batch.visible.size()) / shape_.cells / batch.num_streams;
        ggml_tensor* q = inputs.add(
            ggml_new_tensor_4d(ctx, GGML_TYPE_F32, shape_.head_dim, shape_.qo_heads, queries, batch.num_streams), batch.q.data());
        ggml_tensor* m =
            inputs.add(ggml_new_tensor_4d(ctx, GGML_TYPE_F16, shape_.cells, queries, 1, batch.num_streams), mask.data());
        ggml_tensor* attention = ggml_flash_attn_ext(
            ctx, ggml_permute(ctx, q, 0, 2, 1, 3), heads_view(ctx, k_, batch.first_stream, batch.num_streams),
            heads_view(ctx, v_, batch.first_stream, batch.num_streams), m, scale_of(shape_), 0.0f, batch.soft_cap);
        if (!batch.sinks.empty()) {
            ggml_flash_attn_ext_add_sinks(
                attention, inputs.add(ggml_new_tensor_1d(ctx, GGML_TYPE_F32, shape_.qo_heads), batch.sinks.data()));
        }
        outputs.push_back(attention);
    }
    return compute(ctx, outputs, inputs, out);
}

ggml_status CachePair::shift_keys(const std::vector<std::int32_t>& shift, int n_rot) {
    const Context context = make_context();
    ggml_context* ctx = context.get();
    Inputs inputs;
    ggml_tensor* amount =
        inputs.add(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, static_cast<std::int64_t>(shift.size())), shift.data());
    ggml_tensor* keys = ggml_view_3d(ctx, k_, n_rot, shape_.kv_heads, std::int64_t{shape_.cells} * shape_.streams,
                                     ggml_row_size(k_->type, shape_.head_dim), k_->nb[1], 0);
    ggml_tensor* rotated = ggml_rope_inplace(ctx, keys, amount, n_rot, GGML_ROPE_TYPE_NEOX);
    return compute(ctx, std::array{rotated}, inputs, nullptr);
}

ggml_status CachePair::multiply_keys() {
    const Context context = make_context();
    ggml_context* ctx = context.get();
    const std::vector<float> q(static_cast<std::size_t>(shape_.head_dim) * shape_.qo_heads, 1.0f);
    Inputs inputs;
    ggml_tensor* x = inputs.add(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, shape_.head_dim, 1, shape_.qo_heads), q.data());
    return compute(ctx, std::array{ggml_mul_mat(ctx, heads_view(ctx, k_, 0, 1), x)}, inputs, nullptr);
}

ggml_status CachePair::attend_values_in_keys() {
    const Context context = make_context();
    ggml_context* ctx = context.get();
    const std::vector<float> q(static_cast<std::size_t>(shape_.head_dim) * shape_.qo_heads, 1.0f);
    Inputs inputs;
    ggml_tensor* x = inputs.add(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, shape_.head_dim, 1, shape_.qo_heads), q.data());
    ggml_tensor* keys = heads_view(ctx, k_, 0, 1);
    return compute(ctx, std::array{ggml_flash_attn_ext(ctx, x, keys, keys, nullptr, scale_of(shape_), 0.0f, 0.0f)}, inputs,
                   nullptr);
}

void CachePair::copy_stream(int from, int to) {
    const Context context = make_context();
    for (ggml_tensor* t : {k_, v_}) {
        const auto stream = [&](int s) {
            ggml_tensor* view =
                ggml_view_2d(context.get(), t, t->ne[0], t->ne[1], t->nb[1], t->nb[2] * static_cast<std::size_t>(s));
            ggml_backend_view_init(view);
            return view;
        };
        ggml_backend_tensor_copy(stream(from), stream(to));
    }
}

std::vector<std::uint8_t> CachePair::save(ggml_tensor* t, std::int64_t first, std::int64_t count) {
    std::vector<std::uint8_t> bytes(t->nb[1] * static_cast<std::size_t>(count));
    ggml_backend_tensor_get(t, bytes.data(), t->nb[1] * static_cast<std::size_t>(first), bytes.size());
    return bytes;
}

void CachePair::load(ggml_tensor* t, std::int64_t first, std::span<const std::uint8_t> bytes) {
    ggml_backend_tensor_set(t, bytes.data(), t->nb[1] * static_cast<std::size_t>(first), bytes.size());
}

std::vector<float> reference_attention(const Shape& shape, std::span<const float> k, std::span<const float> v,
                                       std::span<const float> q, std::span<const std::uint8_t> visible, float soft_cap,
                                       std::span<const float> sinks) {
    const std::size_t cells = static_cast<std::size_t>(shape.cells);
    const std::size_t dim = static_cast<std::size_t>(shape.head_dim);
    const std::size_t row_dim = static_cast<std::size_t>(shape.row_dim());
    const std::size_t heads = static_cast<std::size_t>(shape.qo_heads);
    const std::size_t group = heads / static_cast<std::size_t>(shape.kv_heads);
    std::vector<float> out(q.size());
    for (std::size_t t = 0; t < visible.size() / cells; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
            const float* query = q.data() + (t * heads + h) * dim;
            std::vector<std::pair<std::size_t, double>> scores;
            double top = -INFINITY;
            for (std::size_t c = 0; c < cells; ++c) {
                if (visible[t * cells + c] == 0) {
                    continue;
                }
                double score = 0;
                for (std::size_t i = 0; i < dim; ++i) {
                    score += static_cast<double>(query[i]) * k[c * row_dim + h / group * dim + i];
                }
                score /= std::sqrt(static_cast<double>(dim));
                if (soft_cap > 0) {
                    score = soft_cap * std::tanh(score / soft_cap);
                }
                top = std::max(top, score);
                scores.emplace_back(c, score);
            }
            double total = sinks.empty() ? 0 : std::exp(sinks[h] - top);
            std::vector<double> sum(dim);
            for (const auto& [c, score] : scores) {
                const double p = std::exp(score - top);
                total += p;
                for (std::size_t i = 0; i < dim; ++i) {
                    sum[i] += p * v[c * row_dim + h / group * dim + i];
                }
            }
            for (std::size_t i = 0; i < dim && total > 0; ++i) {
                out[(t * heads + h) * dim + i] = static_cast<float>(sum[i] / total);
            }
        }
    }
    return out;
}

double relative_error(std::span<const float> a, std::span<const float> b) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
        difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
        norm += static_cast<double>(b[i]) * b[i];
    }
    return std::sqrt(difference / norm);
}

}  // namespace vecinfer::plugin_test
