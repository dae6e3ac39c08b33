// CUDA calls as Status, and device memory that frees itself.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "vecinfer/status.h"

namespace vecinfer::cuda {

inline Status cuda_status(cudaError_t error, const char* what) {
    if (error == cudaSuccess) {
        return {};
    }
    const ErrorCode code = error == cudaErrorMemoryAllocation                                           ? ErrorCode::out_of_memory
                           : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver         ? ErrorCode::unsupported
                           : error == cudaErrorNoKernelImageForDevice || error == cudaErrorNotSupported ? ErrorCode::unsupported
                                                                                                        : ErrorCode::io_error;
    return {code, fmt::format("{}: CUDA error {}: {}", what, cudaGetErrorName(error), cudaGetErrorString(error))};
}

struct DeviceFree {
    void operator()(void* p) const noexcept { cudaFree(p); }
};
template <class T>
using DevicePointer = std::unique_ptr<T[], DeviceFree>;

template <class T>
Status allocate(std::size_t count, DevicePointer<T>& out, const char* what) {
    void* p = nullptr;
    if (Status s = cuda_status(cudaMalloc(&p, count * sizeof(T)), what); !s.ok()) {
        return s;
    }
    out.reset(static_cast<T*>(p));
    return {};
}

/// Null for an empty vector.
template <class T>
Status upload(const std::vector<T>& from, DevicePointer<T>& out, const char* what) {
    if (from.empty()) {
        out.reset();
        return {};
    }
    if (Status s = allocate(from.size(), out, what); !s.ok()) {
        return s;
    }
    return cuda_status(cudaMemcpy(out.get(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), what);
}

}  // namespace vecinfer::cuda
