#include "codec/vq/encode.h"
#include "codec/vq/lanes.h"
#include "codec/vq/nearest.h"
#include "codec/vq/shaping.h"
#include "transform/hadamard.h"

namespace vecinfer {
namespace {

constexpr Isa kIsa = Isa::scalar;

template <int D>
void find_nearest(const float* x, std::int64_t n, const ScanTable& t, std::uint16_t* codes) {
    nearest_kernel(kIsa, D)(x, n, t.centroids, t.num_centroids, codes, nullptr);
}

template <int D, int N>
inline void least_costs(const Channels<D>* goals, const ScanTable& t, const float* bias, std::uint16_t* codes) {
    for (int s = 0; s < N; ++s) {
        float slope[D];
        store_lanes(slope, goals[s] * 2.0f);
        codes[s] = least_cost_kernel(kIsa, D)(slope, t.centroids, bias, t.num_centroids);
    }
}

#include "codec/vq/shaping.inl"

}  // namespace

EncodeKernels encode_kernels_scalar(int sub_dim) noexcept {
    return pick(sub_dim);
}

EncodeKernels encode_kernels(Isa isa, int sub_dim) noexcept {
#if defined(__x86_64__)
    switch (isa) {
        case Isa::scalar: break;
        case Isa::avx2: return encode_kernels_avx2(sub_dim);
        case Isa::avx512: return encode_kernels_avx512(sub_dim);
        case Isa::avx512vbmi: return encode_kernels_avx512vbmi(sub_dim);
    }
#else
    (void)isa;
#endif
    return encode_kernels_scalar(sub_dim);
}

EncodeKernels encode_kernels(int sub_dim) noexcept {
    return encode_kernels(active_isa(), sub_dim);
}

}  // namespace vecinfer
