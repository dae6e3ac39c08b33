// CUDA's device language on a CPU, as far as the kernels here use it: threads of a block are fibers, the lanes of a warp meet in
// collective operations, blocks run one after the other. For tests on machines without a GPU; it finds wrong indices and wrong
// arithmetic, not races.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace vecinfer::emulator {

struct ThreadState {
    uint3 thread{};
    uint3 block{};
    dim3 grid{};
    int index = 0;  // of the thread in its block
};
extern ThreadState current;

/// What a lane brings to a collective operation.
struct Deposit {
    std::uint32_t word[8];
};

/// Waits for all lanes of the warp; then the deposits of the 32 lanes, valid until the lane's next collective operation.
const Deposit* meet(const Deposit& own);
/// Waits for all threads of the block.
void block_barrier();
int lane();

std::uint32_t shared_address(const void* p);
const void* shared_pointer(std::uint32_t address);

template <class T>
T shuffle(T x, int from) {
    Deposit d{};
    std::memcpy(d.word, &x, sizeof(T));
    const Deposit* all = meet(d);
    T y;
    std::memcpy(&y, all[from & 31].word, sizeof(T));
    return y;
}

}  // namespace vecinfer::emulator

#define threadIdx (::vecinfer::emulator::current.thread)
#define blockIdx (::vecinfer::emulator::current.block)
#define gridDim (::vecinfer::emulator::current.grid)

inline void __syncthreads() {
    ::vecinfer::emulator::block_barrier();
}
inline void __syncwarp() {
    ::vecinfer::emulator::meet({});
}
inline void __threadfence() {}
template <class T>
T __shfl_sync(unsigned, T x, int from) {
    return ::vecinfer::emulator::shuffle(x, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
    return ::vecinfer::emulator::shuffle(x, ::vecinfer::emulator::lane() ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T x, int delta) {
    const int lane = ::vecinfer::emulator::lane();
    return ::vecinfer::emulator::shuffle(x, lane >= delta ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
    const ::vecinfer::emulator::Deposit* all = ::vecinfer::emulator::meet({{predicate != 0 ? 1u : 0u}});
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i) {
        bits |= all[i].word[0] << i;
    }
    return bits;
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) == 0xffffffffu;
}
inline std::uint32_t __byte_perm(std::uint32_t x, std::uint32_t y, std::uint32_t s) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
    std::uint32_t r = 0;
    for (int i = 0; i < 4; ++i) {
        r |= static_cast<std::uint32_t>(bytes >> (8 * (s >> (4 * i) & 7)) & 0xff) << (8 * i);
    }
    return r;
}
inline std::uint32_t __float_as_uint(float x) {
    std::uint32_t y;
    std::memcpy(&y, &x, 4);
    return y;
}
inline float __uint_as_float(std::uint32_t x) {
    float y;
    std::memcpy(&y, &x, 4);
    return y;
}
inline int __float_as_int(float x) {
    return static_cast<int>(__float_as_uint(x));
}
inline float __int_as_float(int x) {
    return __uint_as_float(static_cast<std::uint32_t>(x));
}
inline int __float2int_rn(float x) {
    return static_cast<int>(std::nearbyint(x));
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline float __log2f_emulated(float x) {
    return std::log2(x);
}
#define __log2f __log2f_emulated
template <class T>
T __ldcg_emulated(const T* p) {
    return *p;
}
#define __ldcg __ldcg_emulated
inline unsigned atomicAdd(unsigned* p, unsigned x) {
    const unsigned before = *p;
    *p += x;
    return before;
}
inline unsigned atomicXor(unsigned* p, unsigned x) {
    const unsigned before = *p;
    *p ^= x;
    return before;
}
inline unsigned atomicMax(unsigned* p, unsigned x) {
    const unsigned before = *p;
    *p = std::max(*p, x);
    return before;
}
#define __cvta_generic_to_shared(p) ::vecinfer::emulator::shared_address(p)
using std::max;
using std::min;
