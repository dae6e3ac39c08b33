#include "cuda/decode_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "codec/cuda/scalar_layout.h"
#include "codec/cuda/tables.h"
#include "cuda/device_kernels.h"

namespace vecinfer::bench {
namespace {

constexpr std::size_t kRotation = std::size_t{640} << 20;  // bytes walked through between two visits of a copy
constexpr int kMaxCopies = 256;

RowCodec make_codec(const DecodeShape& s, bool value) {
    Result<Scheme> parsed = parse_scheme(s.scheme);
    check(parsed.status());
    // Product quantization knows no universal codebook; a copy of it for each subspace times as well.
    const bool own = parsed->scope == Scope::subspace;
    const Result<Scheme> scheme = resolve(parsed.value(), own);
    check(scheme.status());
    const CodecSpec& spec = value ? scheme->value : scheme->key;
    std::vector<HeadTransform> transforms;
    std::vector<Codebook> books;
    for (int h = 0; h < s.num_kv_heads; ++h) {
        Result<HeadTransform> t = HeadTransform::create(s.head_dim, value ? scheme->value_transform : scheme->key_transform, {});
        check(t.status());
        transforms.push_back(std::move(t).value());
        if (spec.kind == CodecKind::vq) {
            books.insert(books.end(), own ? s.head_dim / spec.sub_dim : 1, *universal_codebook(spec.sub_dim, spec.code_bits));
        }
    }
    std::vector<float> directions(value ? 0 : static_cast<std::size_t>(s.num_kv_heads) * s.shaping * s.head_dim);
    std::mt19937 rng(5);
    std::normal_distribution<float> normal(0.0f, 0.3f);
    std::generate(directions.begin(), directions.end(), [&] { return normal(rng); });
    Result<RowCodec> codec = RowCodec::create(spec, scheme->norm, s.head_dim, std::move(transforms), std::move(books),
                                              {.unbiased = s.shaping > 0, .shaping = directions});
    check(codec.status());
    return std::move(codec).value();
}

/// Numbers of scalar codecs of a head page: scales around 0.6, zeros around -0.6.
void fill_numbers(std::uint8_t* head_page, const cuda::LayerCodec::Tables& t, int page_size, std::uint64_t seed) {
    const cuda::ScalarHeadPage page = cuda::scalar_head_page(t.k.spec, t.v.spec, t.head_dim, page_size);
    const std::size_t ends[] = {page.k_numbers, page.v_numbers, page.bytes};
    for (int side = 0; side < 2; ++side) {
        fill_scales(reinterpret_cast<std::uint16_t*>(head_page + ends[side]), (ends[side + 1] - ends[side]) / 2,
                    cuda::numbers_count(side == 0 ? t.k.spec : t.v.spec, t.head_dim), seed + side, nullptr);
    }
}

}  // namespace

cuda::LayerCodec make_layer(const DecodeShape& s) {
    Result<cuda::LayerCodec> codec = cuda::LayerCodec::create(make_codec(s, false), make_codec(s, true));
    check(codec.status());
    return std::move(codec).value();
}

void check(const Status& status) {
    if (!status.ok()) {
        std::fprintf(stderr, "bench_cuda: error: %s\n", status.message().c_str());
        std::exit(1);
    }
}

void check(cudaError_t error, const char* what) {
    check(cuda::cuda_status(error, what));
}

DecodeCaseData::DecodeCaseData(const DecodeShape& s) : shape_(s), codec_(make_layer(s)) {
    page_size_ = s.page_size > 0 ? s.page_size : (s.context + 63) / 64 * 64;
    pages_per_seq_ = (s.context + page_size_ - 1) / page_size_;
    const int num_pages = pages_per_seq_ * s.batch;
    page_bytes_ = codec_.page_bytes(page_size_);
    const std::size_t exact = std::min(s.context, s.recent + s.sink);
    const std::size_t rows = static_cast<std::size_t>(s.batch) * s.num_kv_heads;
    code_bytes_ = rows * (s.context - exact) * codec_.page_bytes(64) / static_cast<std::size_t>(64 * s.num_kv_heads);
    window_bytes_ = rows * exact * s.head_dim * 4;
    const std::size_t all = page_bytes_ * num_pages;
    copies_ = static_cast<int>(std::clamp<std::size_t>((kRotation + all - 1) / all, 1, kMaxCopies));

    std::mt19937 rng(3);
    std::vector<std::int32_t> table(num_pages);
    for (int i = 0; i < num_pages; ++i) {
        table[i] = i;
    }
    std::shuffle(table.begin(), table.end(), rng);
    check(cuda::upload(table, table_, "block table"));
    check(cuda::upload(std::vector<std::int32_t>(s.batch, s.context), lens_, "lengths"));
    const cuda::LayerCodec::Tables& t = codec_.tables();
    const std::size_t head_bytes = page_bytes_ / s.num_kv_heads;
    for (int c = 0; c < copies_; ++c) {
        pages_.emplace_back();
        check(cuda::allocate(all, pages_.back(), "pages"));
        fill_bytes(pages_.back().get(), all, 0, 255, 1000 + c, nullptr);
        for (int p = 0; p < num_pages * s.num_kv_heads; ++p) {
            std::uint8_t* head = pages_.back().get() + head_bytes * p;
            if (t.k.spec.kind == CodecKind::scalar) {
                fill_numbers(head, t, page_size_, 77 + 2 * p);
            } else {
                const std::size_t norms = cuda::page_parts(t, page_size_).norms;
                const bool stored = t.k.norms || t.v.norms;
                fill_bytes(head + norms, head_bytes - norms, stored ? 120 : 128, stored ? 136 : 128, 77 + p, nullptr);
            }
        }
    }
    const std::size_t window_values = rows * (s.recent + s.sink + 16) * s.head_dim;
    check(cuda::allocate(window_values, window_k_, "window"));
    check(cuda::allocate(window_values, window_v_, "window"));
    fill_f16(window_k_.get(), window_values, 1.0f, 1, nullptr);
    fill_f16(window_v_.get(), window_values, 1.0f, 2, nullptr);
    const std::size_t q_values = static_cast<std::size_t>(s.batch) * s.num_q * s.num_qo_heads * s.head_dim;
    check(cuda::allocate(q_values, q_, "queries"));
    check(cuda::allocate(q_values, out_, "outputs"));
    fill_f16(q_.get(), q_values, 1.0f, 3, nullptr);
    const Result<std::size_t> bytes = cuda::decode_workspace_bytes(codec_, s.batch, s.num_qo_heads, s.num_q);
    check(bytes.status());
    workspace_bytes_ = bytes.value() * 2;  // variants may have more blocks
    check(cuda::allocate(workspace_bytes_, workspace_, "workspace"));
    check(cuda::init_decode_workspace(workspace_.get(), workspace_bytes_, nullptr));
    check(cudaDeviceSynchronize(), "filling the cache");
}

cuda::CacheView DecodeCaseData::cache(int copy) const {
    cuda::CacheView view;
    view.pages = pages_[copy].get();
    view.num_pages = static_cast<std::int64_t>(pages_per_seq_) * shape_.batch;
    view.page_size = page_size_;
    view.block_table = shape_.page_size > 0 ? table_.get() : nullptr;
    view.table_stride = pages_per_seq_;
    view.window = {.recent = shape_.recent, .sink = shape_.sink};
    view.window_k = window_k_.get();
    view.window_v = window_v_.get();
    view.window_rows = shape_.recent + shape_.sink + 16;
    view.num_slots = shape_.batch;
    return view;
}

cuda::DecodeParams DecodeCaseData::params() const {
    cuda::DecodeParams p;
    p.batch = shape_.batch;
    p.num_q = shape_.num_q;
    p.num_qo_heads = shape_.num_qo_heads;
    p.kv_lens = lens_.get();
    p.sm_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    p.q = q_.get();
    p.out = out_.get();
    p.q_head_stride = p.out_head_stride = shape_.head_dim;
    p.q_token_stride = p.out_token_stride = static_cast<std::int64_t>(shape_.num_qo_heads) * shape_.head_dim;
    p.q_seq_stride = p.out_seq_stride = p.q_token_stride * shape_.num_q;
    return p;
}

std::string DecodeCaseData::kernel() const {
    const Result<cuda::DecodePlan> plan = cuda::plan_decode(codec_, cache(0), params());
    check(plan.status());
    return plan->kernel;
}

void DecodeCaseData::launch(int copy, cudaStream_t stream) const {
    check(cuda::decode_attention(codec_, cache(copy), params(), workspace_.get(), workspace_bytes_, stream));
}

void DecodeCaseData::launch(const cuda::DecodeKernel& kernel, int blocks, int copy, cudaStream_t stream) const {
    const int rows = shape_.num_qo_heads / shape_.num_kv_heads * shape_.num_q;
    const int row_tiles = (rows + kernel.rows - 1) / kernel.rows;
    const std::size_t items = static_cast<std::size_t>(shape_.batch) * shape_.num_kv_heads * row_tiles;
    if (cuda::workspace_parts(kernel, blocks, items).total() > workspace_bytes_) {
        check(Status(ErrorCode::invalid_argument, "variant: its workspace is too small"));
    }
    check(cuda::launch_decode(kernel, cuda::decode_args(codec_, cache(copy), params(), row_tiles), blocks, workspace_.get(),
                              stream));
}

std::vector<std::uint16_t> DecodeCaseData::output() const {
    std::vector<std::uint16_t> out(static_cast<std::size_t>(shape_.batch) * shape_.num_q * shape_.num_qo_heads * shape_.head_dim);
    check(cudaMemcpy(out.data(), out_.get(), out.size() * 2, cudaMemcpyDeviceToHost), "reading outputs");
    return out;
}

}  // namespace vecinfer::bench
