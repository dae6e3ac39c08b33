// Byte layout of a packed cache on a GPU. The only place that knows it, for host and device.
//
//   cache     = num_pages x page             a page holds page_size cells of one sequence, page_size a multiple of 16
//   page      = num_kv_heads x head page
//   head page = [K codes][V codes][norms]    each granule after granule
//   granule   = 16 cells of one head, in the order in which the lanes of a warp read them: 16 bytes per lane and load
//   K codes   lane (g, t) = 4 g + t has the cells g and g + 8 and of each the channels that it needs for the A fragments of
//             mma.m16n8k32 once every code is replaced by the int8 values of its centroid: of every 32 channels two times four,
//             of sub_dim 2 and 4 those at 4t and 16 + 4t, of sub_dim 8 those at 8t
//   V codes   a unit is a subspace, of sub_dim 2 two neighbouring ones. Lane (g, t) has the units congruent to g modulo 8 and of
//             each subspace the cells b, b + 4, b + 1, b + 5 with b = 8 (t & 1) + (t & 2): those that it needs for the B
//             fragments of mma.sp.m16n8k64 when the A fragments hold the probabilities as the key product leaves them
//             Codes of one channel: four of 2 bits or two of 4 bits make the byte of sub_dim 4 or 2, low bits first; codes of 3
//             bits are sub_dim 1, see level_bit. Codes of 12 bits of sub_dim 4 and 8 lie in pairs, see wide_bit
//   norms     word g: norm bytes (codec.h: encode_norm) of K cell g, K cell g + 8, V cell g, V cell g + 8
//
// A contiguous cache has one page per sequence. A page without norms does not exist: a codec without norms stores 128, which
// is 1.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define VECINFER_HD __host__ __device__
#else
#define VECINFER_HD
#endif

namespace vecinfer::cuda {

inline constexpr int kGranule = 16;    // cells
inline constexpr int kNormBytes = 32;  // of a granule: K and V
inline constexpr std::uint8_t kUnitNorm = 128;
inline constexpr int kMaxLevels = 16;  // of codes of one channel

/// How codes lie in a page: `bits` for every sub_dim channels. 8 bits of sub_dim 2, 4 and 8, 12 of sub_dim 4 and 8, 3 of
/// sub_dim 1.
struct Form {
    int sub_dim = 0;  // 0: not in a page of this layout
    int bits = 8;
    VECINFER_HD constexpr bool operator==(const Form& o) const { return sub_dim == o.sub_dim && bits == o.bits; }
};

/// Bytes of one granule's codes on one side.
VECINFER_HD constexpr int granule_bytes(int head_dim, Form form) {
    return head_dim / form.sub_dim * form.bits / 8 * kGranule;
}

/// Words of a head that say what codes stand for, see tables.h. `own`: every subspace has a codebook.
VECINFER_HD constexpr int words_per_head(Form form, bool own, int head_dim) {
    return form.sub_dim == 1 ? 2 : own ? 64 * head_dim : (1 << form.bits) * (form.sub_dim == 8 ? 2 : 1);
}

/// Bytes of a load of a lane's share of `share` bytes: at most 16, a power of two.
VECINFER_HD constexpr int lane_width(int share) {
    const int width = share & -share;
    return width < 16 ? width : 16;
}

/// Byte i of a lane's share of a granule.
VECINFER_HD constexpr int lane_byte(int lane, int i, int share) {
    const int width = lane_width(share);
    return i / width * width * 32 + lane * width + i % width;
}

/// Where the code of (cell, subspace) lies in a granule of K codes.
VECINFER_HD constexpr int k_code_offset(int cell, int subspace, int sub_dim, int num_subspaces) {
    const int t = sub_dim == 2 ? subspace / 2 % 4 : subspace % 4;
    const int i = sub_dim == 2 ? subspace / 8 * 2 + subspace % 2 : subspace / 4;
    return lane_byte(cell % 8 * 4 + t, cell / 8 * (num_subspaces / 4) + i, num_subspaces / 2);
}

VECINFER_HD constexpr int v_code_offset(int cell, int subspace, int sub_dim, int num_subspaces) {
    const int parts = sub_dim == 2 ? 2 : 1;  // subspaces of a unit
    const int unit = subspace / parts;
    const int lane = unit % 8 * 4 + cell / 8 + cell % 4 / 2 * 2;
    const int word = unit / 8 * parts + subspace % parts;
    return lane_byte(lane, word * 4 + cell % 2 * 2 + cell % 8 / 4, num_subspaces / 2);
}

/// Codes of 3 bits come in pieces of 8, such that a piece is a word of byte-permute selectors. A lane's share of K codes are the
/// pieces of cell g, then those of cell g + 8, one for every 32 channels: first the four at 4t, then those at 16 + 4t. Of V codes
/// there are two for every unit, of cells b and b + 4, b + 1 and b + 5. Three words hold four pieces: three in the low three bits
/// of their nibbles, of the fourth bit k of every code in the high bits of word k.
struct LevelPlace {
    int lane = 0;
    int piece = 0;
    int nibble = 0;
};
VECINFER_HD constexpr LevelPlace k_level_place(int cell, int channel, int head_dim) {
    return {cell % 8 * 4 + channel / 4 % 4, cell / 8 * (head_dim / 32) + channel / 32, channel / 16 % 2 * 4 + channel % 4};
}
VECINFER_HD constexpr LevelPlace v_level_place(int cell, int channel) {
    return {channel / 4 % 8 * 4 + cell / 8 + cell % 4 / 2 * 2, channel / 32 * 2 + cell % 2, cell % 8 / 4 * 4 + channel % 4};
}
/// Bit `bit` of a code, counted from the start of the granule.
VECINFER_HD constexpr int level_bit(const LevelPlace& at, int bit, int head_dim) {
    const int word = at.piece / 4 * 3 + (at.piece % 4 < 3 ? at.piece % 4 : bit);
    const int in_word = 4 * at.nibble + (at.piece % 4 < 3 ? bit : 3);
    return 8 * lane_byte(at.lane, 4 * word + in_word / 8, head_dim * 3 / 16) + in_word % 8;
}

/// Codes of 12 bits come in pairs of one cell, 24 bits, so that bytes are a cell's own. Of keys of sub_dim 8 a pair is that of
/// two steps of 32 channels, of sub_dim 4 that of one step; of values it is that of two neighbouring units of a lane. Three words
/// hold four pairs: three in the low 24 bits, byte k of the fourth at the top of word k.
struct WidePlace {
    int lane = 0;
    int pair = 0;
    int which = 0;
};
VECINFER_HD constexpr WidePlace k_wide_place(int cell, int subspace, int sub_dim, int head_dim) {
    const int steps = head_dim / 32;
    const int lane = cell % 8 * 4 + subspace % 4;
    return sub_dim == 8 ? WidePlace{lane, cell / 8 * (steps / 2) + subspace / 8, subspace / 4 % 2}
                        : WidePlace{lane, cell / 8 * steps + subspace / 8, subspace / 4 % 2};
}
VECINFER_HD constexpr WidePlace v_wide_place(int cell, int subspace) {
    return {subspace % 8 * 4 + cell / 8 + cell % 4 / 2 * 2, subspace / 16 * 4 + cell % 2 * 2 + cell % 8 / 4, subspace / 8 % 2};
}
/// Bit `bit` of a pair, counted from the start of the granule.
VECINFER_HD constexpr int wide_bit(const WidePlace& at, int bit, int granule) {
    const int word = at.pair / 4 * 3 + (at.pair % 4 < 3 ? at.pair % 4 : bit / 8);
    const int in_word = at.pair % 4 < 3 ? bit : 24 + bit % 8;
    return 8 * lane_byte(at.lane, 4 * word + in_word / 8, granule / 32) + in_word % 8;
}

VECINFER_HD constexpr int norm_offset(int cell, bool value) {
    return cell % 8 * 4 + (value ? 2 : 0) + cell / 8;
}

/// Head page of page_size cells.
struct HeadPage {
    std::size_t k_codes = 0;  // bytes of K codes, which come first
    std::size_t v_codes = 0;
    std::size_t norms = 0;

    VECINFER_HD constexpr std::size_t v_offset() const { return k_codes; }
    VECINFER_HD constexpr std::size_t norm_offset() const { return k_codes + v_codes; }
    VECINFER_HD constexpr std::size_t bytes() const { return k_codes + v_codes + norms; }
};

VECINFER_HD constexpr HeadPage head_page(int head_dim, Form k, Form v, int page_size) {
    const std::size_t granules = static_cast<std::size_t>(page_size) / kGranule;
    return {granules * granule_bytes(head_dim, k), granules * granule_bytes(head_dim, v), granules * kNormBytes};
}

}  // namespace vecinfer::cuda
