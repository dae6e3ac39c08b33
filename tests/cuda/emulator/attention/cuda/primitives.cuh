// Stands in for src/attention/cuda/primitives.cuh in the emulated build: what is inline assembly there.
#pragma once

#include "../../device_language.h"

#define VECINFER_EMULATED
#include_next "attention/cuda/primitives.cuh"

namespace vecinfer::cuda {

using emulator::Deposit;

inline float exp2_fast(float x) {
    return std::exp2(x);
}
inline float log2_fast(float x) {
    return std::log2(x);
}
inline std::uint32_t load_stream(const std::uint32_t* p) {
    return *p;
}

inline void prefetch(const void*) {}
template <int Bytes>
void copy_async(std::uint32_t to, const void* from) {
    std::memcpy(const_cast<void*>(emulator::shared_pointer(to)), from, Bytes);
}
inline void copies_end() {}
template <int Pending>
void copies_done() {}

/// Products of a 16 x 32 A and a 32 x 8 B of signed bytes: this lane's four sums.
inline void mma_s8s8(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                     std::uint32_t b1) {
    const Deposit* all = emulator::meet({{a0, a1, a2, a3, b0, b1}});
    const int g = emulator::lane() >> 2;
    const int t = emulator::lane() & 3;
    for (int e = 0; e < 4; ++e) {
        const int column = 2 * t + e % 2;
        for (int k = 0; k < 32; ++k) {
            const std::uint32_t a = all[g * 4 + k % 16 / 4].word[e / 2 + k / 16 * 2] >> (8 * (k % 4)) & 0xff;
            const std::uint32_t b = all[column * 4 + k % 16 / 4].word[4 + k / 16] >> (8 * (k % 4)) & 0xff;
            c[e] += static_cast<std::int8_t>(a) * static_cast<std::int8_t>(b);
        }
    }
}
inline void mma_s8s8_first(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                           std::uint32_t b1) {
    c[0] = c[1] = c[2] = c[3] = 0;
    mma_s8s8(c, a0, a1, a2, a3, b0, b1);
}
/// A 16 x 64 with two of every four entries of a row, B 64 x 8.
template <int First>
void mma_sparse_u8s8(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4]) {
    const Deposit* all = emulator::meet({{a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]}});
    const int g = emulator::lane() >> 2;
    const int t = emulator::lane() & 3;
    for (int e = 0; e < 4; ++e) {
        const int column = 2 * t + e % 2;
        for (int group = 0; group < 16; ++group) {
            for (int stored = 0; stored < 2; ++stored) {
                const std::uint32_t from = all[g * 4 + group % 8 / 2].word[e / 2 + group / 8 * 2];
                const std::uint32_t x = from >> (8 * (group % 2 * 2 + stored)) & 0xff;
                const int k = First + stored;
                const std::uint32_t y = all[column * 4 + group % 4].word[4 + group / 4] >> (8 * k) & 0xff;
                c[e] += static_cast<int>(x) * static_cast<std::int8_t>(y);
            }
        }
    }
}

inline void mma_f16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                    std::uint32_t b1) {
    const Deposit* all = emulator::meet({{a0, a1, a2, a3, b0, b1}});
    const int g = emulator::lane() >> 2;
    const int t = emulator::lane() & 3;
    for (int e = 0; e < 4; ++e) {
        for (int k = 0; k < 16; ++k) {
            const int from = k % 8 / 2;
            c[e] += half_at(all[g * 4 + from].word[e / 2 + k / 8 * 2], k % 2) *
                    half_at(all[(2 * t + e % 2) * 4 + from].word[4 + k / 8], k % 2);
        }
    }
}

inline void mma_f16_first(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                          std::uint32_t b1, float c0, float c1, float c2, float c3) {
    d[0] = c0;
    d[1] = c1;
    d[2] = c2;
    d[3] = c3;
    mma_f16(d, a0, a1, a2, a3, b0, b1);
}
inline std::uint32_t multiply_halves(std::uint32_t x, std::uint32_t y) {
    std::uint32_t r = 0;
    for (int i = 0; i < 2; ++i) {
        r |= static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(half_at(x, i) * half_at(y, i)))) << (16 * i);
    }
    return r;
}

inline std::uint32_t product_remainder(std::uint32_t x, std::uint32_t y, std::uint32_t product) {
    std::uint32_t r = 0;
    for (int i = 0; i < 2; ++i) {
        const float left = std::fma(half_at(x, i), half_at(y, i), -half_at(product, i));
        r |= static_cast<std::uint32_t>(__half_as_ushort(__float2half_rn(left))) << (16 * i);
    }
    return r;
}

inline void mma_f16_k8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0, float c0, float c1) {
    const Deposit* all = emulator::meet({{a0, a1, b0}});
    const int g = emulator::lane() >> 2;
    const int t = emulator::lane() & 3;
    for (int e = 0; e < 4; ++e) {
        d[e] = e < 2 ? c0 : c1;
        for (int k = 0; k < 8; ++k) {
            d[e] += half_at(all[g * 4 + k / 2].word[e / 2], k % 2) * half_at(all[(2 * t + e % 2) * 4 + k / 2].word[2], k % 2);
        }
    }
}

inline int max_of_three(int x, int y, int z) {
    return std::max(x, std::max(y, z));
}

inline std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selectors) {
    return (selectors & 0x8888u) == 0 ? __byte_perm(low, high, selectors) : 0x7f7f7f7fu;
}
template <int Stride>
std::uint32_t entry_address(std::uint32_t w, int b, std::uint32_t base) {
    static_assert(Stride <= 128, "bytes of a dot product are signed on one side");
    return base + Stride * (w >> (8 * b) & 0xff);
}
inline std::uint32_t load_word(std::uint32_t address) {
    std::uint32_t r;
    std::memcpy(&r, emulator::shared_pointer(address), 4);
    return r;
}
inline uint2 load_two_words(std::uint32_t address) {
    uint2 r;
    std::memcpy(&r, emulator::shared_pointer(address), 8);
    return r;
}
inline std::uint32_t load_short(std::uint32_t address) {
    std::uint16_t r;
    std::memcpy(&r, emulator::shared_pointer(address), 2);
    return r;
}

}  // namespace vecinfer::cuda
