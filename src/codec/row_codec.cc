#include <fmt/format.h>

#include <cmath>
#include <new>
#include <utility>

#include "codec/f16.h"
#include "codec/vq/nearest.h"
#include "codec/vq/tables.h"
#include "fnv.h"
#include "transform/hadamard.h"
#include "vecinfer/codec.h"

namespace vecinfer {
namespace {

// Changes whenever encode gives other codes for the same spec, transform and codebook.
constexpr std::uint64_t kCodecVersion = 1;

/// Products of floats are exact in double and the order of the sum is fixed, so the result is the same on every machine.
float root_mean_square(const float* x, int n) noexcept {
    double sums[8] = {};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; ++j) {
            sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
        }
    }
    for (; i < n; ++i) {
        sums[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    const double sum = ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
    return static_cast<float>(std::sqrt(sum / n));
}

Status check(const CodecSpec& spec, Norm norm, int head_dim, const std::vector<HeadTransform>& transforms,
             const std::vector<Codebook>& codebooks) {
    if (spec.kind != CodecKind::vq) {
        return argument_error("spec", "f16", "a vq codec");
    }
    if (norm == Norm::automatic) {
        return argument_error("norm", "automatic", "none or vector (see resolve)");
    }
    if (Status status = check_head_dim(head_dim); !status.ok()) {
        return status;
    }
    for (std::size_t i = 0; i < codebooks.size(); ++i) {
        const Codebook& codebook = codebooks[i];
        if (Status status = validate(codebook); !status.ok()) {
            return {status.code(), fmt::format("codebooks[{}]: {}", i, status.message())};
        }
        if (codebook.sub_dim != spec.sub_dim || codebook.code_bits != spec.code_bits) {
            return {ErrorCode::mismatch, fmt::format("codebooks[{}]: got d{}b{}, expected d{}b{}", i, codebook.sub_dim,
                                                     codebook.code_bits, spec.sub_dim, spec.code_bits)};
        }
    }
    if (transforms.empty()) {
        return argument_error("transforms", "none", "one per KV head");
    }
    for (std::size_t i = 0; i < transforms.size(); ++i) {
        if (transforms[i].head_dim() != head_dim) {
            return argument_error(fmt::format("transforms[{}]", i), fmt::format("head_dim {}", transforms[i].head_dim()),
                                  fmt::format("head_dim {}", head_dim));
        }
    }
    if (codebooks.size() != 1 && codebooks.size() != transforms.size()) {
        return argument_error("codebooks", fmt::format("{}", codebooks.size()), fmt::format("1 or {}", transforms.size()));
    }
    if (head_dim % spec.sub_dim != 0) {
        return argument_error("head_dim", fmt::format("{}", head_dim), fmt::format("a multiple of sub_dim {}", spec.sub_dim));
    }
    return {};
}

}  // namespace

Result<RowCodec> RowCodec::create(const CodecSpec& spec, Norm norm, int head_dim, std::vector<HeadTransform> transforms,
                                  std::vector<Codebook> codebooks) {
    if (Status status = check(spec, norm, head_dim, transforms, codebooks); !status.ok()) {
        return status;
    }
    try {
        RowCodec codec;
        codec.spec_ = spec;
        codec.norm_ = norm;
        codec.head_dim_ = head_dim;
        codec.transforms_ = std::move(transforms);
        codec.codebooks_ = std::move(codebooks);
        codec.tables_ = make_tables(codec.codebooks_);
        codec.planes_ = make_planes(codec.codebooks_);

        Fnv fnv;
        fnv.add(kCodecVersion);
        fnv.add(static_cast<std::uint64_t>(spec.sub_dim));
        fnv.add(static_cast<std::uint64_t>(spec.code_bits));
        fnv.add(norm == Norm::vector ? 1u : 0u);
        fnv.add(static_cast<std::uint64_t>(head_dim));
        fnv.add(codec.transforms_.size());
        for (const HeadTransform& transform : codec.transforms_) {
            fnv.add(transform.hash());
        }
        // Per head, so that one shared codebook and equal copies of it count as the same.
        for (int head = 0; head < codec.num_heads(); ++head) {
            fnv.add(vecinfer::hash(codec.codebook(head)));
        }
        codec.hash_ = fnv.value();
        return codec;
    } catch (const std::bad_alloc&) {
        return Status(ErrorCode::out_of_memory, "row codec: no memory for its centroid tables");
    }
}

const float* RowCodec::centroids(int head) const {
    const std::size_t values = table_values(spec_.sub_dim, spec_.code_bits);
    return tables_.get() + (codebooks_.size() == 1 ? 0 : static_cast<std::size_t>(head)) * 2 * values + values;
}

const float* RowCodec::centroids_by_channel(int head) const {
    return centroids(head) - table_values(spec_.sub_dim, spec_.code_bits);
}

const std::int8_t* RowCodec::centroid_planes(int head) const {
    const std::size_t values = table_values(spec_.sub_dim, spec_.code_bits);
    return planes_.get() + (codebooks_.size() == 1 ? 0 : static_cast<std::size_t>(head)) * values;
}

void RowCodec::encode(int head, const float* x, std::uint16_t* codes, std::uint8_t* norm_code) const noexcept {
    alignas(64) float y[kMaxHeadDim];
    for (int i = 0; i < head_dim_; ++i) {
        y[i] = round_to_f16(x[i]);
    }
    transforms_[static_cast<std::size_t>(head)].forward(y, y);
    std::uint8_t norm = 0;
    if (has_norm()) {
        norm = encode_norm(root_mean_square(y, head_dim_));
        if (norm != 0) {
            const float divisor = decode_norm(norm);
            for (int i = 0; i < head_dim_; ++i) {
                y[i] /= divisor;
            }
        }
    }
    *norm_code = norm;
    nearest_kernel(spec_.sub_dim)(y, num_subspaces(), centroids_by_channel(head), 1 << spec_.code_bits, codes, nullptr);
}

void RowCodec::decode(int head, const std::uint16_t* codes, std::uint8_t norm_code, float* y) const noexcept {
    const float factor = has_norm() ? decode_norm(norm_code) : 1.0f;
    const float* table = centroids(head);
    const int sub_dim = spec_.sub_dim;
    const int count = num_subspaces();
    for (int s = 0; s < count; ++s, y += sub_dim) {
        const float* centroid = table + static_cast<std::size_t>(codes[s]) * static_cast<std::size_t>(sub_dim);
        for (int c = 0; c < sub_dim; ++c) {
            y[c] = factor * centroid[c];
        }
    }
}

void RowCodec::decode_original(int head, const std::uint16_t* codes, std::uint8_t norm_code, float* x) const noexcept {
    decode(head, codes, norm_code, x);
    transforms_[static_cast<std::size_t>(head)].inverse(x, x);
}

}  // namespace vecinfer
