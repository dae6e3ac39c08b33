#include "format/allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local std::ptrdiff_t t_used = 0;
thread_local std::ptrdiff_t t_peak = 0;

void* count(void* p) {
    if (p == nullptr) {
        throw std::bad_alloc();
    }
    t_used += static_cast<std::ptrdiff_t>(malloc_usable_size(p));
    t_peak = std::max(t_peak, t_used);
    return p;
}

void release(void* p) noexcept {
    if (p != nullptr) {
        t_used -= static_cast<std::ptrdiff_t>(malloc_usable_size(p));
        std::free(p);
    }
}

}  // namespace

void* operator new(std::size_t size) {
    return count(std::malloc(size));
}
void* operator new[](std::size_t size) {
    return count(std::malloc(size));
}
void operator delete(void* p) noexcept {
    release(p);
}
void operator delete[](void* p) noexcept {
    release(p);
}
void operator delete(void* p, std::size_t) noexcept {
    release(p);
}
void operator delete[](void* p, std::size_t) noexcept {
    release(p);
}

namespace vecinfer {

void reset_allocation_meter() noexcept {
    t_used = t_peak = 0;
}

std::size_t peak_allocation() noexcept {
    return static_cast<std::size_t>(t_peak);
}

}  // namespace vecinfer
