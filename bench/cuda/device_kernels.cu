#include <cuda_fp16.h>

#include "cuda/device_kernels.h"

namespace vecinfer::bench {
namespace {

__device__ std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

__global__ void fill_bytes_kernel(std::uint8_t* p, std::size_t bytes, int low, int range, std::uint64_t seed) {
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < bytes; i += step) {
        p[i] = static_cast<std::uint8_t>(low + mix(seed + i) % range);
    }
}

__global__ void fill_f16_kernel(std::uint16_t* p, std::size_t count, float sigma, std::uint64_t seed) {
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count; i += step) {
        const std::uint64_t r = mix(seed + i);
        float x = 0;
        for (int k = 0; k < 4; ++k) {
            x += static_cast<float>(r >> (16 * k) & 0xffff) * (1.0f / 65536.0f) - 0.5f;
        }
        p[i] = __half_as_ushort(__float2half_rn(x * 1.7320508f * sigma));
    }
}

__global__ void fill_scales_kernel(std::uint16_t* p, std::size_t count, int run, std::uint64_t seed) {
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count; i += step) {
        const float x = 0.4f + static_cast<float>(mix(seed + i) & 0xffff) * (0.4f / 65536.0f);
        p[i] = __half_as_ushort(__float2half_rn(run > 0 && i / run % 2 == 1 ? -x : x));
    }
}

__global__ void __launch_bounds__(512) read_only_kernel(const uint4* p, std::size_t count, std::uint32_t* sink) {
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    std::uint32_t all = 0;
    std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    for (; i + 7 * step < count; i += 8 * step) {
        uint4 x[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            x[k] = __ldcs(p + i + k * step);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            all |= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
        }
    }
    for (; i < count; i += step) {
        all |= __ldcs(p + i).x;
    }
    if (all == 0x12345678u) {
        *sink = all;
    }
}

}  // namespace

void fill_bytes(std::uint8_t* p, std::size_t bytes, int low, int high, std::uint64_t seed, cudaStream_t stream) {
    fill_bytes_kernel<<<2048, 256, 0, stream>>>(p, bytes, low, high - low + 1, seed);
}

void fill_f16(std::uint16_t* p, std::size_t count, float sigma, std::uint64_t seed, cudaStream_t stream) {
    fill_f16_kernel<<<2048, 256, 0, stream>>>(p, count, sigma, seed);
}

void fill_scales(std::uint16_t* p, std::size_t count, int run, std::uint64_t seed, cudaStream_t stream) {
    fill_scales_kernel<<<64, 256, 0, stream>>>(p, count, run, seed);
}

void read_only(const std::uint8_t* p, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream) {
    int device = 0;
    int count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    read_only_kernel<<<count * 4, 512, 0, stream>>>(reinterpret_cast<const uint4*>(p), bytes / 16, sink);
}

}  // namespace vecinfer::bench
