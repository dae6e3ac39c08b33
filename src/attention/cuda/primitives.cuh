// Instructions that the decode kernels are made of.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "vecinfer/cuda.h"

namespace vecinfer::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2e = 1.4426950408889634f;

#ifndef VECINFER_EMULATED  // tests/cuda/emulator has these in C++
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Reads that nobody will repeat: past L1.
__device__ __forceinline__ std::uint32_t load_stream(const std::uint32_t* p) {
    std::uint32_t r;
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}

/// Copies `Bytes` (4, 8 or 16) to shared memory in the background. What a lane copied it may read after copies_done.
template <int Bytes>
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from) {
    if constexpr (Bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(Bytes));
    }
}
/// Ends a group of copies.
__device__ __forceinline__ void copies_end() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for all groups but the last `Pending`.
template <int Pending>
__device__ __forceinline__ void copies_done() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void prefetch(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// c += A B, A 16 x 32 signed, B 32 x 8 signed.
__device__ __forceinline__ void mma_s8s8(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                         std::uint32_t b0, std::uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// c = A B.
__device__ __forceinline__ void mma_s8s8_first(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                               std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

/// c += A B, A 16 x 64 unsigned and sparse: of every four entries of a row the two that start at `First` (0 or 2) are stored. B
/// 64 x 8 signed.
template <int First>
__device__ __forceinline__ void mma_sparse_u8s8(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4]) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.u8.s8.s32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9,%10,%11},{%0,%1,%2,%3},%12,0x0;"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]),
          "r"(First == 0 ? 0x44444444u : 0xeeeeeeeeu));
}

/// c += A B, A 16 x 16 f16, B 16 x 8 f16, sums in f32.
__device__ __forceinline__ void mma_f16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                        std::uint32_t b0, std::uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// d = A B + c.
__device__ __forceinline__ void mma_f16_first(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, float c0, float c1, float c2,
                                              float c3) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}

/// f16 products of the halves of two words.
__device__ __forceinline__ std::uint32_t multiply_halves(std::uint32_t x, std::uint32_t y) {
    std::uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
    return r;
}

/// x y - product, rounded once: what a product of f16 leaves behind.
__device__ __forceinline__ std::uint32_t product_remainder(std::uint32_t x, std::uint32_t y, std::uint32_t product) {
    std::uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(product ^ 0x80008000u));
    return r;
}

/// d = A B + c, A 16 x 8 f16, B 8 x 8 f16.
__device__ __forceinline__ void mma_f16_k8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0, float c0,
                                           float c1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%7,%8,%8};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a0), "r"(a1), "r"(b0), "f"(c0), "f"(c1));
}

__device__ __forceinline__ int max_of_three(int x, int y, int z) {
    return __vimax3_s32(x, y, z);
}

/// Bytes of {low, high}, low first, that the four low nibbles of `selectors` name; their high bits must be 0.
__device__ __forceinline__ std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selectors) {
    std::uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selectors));
    return r;
}

/// base + Stride * byte b of w; b is a constant. One integer dot product, which runs beside the byte permutes instead of queueing
/// up with them.
template <int Stride>
__device__ __forceinline__ std::uint32_t entry_address(std::uint32_t w, int b, std::uint32_t base) {
    return __dp4a(w, static_cast<unsigned>(Stride) << (8 * b), base);
}

/// Words at a shared address; of `load_short` 16 bits.
__device__ __forceinline__ std::uint32_t load_word(std::uint32_t address) {
    std::uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(address));
    return r;
}
__device__ __forceinline__ uint2 load_two_words(std::uint32_t address) {
    uint2 r;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(address));
    return r;
}
__device__ __forceinline__ std::uint32_t load_short(std::uint32_t address) {
    std::uint16_t r;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(r) : "r"(address));
    return r;
}

#endif

/// Half i of a word.
__device__ __forceinline__ float half_at(std::uint32_t word, int i) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> (16 * i) & 0xffffu)));
}

/// 32768 + byte `B` of w as a float.
template <int B>
__device__ __forceinline__ float byte_above_32768(std::uint32_t w) {
    return __uint_as_float(__byte_perm(w, 0x47000000u, 0x7404 | (B << 4)));
}

__device__ __forceinline__ float load_number(const void* p, std::int64_t i, Number type) {
    switch (type) {
        case Number::f16: return __half2float(static_cast<const __half*>(p)[i]);
        case Number::bf16: return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
        default: return static_cast<const float*>(p)[i];
    }
}

__device__ __forceinline__ void store_number(void* p, std::int64_t i, Number type, float x) {
    switch (type) {
        case Number::f16: static_cast<__half*>(p)[i] = __float2half_rn(x); break;
        case Number::bf16: static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(x); break;
        default: static_cast<float*>(p)[i] = x; break;
    }
}

/// In place x <- x H over one warp, H orthonormal of order 32 * N; lane l has entries N l .. N l + N - 1.
template <int N>
__device__ __forceinline__ void warp_hadamard(float (&x)[N], int lane) {
#pragma unroll
    for (int step = 16; step >= 1; step /= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float other = __shfl_xor_sync(kAllLanes, x[i], step);
            x[i] = lane & step ? other - x[i] : x[i] + other;
        }
    }
#pragma unroll
    for (int step = N / 2; step >= 1; step /= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (!(i & step)) {
                const float a = x[i];
                const float b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
        }
    }
    const float scale = 1.0f / sqrtf(32.0f * N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x[i] *= scale;
    }
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step >= 1; step /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, step);
    }
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step >= 1; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    return x;
}

}  // namespace vecinfer::cuda
