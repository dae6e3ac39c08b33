// Codes of single cells into and out of pages, on the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "codec/cuda/scalar_layout.h"
#include "codec/scalar/scalar.h"
#include "vecinfer/scheme.h"

namespace vecinfer::cuda {

/// Codes of one channel share bytes, or are of 3 bits.
constexpr Form page_form(const CodecSpec& spec) {
    if (spec.kind != CodecKind::vq) {
        return {};
    }
    if (spec.sub_dim == 1) {
        return spec.code_bits == 2 ? Form{4} : spec.code_bits == 4 ? Form{2} : spec.code_bits == 3 ? Form{1, 3} : Form{};
    }
    const bool wide = spec.code_bits == 12 && spec.sub_dim >= 4;
    return spec.code_bits == 8 || wide ? Form{spec.sub_dim, spec.code_bits} : Form{};
}

/// What kernels are chosen by: the codec of the page layout for vectors, scalar codecs as they are.
constexpr CodecSpec page_spec(const CodecSpec& spec) {
    const Form form = page_form(spec);
    return form.sub_dim == 0 ? spec : CodecSpec{CodecKind::vq, form.sub_dim, form.bits};
}

/// One head page of vector-quantized keys and values in host memory.
class HostHeadPage {
public:
    HostHeadPage(std::uint8_t* bytes, int head_dim, const CodecSpec& k, const CodecSpec& v, int page_size)
        : bytes_(bytes), spec_{k, v}, head_dim_(head_dim), page_(head_page(head_dim, page_form(k), page_form(v), page_size)) {}

    std::uint16_t code(int cell, int subspace, bool value) const {
        std::uint16_t code = 0;
        for (int bit = 0; bit < spec_[value].code_bits; ++bit) {
            const std::size_t at = bit_of(cell, subspace, bit, value);
            code = static_cast<std::uint16_t>(code | (bytes_[at / 8] >> (at % 8) & 1) << bit);
        }
        return code;
    }
    void set_code(int cell, int subspace, bool value, std::uint16_t code) {
        for (int bit = 0; bit < spec_[value].code_bits; ++bit) {
            const std::size_t at = bit_of(cell, subspace, bit, value);
            const auto mask = static_cast<std::uint8_t>(1 << at % 8);
            bytes_[at / 8] = static_cast<std::uint8_t>(code >> bit & 1 ? bytes_[at / 8] | mask : bytes_[at / 8] & ~mask);
        }
    }
    std::uint8_t& norm(int cell, bool value) {
        return bytes_[page_.norm_offset() + static_cast<std::size_t>(cell / kGranule) * kNormBytes +
                      norm_offset(cell % kGranule, value)];
    }

private:
    std::size_t bit_of(int cell, int subspace, int bit, bool value) const {
        const int in = cell % kGranule;
        const Form form = page_form(spec_[value]);
        const int sub_dim = form.sub_dim;
        const int granule_size = granule_bytes(head_dim_, form);
        const std::size_t granule = (value ? page_.v_offset() : 0) + static_cast<std::size_t>(cell / kGranule) * granule_size;
        if (form.bits == 12) {
            const WidePlace at = value ? v_wide_place(in, subspace) : k_wide_place(in, subspace, sub_dim, head_dim_);
            return 8 * granule + wide_bit(at, 12 * at.which + bit, granule_size);
        }
        if (sub_dim == 1) {
            const LevelPlace at = value ? v_level_place(in, subspace) : k_level_place(in, subspace, head_dim_);
            return 8 * granule + level_bit(at, bit, head_dim_);
        }
        const int parts = sub_dim / spec_[value].sub_dim;  // codes of a byte
        const int bytes = head_dim_ / sub_dim;
        const int byte =
            value ? v_code_offset(in, subspace / parts, sub_dim, bytes) : k_code_offset(in, subspace / parts, sub_dim, bytes);
        return 8 * (granule + byte) + subspace % parts * spec_[value].code_bits + bit;
    }

    std::uint8_t* bytes_;
    CodecSpec spec_[2];
    int head_dim_;
    HeadPage page_;
};

/// One head page of scalar codes in host memory.
class ScalarHostHeadPage {
public:
    ScalarHostHeadPage(std::uint8_t* bytes, int head_dim, const CodecSpec& k, const CodecSpec& v, int page_size)
        : bytes_(bytes), spec_{k, v}, head_dim_(head_dim), page_(scalar_head_page(k, v, head_dim, page_size)) {}

    std::uint16_t code(int cell, int channel, bool value) const {
        std::uint16_t code = 0;
        for (int bit = 0; bit < spec_[value].code_bits; ++bit) {
            const std::size_t at = bit_of(cell, channel, bit, value);
            code = static_cast<std::uint16_t>(code | (bytes_[at / 8] >> (at % 8) & 1) << bit);
        }
        return code;
    }
    void set_code(int cell, int channel, bool value, std::uint16_t code) {
        for (int bit = 0; bit < spec_[value].code_bits; ++bit) {
            const std::size_t at = bit_of(cell, channel, bit, value);
            const auto mask = static_cast<std::uint8_t>(1 << at % 8);
            bytes_[at / 8] = static_cast<std::uint8_t>(code >> bit & 1 ? bytes_[at / 8] | mask : bytes_[at / 8] & ~mask);
        }
    }
    /// Numbers of the group of a cell and channel; zero is 0 if there are none.
    scalar::Stored numbers(int cell, int channel, bool value) const {
        scalar::Stored stored;
        std::memcpy(&stored.scale, bytes_ + number_at(cell, channel, value), 2);
        if (spec_[value].numbers_per_group() == 2) {
            std::memcpy(&stored.zero, bytes_ + number_at(cell, channel, value) + zeros(value), 2);
        }
        return stored;
    }
    void set_numbers(int cell, int channel, bool value, scalar::Stored stored) {
        std::memcpy(bytes_ + number_at(cell, channel, value), &stored.scale, 2);
        if (spec_[value].numbers_per_group() == 2) {
            std::memcpy(bytes_ + number_at(cell, channel, value) + zeros(value), &stored.zero, 2);
        }
    }

private:
    std::size_t bit_of(int cell, int channel, int bit, bool value) const {
        const int bits = spec_[value].code_bits;
        const int in = cell % kScalarChunk;
        const ScalarPlace at = value ? v_scalar_place(in, channel) : k_scalar_place(in, channel);
        const PairBit place = pair_bit(bits, at.q * (head_dim_ / 8) + at.r, at.e, bit);
        const std::size_t chunk =
            (value ? page_.v_codes : 0) + static_cast<std::size_t>(cell / kScalarChunk * scalar_code_bytes(bits, head_dim_));
        return 8 * (chunk + scalar_word_byte(bits, head_dim_, at.lane, place.word)) + place.bit;
    }
    std::size_t zeros(bool value) const { return 2 * static_cast<std::size_t>(numbers_count(spec_[value], head_dim_)); }
    std::size_t number_at(int cell, int channel, bool value) const {
        const CodecSpec& spec = spec_[value];
        const int in = cell % kScalarChunk;
        const int index = value ? v_number_index(spec, head_dim_, in, channel) : k_number_index(spec, head_dim_, in, channel);
        return (value ? page_.v_numbers : page_.k_numbers) +
               static_cast<std::size_t>(cell / numbers_cells(spec) * numbers_bytes(spec, head_dim_) + 2 * index);
    }

    std::uint8_t* bytes_;
    CodecSpec spec_[2];
    int head_dim_;
    ScalarHeadPage page_;
};

}  // namespace vecinfer::cuda
