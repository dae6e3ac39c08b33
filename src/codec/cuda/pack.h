// Codes of single cells into and out of pages, on the host.
#pragma once

#include <cstdint>

#include "codec/cuda/layout.h"

namespace vecinfer::cuda {

/// One head page in host memory, codes of d4b8.
class HostHeadPage {
public:
    HostHeadPage(std::uint8_t* bytes, int head_dim, int page_size)
        : bytes_(bytes), subspaces_(head_dim / 4), page_(head_page(subspaces_, subspaces_, page_size)) {}

    std::uint8_t& code(int cell, int subspace, bool value) {
        const int granule = cell / kGranule;
        const int in = cell % kGranule;
        std::uint8_t* codes = bytes_ + (value ? page_.v_offset() : 0) + static_cast<std::size_t>(granule) * granule_bytes(subspaces_);
        return codes[value ? v_code_offset(in, subspace, subspaces_) : k_code_offset(in, subspace, subspaces_)];
    }
    std::uint8_t& norm(int cell, bool value) {
        return bytes_[page_.norm_offset() + static_cast<std::size_t>(cell / kGranule) * kNormBytes + norm_offset(cell % kGranule, value)];
    }

private:
    std::uint8_t* bytes_;
    int subspaces_;
    HeadPage page_;
};

}  // namespace vecinfer::cuda
