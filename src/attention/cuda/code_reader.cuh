// How a warp gets at packed codes: where a chunk lies, its way through shared memory, and look-ups that make operands of matrix
// products of it.
#pragma once

#include "attention/cuda/shared_state.cuh"

namespace vecinfer::cuda {

/// Codes of one granule as a lane reads them. They come through shared memory, as registers for two chunks are not to be had; a
/// lane reads what it copied itself, so no lane waits for another.
template <int Words>
struct LaneCodes {
    static constexpr int kWidth = lane_width(4 * Words);  // bytes of a copy
    std::uint32_t w[Words];

    /// `stage`: the lane's place in that of the granule, 128 * Words bytes. `from`: its place in the granule.
    static __device__ __forceinline__ void copy(std::uint32_t stage, const std::uint8_t* from) {
#pragma unroll
        for (int i = 0; i < 4 * Words / kWidth; ++i) {
            copy_async<kWidth>(stage + 32 * kWidth * i, from + 32 * kWidth * i);
        }
    }
    __device__ __forceinline__ void load(const std::uint8_t* stage) {
        if constexpr (kWidth == 4) {
#pragma unroll
            for (int i = 0; i < Words; ++i) {
                w[i] = *reinterpret_cast<const std::uint32_t*>(stage + 128 * i);
            }
        } else if constexpr (kWidth == 8) {
#pragma unroll
            for (int i = 0; i < Words / 2; ++i) {
                const uint2 x = *reinterpret_cast<const uint2*>(stage + 256 * i);
                w[2 * i] = x.x;
                w[2 * i + 1] = x.y;
            }
        } else {
#pragma unroll
            for (int i = 0; i < Words / 4; ++i) {
                const uint4 x = *reinterpret_cast<const uint4*>(stage + 512 * i);
                w[4 * i] = x.x;
                w[4 * i + 1] = x.y;
                w[4 * i + 2] = x.z;
                w[4 * i + 3] = x.w;
            }
        }
    }
};

/// What codes stand for: shared address of a table, or eight levels in two registers.
template <int D>
struct Meaning {
    std::uint32_t table;
};
template <>
struct Meaning<1> {
    std::uint32_t low;
    std::uint32_t high;
};

/// Selectors of piece i of a lane's codes of 3 bits, see level_bit; i is a constant.
template <int Words>
__device__ __forceinline__ std::uint32_t level_selectors(const LaneCodes<Words>& codes, int i) {
    const int first = i / 4 * 3;
    return i % 4 < 3 ? codes.w[first + i % 4] & 0x77777777u
                     : (codes.w[first] >> 3 & 0x11111111u) | (codes.w[first + 1] >> 2 & 0x22222222u) |
                           (codes.w[first + 2] >> 1 & 0x44444444u);
}

/// Pair `pair` of a lane's codes of 12 bits (wide_bit), a constant; bits from 24 on are others'.
template <int Words>
__device__ __forceinline__ std::uint32_t wide_pair(const LaneCodes<Words>& codes, int pair) {
    const int first = pair / 4 * 3;
    return pair % 4 < 3 ? codes.w[first + pair % 4]
                        : __byte_perm(__byte_perm(codes.w[first], codes.w[first + 1], 0x0073), codes.w[first + 2], 0x0710);
}

/// base + (1 << Shift) * code `which` of a pair.
template <int Shift>
__device__ __forceinline__ std::uint32_t wide_address(std::uint32_t pair, int which, std::uint32_t base) {
    constexpr std::uint32_t kMask = 4095u << Shift;
    return base + ((which == 0 ? pair << Shift : pair >> (12 - Shift)) & kMask);
}

/// Channels 4t.. and 16 + 4t.. (sub_dim 8: 8t.. and 8t + 4..) of step `s` of a key.
struct KeyPiece {
    std::uint32_t low;
    std::uint32_t high;
};

/// Row 0 is cell g, row 1 cell g + 8. s and row are constants.
template <class C>
__device__ __forceinline__ KeyPiece look_up_key(const LaneCodes<C::kKeyWords>& codes, int row, int s, const Meaning<C::KD>& is) {
    constexpr int kBytes = 2 * C::kKeyWords;  // of a row
    if constexpr (C::KD == 1) {
        const std::uint32_t selectors = level_selectors(codes, row * (C::HD / 32) + s);
        return {select_bytes(is.low, is.high, selectors), select_bytes(is.low, is.high, selectors >> 16)};
    } else if constexpr (C::KT == Table::wide && C::KD == 8) {
        const uint2 x = load_two_words(wide_address<3>(wide_pair(codes, row * (C::HD / 64) + s / 2), s % 2, is.table));
        return {x.x, x.y};
    } else if constexpr (C::KT == Table::wide) {
        const std::uint32_t pair = wide_pair(codes, row * (C::HD / 32) + s);
        return {load_word(wide_address<2>(pair, 0, is.table)), load_word(wide_address<2>(pair, 1, is.table))};
    } else if constexpr (C::KD == 8) {
        const int i = row * kBytes + s;
        const uint2 x = load_two_words(entry_address<128>(codes.w[i / 4], i % 4, is.table));
        return {x.x, x.y};
    } else if constexpr (C::KD == 4) {
        const int i = row * kBytes + 2 * s;
        constexpr int kStride = C::KT == Table::own ? 4 : 128;
        constexpr int kNext = C::KT == Table::own ? 1024 : 0;  // subspace
        return {load_word(entry_address<kStride>(codes.w[i / 4], i % 4, is.table) + 8 * s * kNext),
                load_word(entry_address<kStride>(codes.w[i / 4], i % 4 + 1, is.table) + (8 * s + 4) * kNext)};
    } else {
        const std::uint32_t w = codes.w[(row * kBytes + 4 * s) / 4];
        if constexpr (C::KT == Table::own) {
            const auto entry = [&](int b) {
                return load_short(entry_address<2>(w, b, is.table) + (16 * s + 8 * (b / 2) + b % 2) * 512);
            };
            return {__byte_perm(entry(0), entry(1), 0x5410), __byte_perm(entry(2), entry(3), 0x5410)};
        } else {
            // Entries hold their two channels twice, so that either half of a word is at hand.
            const auto entry = [&](int b) { return load_word(entry_address<128>(w, b, is.table)); };
            return {__byte_perm(entry(0), entry(1), 0x7610), __byte_perm(entry(2), entry(3), 0x7610)};
        }
    }
}

/// Units of 4 channels, or 8 of sub_dim 8.
template <class C>
inline constexpr int kUnit = C::VD == 8 ? 8 : 4;

/// B fragments of values: of unit 8 tile + g the four cells of a lane (layout.h), four channels a word.
template <class C>
__device__ __forceinline__ void look_up_values(const LaneCodes<C::kValueWords>& codes, int tile, const Meaning<C::VD>& is,
                                               std::uint32_t (&out)[kUnit<C> / 4][4]) {
    // Copies of keys and values share a base.
    constexpr int kOffset = C::VT == Table::copies ? 4 * C::kKeyTableWords : 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
        if constexpr (C::VD == 1) {
            const std::uint32_t selectors = level_selectors(codes, 2 * tile + b / 2);
            out[0][b] = select_bytes(is.low, is.high, b % 2 == 0 ? selectors : selectors >> 16);
        } else if constexpr (C::VT == Table::wide && C::VD == 8) {
            const uint2 e = load_two_words(wide_address<3>(wide_pair(codes, tile / 2 * 4 + b), tile % 2, is.table));
            out[0][b] = e.x;
            out[1][b] = e.y;
        } else if constexpr (C::VT == Table::wide) {
            out[0][b] = load_word(wide_address<2>(wide_pair(codes, tile / 2 * 4 + b), tile % 2, is.table));
        } else if constexpr (C::VD == 8) {
            const uint2 e = load_two_words(entry_address<128>(codes.w[tile], b, is.table) + kOffset);
            out[0][b] = e.x;
            out[1][b] = e.y;
        } else if constexpr (C::VD == 4) {
            constexpr int kStride = C::VT == Table::own ? 4 : 128;
            constexpr int kNext = C::VT == Table::own ? 8 * 1024 : 0;  // tile
            out[0][b] = load_word(entry_address<kStride>(codes.w[tile], b, is.table) + (kOffset + tile * kNext));
        } else if constexpr (C::VT == Table::own) {
            const auto entry = [&](int half) {
                return load_short(entry_address<2>(codes.w[2 * tile + half], b, is.table) + (tile * 16 + half) * 512);
            };
            out[0][b] = __byte_perm(entry(0), entry(1), 0x5410);
        } else {
            const auto entry = [&](int half) {
                return load_word(entry_address<128>(codes.w[2 * tile + half], b, is.table) + kOffset);
            };
            out[0][b] = __byte_perm(entry(0), entry(1), 0x7610);
        }
    }
}

/// Addresses of the granules of one sequence and head, for this lane: its share of keys and values, its norm word. Everything but
/// the page is 32 bits wide, so that an address is two multiply-adds.
template <class C>
struct ChunkReader {
    using Keys = LaneCodes<C::kKeyWords>;
    using Values = LaneCodes<C::kValueWords>;
    static constexpr int kGranules = 2 * C::CH;
    static constexpr unsigned kKeyBytes = 128 * C::kKeyWords;  // of a granule
    static constexpr unsigned kValueBytes = 128 * C::kValueWords;

    const std::uint8_t* keys;
    const std::uint8_t* values;
    const std::uint8_t* norms;
    const std::int32_t* table;
    int seq;
    int last_granule;
    int page_shift;  // granules
    unsigned page_bytes;

    __device__ __forceinline__ ChunkReader(const DecodeArgs& a, const Place& at, const Reach& reach, int lane)
        : table(a.block_table != nullptr ? a.block_table + at.seq * a.table_stride : nullptr),
          seq(at.seq),
          last_granule((reach.len - 1) / 16),
          page_shift(a.page_shift - 4),
          page_bytes(a.page_bytes) {
        const std::uint8_t* head = a.pages + static_cast<std::uint64_t>(at.head) * a.head_bytes;
        keys = head + Keys::kWidth * lane;
        values = head + a.v_offset + Values::kWidth * lane;
        norms = head + a.norm_offset + lane / 4 * 4;
    }

    /// Page of a chunk; General: of its granule lane % kGranules.
    __device__ __forceinline__ int page(int chunk, int lane) const {
        const int granule = C::General ? min(chunk * kGranules + lane % kGranules, last_granule) : chunk * kGranules;
        return table != nullptr ? table[granule >> page_shift] : seq;
    }

    /// Where granule i of a chunk whose page was found before lies.
    struct Granule {
        std::uint64_t page;  // bytes
        unsigned index;      // in the page
        int beyond;          // granules from there on, a constant
    };
    __device__ __forceinline__ Granule granule(int chunk, int i, int found) const {
        const unsigned mask = (1u << page_shift) - 1;
        if constexpr (C::General) {
            const unsigned page = static_cast<unsigned>(__shfl_sync(kAllLanes, found, i));
            return {static_cast<std::uint64_t>(page) * page_bytes,
                    static_cast<unsigned>(min(chunk * kGranules + i, last_granule)) & mask, 0};
        } else {
            return {static_cast<std::uint64_t>(static_cast<unsigned>(found)) * page_bytes,
                    static_cast<unsigned>(chunk * kGranules) & mask, i};
        }
    }
    __device__ __forceinline__ const std::uint8_t* key(const Granule& x) const {
        return keys + x.page + static_cast<std::uint64_t>(x.index) * kKeyBytes + x.beyond * kKeyBytes;
    }
    __device__ __forceinline__ const std::uint8_t* value(const Granule& x) const {
        return values + x.page + static_cast<std::uint64_t>(x.index) * kValueBytes + x.beyond * kValueBytes;
    }
    __device__ __forceinline__ const std::uint32_t* norm(const Granule& x) const {
        return reinterpret_cast<const std::uint32_t*>(norms + x.page + static_cast<std::uint64_t>(x.index) * kNormBytes +
                                                      x.beyond * kNormBytes);
    }
};

/// Brings the codes of a chunk nearer.
template <class C>
__device__ __forceinline__ void prefetch_codes(const DecodeArgs& a, const Place& at, const Reach& reach, int chunk) {
    using Reader = ChunkReader<C>;
    const int lane = threadIdx.x & 31;
    const Reader reader(a, at, reach, 0);
    const auto first = reader.granule(chunk, 0, reader.page(chunk, lane));
    for (unsigned i = 128 * lane; i < Reader::kGranules * Reader::kKeyBytes; i += 4096) {
        prefetch(reader.key(first) + i);
    }
    for (unsigned i = 128 * lane; i < Reader::kGranules * Reader::kValueBytes; i += 4096) {
        prefetch(reader.value(first) + i);
    }
}

}  // namespace vecinfer::cuda
