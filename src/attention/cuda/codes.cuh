// Attention of a warp over packed codes: look-ups give the operands of integer matrix products.
//
// Keys: rows of A are 16 cells, k is 32 channels, columns of B are 4 query rows x {high, low} digit.
// Values: a look-up is four channels of a cell, but sums run over cells. So k is 16 cells x 4 channels, columns of B are 8 units
// of 4 channels, and A is sparse: rows are 4 query rows x {high, low} byte of p, twice, and of the four entries of a cell only
// one is not zero, at the channel that the row sums up. Two products, for channels 0 and 1 and for 2 and 3, share A; nothing is
// transposed.
//
// Precision and range. Scores: exact integers. p is 16 bits relative to a reference that stays between the largest p of a chunk
// and 128 times it; value sums are exact integers between two changes of the reference (255 * 127 *
// 32768 cells < 2^31 per byte), f32 above. Value norms are part of p, so a sum of p without norms is kept beside.
#pragma once

#include "attention/cuda/code_reader.cuh"

namespace vecinfer::cuda {

inline constexpr float kMagic = 8388608.0f;      // 2^23: adding it leaves an integer in the low mantissa bits
inline constexpr float kLeastP = 1.0f / 128.0f;  // a chunk whose largest p is below it moves the reference
inline constexpr float kLeastLog = -7.0f;
// Octaves between a chunk's largest p and a reference that it moved. A chunk that lies too high or too low is likely to be an
// exception, so the reference does not follow it further than it must.
inline constexpr float kHeadroomUp = 1.0f;
inline constexpr float kHeadroomDown = 6.0f;
inline constexpr float kDeepest = 60.0f;       // octaves that the reference may fall below its maximum
inline constexpr float kLeastNorm = 0x1p-40f;  // stands in for value norms of 0
inline constexpr float kUnset = -1e30f;
inline constexpr int kFlushChunks = 256;  // at most 32768 cells between flushes

/// Softmax state of a lane: its rows are t, t + 4, ... of the tile.
template <class C>
struct LaneState {
    float ref[C::NT];
    float deepest[C::NT];  // the reference must not fall below
    float sum[C::NT];

    __device__ __forceinline__ void reset() {
#pragma unroll
        for (int n = 0; n < C::NT; ++n) {
            ref[n] = 0.0f;
            deepest[n] = kUnset;
            sum[n] = 0.0f;
        }
    }
};

/// Sums of a lane over codes, of digit g % 2 of rows g / 2, g / 2 + 4, ...: entry x of acc[n][tile * kUnit / 2 + q] is channel
/// 2 q + x / 2 of unit 8 tile + 2 t + x % 2.
template <class C>
using CodeSums = int[C::NT][C::HD / 16][4];

/// Adds integer sums to the f32 sums of the warp and multiplies both by `factor`, which is that of rows t, t + 4, ... Lanes of
/// both digits of a row share its channels: an even g keeps the first half.
template <class C>
__device__ __forceinline__ void flush(CodeSums<C>& acc, const float (&factor)[C::NT], float* o, int lane) {
    constexpr int kHalf = C::HD / 32;
    const bool is_low = lane & 4;
#pragma unroll
    for (int n = 0; n < C::NT; ++n) {
        const float row_factor = __shfl_sync(kAllLanes, factor[n], lane >> 3);
#pragma unroll
        for (int m = 0; m < kHalf; ++m) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const int other = __shfl_xor_sync(kAllLanes, is_low ? acc[n][m][x] : acc[n][m + kHalf][x], 4);
                const int own = is_low ? acc[n][m + kHalf][x] : acc[n][m][x];
                float& sum = o[((n * kHalf + m) * 4 + x) * 32 + lane];
                const float added =
                    fmaf(static_cast<float>(is_low ? other : own), 256.0f, static_cast<float>(is_low ? own : other));
                sum = (sum + added) * row_factor;
                acc[n][m][x] = 0;
                acc[n][m + kHalf][x] = 0;
            }
        }
    }
}

/// `first`: the start of all tables, from which look-ups in copies count. `subspace`: the lane's first one, of two of sub_dim 2.
template <int D, Table T>
__device__ __forceinline__ Meaning<D> meaning(const std::uint32_t* first, const std::uint32_t* own, int lane, int subspace) {
    if constexpr (D == 1) {
        return {own[0], own[1]};
    } else if constexpr (T == Table::copies) {
        return {static_cast<std::uint32_t>(__cvta_generic_to_shared(first)) + (D == 8 ? 8 * (lane % 16) : 4 * lane)};
    } else {
        return {static_cast<std::uint32_t>(__cvta_generic_to_shared(own)) + (T == Table::own ? 1024 * subspace : 0)};
    }
}

/// Chunks first, first + WARPS, ... below end. `o`: the warp's sums, zeroed here, which count in kOne * 2^ref. `stage`:
/// kStageBytes of the warp.
template <class C>
__device__ __forceinline__ void attend_codes(const DecodeArgs& a, Shared<C>& sm, const Place& at, const Reach& reach, int first,
                                             int end, float* o, const std::uint8_t* stage, LaneState<C>& state) {
    constexpr int NT = C::NT;
    constexpr int CH = C::CH;
    constexpr int Steps = C::HD / 32;
    const int lane = threadIdx.x & 31;
    const int g = lane >> 2;
    const int t = lane & 3;
    const Meaning<C::KD> keys = meaning<C::KD, C::KT>(sm.k_table, sm.k_table, lane, t);
    const Meaning<C::VD> values = meaning<C::VD, C::VT>(sm.k_table, sm.v_table, lane, g);

    state.reset();
#pragma unroll
    for (int i = 0; i < C::kAcc; ++i) {
        o[i * 32 + lane] = 0.0f;
    }
    if (first >= end) {
        return;
    }

    std::uint32_t q[NT][Steps][2];
    float k_shift[NT];  // log2 of what an integer score counts, less the 4096 + 16 of byte_above_32768
    float bias[NT];
    int q_pos[NT];
    float slope[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int s = 0; s < Steps; ++s) {
            const int low = 32 * s + (C::KD == 8 ? 8 : 4) * t;
            q[n][s][0] = *reinterpret_cast<const std::uint32_t*>(&sm.q_code[8 * n + g][low]);
            q[n][s][1] = *reinterpret_cast<const std::uint32_t*>(&sm.q_code[8 * n + g][low + (C::KD == 8 ? 4 : 16)]);
        }
        const int r = 4 * n + t;
        const int row = at.row_tile * C::kRows + r;
        k_shift[n] = sm.q_log_scale[r] - 4112.0f;
        bias[n] = sm.q_bias[r];
        q_pos[n] = reach.len - a.num_q + min(row / a.group, a.num_q - 1);
        slope[n] = C::General && a.alibi_slopes != nullptr && row / a.group < a.num_q
                       ? a.alibi_slopes[at.head * a.group + row % a.group] * kLog2e
                       : 0.0f;
    }
    // Cells in [plain_lo, plain_hi) are read from codes by every query.
    const int first_q = reach.len - a.num_q;
    const int plain_lo = max(reach.sinks, a.sliding_window == INT_MAX ? 0 : max(0, reach.len - a.sliding_window));
    const int plain_hi = max(0, first_q + 1 - a.recent);

    CodeSums<C> acc;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < C::HD / 16; ++i) {
            acc[n][i][0] = acc[n][i][1] = acc[n][i][2] = acc[n][i][3] = 0;
        }
    }

    using Reader = ChunkReader<C>;
    using Keys = typename Reader::Keys;
    using Values = typename Reader::Values;
    const Reader reader(a, at, reach, lane);
    const std::uint8_t* k_stage = stage + Keys::kWidth * lane;
    const std::uint8_t* v_stage = stage + 2 * CH * Reader::kKeyBytes + Values::kWidth * lane;
    const std::uint32_t k_to = static_cast<std::uint32_t>(__cvta_generic_to_shared(k_stage));
    const std::uint32_t v_to = static_cast<std::uint32_t>(__cvta_generic_to_shared(v_stage));
    std::uint32_t norms[2 * CH];
    int page = reader.page(first, lane);
#pragma unroll
    for (int i = 0; i < 2 * CH; ++i) {
        const auto from = reader.granule(first, i, page);
        Keys::copy(k_to + i * Reader::kKeyBytes, reader.key(from));
        norms[i] = load_stream(reader.norm(from));
    }
    copies_end();
#pragma unroll
    for (int i = 0; i < 2 * CH; ++i) {
        Values::copy(v_to + i * Reader::kValueBytes, reader.value(reader.granule(first, i, page)));
    }
    copies_end();
    int page_after = reader.page(min(first + C::WARPS, end - 1), lane);

    int until_flush = 1;  // the first chunk sets the reference
    for (int chunk = first; chunk < end; chunk += C::WARPS) {
        // The last round loads its own chunk again, which costs less than a branch around every load.
        const int next = chunk + C::WARPS < end ? chunk + C::WARPS : chunk;
        page = page_after;
        page_after = reader.page(min(next + C::WARPS, end - 1), lane);

        copies_done<1>();
        float score[CH][NT][4];  // of cells g, g + 8 of either granule; relative to ref
        float weight[CH][NT][4];
        std::uint32_t zero_norms = 0;
#pragma unroll
        for (int i = 0; i < CH; ++i) {
            // Both granules step by step, as the sums of one wait for each other.
            Keys codes[2];
            codes[0].load(k_stage + 2 * i * Reader::kKeyBytes);
            codes[1].load(k_stage + (2 * i + 1) * Reader::kKeyBytes);
            int c[2][NT][4];
#pragma unroll
            for (int s = 0; s < Steps; ++s) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const KeyPiece row0 = look_up_key<C>(codes[half], 0, s, keys);
                    const KeyPiece row1 = look_up_key<C>(codes[half], 1, s, keys);
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
                        if (s == 0) {
                            mma_s8s8_first(c[half][n], row0.low, row1.low, row0.high, row1.high, q[n][s][0], q[n][s][1]);
                        } else {
                            mma_s8s8(c[half][n], row0.low, row1.low, row0.high, row1.high, q[n][s][0], q[n][s][1]);
                        }
                    }
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    score[i][n][2 * half] = static_cast<float>(c[half][n][0] * 128 + c[half][n][1]);
                    score[i][n][2 * half + 1] = static_cast<float>(c[half][n][2] * 128 + c[half][n][3]);
                }
            }
        }
        std::uint32_t norm_words[2 * CH];
#pragma unroll
        for (int i = 0; i < 2 * CH; ++i) {
            norm_words[i] = norms[i];
            zero_norms |= (norms[i] - 0x01010101u) & ~norms[i];
            const auto from = reader.granule(next, i, page);
            Keys::copy(k_to + i * Reader::kKeyBytes, reader.key(from));
            norms[i] = load_stream(reader.norm(from));
        }
        copies_end();

        const int cell0 = chunk * C::kChunk;
        float value_norm[CH][4];
#pragma unroll
        for (int i = 0; i < CH; ++i) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const std::uint32_t w = norm_words[2 * i + e / 2];
                const float k_byte = e % 2 == 0 ? byte_above_32768<0>(w) : byte_above_32768<1>(w);
                const float v_byte = e % 2 == 0 ? byte_above_32768<2>(w) : byte_above_32768<3>(w);
                value_norm[i][e] = exp2_fast(fmaf(v_byte, 0.125f, -4112.0f));
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    float factor = exp2_fast(fmaf(k_byte, 0.125f, k_shift[n]));
                    if constexpr (C::General) {
                        factor = k_byte == 32768.0f ? 0.0f : factor;
                        float s = fmaf(score[i][n][e], factor, bias[n]);
                        if (a.soft_cap != 0.0f) {
                            const float cap = a.soft_cap * kLog2e;
                            s = cap * tanhf(s / cap);
                        }
                        const int cell = cell0 + 32 * i + 16 * (e / 2) + 8 * (e % 2) + g;
                        s += slope[n] * static_cast<float>(cell - q_pos[n]);
                        score[i][n][e] = s - state.ref[n];
                    } else {
                        score[i][n][e] = fmaf(score[i][n][e], factor, bias[n] - state.ref[n]);
                    }
                }
            }
        }
        const bool masked = cell0 < plain_lo || cell0 + C::kChunk > plain_hi;
        if (masked || __any_sync(kAllLanes, (zero_norms & 0x80808080u) != 0)) {
#pragma unroll
            for (int i = 0; i < CH; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int cell = cell0 + 32 * i + 16 * (e / 2) + 8 * (e % 2) + g;
                    const std::uint32_t bytes = norm_words[2 * i + e / 2] >> (8 * (e % 2));
                    value_norm[i][e] = (bytes & 0xff0000u) == 0 ? 0.0f : value_norm[i][e];
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
                        if (!C::General && (bytes & 0xffu) == 0) {
                            score[i][n][e] = bias[n] - state.ref[n];
                        }
                        const bool seen = cell >= a.sink && cell <= q_pos[n] - a.recent &&
                                          (a.sliding_window == INT_MAX || cell > q_pos[n] - a.sliding_window);
                        score[i][n][e] = seen ? score[i][n][e] : -INFINITY;
                    }
                }
            }
        }

        // The largest p of the chunk decides whether the reference may stay.
        float sum[NT];
        bool moves = --until_flush == 0;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            float most = 0.0f;
            sum[n] = 0.0f;
#pragma unroll
            for (int i = 0; i < CH; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float p = exp2_fast(score[i][n][e]);
                    weight[i][n][e] = p * value_norm[i][e];
                    most = fmaxf(most, weight[i][n][e]);
                    sum[n] += p;
                }
            }
            moves |= __any_sync(kAllLanes, !(most <= 1.0f) || !(sum[n] < 1e30f));
            unsigned high = __ballot_sync(kAllLanes, most >= kLeastP);
            high |= high >> 16;
            high |= high >> 8;
            high |= high >> 4;
            moves |= (high & 15u) != 15u;
        }
        if (moves) {
            float factor[NT];
            bool unset = false;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                float top = -INFINITY;
#pragma unroll
                for (int i = 0; i < CH; ++i) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        top = fmaxf(top, score[i][n][e] + log2_fast(fmaxf(value_norm[i][e], kLeastNorm)));
                    }
                }
                top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 4));
                top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 8));
                top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 16));
                const bool stays = top == -INFINITY || (top <= 0.0f && top >= kLeastLog);
                const float ref = stays
                                      ? state.ref[n]
                                      : fmaxf(state.ref[n] + top + (top > 0.0f ? kHeadroomUp : kHeadroomDown), state.deepest[n]);
                const float move = ref - state.ref[n];
                factor[n] = exp2f(fminf(-move, kDeepest));  // beyond, there is nothing to scale yet
                state.ref[n] = ref;
                state.deepest[n] = top == -INFINITY ? state.deepest[n] : fmaxf(state.deepest[n], ref - kDeepest);
                state.sum[n] *= factor[n];
                unset |= state.deepest[n] == kUnset;
                sum[n] = 0.0f;
#pragma unroll
                for (int i = 0; i < CH; ++i) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const float p = exp2_fast(score[i][n][e] - move);
                        weight[i][n][e] = p * value_norm[i][e];
                        sum[n] += p;
                    }
                }
            }
            until_flush = __any_sync(kAllLanes, unset) ? 1 : kFlushChunks;
            flush<C>(acc, factor, o, lane);
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            state.sum[n] += sum[n];
        }

        // p of cells g and g + 8 of both granules, from the lanes that have them to those whose rows need them: digits of an even
        // g travel one way, those of an odd g the other.
        const std::uint32_t send_a = g & 1 ? 0x5410u : 0x7632u;
        const std::uint32_t send_b = g & 1 ? 0x7632u : 0x5410u;
        const int even = (2 * t) * 4 + g / 2;
        const int odd = even + 4;
        const bool low = g & 1;
        copies_done<1>();
#pragma unroll
        for (int i = 0; i < CH; ++i) {
            std::uint32_t p[NT][2];
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                std::uint32_t x[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    x[e] = __float_as_uint(fmaf(weight[i][n][e], C::kOne, kMagic));
                }
                const std::uint32_t y0 = __byte_perm(x[0], x[1], 0x5140);
                const std::uint32_t y1 = __byte_perm(x[2], x[3], 0x5140);
                const std::uint32_t from_a = __shfl_sync(kAllLanes, __byte_perm(y0, y1, send_a), low ? odd : even);
                const std::uint32_t from_b = __shfl_sync(kAllLanes, __byte_perm(y0, y1, send_b), low ? even : odd);
                p[n][0] = low ? from_b : from_a;
                p[n][1] = low ? from_a : from_b;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                std::uint32_t digits[NT][4];  // of cells 2t, 2t + 8 and 2t + 1, 2t + 9, in the first and in the second place
#pragma unroll
                for (int n = 0; n < NT; ++n) {
#pragma unroll
                    for (int parity = 0; parity < 2; ++parity) {
                        digits[n][2 * parity] = __byte_perm(p[n][parity], 0, half == 0 ? 0x4140 : 0x4342);
                        digits[n][2 * parity + 1] = __byte_perm(p[n][parity], 0, half == 0 ? 0x1404 : 0x3424);
                    }
                }
                Values codes;
                codes.load(v_stage + (2 * i + half) * Reader::kValueBytes);
#pragma unroll
                for (int tile = 0; tile < C::HD / (8 * kUnit<C>); ++tile) {
                    std::uint32_t x[kUnit<C> / 4][4];
                    look_up_values<C>(codes, tile, values, x);
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
#pragma unroll
                        for (int w = 0; w < kUnit<C> / 4; ++w) {
                            mma_sparse_u8s8<0>(acc[n][tile * (kUnit<C> / 2) + 2 * w], digits[n], x[w]);
                            mma_sparse_u8s8<2>(acc[n][tile * (kUnit<C> / 2) + 2 * w + 1], digits[n], x[w]);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * CH; ++i) {
            Values::copy(v_to + i * Reader::kValueBytes, reader.value(reader.granule(next, i, page)));
        }
        copies_end();
    }
    copies_done<0>();
    __syncwarp();  // other lanes' copies, before the stage becomes something else
    float one[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
        one[n] = 1.0f;
    }
    flush<C>(acc, one, o, lane);
}

}  // namespace vecinfer::cuda
