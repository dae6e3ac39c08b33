// Rows into scalar codes: a block transforms a tile of tokens of one head into shared memory, then a thread has a group. Compiled
// without contraction, as encode.cu.
#include "codec/cuda/rows.cuh"
#include "codec/cuda/scalar_layout.h"
#include "codec/scalar/scalar.h"

namespace vecinfer::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTokens = 32;  // of a tile, and from which groups that end there are taken

/// Word `word` of a lane's share of codes. code(id, e): what register id holds in half e, or -1, which leaves the bits out of
/// `mask`.
template <class Code>
__device__ std::uint32_t build_word(int bits, int word, Code&& code, std::uint32_t& mask) {
    std::uint32_t built = 0;
    mask = 0;
    const auto put = [&](int id, int first, int count) {
        for (int e = 0; e < 2; ++e) {
            const int x = code(id, e);
            for (int bit = first; x >= 0 && bit < first + count; ++bit) {
                const std::uint32_t at = 1u << pair_bit(bits, id, e, bit).bit;
                mask |= at;
                built |= x >> bit & 1 ? at : 0u;
            }
        }
    };
    if (bits == 3) {
        const int first = word / 3 * 16;
        for (int field = word % 3 * 5; field < word % 3 * 5 + 5; ++field) {
            put(first + field, 0, 3);
        }
        put(first + 15, word % 3, 1);
    } else {
        for (int i = 0; i < 16 / bits; ++i) {
            put(word * (16 / bits) + i, 0, bits);
        }
    }
    return built;
}

/// Other cells' bits of a word may be written at the same time.
__device__ void store_bits(std::uint32_t* word, std::uint32_t bits, std::uint32_t mask) {
    if (mask == 0xffffffffu) {
        *word = bits;
    } else if (mask == 0xffffu || mask == 0xffff0000u) {
        reinterpret_cast<std::uint16_t*>(word)[mask >> 31] = static_cast<std::uint16_t>(mask >> 31 ? bits >> 16 : bits);
    } else if (mask != 0) {
        atomicXor(word, (*word ^ bits) & mask);
    }
}

__device__ void store_numbers(const EncodeSide& side, std::uint8_t* head_page, int cell, int channel, int head_dim,
                              scalar::Stored stored) {
    const int in = cell % kScalarChunk;
    const int index =
        side.value ? v_number_index(side.spec, head_dim, in, channel) : k_number_index(side.spec, head_dim, in, channel);
    std::uint16_t* numbers = reinterpret_cast<std::uint16_t*>(head_page + side.numbers_offset +
                                                              static_cast<std::int64_t>(cell / numbers_cells(side.spec)) *
                                                                  numbers_bytes(side.spec, head_dim));
    numbers[index] = stored.scale;
    if (side.spec.levels != Levels::symmetric) {
        numbers[numbers_count(side.spec, head_dim) + index] = stored.zero;
    }
}

__device__ std::uint8_t* chunk_codes(const EncodeSide& side, std::uint8_t* head_page, int cell, int head_dim) {
    return head_page + side.codes_offset +
           static_cast<std::int64_t>(cell / kScalarChunk) * scalar_code_bytes(side.spec.code_bits, head_dim);
}

}  // namespace

/// Shared memory of a block: rows in code space, their codes. A column more, so that neither rows nor columns meet in a bank.
template <int HD, int Rows>
struct ScalarTile {
    float x[Rows][HD + 1];
    std::uint8_t codes[Rows][HD + 4];
};

/// Groups of channels.
template <int HD>
__global__ void __launch_bounds__(kThreads) encode_channel_groups(const __grid_constant__ EncodeArgs a) {
    constexpr int N = HD / 32;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& sm = *reinterpret_cast<ScalarTile<HD, kTokens>*>(memory);
    const EncodeSide& side = a.side;
    const int head = blockIdx.y;
    const int lane = threadIdx.x;
    const int warp = threadIdx.y;
    const int thread = 32 * warp + lane;
    const int bits = side.spec.code_bits;
    const int groups = HD / side.spec.group;
    for (int token0 = blockIdx.x * kTokens; token0 < a.num_tokens; token0 += gridDim.x * kTokens) {
        for (int i = warp; i < kTokens; i += kWarps) {
            float y[N];
            load_row(a, token0 + i, head, y, lane);
            transform_row(side, head, y, lane);
#pragma unroll
            for (int k = 0; k < N; ++k) {
                sm.x[i][lane * N + k] = y[k];
            }
        }
        __syncthreads();
        for (int task = thread; task < kTokens * groups; task += kThreads) {
            const int i = task % kTokens;
            const int first = task / kTokens * side.spec.group;
            const scalar::Stored stored = scalar::fit(side.spec, &sm.x[i][first], side.spec.group);
            const scalar::Range range = scalar::range(side.spec, stored);
            for (int k = 0; k < side.spec.group; ++k) {
                sm.codes[i][first + k] = static_cast<std::uint8_t>(scalar::encode(range, sm.x[i][first + k]));
            }
            const Cell cell = find_cell(a, token0 + i, head);
            if (cell.stored) {
                store_numbers(side, cell.head_page, cell.in_page, first, HD, stored);
            }
        }
        __syncthreads();
        // A cell's codes are a run of words of 4 lanes (keys) or 8 (values), in units of one word or, of 3 bits, three.
        const int unit = bits == 3 ? 16 : 16 / bits;  // registers
        const int unit_words = bits == 3 ? 3 : 1;
        const int words = (HD / 8 + unit - 1) / unit * unit_words;
        const int lanes = side.value ? 8 : 4;
        for (int task = thread; task < kTokens * lanes * words; task += kThreads) {
            const int i = task / (lanes * words);
            const Cell cell = find_cell(a, token0 + i, head);
            if (!cell.stored) {
                continue;
            }
            const int own = task / words % lanes;
            const ScalarPlace at = side.value ? v_scalar_place(cell.in_page % kScalarChunk, own)
                                              : k_scalar_place(cell.in_page % kScalarChunk, 2 * own);
            const int word = at.q * (HD / 8) / unit * unit_words + task % words;
            std::uint32_t mask = 0;
            const std::uint32_t built = build_word(
                bits, word,
                [&](int id, int e) {
                    const int r = id % (HD / 8);
                    if (id / (HD / 8) != at.q || (side.value && e != at.e)) {
                        return -1;
                    }
                    return static_cast<int>(sm.codes[i][side.value ? 8 * r + own : 8 * r + 2 * own + e]);
                },
                mask);
            store_bits(reinterpret_cast<std::uint32_t*>(chunk_codes(side, cell.head_page, cell.in_page, HD) +
                                                        scalar_word_byte(bits, HD, at.lane, word)),
                       built, mask);
        }
        __syncthreads();
    }
}

/// Groups of tokens: of every token that ends a group, the whole group.
template <int HD>
__global__ void __launch_bounds__(kThreads) encode_token_groups(const __grid_constant__ EncodeArgs a) {
    constexpr int N = HD / 32;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& sm = *reinterpret_cast<ScalarTile<HD, 2 * kTokens>*>(memory);
    const EncodeSide& side = a.side;
    const int head = blockIdx.y;
    const int lane = threadIdx.x;
    const int warp = threadIdx.y;
    const int thread = 32 * warp + lane;
    const int bits = side.spec.code_bits;
    const int group = side.spec.group;
    const int ring = a.window_rows - a.sink;
    for (int token0 = blockIdx.x * kTokens; token0 < a.num_tokens; token0 += gridDim.x * kTokens) {
        for (int last = token0; last < min(token0 + kTokens, a.num_tokens); ++last) {
            const int end = a.positions[last];
            const Cell cell = find_cell(a, last, head);
            if (!cell.stored || end % group != group - 1) {
                continue;
            }
            const int seq = a.sequences != nullptr ? a.sequences[last] : last;
            for (int i = warp; i < group; i += kWarps) {
                const int token = last - (group - 1 - i);
                const int pos = end - (group - 1 - i);
                const bool at_hand =
                    token >= 0 && (a.sequences != nullptr ? a.sequences[token] : token) == seq && a.positions[token] == pos;
                float y[N];
                if (at_hand) {
                    load_row(a, token, head, y, lane);
                } else {
                    const int slot = a.window_slots != nullptr ? a.window_slots[seq] : seq;
                    const std::int64_t row = (static_cast<std::int64_t>(slot) * a.num_kv_heads + head) * a.window_rows +
                                             (pos < a.sink ? pos : a.sink + (pos - a.sink) % ring);
#pragma unroll
                    for (int k = 0; k < N; ++k) {
                        y[k] = __half2float(__ushort_as_half(side.window[row * HD + lane * N + k]));
                    }
                }
                transform_row(side, head, y, lane);
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    sm.x[i][lane * N + k] = y[k];
                }
            }
            __syncthreads();
            const int cell0 = cell.in_page - (group - 1);
            for (int channel = thread; channel < HD; channel += kThreads) {
                const scalar::Stored stored = scalar::fit(side.spec, &sm.x[0][channel], group, HD + 1);
                const scalar::Range range = scalar::range(side.spec, stored);
                for (int i = 0; i < group; ++i) {
                    sm.codes[i][channel] = static_cast<std::uint8_t>(scalar::encode(range, sm.x[i][channel]));
                }
                store_numbers(side, cell.head_page, cell0, channel, HD, stored);
            }
            __syncthreads();
            const int words = bits * HD / 32;  // of a lane and chunk
            for (int task = thread; task < group / kScalarChunk * 32 * words; task += kThreads) {
                const int in_group = task / (32 * words) * kScalarChunk;
                const int owner = task / words % 32;
                const int g = owner / 4;
                const int t = owner % 4;
                const int word = task % words;
                std::uint32_t mask = 0;
                const std::uint32_t built = build_word(
                    bits, word,
                    [&](int id, int e) {
                        const int q = id / (HD / 8);
                        const int r = id % (HD / 8);
                        const int in_chunk = side.value ? 16 * (q / 2) + 8 * e + 2 * t + q % 2 : 8 * q + g;
                        return static_cast<int>(sm.codes[in_group + in_chunk][side.value ? 8 * r + g : 8 * r + 2 * t + e]);
                    },
                    mask);
                *reinterpret_cast<std::uint32_t*>(chunk_codes(side, cell.head_page, cell0 + in_group, HD) +
                                                  scalar_word_byte(bits, HD, owner, word)) = built;
            }
            __syncthreads();
        }
    }
}

/// Rows of the new tokens into the window.
template <int HD>
__global__ void __launch_bounds__(kThreads) store_window(const __grid_constant__ EncodeArgs a) {
    for (int token = blockIdx.x * kWarps + threadIdx.y; token < a.num_tokens; token += gridDim.x * kWarps) {
        float y[HD / 32];
        load_row(a, token, blockIdx.y, y, threadIdx.x);
        store_window_row(a, token, blockIdx.y, y, threadIdx.x);
    }
}

namespace {

template <int HD>
EncodeKernel scalar_entry(const CodecSpec& spec) {
    return spec.axis == Axis::token ? EncodeKernel{reinterpret_cast<const void*>(&encode_token_groups<HD>), kWarps, kTokens,
                                                   sizeof(ScalarTile<HD, 2 * kTokens>)}
                                    : EncodeKernel{reinterpret_cast<const void*>(&encode_channel_groups<HD>), kWarps, kTokens,
                                                   sizeof(ScalarTile<HD, kTokens>)};
}

}  // namespace

EncodeKernel scalar_encode_kernel(const CodecSpec& spec, int head_dim) {
    return head_dim == 64 ? scalar_entry<64>(spec) : head_dim == 128 ? scalar_entry<128>(spec) : scalar_entry<256>(spec);
}

EncodeKernel window_kernel(int head_dim) {
    const void* function = head_dim == 64    ? reinterpret_cast<const void*>(&store_window<64>)
                           : head_dim == 128 ? reinterpret_cast<const void*>(&store_window<128>)
                                             : reinterpret_cast<const void*>(&store_window<256>);
    return {function, kWarps, kWarps, 0};
}

}  // namespace vecinfer::cuda
