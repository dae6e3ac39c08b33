// One shape of decode attention with random contents, several copies of it so that no call finds its data in the cache.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/cuda/decode_kernels.h"
#include "codec/cuda/device.h"
#include "vecinfer/cuda.h"

namespace vecinfer::bench {

struct DecodeShape {
    int batch = 1;
    int context = 1024;
    int num_qo_heads = 32;
    int num_kv_heads = 8;
    int head_dim = 128;
    int num_q = 1;
    int page_size = 0;  // 0: contiguous
    int recent = 128;
    int sink = 4;
    std::string scheme = "vecinfer:k2v2";
    int shaping = 0;  // random directions for noise shaping of keys; their norms and those of values are unbiased then
};

/// Prints and exits on an error: a benchmark has nobody to report to.
void check(const Status& status);
void check(cudaError_t error, const char* what);

/// A layer of shape.scheme: universal codebooks, as a data-free cache has.
cuda::LayerCodec make_layer(const DecodeShape& shape);

class DecodeCaseData {
public:
    explicit DecodeCaseData(const DecodeShape& shape);

    int copies() const { return copies_; }
    /// Bytes that one call must read: codes, norms or scales, and f16 rows.
    std::size_t bytes() const { return code_bytes_ + window_bytes_; }
    const cuda::LayerCodec& codec() const { return codec_; }
    std::string kernel() const;

    void launch(int copy, cudaStream_t stream) const;
    void launch(const cuda::DecodeKernel& kernel, int blocks, int copy, cudaStream_t stream) const;
    std::vector<std::uint16_t> output() const;

private:
    cuda::CacheView cache(int copy) const;
    cuda::DecodeParams params() const;

    DecodeShape shape_;
    cuda::LayerCodec codec_;
    int copies_ = 1;
    std::size_t code_bytes_ = 0;
    std::size_t window_bytes_ = 0;
    std::size_t page_bytes_ = 0;
    int page_size_ = 0;
    int pages_per_seq_ = 0;
    std::vector<cuda::DevicePointer<std::uint8_t>> pages_;
    cuda::DevicePointer<std::uint16_t> window_k_, window_v_, q_, out_;
    cuda::DevicePointer<std::int32_t> table_, lens_;
    cuda::DevicePointer<std::byte> workspace_;
    std::size_t workspace_bytes_ = 0;
};

}  // namespace vecinfer::bench
