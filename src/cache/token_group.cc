#include "cache/token_group.h"

#include <bit>

#include "codec/scalar/scalar.h"

namespace vecinfer {

namespace {

/// The numbers of one group and channel in a block.
struct Numbers {
    const CodecSpec& spec;
    int head_dim;

    std::size_t offset(int group, int channel) const {
        return layout::code_bytes(spec, head_dim) + sizeof(std::uint16_t) * static_cast<std::size_t>(group * head_dim + channel);
    }
    std::size_t zeros() const { return sizeof(std::uint16_t) * static_cast<std::size_t>(kBlockCells / spec.group * head_dim); }
    std::size_t written() const { return layout::block_bytes(spec, false, 1, head_dim) - sizeof(std::uint64_t); }

    scalar::Stored load(const std::uint8_t* block, int group, int channel) const {
        scalar::Stored stored;
        std::memcpy(&stored.scale, block + offset(group, channel), 2);
        if (spec.numbers_per_group() == 2) {
            std::memcpy(&stored.zero, block + offset(group, channel) + zeros(), 2);
        }
        return stored;
    }
    void store(std::uint8_t* block, int group, int channel, scalar::Stored stored) const {
        std::memcpy(block + offset(group, channel), &stored.scale, 2);
        if (spec.numbers_per_group() == 2) {
            std::memcpy(block + offset(group, channel) + zeros(), &stored.zero, 2);
        }
    }
};

/// Whether the values get codes of this range with at most the error of its own rounding.
bool fits(const scalar::Range& range, const float* x, int n) noexcept {
    const float slack = 0.5f * range.scale;
    for (int i = 0; i < n; ++i) {
        if (x[i] < range.base - slack || x[i] > range.at(range.max_code) + slack) {
            return false;
        }
    }
    return true;
}

}  // namespace

void encode_token_group(const RowCodec& codec, std::uint8_t* block, int group, const GroupRows& rows) noexcept {
    const CodecSpec& spec = codec.spec();
    const int n = spec.group;
    const Numbers numbers{spec, codec.head_dim()};
    std::uint64_t written;
    std::memcpy(&written, block + numbers.written(), sizeof(written));
    const std::uint64_t here = n == kBlockCells ? ~std::uint64_t{0} : ((std::uint64_t{1} << n) - 1);
    const std::uint64_t old = written >> (group * n) & here & ~rows.known;

    // Rows at hand first, then those that only their codes remember.
    std::array<int, kBlockCells> order;
    int num_known = 0;
    for (std::uint64_t left = rows.known; left != 0; left &= left - 1) {
        order[num_known++] = std::countr_zero(left);
    }
    int count = num_known;
    for (std::uint64_t left = old; left != 0; left &= left - 1) {
        order[count++] = std::countr_zero(left);
    }

    std::array<float, kBlockCells> values;
    for (int channel = 0; channel < codec.head_dim(); ++channel) {
        std::uint8_t* codes = block + channel * layout::subspace_bytes(spec.code_bits);
        const float* column = rows.values + channel * kBlockCells;
        for (int i = 0; i < num_known; ++i) {
            values[i] = column[order[i]];
        }
        scalar::Stored stored = numbers.load(block, group, channel);
        int encoded = count;
        if (count > num_known) {
            const scalar::Range range = scalar::range(spec, stored);
            for (int i = num_known; i < count; ++i) {
                values[i] = range.at(layout::load_code(codes, spec.code_bits, group * n + order[i]));
            }
            encoded = fits(range, values.data(), num_known) ? num_known : count;
        }
        if (encoded == count) {
            stored = scalar::fit(spec, values.data(), count);
            numbers.store(block, group, channel, stored);
        }
        const scalar::Range range = scalar::range(spec, stored);
        for (int i = 0; i < encoded; ++i) {
            layout::store_code(codes, spec.code_bits, group * n + order[i], scalar::encode(range, values[i]));
        }
    }
    written |= rows.known << (group * n);
    std::memcpy(block + numbers.written(), &written, sizeof(written));
}

void decode_token_cell(const RowCodec& codec, const std::uint8_t* block, int i, float* y) noexcept {
    const CodecSpec& spec = codec.spec();
    const Numbers numbers{spec, codec.head_dim()};
    for (int channel = 0; channel < codec.head_dim(); ++channel) {
        const scalar::Range range = scalar::range(spec, numbers.load(block, i / spec.group, channel));
        y[channel] = range.at(layout::load_code(block + channel * layout::subspace_bytes(spec.code_bits), spec.code_bits, i));
    }
}

}  // namespace vecinfer
