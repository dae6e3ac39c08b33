// How a warp gets at packed scalar codes: where a chunk lies, its way through shared memory, codes as operands of f16 products.
#pragma once

#include "attention/cuda/shared_state.cuh"
#include "codec/cuda/scalar_layout.h"

namespace vecinfer::cuda {

/// Parts of a chunk in its stage.
template <class C>
struct ScalarStage {
    static constexpr CodecSpec kKey = C::Keys::spec();
    static constexpr CodecSpec kValue = C::Values::spec();
    static constexpr int kKeyBytes = scalar_code_bytes(kKey.code_bits, C::HD);
    static constexpr int kValueBytes = scalar_code_bytes(kValue.code_bits, C::HD);
    static constexpr int kKeyNumbers = numbers_bytes(kKey, C::HD);
    static constexpr int kValueNumbers = numbers_bytes(kValue, C::HD);
    static constexpr int kValues = kKeyBytes;  // offsets
    static constexpr int kNumbers = kValues + kValueBytes;
    static constexpr int kValueNumbersAt = kNumbers + kKeyNumbers;
    static constexpr int kBytes = kValueNumbersAt + kValueNumbers;
};

/// Copies `Bytes` to shared memory in the background, all lanes together.
template <int Bytes>
__device__ __forceinline__ void copy_together(std::uint32_t to, const std::uint8_t* from, int lane) {
    static_assert(Bytes % 16 == 0);
#pragma unroll
    for (int first = 0; first < Bytes; first += 512) {
        if (first + 512 <= Bytes || first + 16 * lane < Bytes) {
            copy_async<16>(to + first + 16 * lane, from + first + 16 * lane);
        }
    }
}

/// Chunks of one sequence and head.
template <class C>
struct ScalarReader {
    using Stage = ScalarStage<C>;
    const std::uint8_t* head;
    const std::int32_t* table;
    int seq;
    int page_shift;  // chunks
    std::uint32_t page_bytes;
    std::uint32_t v_offset;
    std::uint32_t k_numbers;
    std::uint32_t v_numbers;

    __device__ __forceinline__ ScalarReader(const DecodeArgs& a, const Place& at)
        : head(a.pages + static_cast<std::uint64_t>(at.head) * a.head_bytes),
          table(a.block_table != nullptr ? a.block_table + at.seq * a.table_stride : nullptr),
          seq(at.seq),
          page_shift(a.page_shift - 5),
          page_bytes(a.page_bytes),
          v_offset(a.v_offset),
          k_numbers(a.norm_offset),
          v_numbers(a.v_numbers_offset) {}

    __device__ __forceinline__ int page(int chunk) const { return table != nullptr ? table[chunk >> page_shift] : seq; }

    __device__ __forceinline__ void copy(std::uint32_t stage, int chunk, int page, int lane) const {
        const std::uint8_t* from = head + static_cast<std::uint64_t>(static_cast<unsigned>(page)) * page_bytes;
        const std::uint32_t index = static_cast<unsigned>(chunk) & ((1u << page_shift) - 1);
        constexpr unsigned kKeyBlock = numbers_cells(Stage::kKey) / kScalarChunk;
        constexpr unsigned kValueBlock = numbers_cells(Stage::kValue) / kScalarChunk;
        copy_together<Stage::kKeyBytes>(stage, from + index * Stage::kKeyBytes, lane);
        copy_together<Stage::kValueBytes>(stage + Stage::kValues, from + v_offset + index * Stage::kValueBytes, lane);
        copy_together<Stage::kKeyNumbers>(stage + Stage::kNumbers, from + k_numbers + index / kKeyBlock * Stage::kKeyNumbers,
                                          lane);
        copy_together<Stage::kValueNumbers>(stage + Stage::kValueNumbersAt,
                                            from + v_numbers + index / kValueBlock * Stage::kValueNumbers, lane);
    }
};

/// Codes of one side of a chunk as a lane has them, or numbers as one of `Readers` lanes reads them.
template <int Words, int Readers = 32>
struct Share {
    static constexpr int kWidth = lane_width(4 * Words) / 4;  // words of a load
    std::uint32_t w[Words];

    __device__ __forceinline__ void load(const std::uint8_t* from, int reader) {
#pragma unroll
        for (int i = 0; i < Words / kWidth; ++i) {
            const std::uint8_t* p = from + 4 * kWidth * (i * Readers + reader);
            if constexpr (kWidth == 4) {
                const uint4 x = *reinterpret_cast<const uint4*>(p);
                w[4 * i] = x.x;
                w[4 * i + 1] = x.y;
                w[4 * i + 2] = x.z;
                w[4 * i + 3] = x.w;
            } else if constexpr (kWidth == 2) {
                const uint2 x = *reinterpret_cast<const uint2*>(p);
                w[2 * i] = x.x;
                w[2 * i + 1] = x.y;
            } else {
                w[i] = *reinterpret_cast<const std::uint32_t*>(p);
            }
        }
    }
    /// f16 number i as a float; i is a constant.
    __device__ __forceinline__ float number(int i) const {
        return half_at(w[i / 2], i % 2);
    }
};

/// Register (q, r) of a share of codes, subnormal f16 of weight pair_weight; all arguments are constants.
template <int Bits, int HD, int Words>
__device__ __forceinline__ std::uint32_t code_pair(const Share<Words>& codes, int q, int r) {
    const int id = q * (HD / 8) + r;
    if constexpr (Bits == 3) {
        const int word = id / 16 * 3;
        const int field = id % 16;
        if (field == 15) {
            return (codes.w[word] >> 15 & 0x00010001u) | (codes.w[word + 1] >> 14 & 0x00020002u) |
                   (codes.w[word + 2] >> 13 & 0x00040004u);
        }
        const std::uint32_t x = codes.w[word + field / 5];
        if constexpr (!has_weights(Bits, HD)) {
            return x >> (3 * (field % 5)) & 0x00070007u;
        }
        return (field % 5 < 3 ? x : x >> 9) & (0x00070007u << (3 * (field % 5 % 3)));
    } else {
        constexpr int kDirect = 8 / Bits;  // in the low byte of each half
        const int field = id % (2 * kDirect);
        const std::uint32_t x = codes.w[id / (2 * kDirect)];
        const std::uint32_t mask = ((1u << Bits) - 1) * 0x00010001u;
        return (field < kDirect ? x : x >> 8) & (mask << (Bits * (field % kDirect)));
    }
}

/// The register of codes that are all 1.
template <int Bits, int HD>
__device__ __forceinline__ std::uint32_t one_pair(int r) {
    return 0x00010001u << pair_weight(Bits, r, HD);
}

/// 2^weight of registers (., r), and its inverse; r is a constant.
template <int Bits, int HD>
__device__ __forceinline__ float weight_of(int r) {
    return static_cast<float>(1 << pair_weight(Bits, r, HD));
}

}  // namespace vecinfer::cuda
