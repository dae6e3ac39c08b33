// Codes of one block to the operands of the matrix method: 16-bit integers in pairs, because vpmaddwd multiplies and adds pairs.
// Included inside an anonymous namespace by fused_matrix.inl. Needs AVX2, whatever the width of the vectors that read the result.
//
//   keys    pairs of channels (2i, 2i + 1): layout (64 / strip, dim / 2, strip) of pairs, a strip is kStrip cells
//   values  pairs of cells (2i, 2i + 1): layout (strips, cells of the chunk / 2, channels of the strip) of pairs; a strip is
//   kStrip
//           channels, the last one what is left, rounded up to whole vectors (those channels hold anything)
//
// A strip is what one pass of the multiplication reads, from the first byte to the last. Centroids are int8, so nothing is lost.

/// Where the values of a chunk of `cells` cells lie.
struct ValuePanel {
    std::int32_t* pairs;
    int cells;
    int dim;

    /// Vectors of the strip that channel d is in.
    int strip_channels(int d) const {
        const int left = dim - d / kStrip * kStrip;
        return left >= kStrip ? kStrip : (left + kLanes - 1) / kLanes * kLanes;
    }
    std::int32_t* at(int d, int cell) const {
        const int first = d / kStrip * kStrip;
        return pairs + first * (cells / 2) + cell / 2 * strip_channels(d) + (d - first);
    }
};

/// Key pairs of channels (2i, 2i + 1) and of cell t, which is a multiple of 4, and the cells after it in its strip.
VECINFER_INLINE std::int32_t* key_pairs(std::int32_t* panel, int dim, int i, int t) {
    const auto step = static_cast<unsigned>(t);
    return panel + (step / kStrip * (static_cast<unsigned>(dim) / 2) + static_cast<unsigned>(i)) * std::size_t{kStrip} +
           step % kStrip;
}

/// Centroid `code` of D channels. As an unsigned index it is part of the address of the load.
template <int D>
VECINFER_INLINE const std::int8_t* at(const std::int8_t* centroids, std::size_t code) {
    return centroids + code * D;
}

VECINFER_INLINE int load_i32(const std::int8_t* p) {
    int x;
    __builtin_memcpy(&x, p, 4);
    return x;
}
VECINFER_INLINE int load_i16(const std::int8_t* p) {
    std::int16_t x;
    __builtin_memcpy(&x, p, 2);
    return static_cast<std::uint16_t>(x);
}
VECINFER_INLINE __m128i load_i64(const std::int8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
VECINFER_INLINE void store128(std::int32_t* to, __m128i x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x);
}
VECINFER_INLINE void store256(std::int32_t* to, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
}

/// Planes of 64 codes (cache/layout.h) as one integer each. A plane of w bits holds 8w cells' bits per shift.
template <class Code>
VECINFER_INLINE void add_plane(const std::uint8_t* plane, int width, int done, Code* codes) {
    for (int i = 0; i < 8 / width; ++i) {
        for (int j = 0; j < 8 * width; ++j) {
            const unsigned bits = plane[j] >> (width * i) & ((1u << width) - 1);
            codes[8 * width * i + j] = static_cast<Code>(done == 0 ? bits : codes[8 * width * i + j] | bits << done);
        }
    }
}

template <class Code>
VECINFER_INLINE void unpack_codes(const std::uint8_t* planes, int code_bits, Code* codes) {
    int done = 0;
    if ((code_bits & 8) != 0) {
        add_plane(planes, 8, 0, codes);
        planes += 64;
        done = 8;
    }
    if ((code_bits & 4) != 0) {
        add_plane(planes, 4, done, codes);
        planes += 32;
        done += 4;
    }
    if ((code_bits & 2) != 0) {
        add_plane(planes, 2, done, codes);
        planes += 16;
        done += 2;
    }
    if ((code_bits & 1) != 0) {
        add_plane(planes, 1, done, codes);
    }
}

/// One subspace of sub_dim D. c: its centroids, layout (count, D); codes: [64]; pair0: number of its first pair of channels.
template <int D, class Code>
VECINFER_INLINE void keys_of(const std::int8_t* c, const Code* codes, std::int32_t* panel, int dim, int pair0) {
    if constexpr (D == 2) {
        for (int t = 0; t < 64; t += 8) {
            __m128i x = _mm_cvtsi32_si128(load_i16(at<2>(c, codes[t])));
            x = _mm_insert_epi16(x, load_i16(at<2>(c, codes[t + 1])), 1);
            x = _mm_insert_epi16(x, load_i16(at<2>(c, codes[t + 2])), 2);
            x = _mm_insert_epi16(x, load_i16(at<2>(c, codes[t + 3])), 3);
            x = _mm_insert_epi16(x, load_i16(at<2>(c, codes[t + 4])), 4);
            x = _mm_insert_epi16(x, load_i16(at<2>(c, codes[t + 5])), 5);
            x = _mm_insert_epi16(x, load_i16(at<2>(c, codes[t + 6])), 6);
            x = _mm_insert_epi16(x, load_i16(at<2>(c, codes[t + 7])), 7);
            store256(key_pairs(panel, dim, pair0, t), _mm256_cvtepi8_epi16(x));
        }
    } else if constexpr (D == 4) {
        const __m256i halves = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2,
                                                3, 6, 7, 10, 11, 14, 15);
        for (int t = 0; t < 64; t += 8) {
            const auto four = [&](int i) __attribute__((always_inline)) {
                __m128i x = _mm_cvtsi32_si128(load_i32(at<4>(c, codes[i])));
                x = _mm_insert_epi32(x, load_i32(at<4>(c, codes[i + 1])), 1);
                x = _mm_insert_epi32(x, load_i32(at<4>(c, codes[i + 2])), 2);
                return _mm_insert_epi32(x, load_i32(at<4>(c, codes[i + 3])), 3);
            };
            const __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(four(t)), four(t + 4), 1);
            const __m256i y = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, halves), 0xd8);
            store256(key_pairs(panel, dim, pair0, t), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(y)));
            store256(key_pairs(panel, dim, pair0 + 1, t), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(y, 1)));
        }
    } else {
        static_assert(D == 8);
        for (int t = 0; t < 64; t += 4) {
            const __m128i a = _mm_unpacklo_epi64(load_i64(at<8>(c, codes[t])), load_i64(at<8>(c, codes[t + 1])));
            const __m128i b = _mm_unpacklo_epi64(load_i64(at<8>(c, codes[t + 2])), load_i64(at<8>(c, codes[t + 3])));
            const __m128i even = _mm_unpacklo_epi16(a, b);  // cells 0 and 2 in turn
            const __m128i odd = _mm_unpackhi_epi16(a, b);   // cells 1 and 3
            const __m256i x = _mm256_cvtepi8_epi16(_mm_unpacklo_epi16(even, odd));
            const __m256i y = _mm256_cvtepi8_epi16(_mm_unpackhi_epi16(even, odd));
            store128(key_pairs(panel, dim, pair0, t), _mm256_castsi256_si128(x));
            store128(key_pairs(panel, dim, pair0 + 1, t), _mm256_extracti128_si256(x, 1));
            store128(key_pairs(panel, dim, pair0 + 2, t), _mm256_castsi256_si128(y));
            store128(key_pairs(panel, dim, pair0 + 3, t), _mm256_extracti128_si256(y, 1));
        }
    }
}

/// Channel d of a scalar quantizer of at most 16 levels, as int8: out [64].
VECINFER_INLINE void levels_of(const std::int8_t* levels, int count, const std::uint8_t* planes, int code_bits,
                               std::int8_t* out) {
    alignas(32) std::uint8_t codes[64];
    alignas(16) std::int8_t table[16] = {};
    unpack_codes(planes, code_bits, codes);
    for (int i = 0; i < count; ++i) {
        table[i] = levels[i];
    }
    const __m256i look_up = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    for (int t = 0; t < 64; t += 32) {
        const __m256i code = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + t));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + t), _mm256_shuffle_epi8(look_up, code));
    }
}

void keys_of_levels(const FusedSide& k, const std::uint8_t* block, std::int32_t* panel) {
    const int stride = 8 * k.code_bits;
    alignas(32) std::int8_t x[2][64];
    for (int d = 0; d < k.dim(); d += 2) {
        for (int i = 0; i < 2; ++i) {
            levels_of(k.centroids_of(d + i), 1 << k.code_bits, block + (d + i) * stride, k.code_bits, x[i]);
        }
        for (int t = 0; t < 64; t += 16) {
            const __m128i a = _mm_load_si128(reinterpret_cast<const __m128i*>(x[0] + t));
            const __m128i b = _mm_load_si128(reinterpret_cast<const __m128i*>(x[1] + t));
            store256(key_pairs(panel, k.dim(), d / 2, t), _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)));
            store256(key_pairs(panel, k.dim(), d / 2, t + 8), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)));
        }
    }
}

/// 8 channels at once.
void values_of_levels(const FusedSide& v, const std::uint8_t* block, const ValuePanel& panel, int cell0) {
    const int stride = 8 * v.code_bits;
    alignas(32) std::int8_t x[8][64];
    for (int d = 0; d < v.dim(); d += 8) {
        for (int i = 0; i < 8; ++i) {
            levels_of(v.centroids_of(d + i), 1 << v.code_bits, block + (d + i) * stride, v.code_bits, x[i]);
        }
        for (int t = 0; t < 64; t += 2) {
            __m128i y = _mm_cvtsi32_si128(load_i16(x[0] + t));
            y = _mm_insert_epi16(y, load_i16(x[1] + t), 1);
            y = _mm_insert_epi16(y, load_i16(x[2] + t), 2);
            y = _mm_insert_epi16(y, load_i16(x[3] + t), 3);
            y = _mm_insert_epi16(y, load_i16(x[4] + t), 4);
            y = _mm_insert_epi16(y, load_i16(x[5] + t), 5);
            y = _mm_insert_epi16(y, load_i16(x[6] + t), 6);
            y = _mm_insert_epi16(y, load_i16(x[7] + t), 7);
            store256(panel.at(d, cell0 + t), _mm256_cvtepi8_epi16(y));
        }
    }
}

template <int D, class Code>
VECINFER_INLINE void values_of(const std::int8_t* c, const Code* codes, const ValuePanel& panel, int d, int cell0) {
    std::int32_t* to = panel.at(d, cell0);
    const int stride = panel.strip_channels(d);
    for (int t = 0; t < 64; t += 2, to += stride) {
        if constexpr (D == 2) {
            const __m128i a = _mm_cvtsi32_si128(load_i16(at<2>(c, codes[t])));
            const __m128i b = _mm_cvtsi32_si128(load_i16(at<2>(c, codes[t + 1])));
            _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)));
        } else if constexpr (D == 4) {
            const __m128i a = _mm_cvtsi32_si128(load_i32(at<4>(c, codes[t])));
            const __m128i b = _mm_cvtsi32_si128(load_i32(at<4>(c, codes[t + 1])));
            store128(to, _mm_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)));
        } else {
            static_assert(D == 8);
            const __m128i pairs = _mm_unpacklo_epi8(load_i64(at<8>(c, codes[t])), load_i64(at<8>(c, codes[t + 1])));
            store256(to, _mm256_cvtepi8_epi16(pairs));
        }
    }
}

/// keys: of one block into `panel`; else values, of the block whose first cell is cell0 of the chunk.
template <int D>
void decode_subspaces(const FusedSide& side, const std::uint8_t* block, std::int32_t* keys, const ValuePanel* values, int cell0) {
    alignas(32) std::uint16_t wide[64];
    for (int m = 0; m < side.num_subspaces; ++m, block += 8 * side.code_bits) {
        const std::int8_t* c = side.centroids_of(m);
        if (side.code_bits == 8) {
            if (values == nullptr) {
                keys_of<D>(c, block, keys, side.dim(), m * D / 2);
            } else {
                values_of<D>(c, block, *values, m * D, cell0);
            }
            continue;
        }
        unpack_codes(block, side.code_bits, wide);
        if (values == nullptr) {
            keys_of<D>(c, wide, keys, side.dim(), m * D / 2);
        } else {
            values_of<D>(c, wide, *values, m * D, cell0);
        }
    }
}

void decode_keys(const FusedSide& k, const std::uint8_t* block, std::int32_t* panel) {
    switch (k.sub_dim) {
        case 1: keys_of_levels(k, block, panel); break;
        case 2: decode_subspaces<2>(k, block, panel, nullptr, 0); break;
        case 4: decode_subspaces<4>(k, block, panel, nullptr, 0); break;
        default: decode_subspaces<8>(k, block, panel, nullptr, 0); break;
    }
}

void decode_values(const FusedSide& v, const std::uint8_t* block, const ValuePanel& panel, int cell0) {
    switch (v.sub_dim) {
        case 1: values_of_levels(v, block, panel, cell0); break;
        case 2: decode_subspaces<2>(v, block, nullptr, &panel, cell0); break;
        case 4: decode_subspaces<4>(v, block, nullptr, &panel, cell0); break;
        default: decode_subspaces<8>(v, block, nullptr, &panel, cell0); break;
    }
}
