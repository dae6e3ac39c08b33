// Row codec: turns one token's keys or values of all KV heads into codes and back. Three verbs: train (codebook.h), encode,
// decode. Codecs that group along tokens have no codes of a single row; the cache encodes their groups (src/cache/token_group.h).
#pragma once

#include <cstddef>
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

/// How a vector quantizer picks codes; decoding does not depend on it.
struct EncodeOptions {
    /// The stored norm keeps the projection of the decoded vector on the original, to within half a step. Needs norms.
    bool unbiased = false;
    /// Directions of code space in which an error costs more, layout (num_heads, rank, head_dim), rank at most 64: the cost of an
    /// error e is |e|^2 + sum over directions u of (u . e)^2. Empty: |e|^2 alone. Needs sub_dim 2 or more and codebooks that
    /// subspaces share.
    std::span<const float> shaping;
};

class NoiseShaping;
class ScanTables;

class RowCodec {
public:
    /// One side of one layer. `transforms`: one per KV head. `codebooks`: one shared by all heads, one per head, or one per head
    /// and subspace (product quantization; subspaces of a head side by side); all of spec's (sub_dim, code_bits). `norm` is none
    /// or vector, not automatic. A scalar spec takes no codebooks and no norm. head_dim must be a multiple of
    /// spec.channel_step().
    static Result<RowCodec> create(const CodecSpec& spec, Norm norm, int head_dim, std::vector<HeadTransform> transforms,
                                   std::vector<Codebook> codebooks, const EncodeOptions& options = {});

    int num_heads() const noexcept { return static_cast<int>(transforms_.size()); }
    int head_dim() const noexcept { return head_dim_; }
    int row_dim() const noexcept { return num_heads() * head_dim_; }
    const CodecSpec& spec() const noexcept { return spec_; }
    int sub_dim() const noexcept { return spec_.sub_dim; }
    int code_bits() const noexcept { return spec_.code_bits; }
    int num_subspaces() const noexcept { return head_dim_ / spec_.sub_dim; }  // per head
    bool has_norm() const noexcept { return norm_ == Norm::vector; }
    bool is_unbiased() const noexcept { return unbiased_; }
    bool is_shaped() const noexcept { return shaping_ != nullptr; }
    /// Tables of a head's noise shaping, for encoders on other devices (codec/vq/shaping.h). Only where is_shaped().
    const NoiseShaping& shaping(int head) const noexcept;
    /// Bytes of one head that a row stores beside its codes: a norm, or the scales of its groups of channels and then their
    /// zeros.
    int side_bytes() const noexcept {
        return spec_.groups_channels() ? head_dim_ / spec_.group * 2 * spec_.numbers_per_group() : has_norm() ? 1 : 0;
    }
    const HeadTransform& transform(int head) const { return transforms_[static_cast<std::size_t>(head)]; }
    const Codebook& codebook(int head, int subspace = 0) const { return codebooks_[book_index(head, subspace)]; }
    /// Whether every subspace has a codebook of its own (product quantization).
    bool has_book_per_subspace() const noexcept { return books_per_head_ > 1; }
    /// Of a vq codec: centroids of one head and subspace as floats, layout (2^code_bits, sub_dim), 64-byte aligned.
    const float* centroids(int head, int subspace = 0) const noexcept;
    /// Those of subspace 0 by channel, layout (sub_dim, 2^code_bits rounded up to a multiple of 64).
    const float* centroids_by_channel(int head) const noexcept;
    /// Their int8 values by channel, layout (sub_dim, 2^code_bits), 64-byte aligned.
    const std::int8_t* centroid_planes(int head) const noexcept;
    /// Floats from the centroids of one subspace to those of the next; 0 if all subspaces of a head share a codebook.
    std::ptrdiff_t centroid_stride() const noexcept;
    /// Hash over spec, norm, transforms and codebooks: rows encoded under equal hashes are interchangeable.
    std::uint64_t hash() const noexcept { return hash_; }

    /// One head: x is head_dim floats in the original space (transformed inside). The input is rounded to f16 first, so that a
    /// row encoded from its own f16 copy gets the same codes; finite magnitudes above 65504 are clamped. codes: num_subspaces
    /// entries; side: side_bytes(), null if there are none. Nearest centroid in exact f32 arithmetic (squared distance summed in
    /// channel order, no fused multiply-add), lowest index on ties, the same on every ISA, or what EncodeOptions ask for; nearest
    /// level of a scalar codec, the upper one on ties. A vector with a non-finite entry encodes as if those entries were 0. Not
    /// for codecs that group tokens.
    void encode(int head, const float* x, std::uint16_t* codes, std::uint8_t* side) const noexcept;
    /// One head, into code space (still transformed).
    void decode(int head, const std::uint16_t* codes, const std::uint8_t* side, float* y) const noexcept;
    /// One head, back into the original space.
    void decode_original(int head, const std::uint16_t* codes, const std::uint8_t* side, float* x) const noexcept;

private:
    std::size_t book_index(int head, int subspace) const noexcept {
        return static_cast<std::size_t>(head * books_per_head_ + (books_per_head_ > 1 ? subspace : 0));
    }
    void find_codes(int head, int n, const float* y, std::uint16_t* codes) const noexcept;
    std::uint8_t encode_unbiased(int head, const float* y, double energy, int norm, std::uint16_t* codes) const noexcept;

    CodecSpec spec_;
    Norm norm_ = Norm::none;
    int head_dim_ = 0;
    int books_per_head_ = 0;  // 0: all heads share one codebook
    std::uint64_t hash_ = 0;
    std::vector<HeadTransform> transforms_;
    std::vector<Codebook> codebooks_;
    std::shared_ptr<const float[]> tables_;                 // null without codebooks, see codec/vq/tables.h
    std::shared_ptr<const std::int8_t[]> planes_;           // likewise
    std::shared_ptr<const std::vector<ScanTables>> scans_;  // per codebook; likewise, see codec/vq/scan.h
    bool unbiased_ = false;
    std::shared_ptr<const std::vector<NoiseShaping>> shaping_;  // per head; null without, see codec/vq/shaping.h
};

}  // namespace VECINFER_API
