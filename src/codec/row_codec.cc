#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "codec/f16.h"
#include "codec/vq/nearest.h"
#include "codec/vq/shaping.h"
#include "codec/vq/tables.h"
#include "fnv.h"
#include "transform/hadamard.h"
#include "vecinfer/codec.h"

namespace vecinfer {
namespace {

// Changes whenever encode gives other codes for the same spec, transform and codebook.
constexpr std::uint64_t kCodecVersion = 2;

/// Products of floats are exact in double and the order of the sum is fixed, so the result is the same on every machine.
double dot(const float* x, const float* y, int n) noexcept {
    double sums[8] = {};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; ++j) {
            sums[j] += static_cast<double>(x[i + j]) * static_cast<double>(y[i + j]);
        }
    }
    for (; i < n; ++i) {
        sums[0] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    }
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

Status check(const CodecSpec& spec, Norm norm, int head_dim, const std::vector<HeadTransform>& transforms,
             const std::vector<Codebook>& codebooks, std::span<const float> shaping) {
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
    const std::size_t per_rank = transforms.size() * static_cast<std::size_t>(head_dim);
    if (shaping.size() % per_rank != 0 || shaping.size() / per_rank > NoiseShaping::kMaxRank) {
        return argument_error("shaping", fmt::format("{} values", shaping.size()),
                              fmt::format("a multiple of {}, at most {} directions", per_rank, NoiseShaping::kMaxRank));
    }
    for (const float u : shaping) {
        if (!std::isfinite(u)) {
            return argument_error("shaping", fmt::format("{}", u), "finite directions");
        }
    }
    return {};
}

}  // namespace

Result<RowCodec> RowCodec::create(const CodecSpec& spec, Norm norm, int head_dim, std::vector<HeadTransform> transforms,
                                  std::vector<Codebook> codebooks, std::span<const float> shaping) {
    if (Status status = check(spec, norm, head_dim, transforms, codebooks, shaping); !status.ok()) {
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
        if (!shaping.empty()) {
            const std::size_t per_head = shaping.size() / codec.transforms_.size();
            std::vector<NoiseShaping> heads;
            for (int head = 0; head < codec.num_heads(); ++head) {
                heads.emplace_back(shaping.subspan(head * per_head, per_head), head_dim, spec.sub_dim, spec.code_bits,
                                   codec.by_channel(head));
            }
            codec.shaping_ = std::make_shared<const std::vector<NoiseShaping>>(std::move(heads));
            fnv.add(shaping);
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

const float* RowCodec::by_channel(int head) const {
    return centroids(head) - table_values(spec_.sub_dim, spec_.code_bits);
}

void RowCodec::find_codes(int head, const float* y, std::uint16_t* codes) const noexcept {
    nearest_kernel(spec_.sub_dim)(y, num_subspaces(), by_channel(head), 1 << spec_.code_bits, codes, nullptr);
    if (shaping_ != nullptr) {
        (*shaping_)[static_cast<std::size_t>(head)].improve(y, codes);
    }
}

void RowCodec::encode(int head, const float* x, std::uint16_t* codes, std::uint8_t* norm_code) const noexcept {
    alignas(64) float y[kMaxHeadDim];
    for (int i = 0; i < head_dim_; ++i) {
        y[i] = round_to_f16(x[i]);
    }
    transforms_[static_cast<std::size_t>(head)].forward(y, y);
    *norm_code = 0;
    if (!has_norm()) {
        find_codes(head, y, codes);
        return;
    }
    const double energy = dot(y, y, head_dim_);
    const int norm = encode_norm(static_cast<float>(std::sqrt(energy / head_dim_)));
    if (norm == 0) {
        find_codes(head, y, codes);
        return;
    }
    // Centroids are means of what they stand for, so a decoded vector y' is too short: y' . y < y . y, and a query that looks for
    // this very key loses the difference. The stored norm makes up for it. Its steps are coarse, so with shaping, where scores
    // matter most, three divisors are tried for the one whose correction falls closest to a step.
    const int spread = shaping_ != nullptr ? 1 : 0;
    double least = std::numeric_limits<double>::infinity();
    alignas(64) float unit[kMaxHeadDim];
    float decoded[kMaxHeadDim];
    std::uint16_t tried[kMaxHeadDim];
    for (int step = std::max(norm - spread, 1); step <= std::min(norm + spread, 255); ++step) {
        const float divisor = decode_norm(static_cast<std::uint8_t>(step));
        for (int i = 0; i < head_dim_; ++i) {
            unit[i] = y[i] / divisor;
        }
        find_codes(head, unit, tried);
        decode(head, tried, static_cast<std::uint8_t>(step), decoded);
        const double projection = dot(decoded, y, head_dim_);
        std::uint8_t stored = static_cast<std::uint8_t>(step);
        double miss = energy;
        if (projection > 0) {
            stored = encode_norm(static_cast<float>(divisor * (energy / projection)));
            miss = std::fabs(projection * (decode_norm(stored) / divisor) - energy);
        }
        if (miss < least) {
            least = miss;
            *norm_code = stored;
            std::copy(tried, tried + num_subspaces(), codes);
        }
    }
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
