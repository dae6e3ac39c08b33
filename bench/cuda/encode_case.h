// Encoding of one layer's keys and values, random rows.
#pragma once

#include "codec/cuda/device.h"
#include "cuda/decode_case.h"

namespace vecinfer::bench {

class EncodeCaseData {
public:
    /// `shape.context` tokens of each of shape.batch sequences, contiguous cache; no window but for codecs that group tokens.
    explicit EncodeCaseData(const DecodeShape& shape);

    int num_tokens() const { return shape_.batch * shape_.context; }
    std::size_t bytes() const { return bytes_; }  // rows read and codes written
    void launch(cudaStream_t stream) const;

private:
    DecodeShape shape_;
    cuda::LayerCodec codec_;
    std::size_t bytes_ = 0;
    cuda::DevicePointer<std::uint8_t> pages_;
    cuda::DevicePointer<std::uint16_t> k_, v_, window_k_, window_v_;
    cuda::DevicePointer<std::int32_t> positions_, sequences_, lens_;
    cuda::DevicePointer<std::int64_t> slots_;
};

}  // namespace vecinfer::bench
