// A GPU for tests, or a visible skip; device memory with host copies.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace vecinfer::testing {

/// Why there is no GPU to test on, or null.
inline const char* missing_gpu() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();  // this absence is reported by the skip
        return cudaGetErrorString(error);
    }
    return count == 0 ? "no CUDA device" : nullptr;
}

class CudaTest : public ::testing::Test {
protected:
    void SetUp() override {
        if (const char* why = missing_gpu()) {
            GTEST_SKIP() << "no GPU: " << why;
        }
    }
};

/// Device memory; filled with 0xff bytes (NaN as any float) unless copied from the host.
template <class T>
class DeviceBuffer {
public:
    explicit DeviceBuffer(std::size_t count) : count_(count) {
        EXPECT_EQ(cudaMalloc(&data_, bytes() + 256), cudaSuccess);
        EXPECT_EQ(cudaMemset(data_, 0xff, bytes()), cudaSuccess);
    }
    explicit DeviceBuffer(const std::vector<T>& from) : DeviceBuffer(from.size()) { set(from); }
    DeviceBuffer(const DeviceBuffer&) = delete;
    ~DeviceBuffer() { cudaFree(data_); }

    void set(const std::vector<T>& from) {
        EXPECT_EQ(from.size(), count_);
        EXPECT_EQ(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice), cudaSuccess);
    }
    std::vector<T> get() const {
        std::vector<T> to(count_);
        EXPECT_EQ(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
        return to;
    }
    T* data() const { return static_cast<T*>(data_); }
    std::size_t bytes() const { return count_ * sizeof(T); }

private:
    void* data_ = nullptr;
    std::size_t count_ = 0;
};

}  // namespace vecinfer::testing
