#include "codec/vq/nearest.h"

namespace vecinfer {
namespace {

/// Four lanes of the compiler's own vector type: every CPU has them or emulates them.
struct Vec {
    static constexpr int kWidth = 4;
    typedef float Lanes __attribute__((vector_size(16)));
    Lanes v;
};
constexpr int kBroadcasts = 8;

inline Vec load(const float* p) {
    return {*static_cast<const Vec::Lanes*>(__builtin_assume_aligned(static_cast<const void*>(p), 16))};
}
inline Vec splat(float x) {
    return {Vec::Lanes{x, x, x, x}};
}
inline Vec sub(Vec a, Vec b) {
    return {a.v - b.v};
}
inline Vec mul(Vec a, Vec b) {
    return {a.v * b.v};
}
inline Vec add(Vec a, Vec b) {
    return {a.v + b.v};
}
inline Vec minimum(Vec a, Vec b) {
    return {a.v < b.v ? a.v : b.v};
}
inline Vec select_less(Vec a, Vec b, Vec t, Vec f) {
    return {a.v < b.v ? t.v : f.v};
}
inline float reduce_min(Vec a) {
    const float low = a.v[0] < a.v[1] ? a.v[0] : a.v[1];
    const float high = a.v[2] < a.v[3] ? a.v[2] : a.v[3];
    return low < high ? low : high;
}
inline unsigned equal_bits(Vec a, Vec b) {
    unsigned bits = 0;
    for (int i = 0; i < Vec::kWidth; ++i) {
        bits |= static_cast<unsigned>(a.v[i] == b.v[i]) << i;
    }
    return bits;
}

#include "codec/vq/nearest.inl"

}  // namespace

NearestFn nearest_kernel_scalar(int sub_dim) noexcept {
    return pick(sub_dim);
}

LeastCostFn least_cost_kernel_scalar(int sub_dim) noexcept {
    return pick_least_cost(sub_dim);
}

NearestFn nearest_kernel(Isa isa, int sub_dim) noexcept {
#if defined(__x86_64__)
    switch (isa) {
        case Isa::scalar: break;
        case Isa::avx2: return nearest_kernel_avx2(sub_dim);
        case Isa::avx512:
        case Isa::avx512vbmi: return nearest_kernel_avx512(sub_dim);
    }
#else
    (void)isa;
#endif
    return nearest_kernel_scalar(sub_dim);
}

NearestFn nearest_kernel(int sub_dim) noexcept {
    return nearest_kernel(active_isa(), sub_dim);
}

LeastCostFn least_cost_kernel(Isa isa, int sub_dim) noexcept {
#if defined(__x86_64__)
    switch (isa) {
        case Isa::scalar: break;
        case Isa::avx2: return least_cost_kernel_avx2(sub_dim);
        case Isa::avx512:
        case Isa::avx512vbmi: return least_cost_kernel_avx512(sub_dim);
    }
#else
    (void)isa;
#endif
    return least_cost_kernel_scalar(sub_dim);
}

LeastCostFn least_cost_kernel(int sub_dim) noexcept {
    return least_cost_kernel(active_isa(), sub_dim);
}

}  // namespace vecinfer
