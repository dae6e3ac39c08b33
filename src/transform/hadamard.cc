#include "transform/hadamard.h"

#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "vecinfer/transform.h"

namespace vecinfer {
namespace {

template <int M>
struct SignMatrix {
    float at[M][M] = {};  // +1 and -1
};

/// Legendre symbol of a modulo the prime q: 0, 1 or -1.
constexpr int legendre(int a, int q) {
    a = ((a % q) + q) % q;
    if (a == 0) {
        return 0;
    }
    for (int i = 1; i < q; ++i) {
        if (i * i % q == a) {
            return 1;
        }
    }
    return -1;
}

/// Entry of the bordered Jacobsthal matrix of order q + 1: skew for q = 3 mod 4, symmetric (a conference matrix) for q = 1 mod 4.
constexpr int bordered_jacobsthal(int row, int col, int q) {
    if (row == 0 || col == 0) {
        return row == col ? 0 : (row == 0 || q % 4 == 1 ? 1 : -1);
    }
    return legendre(row - col, q);
}

/// Hadamard matrix of order q + 1 for a prime q = 3 mod 4.
template <int Q>
constexpr SignMatrix<Q + 1> paley_one() {
    SignMatrix<Q + 1> h{};
    for (int i = 0; i <= Q; ++i) {
        for (int j = 0; j <= Q; ++j) {
            h.at[i][j] = static_cast<float>(bordered_jacobsthal(i, j, Q) + (i == j ? 1 : 0));
        }
    }
    return h;
}

/// Hadamard matrix of order 2 (q + 1) for a prime q = 1 mod 4: every entry c of the conference matrix becomes c [1 1; 1 -1],
/// zeros of the diagonal become [1 -1; -1 -1].
template <int Q>
constexpr SignMatrix<2 * (Q + 1)> paley_two() {
    SignMatrix<2 * (Q + 1)> h{};
    for (int i = 0; i <= Q; ++i) {
        for (int j = 0; j <= Q; ++j) {
            const float c = static_cast<float>(bordered_jacobsthal(i, j, Q));
            h.at[2 * i][2 * j] = i == j ? 1.0f : c;
            h.at[2 * i][2 * j + 1] = i == j ? -1.0f : c;
            h.at[2 * i + 1][2 * j] = i == j ? -1.0f : c;
            h.at[2 * i + 1][2 * j + 1] = i == j ? -1.0f : -c;
        }
    }
    return h;
}

template <int M>
constexpr SignMatrix<M> transposed(const SignMatrix<M>& h) {
    SignMatrix<M> t{};
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < M; ++j) {
            t.at[j][i] = h.at[i][j];
        }
    }
    return t;
}

constexpr SignMatrix<12> kHadamard12 = paley_one<11>();
constexpr SignMatrix<20> kHadamard20 = paley_one<19>();
constexpr SignMatrix<28> kHadamard28 = paley_two<13>();
constexpr SignMatrix<12> kHadamard12T = transposed(kHadamard12);
constexpr SignMatrix<20> kHadamard20T = transposed(kHadamard20);
constexpr SignMatrix<28> kHadamard28T = transposed(kHadamard28);

/// Walsh-Hadamard transform of n = 2^k floats. Every stage reads two halves and writes them interleaved: the access pattern
/// never narrows, so all stages vectorize, and after k stages the index bits are back in their order.
void walsh_hadamard(float* x, int n) noexcept {
    alignas(64) float buffer[kMaxHeadDim];
    float* from = x;
    float* to = buffer;
    const int half = n / 2;
    for (int stage = 1; stage < n; stage *= 2) {
        const float* __restrict low = from;
        const float* __restrict high = from + half;
        float* __restrict out = to;
        for (int i = 0; i < half; ++i) {
            out[2 * i] = low[i] + high[i];
            out[2 * i + 1] = low[i] - high[i];
        }
        std::swap(from, to);
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(n));
    for (int i = 0; i < n; ++i) {
        x[i] = from[i] * scale;
    }
}

/// x seen as (rows, M), rows = 2^k: Walsh-Hadamard over the rows and x <- x h within each, that is x (H_rows (x) h).
template <int M>
void kronecker(float* x, int rows, const SignMatrix<M>& h) noexcept {
    for (int step = M; step < rows * M; step *= 2) {
        for (int begin = 0; begin < rows * M; begin += 2 * step) {
            float* __restrict low = x + begin;
            float* __restrict high = x + begin + step;
            for (int i = 0; i < step; ++i) {
                const float a = low[i];
                const float b = high[i];
                low[i] = a + b;
                high[i] = a - b;
            }
        }
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(rows * M));
    for (int row = 0; row < rows; ++row, x += M) {
        float sum[M] = {};
        for (int i = 0; i < M; ++i) {
            for (int j = 0; j < M; ++j) {
                sum[j] += x[i] * h.at[i][j];
            }
        }
        for (int j = 0; j < M; ++j) {
            x[j] = sum[j] * scale;
        }
    }
}

/// Powers of two in descending order that add up to n.
void block_diagonal(float* x, int n) noexcept {
    while (n > 0) {
        const int block = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
        walsh_hadamard(x, block);
        x += block;
        n -= block;
    }
}

template <bool Transposed>
void transform(float* x, int n) noexcept {
    const auto leaves_power_of_two = [n](int order) {
        return n % order == 0 && std::has_single_bit(static_cast<unsigned>(n / order));
    };
    if (leaves_power_of_two(12)) {
        kronecker<12>(x, n / 12, Transposed ? kHadamard12T : kHadamard12);
    } else if (leaves_power_of_two(20)) {
        kronecker<20>(x, n / 20, Transposed ? kHadamard20T : kHadamard20);
    } else if (leaves_power_of_two(28)) {
        kronecker<28>(x, n / 28, Transposed ? kHadamard28T : kHadamard28);
    } else {
        block_diagonal(x, n);
    }
}

}  // namespace

Status check_head_dim(int head_dim) {
    if (head_dim < 2 || head_dim > kMaxHeadDim || head_dim % 2 != 0) {
        return argument_error("head_dim", std::to_string(head_dim), "an even number from 2 to " + std::to_string(kMaxHeadDim));
    }
    return {};
}

void hadamard_forward(float* x, int n) noexcept {
    transform<false>(x, n);
}

void hadamard_backward(float* x, int n) noexcept {
    transform<true>(x, n);
}

Status hadamard(float* x, int head_dim) {
    Status status = check_head_dim(head_dim);
    if (status.ok()) {
        hadamard_forward(x, head_dim);
    }
    return status;
}

Status hadamard_inverse(float* x, int head_dim) {
    Status status = check_head_dim(head_dim);
    if (status.ok()) {
        hadamard_backward(x, head_dim);
    }
    return status;
}

}  // namespace vecinfer
