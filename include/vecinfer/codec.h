// Row codec: turns one token's keys or values of all KV heads into codes and back. Three verbs: train (codebook.h), encode,
// decode.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vecinfer/codebook.h"
#include "vecinfer/export.h"
#include "vecinfer/scheme.h"
#include "vecinfer/status.h"
#include "vecinfer/transform.h"

namespace vecinfer VECINFER_API {

/// Per-vector norm as one byte: 0 means an all-zero vector, u >= 1 means 2^((u - 128) / 8). Steps of 9%, range 2^-15.9 to 2^15.9.
std::uint8_t encode_norm(float rms) noexcept;
float decode_norm(std::uint8_t code) noexcept;

class RowCodec {
public:
    /// One side of one layer. `transforms`: one per KV head. `codebooks`: one shared by all heads, or one per head; all of spec's
    /// (sub_dim, code_bits). `norm` is none or vector, not automatic. head_dim must be a multiple of sub_dim.
    static Result<RowCodec> create(const CodecSpec& spec, Norm norm, int head_dim, std::vector<HeadTransform> transforms,
                                   std::vector<Codebook> codebooks);

    int num_heads() const noexcept { return static_cast<int>(transforms_.size()); }
    int head_dim() const noexcept { return head_dim_; }
    int row_dim() const noexcept { return num_heads() * head_dim_; }
    int sub_dim() const noexcept { return spec_.sub_dim; }
    int code_bits() const noexcept { return spec_.code_bits; }
    int num_subspaces() const noexcept { return head_dim_ / spec_.sub_dim; }  // per head
    bool has_norm() const noexcept { return norm_ == Norm::vector; }
    const HeadTransform& transform(int head) const { return transforms_[static_cast<std::size_t>(head)]; }
    const Codebook& codebook(int head) const { return codebooks_[codebooks_.size() == 1 ? 0 : static_cast<std::size_t>(head)]; }
    /// Centroids of one head as floats, layout (2^code_bits, sub_dim), 64-byte aligned.
    const float* centroids(int head) const;
    /// The same by channel, layout (sub_dim, 2^code_bits).
    const float* centroids_by_channel(int head) const;
    /// Their int8 values by channel, layout (sub_dim, 2^code_bits), 64-byte aligned.
    const std::int8_t* centroid_planes(int head) const;
    /// Hash over spec, norm, transforms and codebooks: rows encoded under equal hashes are interchangeable.
    std::uint64_t hash() const noexcept { return hash_; }

    /// One head: x is head_dim floats in the original space (transformed inside). The input is rounded to f16 first, so that a
    /// row encoded from its own f16 copy gets the same codes; finite magnitudes above 65504 are clamped. codes: num_subspaces
    /// entries; norm_code: one byte, 0 without norms. Nearest centroid in exact f32 arithmetic (squared distance summed in
    /// channel order, no fused multiply-add), lowest index on ties, the same on every ISA. A vector with a non-finite entry
    /// encodes as if those entries were 0.
    void encode(int head, const float* x, std::uint16_t* codes, std::uint8_t* norm_code) const noexcept;
    /// One head, into code space (still transformed).
    void decode(int head, const std::uint16_t* codes, std::uint8_t norm_code, float* y) const noexcept;
    /// One head, back into the original space.
    void decode_original(int head, const std::uint16_t* codes, std::uint8_t norm_code, float* x) const noexcept;

private:
    CodecSpec spec_;
    Norm norm_ = Norm::none;
    int head_dim_ = 0;
    std::uint64_t hash_ = 0;
    std::vector<HeadTransform> transforms_;
    std::vector<Codebook> codebooks_;
    std::shared_ptr<const float[]> tables_;        // see codec/vq/tables.h
    std::shared_ptr<const std::int8_t[]> planes_;  // likewise
};

}  // namespace VECINFER_API
