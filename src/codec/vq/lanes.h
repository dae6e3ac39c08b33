// Small vectors of floats in the compiler's own type: channels of a sub-vector, or directions of noise shaping. Operations on
// them are those on their lanes, each rounded.
#pragma once

#include <cstring>

namespace vecinfer {

template <int D>
using Channels __attribute__((vector_size(4 * D))) = float;
using Directions __attribute__((vector_size(32))) = float;

template <class V>
inline V load_lanes(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class V>
inline void store_lanes(float* p, const V& v) {
    std::memcpy(p, &v, sizeof v);
}

}  // namespace vecinfer
