// A decoding step with random codes, queries and windows: on the device, and its answer in fp64 on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codec/scalar/scalar.h"
#include "cuda/device_fixture.h"
#include "vecinfer/cuda.h"

namespace vecinfer::testing {

struct DecodeCase {
    std::string name;
    std::vector<int> kv_lens{1000};
    int num_kv_heads = 2;
    int group = 4;
    int head_dim = 128;
    CodecSpec k;
    CodecSpec v;
    bool own_books = false;  // a codebook per subspace, no norms
    int num_q = 1;
    int page_size = 0;  // 0: contiguous
    WindowSpec window{0, 0};
    int sliding_window = 0;
    float soft_cap = 0;
    bool alibi = false;
    bool sinks = false;
    bool smooth = false;
    bool hadamard = true;
    bool center = false;
    cuda::Number q_type = cuda::Number::f32;
    cuda::Number out_type = cuda::Number::f32;
    float query_magnitude = 1.0f;
    int norm_low = 116;  // norm bytes are drawn from [norm_low, norm_high]
    int norm_high = 136;
    int zero_norms = 0;   // besides, every n-th is 0
    float scales = 0.6f;  // of scalar codecs, each within a factor of 2
    double bound = 3e-4;  // relative error of f32 outputs
    unsigned seed = 1;
};

class DecodeProblem {
public:
    explicit DecodeProblem(const DecodeCase& c);

    cuda::CacheView cache() const;
    cuda::DecodeParams params() const;
    /// Runs the kernel on the default stream and waits.
    Status run();
    std::vector<double> output() const;                     // layout (batch, num_q, num_qo_heads, head_dim)
    std::vector<float> lse() const { return lse_->get(); }  // layout (batch, num_q, num_qo_heads)
    void reference(std::vector<double>& out, std::vector<double>& lse) const;

    const cuda::LayerCodec& codec() const { return *codec_; }
    int batch() const { return static_cast<int>(c_.kv_lens.size()); }
    int heads() const { return c_.num_kv_heads * c_.group; }
    std::size_t out_values() const { return static_cast<std::size_t>(batch()) * c_.num_q * heads() * c_.head_dim; }
    std::byte* workspace() const { return workspace_->data(); }
    std::size_t workspace_bytes() const { return workspace_->bytes(); }
    DeviceBuffer<std::int32_t>& kv_lens() { return *lens_; }

private:
    void make_codecs();
    void make_codes();
    void make_queries();
    void make_window();
    int capacity() const;
    std::vector<float> window_row(int seq, int head, int pos, bool value) const;

    DecodeCase c_;
    std::unique_ptr<RowCodec> k_codec_;
    std::unique_ptr<RowCodec> v_codec_;
    std::unique_ptr<cuda::LayerCodec> codec_;
    const CodecSpec& spec(int side) const { return side == 0 ? c_.k : c_.v; }
    int subspaces(int side) const { return c_.head_dim / spec(side).sub_dim; }
    bool scalar() const { return c_.k.kind == CodecKind::scalar; }
    void make_numbers(std::mt19937& rng);
    /// Of the group of a cell and channel.
    std::size_t group_index(int side, int seq, int head, int cell, int channel) const;
    void write_cell(std::uint8_t* head_page, int page_size, int seq, int head, int cell) const;
    std::vector<float> code_row(int side, int seq, int head, int cell) const;
    std::vector<scalar::Stored> numbers_[2];  // layout (batch, num_kv_heads, capacity, head_dim), at the first of a group
    std::vector<std::uint16_t> codes_[2];     // layout (batch, num_kv_heads, capacity, subspaces)
    std::vector<std::uint8_t> norms_[2];      // layout (batch, num_kv_heads, capacity)
    std::vector<std::uint16_t> window_[2];
    std::vector<float> q_;  // as the device reads it
    std::vector<float> slopes_;
    std::vector<float> sink_scores_;
    int table_stride_ = 0;
    std::int64_t num_pages_ = 0;
    int window_rows_ = 0;
    std::vector<std::int32_t> slots_;

    std::unique_ptr<DeviceBuffer<std::uint8_t>> pages_;
    std::unique_ptr<DeviceBuffer<std::int32_t>> table_, lens_, slots_buffer_;
    std::unique_ptr<DeviceBuffer<std::uint16_t>> window_k_, window_v_;
    std::unique_ptr<DeviceBuffer<std::uint8_t>> q_buffer_, out_buffer_;
    std::unique_ptr<DeviceBuffer<float>> slopes_buffer_, sinks_buffer_, lse_;
    std::unique_ptr<DeviceBuffer<std::byte>> workspace_;
};

/// |a - b| / |b| over all entries; NaN in a gives NaN.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace vecinfer::testing
