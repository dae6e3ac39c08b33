#include "cuda/decode_problem.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <random>

#include "codec/cuda/pack.h"
#include "codec/f16.h"
#include "unit/cache_fixture.h"

namespace vecinfer::testing {
namespace {

std::uint16_t to_bf16(float x) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, 4);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(std::uint16_t x) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
    float y = 0;
    std::memcpy(&y, &bits, 4);
    return y;
}

RowCodec make_codec(const DecodeCase& c, bool value) {
    const CodecSpec& spec = value ? c.v : c.k;
    std::vector<HeadTransform> transforms;
    std::vector<Codebook> books;
    std::mt19937 rng(c.seed + (value ? 1000 : 0));
    for (int h = 0; h < c.num_kv_heads; ++h) {
        const TransformSpec transform{.smooth = c.smooth && !value, .hadamard = c.hadamard, .center = c.center};
        std::vector<float> factors;
        std::vector<float> center;
        std::uniform_real_distribution<float> factor(0.3f, 3.0f);
        std::normal_distribution<float> normal;
        for (int i = 0; i < c.head_dim; ++i) {
            if (transform.smooth) {
                factors.push_back(factor(rng));
            }
            if (transform.center) {
                center.push_back(0.5f * normal(rng));
            }
        }
        Result<HeadTransform> t = HeadTransform::create(c.head_dim, transform, factors, center);
        EXPECT_TRUE(t.ok()) << t.status().message();
        transforms.push_back(std::move(t).value());
        if (spec.kind == CodecKind::scalar) {
            continue;
        }
        for (int m = 0; m < (c.own_books ? c.head_dim / spec.sub_dim : 1); ++m) {
            books.push_back(random_codebook(spec.sub_dim, spec.code_bits, c.seed + 10 * h + 100 * m + (value ? 7 : 0)));
            books.back().scale *= 1.0f + 0.1f * static_cast<float>(m % 8);
        }
    }
    const bool plain = spec.kind == CodecKind::scalar || c.own_books;
    Result<RowCodec> codec = RowCodec::create(spec, plain ? Norm::none : Norm::vector, c.head_dim, transforms, books);
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    return std::move(codec).value();
}

}  // namespace

DecodeProblem::DecodeProblem(const DecodeCase& c) : c_(c) {
    make_codecs();
    make_codes();
    make_window();
    make_queries();
    lens_ = std::make_unique<DeviceBuffer<std::int32_t>>(std::vector<std::int32_t>(c.kv_lens.begin(), c.kv_lens.end()));
    const Result<std::size_t> bytes = cuda::decode_workspace_bytes(*codec_, batch(), heads(), c.num_q);
    EXPECT_TRUE(bytes.ok()) << bytes.status().message();
    workspace_ = std::make_unique<DeviceBuffer<std::byte>>(bytes.value());
    EXPECT_TRUE(cuda::init_decode_workspace(workspace(), workspace_bytes(), nullptr).ok());
}

int DecodeProblem::capacity() const {
    const int longest = std::max(1, *std::max_element(c_.kv_lens.begin(), c_.kv_lens.end()));
    const int page = c_.page_size > 0 ? c_.page_size : 64;
    return (longest + page - 1) / page * page;
}

void DecodeProblem::make_codecs() {
    k_codec_ = std::make_unique<RowCodec>(make_codec(c_, false));
    v_codec_ = std::make_unique<RowCodec>(make_codec(c_, true));
    Result<cuda::LayerCodec> codec = cuda::LayerCodec::create(*k_codec_, *v_codec_);
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    codec_ = std::make_unique<cuda::LayerCodec>(std::move(codec).value());
}

void DecodeProblem::make_codes() {
    std::mt19937 rng(c_.seed + 5);
    const int cells = capacity();
    const int page_size = c_.page_size > 0 ? c_.page_size : cells;
    const int pages_per_seq = cells / page_size;
    table_stride_ = pages_per_seq + 3;
    num_pages_ = static_cast<std::int64_t>(batch()) * pages_per_seq;
    // Pages in random order; entries that are not needed point nowhere.
    std::vector<std::int32_t> order(num_pages_);
    for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = static_cast<std::int32_t>(i);
    }
    if (c_.page_size > 0) {
        std::shuffle(order.begin(), order.end(), rng);
    }
    std::vector<std::int32_t> table(static_cast<std::size_t>(batch()) * table_stride_, INT_MAX);
    const std::size_t page_bytes = codec_->page_bytes(page_size);
    std::vector<std::uint8_t> pages(page_bytes * num_pages_);
    for (std::uint8_t& b : pages) {
        b = static_cast<std::uint8_t>(rng());
    }
    std::uniform_int_distribution<int> norm(c_.norm_low, c_.norm_high);
    for (int side = 0; side < 2; ++side) {
        codes_[side].resize(static_cast<std::size_t>(batch()) * c_.num_kv_heads * cells * subspaces(side));
        norms_[side].resize(static_cast<std::size_t>(batch()) * c_.num_kv_heads * cells);
        for (std::uint16_t& code : codes_[side]) {
            code = static_cast<std::uint16_t>(rng() & ((1u << spec(side).code_bits) - 1));
        }
        for (std::size_t i = 0; i < norms_[side].size(); ++i) {
            norms_[side][i] = c_.own_books                                      ? cuda::kUnitNorm
                              : c_.zero_norms > 0 && rng() % c_.zero_norms == 0 ? 0
                                                                                : static_cast<std::uint8_t>(norm(rng));
        }
    }
    if (scalar()) {
        make_numbers(rng);
    }
    for (int seq = 0; seq < batch(); ++seq) {
        for (int cell = 0; cell < c_.kv_lens[seq]; ++cell) {
            const int page = order[seq * pages_per_seq + cell / page_size];
            table[seq * table_stride_ + cell / page_size] = page;
            for (int head = 0; head < c_.num_kv_heads; ++head) {
                write_cell(pages.data() + page_bytes * page + page_bytes / c_.num_kv_heads * head, page_size, seq, head, cell);
            }
        }
    }
    pages_ = std::make_unique<DeviceBuffer<std::uint8_t>>(pages);
    table_ = std::make_unique<DeviceBuffer<std::int32_t>>(table);
}

std::size_t DecodeProblem::group_index(int side, int seq, int head, int cell, int channel) const {
    const CodecSpec& own = spec(side);
    const int first_cell = own.groups_tokens() ? cell / own.group * own.group : cell;
    const int first_channel = own.groups_tokens() ? channel : channel / own.group * own.group;
    return ((static_cast<std::size_t>(seq) * c_.num_kv_heads + head) * capacity() + first_cell) * c_.head_dim + first_channel;
}

/// Scales and zeros, and codes that the range of their group knows.
void DecodeProblem::make_numbers(std::mt19937& rng) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> octave(-1.0f, 1.0f);
    for (int side = 0; side < 2; ++side) {
        const CodecSpec& own = spec(side);
        numbers_[side].resize(codes_[side].size());
        for (scalar::Stored& stored : numbers_[side]) {
            const float scale = c_.scales * std::exp2(octave(rng));
            stored.scale = f32_to_f16(scale);
            stored.zero = f32_to_f16(scale * (normal(rng) - 0.5f * static_cast<float>(1 << own.code_bits)));
            if (own.levels == Levels::hybrid && rng() % 2 == 0) {
                stored.scale |= 0x8000u;
            }
        }
        for (int seq = 0; seq < batch(); ++seq) {
            for (int head = 0; head < c_.num_kv_heads; ++head) {
                for (int cell = 0; cell < capacity(); ++cell) {
                    for (int channel = 0; channel < c_.head_dim; ++channel) {
                        const scalar::Stored stored = numbers_[side][group_index(side, seq, head, cell, channel)];
                        const std::size_t at =
                            ((static_cast<std::size_t>(seq) * c_.num_kv_heads + head) * capacity() + cell) * c_.head_dim +
                            channel;
                        codes_[side][at] =
                            static_cast<std::uint16_t>(codes_[side][at] % (scalar::range(own, stored).max_code + 1));
                    }
                }
            }
        }
    }
}

/// What an encoder leaves behind: incomplete groups of tokens are never written.
void DecodeProblem::write_cell(std::uint8_t* head_page, int page_size, int seq, int head, int cell) const {
    const std::size_t at = (static_cast<std::size_t>(seq) * c_.num_kv_heads + head) * capacity() + cell;
    const int in_page = cell % page_size;
    for (int side = 0; side < 2; ++side) {
        const bool value = side == 1;
        if (!scalar()) {
            cuda::HostHeadPage to(head_page, c_.head_dim, c_.k, c_.v, page_size);
            for (int m = 0; m < subspaces(side); ++m) {
                to.set_code(in_page, m, value, codes_[side][at * subspaces(side) + m]);
            }
            to.norm(in_page, value) = norms_[side][at];
            continue;
        }
        const CodecSpec& own = spec(side);
        if (own.groups_tokens() && cell / own.group >= c_.kv_lens[seq] / own.group) {
            continue;
        }
        cuda::ScalarHostHeadPage to(head_page, c_.head_dim, c_.k, c_.v, page_size);
        for (int channel = 0; channel < c_.head_dim; ++channel) {
            to.set_code(in_page, channel, value, codes_[side][at * c_.head_dim + channel]);
            to.set_numbers(in_page, channel, value, numbers_[side][group_index(side, seq, head, cell, channel)]);
        }
    }
}

/// In the original space.
std::vector<float> DecodeProblem::code_row(int side, int seq, int head, int cell) const {
    const RowCodec& codec = side == 0 ? *k_codec_ : *v_codec_;
    const std::size_t at = (static_cast<std::size_t>(seq) * c_.num_kv_heads + head) * capacity() + cell;
    std::vector<float> x(c_.head_dim);
    if (!scalar()) {
        codec.decode_original(head, &codes_[side][at * subspaces(side)], &norms_[side][at], x.data());
        return x;
    }
    for (int channel = 0; channel < c_.head_dim; ++channel) {
        const scalar::Stored stored = numbers_[side][group_index(side, seq, head, cell, channel)];
        x[channel] = scalar::range(spec(side), stored).at(codes_[side][at * c_.head_dim + channel]);
    }
    codec.transform(head).inverse(x.data(), x.data());
    return x;
}

void DecodeProblem::make_window() {
    if (c_.window.sink == 0 && c_.window.recent == 0) {
        return;
    }
    window_rows_ = c_.window.sink + c_.window.recent + c_.num_q + 2;
    const int num_slots = batch() + 1;
    for (int seq = 0; seq < batch(); ++seq) {
        slots_.push_back(num_slots - 1 - seq);
    }
    for (std::vector<std::uint16_t>& side : window_) {
        side.assign(static_cast<std::size_t>(num_slots) * c_.num_kv_heads * window_rows_ * c_.head_dim, 0x7e00);  // NaN
    }
    std::mt19937 rng(c_.seed + 6);
    std::normal_distribution<float> normal;
    const int ring = window_rows_ - c_.window.sink;
    for (int seq = 0; seq < batch(); ++seq) {
        for (int pos = 0; pos < c_.kv_lens[seq]; ++pos) {
            if (pos >= c_.window.sink && pos < c_.kv_lens[seq] - ring) {
                continue;
            }
            const int row = pos < c_.window.sink ? pos : c_.window.sink + (pos - c_.window.sink) % ring;
            for (int head = 0; head < c_.num_kv_heads; ++head) {
                for (std::vector<std::uint16_t>& side : window_) {
                    const std::size_t at =
                        ((static_cast<std::size_t>(slots_[seq]) * c_.num_kv_heads + head) * window_rows_ + row) * c_.head_dim;
                    for (int i = 0; i < c_.head_dim; ++i) {
                        side[at + i] = f32_to_f16(normal(rng));
                    }
                }
            }
        }
    }
    window_k_ = std::make_unique<DeviceBuffer<std::uint16_t>>(window_[0]);
    window_v_ = std::make_unique<DeviceBuffer<std::uint16_t>>(window_[1]);
    slots_buffer_ = std::make_unique<DeviceBuffer<std::int32_t>>(slots_);
}

std::vector<float> DecodeProblem::window_row(int seq, int head, int pos, bool value) const {
    const int ring = window_rows_ - c_.window.sink;
    const int row = pos < c_.window.sink ? pos : c_.window.sink + (pos - c_.window.sink) % ring;
    const std::size_t at = ((static_cast<std::size_t>(slots_[seq]) * c_.num_kv_heads + head) * window_rows_ + row) * c_.head_dim;
    std::vector<float> x(c_.head_dim);
    for (int i = 0; i < c_.head_dim; ++i) {
        x[i] = f16_to_f32(window_[value ? 1 : 0][at + i]);
    }
    return x;
}

void DecodeProblem::make_queries() {
    std::mt19937 rng(c_.seed + 8);
    std::normal_distribution<float> normal(0.0f, c_.query_magnitude);
    std::vector<std::uint8_t> bytes;
    for (std::size_t i = 0; i < out_values(); ++i) {
        float x = normal(rng);
        std::uint16_t half = 0;
        if (c_.q_type == cuda::Number::f16) {
            half = f32_to_f16(x);
            x = f16_to_f32(half);
        } else if (c_.q_type == cuda::Number::bf16) {
            half = to_bf16(x);
            x = from_bf16(half);
        }
        q_.push_back(x);
        std::uint8_t raw[4];
        const bool wide = c_.q_type == cuda::Number::f32;
        std::memcpy(raw, wide ? static_cast<const void*>(&x) : &half, wide ? 4 : 2);
        bytes.insert(bytes.end(), raw, raw + (wide ? 4 : 2));
    }
    q_buffer_ = std::make_unique<DeviceBuffer<std::uint8_t>>(bytes);
    out_buffer_ = std::make_unique<DeviceBuffer<std::uint8_t>>(out_values() * (c_.out_type == cuda::Number::f32 ? 4 : 2));
    lse_ = std::make_unique<DeviceBuffer<float>>(out_values() / c_.head_dim);
    for (int h = 0; h < heads(); ++h) {
        slopes_.push_back(c_.alibi ? 0.02f / static_cast<float>(1 + h) : 0.0f);
        sink_scores_.push_back(0.5f * static_cast<float>(h % 5));
    }
    slopes_buffer_ = std::make_unique<DeviceBuffer<float>>(slopes_);
    sinks_buffer_ = std::make_unique<DeviceBuffer<float>>(sink_scores_);
}

cuda::CacheView DecodeProblem::cache() const {
    cuda::CacheView view;
    view.pages = pages_->data();
    view.num_pages = num_pages_;
    view.page_size = c_.page_size > 0 ? c_.page_size : capacity();
    view.block_table = c_.page_size > 0 ? table_->data() : nullptr;
    view.table_stride = table_stride_;
    view.window = c_.window;
    if (window_k_ != nullptr) {
        view.window_k = window_k_->data();
        view.window_v = window_v_->data();
        view.window_rows = window_rows_;
        view.num_slots = batch() + 1;
        view.window_slots = slots_buffer_->data();
    }
    return view;
}

cuda::DecodeParams DecodeProblem::params() const {
    cuda::DecodeParams p;
    p.batch = batch();
    p.num_q = c_.num_q;
    p.num_qo_heads = heads();
    p.kv_lens = lens_->data();
    p.sm_scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
    p.soft_cap = c_.soft_cap;
    p.sliding_window = c_.sliding_window;
    p.alibi_slopes = c_.alibi ? slopes_buffer_->data() : nullptr;
    p.sinks = c_.sinks ? sinks_buffer_->data() : nullptr;
    p.q = q_buffer_->data();
    p.q_type = c_.q_type;
    p.q_head_stride = c_.head_dim;
    p.q_token_stride = static_cast<std::int64_t>(heads()) * c_.head_dim;
    p.q_seq_stride = p.q_token_stride * c_.num_q;
    p.out = out_buffer_->data();
    p.out_type = c_.out_type;
    p.out_head_stride = p.q_head_stride;
    p.out_token_stride = p.q_token_stride;
    p.out_seq_stride = p.q_seq_stride;
    p.lse = lse_->data();
    return p;
}

Status DecodeProblem::run() {
    Status s = cuda::decode_attention(*codec_, cache(), params(), workspace(), workspace_bytes(), nullptr);
    const cudaError_t error = cudaDeviceSynchronize();
    EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
    return s;
}

std::vector<double> DecodeProblem::output() const {
    const std::vector<std::uint8_t> bytes = out_buffer_->get();
    std::vector<double> y(out_values());
    for (std::size_t i = 0; i < y.size(); ++i) {
        if (c_.out_type == cuda::Number::f32) {
            float x = 0;
            std::memcpy(&x, &bytes[4 * i], 4);
            y[i] = x;
        } else {
            std::uint16_t half = 0;
            std::memcpy(&half, &bytes[2 * i], 2);
            y[i] = c_.out_type == cuda::Number::f16 ? f16_to_f32(half) : from_bf16(half);
        }
    }
    return y;
}

void DecodeProblem::reference(std::vector<double>& out, std::vector<double>& lse) const {
    const double scale = params().sm_scale;
    out.assign(out_values(), 0.0);
    lse.assign(out_values() / c_.head_dim, -std::numeric_limits<double>::infinity());
    for (int seq = 0; seq < batch(); ++seq) {
        const int len = c_.kv_lens[seq];
        for (int kv_head = 0; kv_head < c_.num_kv_heads; ++kv_head) {
            std::vector<float> rows[2];
            for (int side = 0; side < 2; ++side) {
                for (int cell = 0; cell < len; ++cell) {
                    const std::vector<float> row = code_row(side, seq, kv_head, cell);
                    rows[side].insert(rows[side].end(), row.begin(), row.end());
                }
            }
            for (int r = 0; r < c_.group * c_.num_q; ++r) {
                const int token = r / c_.group;
                const int head = kv_head * c_.group + r % c_.group;
                const int q_pos = len - c_.num_q + token;
                const std::size_t at_row = (static_cast<std::size_t>(seq) * c_.num_q + token) * heads() + head;
                const float* q = &q_[at_row * c_.head_dim];
                std::vector<double> scores;
                std::vector<std::vector<float>> values;
                for (int cell = 0; cell <= q_pos; ++cell) {
                    if (c_.sliding_window > 0 && cell <= q_pos - c_.sliding_window) {
                        continue;
                    }
                    const bool exact = cell < c_.window.sink || cell > q_pos - c_.window.recent;
                    const std::size_t at = static_cast<std::size_t>(cell) * c_.head_dim;
                    std::vector<float> k(rows[0].begin() + at, rows[0].begin() + at + c_.head_dim);
                    std::vector<float> v(rows[1].begin() + at, rows[1].begin() + at + c_.head_dim);
                    if (exact) {
                        k = window_row(seq, kv_head, cell, false);
                        v = window_row(seq, kv_head, cell, true);
                    }
                    double s = 0;
                    for (int i = 0; i < c_.head_dim; ++i) {
                        s += static_cast<double>(q[i]) * k[i];
                    }
                    s *= scale;
                    s = c_.soft_cap > 0 ? c_.soft_cap * std::tanh(s / c_.soft_cap) : s;
                    scores.push_back(s + slopes_[head] * (cell - q_pos));
                    values.push_back(std::move(v));
                }
                double top = c_.sinks ? sink_scores_[head] : -std::numeric_limits<double>::infinity();
                for (const double s : scores) {
                    top = std::max(top, s);
                }
                double total = c_.sinks ? std::exp(sink_scores_[head] - top) : 0.0;
                for (std::size_t i = 0; i < scores.size(); ++i) {
                    const double p = std::exp(scores[i] - top);
                    total += p;
                    for (int d = 0; d < c_.head_dim; ++d) {
                        out[at_row * c_.head_dim + d] += p * values[i][d];
                    }
                }
                for (int d = 0; d < c_.head_dim; ++d) {
                    out[at_row * c_.head_dim + d] = total > 0 ? out[at_row * c_.head_dim + d] / total : 0.0;
                }
                lse[at_row] = total > 0 ? top + std::log(total) : lse[at_row];
            }
        }
    }
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
    double difference = 0;
    double size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

}  // namespace vecinfer::testing
