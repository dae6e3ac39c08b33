// Attention of a warp over packed scalar codes: codes are f16 operands of matrix products, scales join where they cost least.
//
// Keys: rows of A are 16 cells, k is 16 channels, columns of B are 4 query rows x {high, low} digit. Values: rows of A are 16
// channels, k is 16 cells, columns of B are 4 query rows x {high, low} digit of p. So sums over codes of a row and its softmax
// state are in the same lanes. Codes are masked out of their words and nothing else, see scalar_layout.h.
//
//                         keys                                        values
//   groups of channels    products of a group x the cell's scale       p x the cell's scale, one B for each group
//   groups of tokens      query x the channel's scale, in two f16      products of a chunk x the channel's scale
//   zeros                 one more product, of zeros instead of codes, or the sum of the query's digits (of p) x the zero
//
// Precision: two f16 digits of the query and of p are 22 bits; p times a scale is rounded to 11: relative error of a term 2^-12.
// p is at most 2^limit in units of 2^ref, the limit such that p x scale does not overflow.
#pragma once

#include "attention/cuda/exact.cuh"
#include "attention/cuda/scalar_reader.cuh"

namespace vecinfer::cuda {

inline constexpr float kCodeUnit = 16777216.0f;  // 1 / what a code of weight 0 counts as a subnormal f16
inline constexpr int kMostLimit = 12;
inline constexpr float kRefMargin = 2.0f;  // octaves between the largest p and its limit when the reference moves
inline constexpr std::uint32_t kOnes = 0x3c003c00u;

/// Number of levels below zero of symmetric codes.
template <class Side>
inline constexpr float kMiddle = static_cast<float>((1 << (Side::kBits - 1)) - 1);

/// Scale of a group, and the value of code 0.
template <class Side>
__device__ __forceinline__ void scale_and_base(float stored, float zero, float& scale, float& base) {
    scale = fabsf(stored);
    base = Side::kLevels == Levels::asymmetric || __float_as_uint(stored) >> 31 != 0 ? zero : -kMiddle<Side> * scale;
}

/// What keys of a chunk contribute to scores, see attend_scalar.
template <class C>
struct KeyProduct {
    using Side = typename C::Keys;
    static constexpr int NT = C::NT;
    static constexpr int R = C::HD / 8;  // registers of a column
    static constexpr bool kSymmetric = Side::kLevels == Levels::symmetric;
    static constexpr int kGroups = Side::kAxis == Axis::channel ? C::HD / Side::kGroup : 1;
    static constexpr int kSteps = C::HD / 16 / kGroups;  // of k in a group

    std::uint32_t q[NT][R];
    float sum[NT][kGroups][2];  // of digits, in products of code 1

    __device__ __forceinline__ void prepare(const Shared<C>& sm, int g, int t) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                q[n][r] = *reinterpret_cast<const std::uint32_t*>(&sm.q_code[8 * n + g][8 * r + 2 * t]);
            }
            if constexpr (Side::kAxis == Axis::channel) {
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    float c[4] = {};
#pragma unroll
                    for (int j = group * kSteps; j < (group + 1) * kSteps; ++j) {
                        const std::uint32_t one0 = one_pair<Side::kBits, C::HD>(2 * j);
                        const std::uint32_t one1 = one_pair<Side::kBits, C::HD>(2 * j + 1);
                        mma_f16(c, one0, one0, one1, one1, q[n][2 * j], q[n][2 * j + 1]);
                    }
                    sum[n][group][0] = kSymmetric ? -kMiddle<Side> * c[0] : c[0];
                    sum[n][group][1] = kSymmetric ? -kMiddle<Side> * c[1] : c[1];
                }
            }
        }
    }

    /// score[n][e]: of cell 8 e + g, row 4 n + t, in products of f16 queries with code 1.
    __device__ __forceinline__ void operator()(const Shared<C>& sm, const std::uint8_t* stage, int lane,
                                               float (&score)[NT][4]) const {
        using Stage = ScalarStage<C>;
        const int g = lane >> 2;
        const int t = lane & 3;
        Share<Side::kBits * C::HD / 32> codes;
        codes.load(stage, lane);
        const auto pair = [&](int e, int r) { return code_pair<Side::kBits, C::HD>(codes, e, r); };
        if constexpr (Side::kAxis == Axis::channel) {
            Share<2 * kGroups, 8> scales;
            Share<2 * kGroups, 8> zeros;
            scales.load(stage + Stage::kNumbers, g);
            if constexpr (!kSymmetric) {
                zeros.load(stage + Stage::kNumbers + Stage::kKeyNumbers / 2, g);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    float c[NT][4];
#pragma unroll
                    for (int j = group * kSteps; j < (group + 1) * kSteps; ++j) {
                        const std::uint32_t a0 = pair(2 * i, 2 * j);
                        const std::uint32_t a1 = pair(2 * i + 1, 2 * j);
                        const std::uint32_t a2 = pair(2 * i, 2 * j + 1);
                        const std::uint32_t a3 = pair(2 * i + 1, 2 * j + 1);
#pragma unroll
                        for (int n = 0; n < NT; ++n) {
                            if (j == group * kSteps) {
                                const float first[2] = {kSymmetric ? sum[n][group][0] : 0.0f,
                                                        kSymmetric ? sum[n][group][1] : 0.0f};
                                mma_f16_first(c[n], a0, a1, a2, a3, q[n][2 * j], q[n][2 * j + 1], first[0], first[1], first[0],
                                              first[1]);
                            } else {
                                mma_f16(c[n], a0, a1, a2, a3, q[n][2 * j], q[n][2 * j + 1]);
                            }
                        }
                    }
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int e = 2 * i + half;
                        float scale = scales.number(e * kGroups + group);
                        float base = 0.0f;
                        if constexpr (!kSymmetric) {
                            scale_and_base<Side>(scale, zeros.number(e * kGroups + group), scale, base);
                        }
#pragma unroll
                        for (int n = 0; n < NT; ++n) {
                            score[n][e] = fmaf(scale, fmaf(c[n][2 * half + 1], 1.0f / kDigit, c[n][2 * half]), score[n][e]);
                            if constexpr (!kSymmetric) {
                                score[n][e] = fmaf(base, fmaf(sum[n][group][1], 1.0f / kDigit, sum[n][group][0]), score[n][e]);
                            }
                        }
                    }
                }
            }
        } else {
            Share<R, 4> scales;
            scales.load(stage + Stage::kNumbers, t);
            float zero[NT][4] = {};
            if constexpr (!kSymmetric) {
                Share<R, 4> zeros;
                zeros.load(stage + Stage::kNumbers + Stage::kKeyNumbers / 2, t);
#pragma unroll
                for (int j = 0; j < C::HD / 16; ++j) {
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
                        const std::uint32_t* plain =
                            reinterpret_cast<const std::uint32_t*>(&sm.q_plain[8 * n + g][16 * j + 2 * t]);
                        mma_f16(zero[n], zeros.w[2 * j], zeros.w[2 * j], zeros.w[2 * j + 1], zeros.w[2 * j + 1], plain[0],
                                plain[4]);
                    }
                }
            }
            static_assert(Side::kLevels == Levels::asymmetric, "signs of scales would have to be looked at");
            float c[2][NT][4] = {};
#pragma unroll
            for (int j = 0; j < C::HD / 16; ++j) {
                std::uint32_t b[NT][2];
                std::uint32_t rest[NT][2];
#pragma unroll
                for (int n = 0; n < NT; ++n) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        b[n][h] = multiply_halves(q[n][2 * j + h], scales.w[2 * j + h]);
                        rest[n][h] = product_remainder(q[n][2 * j + h], scales.w[2 * j + h], b[n][h]);
                    }
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const std::uint32_t a0 = pair(2 * i, 2 * j);
                    const std::uint32_t a1 = pair(2 * i + 1, 2 * j);
                    const std::uint32_t a2 = pair(2 * i, 2 * j + 1);
                    const std::uint32_t a3 = pair(2 * i + 1, 2 * j + 1);
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
                        mma_f16(c[i][n], a0, a1, a2, a3, b[n][0], b[n][1]);
                        mma_f16(c[i][n], a0, a1, a2, a3, rest[n][0], rest[n][1]);
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float offset = fmaf(zero[n][1], 1.0f / kDigit, zero[n][0]) * (1.0f / kCodeUnit);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float* x = &c[e / 2][n][2 * (e % 2)];
                    score[n][e] = fmaf(x[1], 1.0f / kDigit, x[0]) + offset;
                }
            }
        }
    }
};

/// Sums of values.
template <class C>
struct ValueSums {
    using Side = typename C::Values;
    static constexpr int NT = C::NT;
    static constexpr int kTiles = C::HD / 16;
    static constexpr bool kSymmetric = Side::kLevels == Levels::symmetric;

    float acc[NT][kTiles][4];  // rows are channels 16 tile + g, + 8; columns digits of p; in codes of weight pair_weight
    float zero[NT][4];         // of groups of channels: rows are groups, sums of p x zero

    __device__ __forceinline__ void reset() {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            zero[n][0] = zero[n][1] = zero[n][2] = zero[n][3] = 0.0f;
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                acc[n][i][0] = acc[n][i][1] = acc[n][i][2] = acc[n][i][3] = 0.0f;
            }
        }
    }
    __device__ __forceinline__ void scale(int n, float factor) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            zero[n][x] *= factor;
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                acc[n][i][x] *= factor;
            }
        }
    }

    /// p[n][q]: B fragments, cells 16 (q / 2) + 2 t + q % 2 and 8 further.
    __device__ __forceinline__ void add(const std::uint8_t* stage, int lane, const std::uint32_t (&p)[NT][4]) {
        using Stage = ScalarStage<C>;
        const int g = lane >> 2;
        const int t = lane & 3;
        Share<Side::kBits * C::HD / 32> codes;
        codes.load(stage + Stage::kValues, lane);
        const std::uint8_t* numbers = stage + Stage::kValueNumbersAt;
        const auto add_codes = [&](float(&c)[4], int tile, const std::uint32_t(&b)[4]) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                mma_f16(c, code_pair<Side::kBits, C::HD>(codes, 2 * i, 2 * tile),
                        code_pair<Side::kBits, C::HD>(codes, 2 * i, 2 * tile + 1),
                        code_pair<Side::kBits, C::HD>(codes, 2 * i + 1, 2 * tile),
                        code_pair<Side::kBits, C::HD>(codes, 2 * i + 1, 2 * tile + 1), b[2 * i], b[2 * i + 1]);
            }
        };
        if constexpr (Side::kAxis == Axis::token) {
            Share<C::HD / 16, 8> scales;
            Share<C::HD / 16, 8> zeros;
            scales.load(numbers, g);
            if constexpr (!kSymmetric) {
                zeros.load(numbers + Stage::kValueNumbers / 2, g);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                float sum[4] = {};  // of the digits of p
                mma_f16(sum, kOnes, kOnes, kOnes, kOnes, p[n][0], p[n][1]);
                mma_f16(sum, kOnes, kOnes, kOnes, kOnes, p[n][2], p[n][3]);
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile) {
                    const float unit[2] = {weight_of<Side::kBits, C::HD>(2 * tile) / kCodeUnit,
                                           weight_of<Side::kBits, C::HD>(2 * tile + 1) / kCodeUnit};
                    float c[4];
#pragma unroll
                    for (int x = 0; x < 4; ++x) {
                        c[x] = kSymmetric ? sum[x % 2] * (-kMiddle<Side> * unit[x / 2]) : 0.0f;
                    }
                    add_codes(c, tile, p[n]);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float scale = scales.number(2 * tile + half);
                        float base = 0.0f;
                        if constexpr (!kSymmetric) {
                            scale_and_base<Side>(scale, zeros.number(2 * tile + half), scale, base);
                        }
#pragma unroll
                        for (int x = 2 * half; x < 2 * half + 2; ++x) {
                            acc[n][tile][x] = fmaf(scale, c[x], acc[n][tile][x]);
                            if constexpr (!kSymmetric) {
                                acc[n][tile][x] = fmaf(base, sum[x % 2] * unit[half], acc[n][tile][x]);
                            }
                        }
                    }
                }
            }
        } else {
            static_assert(Side::kLevels == Levels::asymmetric, "zeros are those of all groups");
            constexpr int kGroups = C::HD / Side::kGroup;
            constexpr int kGroupTiles = kTiles / kGroups;
            uint4 zeros = make_uint4(0, 0, 0, 0);
            if (g < kGroups) {
                zeros = *reinterpret_cast<const uint4*>(numbers + Stage::kValueNumbers / 2 + 16 * lane);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                mma_f16(zero[n], zeros.x, 0, zeros.y, 0, p[n][0], p[n][1]);
                mma_f16(zero[n], zeros.z, 0, zeros.w, 0, p[n][2], p[n][3]);
            }
#pragma unroll
            for (int group = 0; group < kGroups; ++group) {
                const uint4 scales = *reinterpret_cast<const uint4*>(numbers + 16 * (4 * group + t));
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    const std::uint32_t b[4] = {multiply_halves(p[n][0], scales.x), multiply_halves(p[n][1], scales.y),
                                                multiply_halves(p[n][2], scales.z), multiply_halves(p[n][3], scales.w)};
#pragma unroll
                    for (int i = 0; i < kGroupTiles; ++i) {
                        add_codes(acc[n][group * kGroupTiles + i], group * kGroupTiles + i, b);
                    }
                }
            }
        }
    }

    /// Sums in units of values, element order as in element_channel.
    __device__ __forceinline__ void store(float* o, int lane) const {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const float own_zero = zero[n][0] + zero[n][1] * (1.0f / kDigit);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                float base = 0.0f;
                if constexpr (Side::kAxis == Axis::channel) {
                    base = __shfl_sync(kAllLanes, own_zero, 16 * tile / Side::kGroup * 4 + (lane & 3));
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float sum = acc[n][tile][2 * half] + acc[n][tile][2 * half + 1] * (1.0f / kDigit);
                    o[((n * kTiles + tile) * 2 + half) * 32 + lane] =
                        fmaf(sum, kCodeUnit / weight_of<Side::kBits, C::HD>(2 * tile + half), base);
                }
            }
        }
    }
};

/// The most octaves above the reference that p may have, so that p x scale stays below 2^16: a chunk's scales can lower it.
template <class C>
__device__ __forceinline__ int limit_of(const std::uint8_t* stage, int lane, int limit) {
    if constexpr (C::Values::kAxis == Axis::token) {
        return limit;
    } else {
        constexpr int kWords = ScalarStage<C>::kValueNumbers / 2 / 128;
        std::uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const std::uint32_t w =
                *reinterpret_cast<const std::uint32_t*>(stage + ScalarStage<C>::kValueNumbersAt + 128 * i + 4 * lane);
            most = max(most, max(w & 0x7fffu, w >> 16 & 0x7fffu));
        }
        // f16 with exponent field x is below 2^(x - 14).
        if (__any_sync(kAllLanes, static_cast<int>(most >> 10) > 30 - limit)) {
#pragma unroll
            for (int step = 16; step >= 1; step /= 2) {
                most = max(most, __shfl_xor_sync(kAllLanes, most, step));
            }
            return 30 - static_cast<int>(most >> 10);
        }
        return limit;
    }
}

/// Chunks first, first + WARPS, ... below end. `o`: the warp's sums, which count in 2^ref. `stage`: kStageBytes of the warp.
template <class C>
__device__ __forceinline__ void attend_scalar(const DecodeArgs& a, Shared<C>& sm, const Place& at, const Reach& reach, int first,
                                              int end, float* o, const std::uint8_t* stage, LaneState<C>& state) {
    constexpr int NT = C::NT;
    const int lane = threadIdx.x & 31;
    const int g = lane >> 2;
    const int t = lane & 3;
    state.reset();
    if (first >= end) {
        return;
    }
    const ScalarReader<C> reader(a, at);
    const std::uint32_t to = static_cast<std::uint32_t>(__cvta_generic_to_shared(stage));
    reader.copy(to, first, reader.page(first), lane);
    copies_end();
    int page_after = reader.page(min(first + C::WARPS, end - 1));

    KeyProduct<C> keys;
    keys.prepare(sm, g, t);
    float unit[NT];
    float bias[NT];
    int q_pos[NT];
    float slope[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
        const int r = 4 * n + t;
        const int row = at.row_tile * C::kRows + r;
        state.ref[n] = kUnset;
        unit[n] = sm.q_scale[r] * kCodeUnit;
        bias[n] = sm.q_bias[r];
        q_pos[n] = reach.len - a.num_q + min(row / a.group, a.num_q - 1);
        slope[n] = a.alibi_slopes != nullptr && row / a.group < a.num_q
                       ? a.alibi_slopes[at.head * a.group + row % a.group] * kLog2e
                       : 0.0f;
    }
    // Cells in [plain_lo, plain_hi) are read from codes by every query.
    const int plain_lo = max(reach.sinks, a.sliding_window == INT_MAX ? 0 : max(0, reach.len - a.sliding_window));
    const int plain_hi = max(0, reach.len - a.num_q + 1 - a.recent);
    const bool bent = a.soft_cap != 0.0f || a.alibi_slopes != nullptr;

    ValueSums<C> values;
    values.reset();
    int limit = kMostLimit;
    int half = 0;
    for (int chunk = first; chunk < end; chunk += C::WARPS) {
        const std::uint8_t* here = stage + half * ScalarStage<C>::kBytes;
        half ^= 1;
        copies_done<0>();
        __syncwarp();  // copies of all lanes are there, and nobody reads the other half any more
        if (const int next = chunk + C::WARPS; next < end) {
            const int page = page_after;
            page_after = reader.page(min(next + C::WARPS, end - 1));
            reader.copy(to + half * ScalarStage<C>::kBytes, next, page, lane);
        }
        copies_end();

        float score[NT][4];  // of cells 8 e + g
        keys(sm, here, lane, score);
        const int cell0 = chunk * C::kChunk + g;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                score[n][e] = fmaf(score[n][e], unit[n], bias[n]);
            }
        }
        if (bent) {
            const float cap = a.soft_cap * kLog2e;
#pragma unroll
            for (int n = 0; n < NT; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    score[n][e] = cap != 0.0f ? cap * tanhf(score[n][e] / cap) : score[n][e];
                    score[n][e] += slope[n] * static_cast<float>(cell0 + 8 * e - q_pos[n]);
                }
            }
        }
        if (chunk * C::kChunk < plain_lo || (chunk + 1) * C::kChunk > plain_hi) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int cell = cell0 + 8 * e;
                    const bool seen = cell >= a.sink && cell <= q_pos[n] - a.recent &&
                                      (a.sliding_window == INT_MAX || cell > q_pos[n] - a.sliding_window);
                    score[n][e] = seen ? score[n][e] : -INFINITY;
                }
            }
        }

        limit = limit_of<C>(here, lane, limit);
        const float most = static_cast<float>(limit);
        float top[NT];
        bool moves = false;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            top[n] = fmaxf(fmaxf(score[n][0], score[n][1]), fmaxf(score[n][2], score[n][3]));
            moves |= top[n] > state.ref[n] + most;
        }
        if (__any_sync(kAllLanes, moves)) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                top[n] = fmaxf(top[n], __shfl_xor_sync(kAllLanes, top[n], 4));
                top[n] = fmaxf(top[n], __shfl_xor_sync(kAllLanes, top[n], 8));
                top[n] = fmaxf(top[n], __shfl_xor_sync(kAllLanes, top[n], 16));
                const float ref = top[n] > state.ref[n] + most ? top[n] + kRefMargin - most : state.ref[n];
                const float factor = exp2_fast(state.ref[n] - ref);
                state.ref[n] = ref;
                state.sum[n] *= factor;
                values.scale(n, factor);
            }
        }

        // Digits of an even g travel one way, those of an odd g the other.
        std::uint32_t p[NT][4];
        const int even = (2 * t) * 4 + g / 2;
        const int odd = even + 4;
        const bool is_low = g & 1;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float p0 = exp2_fast(score[n][2 * i] - state.ref[n]);
                const float p1 = exp2_fast(score[n][2 * i + 1] - state.ref[n]);
                state.sum[n] += p0 + p1;
                const __half2 high = __floats2half2_rn(p0, p1);
                const float2 back = __half22float2(high);
                const __half2 low = __floats2half2_rn((p0 - back.x) * kDigit, (p1 - back.y) * kDigit);
                const std::uint32_t high_bits = *reinterpret_cast<const std::uint32_t*>(&high);
                const std::uint32_t low_bits = *reinterpret_cast<const std::uint32_t*>(&low);
                const std::uint32_t x = __shfl_sync(kAllLanes, is_low ? low_bits : high_bits, is_low ? odd : even);
                const std::uint32_t y = __shfl_sync(kAllLanes, is_low ? high_bits : low_bits, is_low ? even : odd);
                p[n][2 * i] = is_low ? y : x;
                p[n][2 * i + 1] = is_low ? x : y;
            }
        }
        values.add(here, lane, p);
    }
    copies_done<0>();
    __syncwarp();  // before the stage becomes something else
    values.store(o, lane);
}

}  // namespace vecinfer::cuda
