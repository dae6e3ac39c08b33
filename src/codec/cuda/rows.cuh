// Rows of new tokens as the encoders read them: one warp a row, lane l has channels N l .. N l + N - 1.
#pragma once

#include "attention/cuda/primitives.cuh"
#include "codec/cuda/encode_args.h"
#include "codec/cuda/layout.h"

namespace vecinfer::cuda {

/// As codec/f16.h: nearest f16, finite magnitudes above 65504 clamped, non-finite 0.
__device__ inline float round_to_half(float x) {
    if (!(fabsf(x) <= 3.402823466e38f)) {
        return 0.0f;
    }
    return __half2float(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

/// Where the codes of a token go.
struct Cell {
    bool stored;
    std::uint8_t* head_page;
    int in_page;
};

__device__ inline Cell find_cell(const EncodeArgs& a, int token, int head) {
    const std::int64_t slot = token < a.num_tokens ? a.slots[token] : -1;
    if (slot < 0) {
        return {false, nullptr, 0};
    }
    return {true, a.pages + slot / a.page_size * a.page_bytes + head * a.head_bytes, static_cast<int>(slot % a.page_size)};
}

/// Where a token's f16 row goes, or -1. Only the last rows of a sequence have a place in the ring.
__device__ inline std::int64_t window_row(const EncodeArgs& a, int token, int head) {
    const int seq = a.sequences != nullptr ? a.sequences[token] : token;
    const int pos = a.positions[token];
    const int ring = a.window_rows - a.sink;
    const int slot = a.window_slots != nullptr ? a.window_slots[seq] : seq;
    const std::int64_t base = (static_cast<std::int64_t>(slot) * a.num_kv_heads + head) * a.window_rows;
    if (pos < a.sink) {
        return base + pos;
    }
    return ring > 0 && pos >= a.kv_lens[seq] - ring ? base + a.sink + (pos - a.sink) % ring : -1;
}

/// Zeros for a token that does not exist.
template <int N>
__device__ __forceinline__ void load_row(const EncodeArgs& a, int token, int head, float (&y)[N], int lane) {
    const std::int64_t at = token * a.side.token_stride + head * a.side.head_stride + lane * N;
    if (N % 4 == 0 && a.aligned != 0 && a.type == Number::f16 && token < a.num_tokens) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const uint2 x = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(a.side.x) + at + i);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float half = half_at(k < 2 ? x.x : x.y, k % 2);
                y[i + k] = fabsf(half) <= 65504.0f ? half : 0.0f;
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        y[i] = token < a.num_tokens ? round_to_half(load_number(a.side.x, at + i, a.type)) : 0.0f;
    }
}

/// A row as it was loaded, if there is a window with a place for it.
template <int N>
__device__ __forceinline__ void store_window_row(const EncodeArgs& a, int token, int head, const float (&y)[N], int lane) {
    if (a.side.window == nullptr || token >= a.num_tokens || a.slots[token] < 0) {
        return;
    }
    const std::int64_t row = window_row(a, token, head);
    if (row >= 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            a.side.window[row * 32 * N + lane * N + i] = __half_as_ushort(__float2half_rn(y[i]));
        }
    }
}

/// Into code space.
template <int N>
__device__ __forceinline__ void transform_row(const EncodeSide& side, int head, float (&y)[N], int lane) {
    const int channel = head * 32 * N + lane * N;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        y[i] = side.center != nullptr ? y[i] - side.center[channel + i] : y[i];
        y[i] = side.inverse != nullptr ? y[i] * side.inverse[channel + i] : y[i];
    }
    if (side.hadamard) {
        warp_hadamard(y, lane);
    }
}

}  // namespace vecinfer::cuda
