// Codes of single cells into and out of pages, on the host.
#pragma once

#include <cstdint>

#include "codec/cuda/layout.h"

namespace vecinfer::cuda {

/// One head page in host memory, codes of 8 bits.
class HostHeadPage {
public:
    HostHeadPage(std::uint8_t* bytes, int head_dim, int k_sub_dim, int v_sub_dim, int page_size)
        : bytes_(bytes),
          sub_dim_{k_sub_dim, v_sub_dim},
          head_dim_(head_dim),
          page_(head_page(head_dim / k_sub_dim, head_dim / v_sub_dim, page_size)) {}

    std::uint8_t& code(int cell, int subspace, bool value) {
        const int granule = cell / kGranule;
        const int in = cell % kGranule;
        const int subspaces = head_dim_ / sub_dim_[value ? 1 : 0];
        std::uint8_t* codes =
            bytes_ + (value ? page_.v_offset() : 0) + static_cast<std::size_t>(granule) * granule_bytes(subspaces);
        return codes[value ? v_code_offset(in, subspace, sub_dim_[1], subspaces)
                           : k_code_offset(in, subspace, sub_dim_[0], subspaces)];
    }
    std::uint8_t& norm(int cell, bool value) {
        return bytes_[page_.norm_offset() + static_cast<std::size_t>(cell / kGranule) * kNormBytes +
                      norm_offset(cell % kGranule, value)];
    }

private:
    std::uint8_t* bytes_;
    int sub_dim_[2];
    int head_dim_;
    HeadPage page_;
};

}  // namespace vecinfer::cuda
