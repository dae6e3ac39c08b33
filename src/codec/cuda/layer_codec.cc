#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/cuda/layout.h"
#include "codec/cuda/pack.h"
#include "codec/cuda/tables.h"
#include "codec/f16.h"
#include "codec/vq/shaping.h"
#include "sidecar/guard.h"

namespace vecinfer::cuda {
namespace {

std::string unsupported_part(const RowCodec& codec) {
    const CodecSpec& spec = codec.spec();
    if (spec.kind == CodecKind::scalar) {
        if (spec.code_bits > 4 || (spec.group != 32 && spec.group != 64)) {
            return fmt::format("a scalar codec of {} bits in groups of {}, expected 2, 3 or 4 bits in groups of 32 or 64",
                               spec.code_bits, spec.group);
        }
    } else if (page_form(spec).sub_dim == 0) {
        return fmt::format(
            "a codec with sub_dim {} and code_bits {}, expected d2b8, d4b8, d8b8, d4b12, d8b12, d1b2, d1b3 or d1b4", spec.sub_dim,
            spec.code_bits);
    }
    if (codec.has_book_per_subspace() && (spec.code_bits != 8 || spec.sub_dim > 4)) {
        return fmt::format("a codebook per subspace of d{}b{}, expected d2b8 or d4b8 for those", spec.sub_dim, spec.code_bits);
    }
    if (codec.is_shaped() && spec.code_bits != 8) {
        return fmt::format("noise shaping with code_bits {}, expected encode=nearest or encode=unbiased", spec.code_bits);
    }
    if (codec.head_dim() != 64 && codec.head_dim() != 128 && codec.head_dim() != 256) {
        return fmt::format("head_dim {}, expected 64, 128 or 256", codec.head_dim());
    }
    if (spec.kind == CodecKind::vq && spec.sub_dim == 8 && spec.code_bits == 12 && codec.head_dim() == 64) {
        return "d8b12 with head_dim 64, expected 128 or 256";
    }
    for (int h = 0; h < codec.num_heads(); ++h) {
        if (!codec.transform(h).matrix().empty()) {
            return "a full transform, expected smooth factors, center and Hadamard alone";
        }
        if (codec.transform(h).has_hadamard() != codec.transform(0).has_hadamard()) {
            return "Hadamard transforms on some heads only, expected all or none";
        }
    }
    return {};
}

std::vector<float> gather(const RowCodec& codec, float otherwise, std::span<const float> (*part)(const HeadTransform&)) {
    std::vector<float> all;
    bool any = false;
    for (int h = 0; h < codec.num_heads(); ++h) {
        const std::span<const float> own = part(codec.transform(h));
        any = any || !own.empty();
        if (own.empty()) {
            all.insert(all.end(), static_cast<std::size_t>(codec.head_dim()), otherwise);
        } else {
            all.insert(all.end(), own.begin(), own.end());
        }
    }
    return any ? all : std::vector<float>();
}

/// Word of the int8 of channels [first, first + 4) that a code of the page stands for; beyond its channels they repeat.
std::uint32_t word_of(const Codebook& book, int page_sub_dim, int byte, int first) {
    std::uint32_t word = 0;
    for (int b = 0; b < 4; ++b) {
        const int channel = (first + b) % page_sub_dim;
        const int code = byte >> (channel / book.sub_dim * book.code_bits) & (book.num_centroids() - 1);
        const std::int8_t x = book.centroids[static_cast<std::size_t>(code * book.sub_dim + channel % book.sub_dim)];
        word |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(x)) << (8 * b);
    }
    return word;
}

std::uint16_t half(int x) {
    return f32_to_f16(static_cast<float>(x));
}

/// Operands of Search (search.cuh): of every 16 centroids and each lane (g, t) two channels of centroids g and g + 8: channels 2t
/// and 2t + 1, of fewer modulo sub_dim, as digits of a sub-vector follow each other. Then minus half their squared lengths: of
/// sub_dim 8 as f32, else as two f16 digits, which are exact, in place of channels that a lane does not have.
void add_fragments(const Codebook& book, std::vector<std::uint32_t>& out) {
    const int d = book.sub_dim;
    const auto at = [&](int centroid, int channel) {
        return static_cast<int>(book.centroids[static_cast<std::size_t>(centroid * d + channel)]);
    };
    for (int tile = 0; tile < book.num_centroids() / 16; ++tile) {
        for (int lane = 0; lane < 32; ++lane) {
            const int first = 2 * (lane % 4) % d;
            std::uint32_t words[4] = {};
            for (int row = 0; row < 2; ++row) {
                const int centroid = 16 * tile + 8 * row + lane / 4;
                if (lane % 4 < d) {
                    words[row] = half(at(centroid, first)) | static_cast<std::uint32_t>(half(at(centroid, first + 1))) << 16;
                }
                float bias = 0.0f;
                for (int k = 0; k < d; ++k) {
                    bias -= 0.5f * static_cast<float>(at(centroid, k) * at(centroid, k));
                }
                if (d == 8) {
                    words[2 + row] = std::bit_cast<std::uint32_t>(bias);
                } else if (lane % 4 == (d == 2 ? 2 : 0)) {
                    const std::uint16_t high = f32_to_f16(bias);
                    const std::uint16_t low = f32_to_f16(bias - f16_to_f32(high));
                    words[d == 2 ? row : 2 + row] = high | static_cast<std::uint32_t>(low) << 16;
                }
            }
            out.insert(out.end(), words, words + 4);
        }
    }
}

/// Of a head whose subspaces have codebooks of their own.
void own_words(const RowCodec& codec, int head, std::vector<std::uint32_t>& words, std::vector<float>& steps,
               std::vector<std::uint32_t>& fragments) {
    const int sub_dim = codec.sub_dim();
    for (int m = 0; m < codec.num_subspaces(); ++m) {
        const Codebook& book = codec.codebook(head, m);
        steps.insert(steps.end(), static_cast<std::size_t>(sub_dim), book.scale);
        std::vector<std::uint32_t> own(static_cast<std::size_t>(64 * sub_dim));
        std::memcpy(own.data(), book.centroids.data(), 4 * own.size());
        words.insert(words.end(), own.begin(), own.end());
        add_fragments(book, fragments);
    }
}

Status upload_shaping(const RowCodec& codec, SideTables& side, const char* what) {
    if (!codec.is_shaped()) {
        return {};
    }
    const int rank = (codec.shaping(0).tables().rank + 3) / 4 * 4;
    std::vector<float> directions;
    std::vector<float> metric;
    std::vector<float> bias;
    for (int h = 0; h < codec.num_heads(); ++h) {
        const ShapingTables& shaping = codec.shaping(h).tables();
        for (int d = 0; d < codec.head_dim(); ++d) {
            const float* own = shaping.by_channel.data() + d * shaping.rank;
            directions.insert(directions.end(), own, own + shaping.rank);
            directions.resize(directions.size() + static_cast<std::size_t>(rank - shaping.rank));
        }
        metric.insert(metric.end(), shaping.metric.begin(), shaping.metric.end());
        bias.insert(bias.end(), shaping.bias.get(), shaping.bias.get() + (codec.num_subspaces() << codec.code_bits()));
    }
    side.shaping_rank = rank;
    Status s = upload(directions, side.shaping, what);
    s = s.ok() ? upload(metric, side.shaping_metric, what) : s;
    return s.ok() ? upload(bias, side.shaping_bias, what) : s;
}

Status upload_side(const RowCodec& codec, SideTables& side) {
    side.spec = codec.spec();
    side.form = page_form(codec.spec());
    side.own_books = codec.has_book_per_subspace();
    std::vector<std::uint32_t> words;
    std::vector<float> scales;
    std::vector<std::uint32_t> fragments;
    std::vector<float> steps;
    std::vector<float> levels;
    for (int h = 0; h < codec.num_heads(); ++h) {
        if (codec.spec().kind == CodecKind::scalar) {
            scales.push_back(1.0f);
            continue;
        }
        if (side.own_books) {
            scales.push_back(1.0f);
            own_words(codec, h, words, steps, fragments);
            continue;
        }
        const Codebook& book = codec.codebook(h);
        scales.push_back(book.scale);
        if (book.sub_dim > 1) {
            add_fragments(book, fragments);
        } else {
            for (int i = 0; i < kMaxLevels; ++i) {
                levels.push_back(i < book.num_centroids() ? codec.centroids(h)[i] : 0.0f);
            }
        }
        if (side.form.sub_dim == 1) {
            for (int first = 0; first < 8; first += 4) {
                std::uint32_t word = 0;
                std::memcpy(&word, book.centroids.data() + first, 4);
                words.push_back(word);
            }
            continue;
        }
        for (int code = 0; code < 1 << side.form.bits; ++code) {
            for (int first = 0; first < std::max(side.form.sub_dim, 4); first += 4) {
                words.push_back(word_of(book, side.form.sub_dim, code, first));
            }
        }
    }
    const std::vector<float> factors = gather(codec, 1.0f, [](const HeadTransform& t) { return t.smooth_factors(); });
    std::vector<float> inverse(factors.size());
    std::transform(factors.begin(), factors.end(), inverse.begin(), [](float f) { return 1.0f / f; });
    const std::vector<float> center = gather(codec, 0.0f, [](const HeadTransform& t) { return t.center(); });
    side.hadamard = codec.transform(0).has_hadamard();
    side.norms = codec.has_norm();
    side.unbiased = codec.is_unbiased();
    const char* what = "copying codebooks and transforms to the device";
    Status s = upload(words, side.words, what);
    s = s.ok() ? upload(scales, side.scales, what) : s;
    s = s.ok() ? upload(fragments, side.fragments, what) : s;
    s = s.ok() ? upload(steps, side.steps, what) : s;
    s = s.ok() ? upload(levels, side.levels, what) : s;
    s = s.ok() ? upload(factors, side.factors, what) : s;
    s = s.ok() ? upload(inverse, side.inverse, what) : s;
    s = s.ok() ? upload_shaping(codec, side, what) : s;
    return s.ok() ? upload(center, side.center, what) : s;
}

}  // namespace

Result<LayerCodec> LayerCodec::create(const RowCodec& k, const RowCodec& v) {
    return guarded("LayerCodec", [&]() -> Result<LayerCodec> {
        if (k.num_heads() != v.num_heads()) {
            return argument_error("v", fmt::format("{} heads", v.num_heads()), fmt::format("{} as the keys", k.num_heads()));
        }
        for (const RowCodec* codec : {&k, &v}) {
            if (const std::string part = unsupported_part(*codec); !part.empty()) {
                return Status(ErrorCode::unsupported, fmt::format("{}: got {}", codec == &k ? "k" : "v", part));
            }
        }
        if (k.head_dim() != v.head_dim()) {
            return Status(ErrorCode::unsupported,
                          fmt::format("v: got head_dim {}, expected {} as the keys", v.head_dim(), k.head_dim()));
        }
        if (k.spec().kind != v.spec().kind) {
            return Status(ErrorCode::unsupported,
                          "v: got another kind of codec than the keys, expected vectors or scalars for both");
        }
        if (!v.transform(0).smooth_factors().empty()) {
            return Status(ErrorCode::unsupported, "v: got smooth factors, expected none on values");
        }
        auto tables = std::make_shared<Tables>();
        tables->num_kv_heads = k.num_heads();
        tables->head_dim = k.head_dim();
        Status s = upload_side(k, tables->k);
        s = s.ok() ? upload_side(v, tables->v) : s;
        if (!s.ok()) {
            return s;
        }
        LayerCodec codec;
        codec.tables_ = std::move(tables);
        return codec;
    });
}

int LayerCodec::num_kv_heads() const noexcept {
    return tables_->num_kv_heads;
}

int LayerCodec::head_dim() const noexcept {
    return tables_->head_dim;
}

PageParts page_parts(const LayerCodec::Tables& t, int page_size) {
    if (t.k.spec.kind == CodecKind::scalar) {
        const ScalarHeadPage page = scalar_head_page(t.k.spec, t.v.spec, t.head_dim, page_size);
        return {page.v_codes, page.k_numbers, page.v_numbers, page.bytes};
    }
    const HeadPage page = head_page(t.head_dim, t.k.form, t.v.form, page_size);
    return {page.v_offset(), page.norm_offset(), 0, page.bytes()};
}

int LayerCodec::page_step() const noexcept {
    const Tables& t = *tables_;
    return t.k.spec.kind == CodecKind::scalar ? std::max(numbers_cells(t.k.spec), numbers_cells(t.v.spec)) : kGranule;
}

std::size_t LayerCodec::page_bytes(int page_size) const noexcept {
    return page_parts(*tables_, page_size).bytes * static_cast<std::size_t>(tables_->num_kv_heads);
}

}  // namespace vecinfer::cuda
