// Helpers of the benchmark that run on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace vecinfer::bench {

/// Fills with random bytes from [low, high].
void fill_bytes(std::uint8_t* p, std::size_t bytes, int low, int high, std::uint64_t seed, cudaStream_t stream);
/// Fills with f16 values, roughly normal with deviation sigma.
void fill_f16(std::uint16_t* p, std::size_t count, float sigma, std::uint64_t seed, cudaStream_t stream);
/// Fills with f16 scales from [0.4, 0.8), of every 2 * run values those of the second half negative: zeros, unless count is one
/// run.
void fill_scales(std::uint16_t* p, std::size_t count, int run, std::uint64_t seed, cudaStream_t stream);
/// Reads bytes and does nothing else: the streaming limit. `sink`: one word.
void read_only(const std::uint8_t* p, std::size_t bytes, std::uint32_t* sink, cudaStream_t stream);

}  // namespace vecinfer::bench
