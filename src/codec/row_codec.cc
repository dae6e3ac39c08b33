#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "codec/f16.h"
#include "codec/scalar/scalar.h"
#include "codec/vq/encode.h"
#include "codec/vq/scan.h"
#include "codec/vq/shaping.h"
#include "codec/vq/tables.h"
#include "fnv.h"
#include "scheme/spelling.h"
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

// One per codebook, for tables as make_tables lays them out.
std::vector<ScanTables> make_scans(const std::vector<Codebook>& codebooks, const float* tables) {
    std::vector<ScanTables> scans;
    for (const Codebook& codebook : codebooks) {
        scans.push_back(
            ScanTables::for_nearest(tables, codebook.sub_dim, searched_centroids(codebook.num_centroids()), codebook.scale));
        tables += 2 * table_values(codebook.sub_dim, codebook.code_bits);
    }
    return scans;
}

// Side bytes: the scales of all groups, then their zeros.
void encode_channel_groups(const CodecSpec& spec, int head_dim, const float* y, std::uint16_t* codes,
                           std::uint8_t* side) noexcept {
    const int groups = head_dim / spec.group;
    for (int g = 0; g < groups; ++g) {
        const float* x = y + g * spec.group;
        const scalar::Stored stored = scalar::fit(spec, x, spec.group);
        const scalar::Range range = scalar::range(spec, stored);
        for (int i = 0; i < spec.group; ++i) {
            codes[g * spec.group + i] = scalar::encode(range, x[i]);
        }
        std::memcpy(side + 2 * g, &stored.scale, 2);
        if (spec.numbers_per_group() == 2) {
            std::memcpy(side + 2 * (groups + g), &stored.zero, 2);
        }
    }
}

void decode_channel_groups(const CodecSpec& spec, int head_dim, const std::uint16_t* codes, const std::uint8_t* side,
                           float* y) noexcept {
    const int groups = head_dim / spec.group;
    for (int g = 0; g < groups; ++g) {
        scalar::Stored stored;
        std::memcpy(&stored.scale, side + 2 * g, 2);
        if (spec.numbers_per_group() == 2) {
            std::memcpy(&stored.zero, side + 2 * (groups + g), 2);
        }
        const scalar::Range range = scalar::range(spec, stored);
        for (int i = g * spec.group; i < (g + 1) * spec.group; ++i) {
            y[i] = range.at(codes[i]);
        }
    }
}

Status check(const CodecSpec& spec, Norm norm, int head_dim, const std::vector<HeadTransform>& transforms,
             const std::vector<Codebook>& codebooks, const EncodeOptions& options) {
    if (spec.kind == CodecKind::f16) {
        return argument_error("spec", "f16", "a codec with codes");
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
    if (spec.kind == CodecKind::scalar) {
        CodecSpec known;
        if (!spelling::find_codec(spelling::codec_name(spec), known) || known != spec) {
            return argument_error("spec", spelling::codec_name(spec), fmt::format("one of {}", spelling::codec_names()));
        }
        if (!codebooks.empty() || norm != Norm::none) {
            return argument_error("codebooks and norm", "some with a scalar codec", "none");
        }
        return head_dim % spec.channel_step() == 0
                   ? Status()
                   : argument_error("head_dim", fmt::format("{}", head_dim),
                                    fmt::format("a multiple of {} channels, the group", spec.group));
    }
    if (head_dim % spec.sub_dim != 0) {
        return argument_error("head_dim", fmt::format("{}", head_dim), fmt::format("a multiple of sub_dim {}", spec.sub_dim));
    }
    const std::size_t heads = transforms.size();
    const std::size_t subspaces = heads * static_cast<std::size_t>(head_dim / spec.sub_dim);
    if (codebooks.size() != 1 && codebooks.size() != heads && codebooks.size() != subspaces) {
        return argument_error("codebooks", fmt::format("{}", codebooks.size()), fmt::format("1, {} or {}", heads, subspaces));
    }
    if (options.unbiased && norm != Norm::vector) {
        return argument_error("unbiased", "no norms", "norm vector");
    }
    const std::size_t row = heads * static_cast<std::size_t>(head_dim);
    if (options.shaping.size() % row != 0 || options.shaping.size() / row > NoiseShaping::kMaxRank) {
        return argument_error("shaping", fmt::format("{} values", options.shaping.size()),
                              fmt::format("a multiple of {}, at most {} directions", row, NoiseShaping::kMaxRank));
    }
    if (!options.shaping.empty() && (spec.sub_dim == 1 || (codebooks.size() == subspaces && subspaces != heads))) {
        return argument_error("shaping", "a codec of single channels or with a codebook per subspace",
                              "sub_dim 2 or more and shared codebooks");
    }
    for (const float u : options.shaping) {
        if (!std::isfinite(u)) {
            return argument_error("shaping", fmt::format("{}", u), "finite directions");
        }
    }
    return {};
}

}  // namespace

Result<RowCodec> RowCodec::create(const CodecSpec& spec, Norm norm, int head_dim, std::vector<HeadTransform> transforms,
                                  std::vector<Codebook> codebooks, const EncodeOptions& options) {
    if (Status status = check(spec, norm, head_dim, transforms, codebooks, options); !status.ok()) {
        return status;
    }
    try {
        RowCodec codec;
        codec.spec_ = spec;
        codec.norm_ = norm;
        codec.head_dim_ = head_dim;
        codec.transforms_ = std::move(transforms);
        codec.codebooks_ = std::move(codebooks);
        if (spec.kind == CodecKind::vq) {
            codec.books_per_head_ =
                codec.codebooks_.size() == 1 ? 0 : static_cast<int>(codec.codebooks_.size()) / codec.num_heads();
            codec.tables_ = make_tables(codec.codebooks_);
            codec.planes_ = make_planes(codec.codebooks_);
            codec.scans_ = std::make_shared<const std::vector<ScanTables>>(make_scans(codec.codebooks_, codec.tables_.get()));
        }

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
        if (spec.kind == CodecKind::scalar) {
            fnv.add(static_cast<std::uint64_t>(spec.group));
            fnv.add(static_cast<std::uint64_t>(spec.axis));
            fnv.add(static_cast<std::uint64_t>(spec.levels));
        }
        // Per head, so that one shared codebook and equal copies of it count as the same.
        const int books = std::max(codec.books_per_head_, 1);
        for (int i = 0; spec.kind == CodecKind::vq && i < codec.num_heads() * books; ++i) {
            fnv.add(vecinfer::hash(codec.codebook(i / books, i % books)));
        }
        codec.unbiased_ = options.unbiased;
        fnv.add(options.unbiased ? 1u : 0u);
        if (!options.shaping.empty()) {
            const std::size_t per_head = options.shaping.size() / codec.transforms_.size();
            std::vector<NoiseShaping> heads;
            for (int head = 0; head < codec.num_heads(); ++head) {
                heads.emplace_back(options.shaping.subspan(head * per_head, per_head), head_dim, spec.sub_dim, spec.code_bits,
                                   codec.centroids_by_channel(head), codec.codebook(head).scale);
            }
            codec.shaping_ = std::make_shared<const std::vector<NoiseShaping>>(std::move(heads));
            fnv.add(options.shaping);
        }
        codec.hash_ = fnv.value();
        return codec;
    } catch (const std::bad_alloc&) {
        return Status(ErrorCode::out_of_memory, "row codec: no memory for its centroid tables");
    }
}

const NoiseShaping& RowCodec::shaping(int head) const noexcept {
    return (*shaping_)[static_cast<std::size_t>(head)];
}

const float* RowCodec::centroids(int head, int subspace) const noexcept {
    const std::size_t values = table_values(spec_.sub_dim, spec_.code_bits);
    return tables_.get() + book_index(head, subspace) * 2 * values + values;
}

std::ptrdiff_t RowCodec::centroid_stride() const noexcept {
    return books_per_head_ > 1 ? static_cast<std::ptrdiff_t>(2 * table_values(spec_.sub_dim, spec_.code_bits)) : 0;
}

const float* RowCodec::centroids_by_channel(int head) const noexcept {
    return centroids(head) - table_values(spec_.sub_dim, spec_.code_bits);
}

const std::int8_t* RowCodec::centroid_planes(int head) const noexcept {
    return planes_.get() + book_index(head, 0) * table_values(spec_.sub_dim, spec_.code_bits);
}

// Of n vectors, one after the other.
void RowCodec::find_codes(int head, int n, const float* y, std::uint16_t* codes) const noexcept {
    const auto find_nearest = encode_kernels(spec_.sub_dim).find_nearest;
    if (books_per_head_ <= 1) {
        find_nearest(y, static_cast<std::int64_t>(n) * num_subspaces(), (*scans_)[book_index(head, 0)].table(), codes);
    } else {
        for (int s = 0; s < n * num_subspaces(); ++s) {
            find_nearest(y + s * spec_.sub_dim, 1, (*scans_)[book_index(head, s % num_subspaces())].table(), codes + s);
        }
    }
    if (shaping_ != nullptr) {
        (*shaping_)[static_cast<std::size_t>(head)].improve(n, y, codes);
    }
}

// Centroids are means of what they stand for, so a decoded vector y' is too short: y' . y < y . y, and a query that looks for
// this very key loses the difference. The stored norm makes up for it. Its steps are coarse, so with shaping, where scores matter
// most, three divisors are tried for the one whose correction falls closest to a step.
std::uint8_t RowCodec::encode_unbiased(int head, const float* y, double energy, int norm, std::uint16_t* codes) const noexcept {
    const int spread = shaping_ != nullptr ? 1 : 0;
    const int first = std::max(norm - spread, 1);
    const int count = std::clamp(std::min(norm + spread, 255) - first + 1, 1, NoiseShaping::kMaxVectors);
    alignas(64) float unit[NoiseShaping::kMaxVectors * kMaxHeadDim];
    std::uint16_t tried[NoiseShaping::kMaxVectors * kMaxHeadDim];
    for (int i = 0; i < count; ++i) {
        const float divisor = decode_norm(static_cast<std::uint8_t>(first + i));
        for (int d = 0; d < head_dim_; ++d) {
            unit[i * head_dim_ + d] = y[d] / divisor;
        }
    }
    find_codes(head, count, unit, tried);

    double least = std::numeric_limits<double>::infinity();
    std::uint8_t best = 0;
    float decoded[kMaxHeadDim];
    for (int i = 0; i < count; ++i) {
        auto stored = static_cast<std::uint8_t>(first + i);
        const float divisor = decode_norm(stored);
        const std::uint16_t* at = tried + i * num_subspaces();
        decode(head, at, &stored, decoded);
        const double projection = dot(decoded, y, head_dim_);
        double miss = energy;
        if (projection > 0) {
            stored = encode_norm(static_cast<float>(divisor * (energy / projection)));
            miss = std::fabs(projection * (decode_norm(stored) / divisor) - energy);
        }
        if (miss < least) {
            least = miss;
            best = stored;
            std::copy(at, at + num_subspaces(), codes);
        }
    }
    return best;
}

void RowCodec::encode(int head, const float* x, std::uint16_t* codes, std::uint8_t* side) const noexcept {
    alignas(64) float y[kMaxHeadDim];
    for (int i = 0; i < head_dim_; ++i) {
        y[i] = round_to_f16(x[i]);
    }
    transforms_[static_cast<std::size_t>(head)].forward(y, y);
    if (spec_.kind == CodecKind::scalar) {
        encode_channel_groups(spec_, head_dim_, y, codes, side);
        return;
    }
    if (has_norm()) {
        const double energy = dot(y, y, head_dim_);
        const std::uint8_t norm = encode_norm(static_cast<float>(std::sqrt(energy / head_dim_)));
        if (norm != 0 && unbiased_) {
            *side = encode_unbiased(head, y, energy, norm, codes);
            return;
        }
        if (norm != 0) {
            const float divisor = decode_norm(norm);
            for (int i = 0; i < head_dim_; ++i) {
                y[i] /= divisor;
            }
        }
        *side = norm;
    }
    find_codes(head, 1, y, codes);
}

void RowCodec::decode(int head, const std::uint16_t* codes, const std::uint8_t* side, float* y) const noexcept {
    if (spec_.kind == CodecKind::scalar) {
        decode_channel_groups(spec_, head_dim_, codes, side, y);
        return;
    }
    const float factor = has_norm() ? decode_norm(*side) : 1.0f;
    const float* table = centroids(head);
    const std::ptrdiff_t stride = centroid_stride();
    const int sub_dim = spec_.sub_dim;
    const int count = num_subspaces();
    for (int s = 0; s < count; ++s, y += sub_dim, table += stride) {
        const float* centroid = table + static_cast<std::size_t>(codes[s]) * static_cast<std::size_t>(sub_dim);
        for (int c = 0; c < sub_dim; ++c) {
            y[c] = factor * centroid[c];
        }
    }
}

void RowCodec::decode_original(int head, const std::uint16_t* codes, const std::uint8_t* side, float* x) const noexcept {
    decode(head, codes, side, x);
    transforms_[static_cast<std::size_t>(head)].inverse(x, x);
}

}  // namespace vecinfer
