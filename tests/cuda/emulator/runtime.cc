// The part of the CUDA runtime that the library and its tests call, over host memory and fibers.
#include <cuda_runtime_api.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cuda/decode_args.h"
#include "codec/cuda/encode_args.h"
#include "device_language.h"

namespace vecinfer::cuda {
alignas(1024) extern unsigned char memory[256 * 1024];
alignas(1024) unsigned char memory[256 * 1024];  // shared memory of the block that runs
}  // namespace vecinfer::cuda

namespace vecinfer::emulator {

ThreadState current;

namespace {

constexpr int kMultiprocessors = 5;
constexpr std::size_t kStack = 256 * 1024;
constexpr std::uint32_t kSharedBase = 1024;  // shared addresses do not begin at 0 on a GPU either

struct Warp {
    Deposit deposits[2][32];
    int arrived = 0;
    unsigned generation = 0;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(kStack);
    bool done = false;
    const unsigned* waits_for = nullptr;  // to differ from `seen`
    unsigned seen = 0;
};

struct Block {
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Warp> warps;
    int arrived = 0;
    unsigned generation = 0;
    ucontext_t scheduler;
    int running = 0;
    int width = 0;  // threads in x
    std::function<void()> body;
};

Block* block = nullptr;
std::minstd_rand scheduling;  // warps and blocks run in any order, so that what needs an order and has no barrier shows up

void yield() {
    swapcontext(&block->fibers[block->running]->context, &block->scheduler);
}

/// Until *generation is no longer `seen`.
void wait(const unsigned* generation, unsigned seen) {
    if (*generation == seen) {
        Fiber& f = *block->fibers[block->running];
        f.waits_for = generation;
        f.seen = seen;
        yield();
        f.waits_for = nullptr;
    }
}

void fiber_main() {
    block->body();
    block->fibers[block->running]->done = true;
    yield();
}

void run_block(int threads) {
    for (int i = 0; i < threads; ++i) {
        if (static_cast<int>(block->fibers.size()) <= i) {
            block->fibers.push_back(std::make_unique<Fiber>());
        }
        Fiber& f = *block->fibers[i];
        f.done = false;
        f.waits_for = nullptr;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link = nullptr;
        makecontext(&f.context, fiber_main, 0);
    }
    block->warps.assign(threads / 32, {});
    block->arrived = 0;
    std::vector<int> warps(threads / 32);
    std::iota(warps.begin(), warps.end(), 0);
    int left = threads;
    while (left > 0) {
        std::shuffle(warps.begin(), warps.end(), scheduling);
        for (int n = 0; n < threads; ++n) {
            const int i = warps[n / 32] * 32 + n % 32;
            const Fiber& f = *block->fibers[i];
            if (f.done || (f.waits_for != nullptr && *f.waits_for == f.seen)) {
                continue;
            }
            block->running = i;
            current.thread = {static_cast<unsigned>(i % block->width), static_cast<unsigned>(i / block->width), 0};
            current.index = i;
            swapcontext(&block->scheduler, &block->fibers[i]->context);
            left -= block->fibers[i]->done ? 1 : 0;
        }
    }
}

}  // namespace

int lane() {
    return current.index & 31;
}

const Deposit* meet(const Deposit& own) {
    Warp& w = block->warps[current.index / 32];
    const unsigned generation = w.generation;
    w.deposits[generation & 1][lane()] = own;
    if (++w.arrived == 32) {
        w.arrived = 0;
        ++w.generation;
    }
    wait(&w.generation, generation);
    return w.deposits[generation & 1];
}

void block_barrier() {
    const unsigned generation = block->generation;
    if (++block->arrived == static_cast<int>(block->warps.size()) * 32) {
        block->arrived = 0;
        ++block->generation;
    }
    wait(&block->generation, generation);
}

std::uint32_t shared_address(const void* p) {
    return kSharedBase + static_cast<std::uint32_t>(static_cast<const unsigned char*>(p) - cuda::memory);
}

const void* shared_pointer(std::uint32_t address) {
    return cuda::memory + (address - kSharedBase);
}

}  // namespace vecinfer::emulator

using namespace vecinfer::emulator;

namespace {
cudaError_t last_error = cudaSuccess;
cudaError_t fail(cudaError_t error) {
    return last_error = error;
}
}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
    if (bytes > size_t{1} << 40) {
        return fail(cudaErrorMemoryAllocation);
    }
    *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    std::free(p);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
    std::memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
    return cudaMemset(p, value, bytes);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        default: return fail(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
    return value <= 227 * 1024 ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceSynchronize() {
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() {
    return last_error;
}
cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "an error";
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 threads, void** args, size_t shared, cudaStream_t) {
    if (shared > sizeof(vecinfer::cuda::memory)) {
        return fail(cudaErrorInvalidValue);
    }
    Block state;
    block = &state;
    state.width = static_cast<int>(threads.x);
    if (threads.y > 1) {  // the encoder
        const auto kernel = reinterpret_cast<void (*)(vecinfer::cuda::EncodeArgs)>(const_cast<void*>(function));
        state.body = [=] { kernel(*static_cast<const vecinfer::cuda::EncodeArgs*>(args[0])); };
    } else {
        const auto kernel = reinterpret_cast<void (*)(vecinfer::cuda::DecodeArgs)>(const_cast<void*>(function));
        state.body = [=] { kernel(*static_cast<const vecinfer::cuda::DecodeArgs*>(args[0])); };
    }
    current.grid = grid;
    std::vector<unsigned> blocks(grid.x * grid.y * grid.z);
    std::iota(blocks.begin(), blocks.end(), 0u);
    std::shuffle(blocks.begin(), blocks.end(), scheduling);
    for (const unsigned b : blocks) {
        std::memset(vecinfer::cuda::memory, 0xff, sizeof(vecinfer::cuda::memory));
        current.block = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
        run_block(static_cast<int>(threads.x * threads.y));
    }
    block = nullptr;
    return cudaSuccess;
}

}  // extern "C"
