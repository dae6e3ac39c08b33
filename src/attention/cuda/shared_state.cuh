// Shared memory of a decode block, and how it finds its part of the work.
#pragma once

#include <climits>

#include "attention/cuda/decode_args.h"
#include "attention/cuda/primitives.cuh"
#include "codec/cuda/scalar_layout.h"

namespace vecinfer::cuda {

/// Where the centroids of a side are in shared memory.
enum class Table {
    copies,  // 32 copies of each word, one for each bank, or 16 of two words
    own,     // a codebook per subspace, one copy: look-ups meet in banks
    wide,    // 4096 centroids, one copy
};

constexpr int table_words(Form form, Table table, int head_dim) {
    return form.sub_dim != 1 && table == Table::copies ? 256 * 32 : words_per_head(form, table == Table::own, head_dim);
}

/// Compile-time shape of a kernel.
///   KD, VD  sub_dim of the page layout of keys and values: 2, 4 or 8 channels for a code of 8 or 12 bits, 1 for codes of 3 bits
///   HD      head_dim
///   NT      column tiles of the matrix unit: 4 NT query rows (heads x query tokens) of a KV head
///   CH      tiles of 32 cells that a warp has in flight
///   General soft cap, ALiBi and pages smaller than a chunk
template <int KD_, int VD_, int HD_, int NT_, int CH_, int WARPS_, int MINB_, bool General_, Table KT_ = Table::copies,
          Table VT_ = KT_>
struct Config {
    static constexpr Table KT = KT_;
    static constexpr Table VT = VT_;
    static constexpr int KD = KD_;
    static constexpr int VD = VD_;
    static constexpr int HD = HD_;
    static constexpr int NT = NT_;
    static constexpr int CH = CH_;
    static constexpr int WARPS = WARPS_;
    static constexpr int MINB = MINB_;
    static constexpr bool General = General_;
    static constexpr bool kScalar = false;
    static constexpr float kOne = 65280.0f;  // p = 1 in sums over codes; both bytes of p stay below 256

    static constexpr int kThreads = 32 * WARPS;
    static constexpr int kRows = 4 * NT;
    static constexpr int kColumns = 8 * NT;        // each row has two digits
    static constexpr int kChunk = 32 * CH;         // cells
    static constexpr int kAcc = HD / 8 * NT;       // sums of a lane
    static constexpr int kWarpFloats = kAcc * 32;  // = kRows * HD
    static constexpr Form kKeyForm = {KD, KT == Table::wide ? 12 : KD == 1 ? 3 : 8};
    static constexpr Form kValueForm = {VD, VT == Table::wide ? 12 : VD == 1 ? 3 : 8};
    static constexpr int kKeyWords = granule_bytes(HD, kKeyForm) / 128;  // of a lane and granule
    static constexpr int kValueWords = granule_bytes(HD, kValueForm) / 128;
    static constexpr int kKeyTableWords = table_words(kKeyForm, KT, HD);
    static constexpr int kValueTableWords = table_words(kValueForm, VT, HD);
    static_assert((KD == 1) == (VD == 1));
    static constexpr int kStageBytes = 256 * CH * (kKeyWords + kValueWords);  // codes of a chunk
    static_assert(HD >= (VD == 8 ? 64 : 32), "the columns of a matrix product are 8 units of values");
};

/// Keys or values of a scalar codec.
template <int Bits, Axis A, int Group, Levels L>
struct ScalarSide {
    static constexpr int kBits = Bits;
    static constexpr Axis kAxis = A;
    static constexpr int kGroup = Group;
    static constexpr Levels kLevels = L;
    static constexpr CodecSpec spec() { return {CodecKind::scalar, 1, Bits, Group, A, L}; }
};

/// Compile-time shape of a kernel for scalar codecs, see Config. K, V: a ScalarSide.
template <class K, class V, int HD_, int NT_, int WARPS_, int MINB_>
struct ScalarConfig {
    using Keys = K;
    using Values = V;
    static constexpr int HD = HD_;
    static constexpr int NT = NT_;
    static constexpr int WARPS = WARPS_;
    static constexpr int MINB = MINB_;
    static constexpr bool General = true;
    static constexpr bool kScalar = true;
    static constexpr Table KT = Table::copies;  // has none
    static constexpr Table VT = Table::copies;
    static constexpr float kOne = 1.0f;

    static constexpr int kThreads = 32 * WARPS;
    static constexpr int kRows = 4 * NT;
    static constexpr int kColumns = 8 * NT;
    static constexpr int kChunk = kScalarChunk;
    static constexpr int kAcc = HD / 8 * NT;
    static constexpr int kWarpFloats = kAcc * 32;
    static constexpr int kStageBytes = 2 * (scalar_code_bytes(K::kBits, HD) + scalar_code_bytes(V::kBits, HD) +
                                            numbers_bytes(K::spec(), HD) + numbers_bytes(V::spec(), HD));
};

inline constexpr int kPieceSizes = 32;  // how many are tried

/// What depends on the kind of codes.
template <class C, bool Scalar = C::kScalar>
struct CodeShared {
    std::uint32_t k_table[C::kKeyTableWords];
    std::uint32_t v_table[C::kValueTableWords];
    alignas(16) std::int8_t q_code[C::kColumns][C::HD + 16];  // int8 digits of the transformed queries
    float q_log_scale[C::kRows];                              // log2 of what an int8 product counts
};
template <class C>
struct CodeShared<C, true> {
    alignas(16) std::uint16_t q_plain[C::kColumns][C::HD + 8];  // f16 digits of the transformed queries
    std::uint16_t q_code[C::kColumns][C::HD + 8];               // without the weights of the codes that they meet
    float q_scale[C::kRows];                                    // what a product of f16 counts
};

template <class C>
struct Shared : CodeShared<C> {
    float o[C::WARPS][C::kWarpFloats];  // sums of a warp over codes, layout (kAcc, lane)
    union {
        float o_exact[C::kWarpFloats];                   // over f16 rows
        alignas(16) std::uint8_t stage[C::kStageBytes];  // codes on their way: K granules, then V granules
    } warp[C::WARPS];
    float rows[2][C::kRows][C::HD];                             // finished sums: over codes, over f16 rows
    alignas(16) std::uint16_t q_exact[C::kColumns][C::HD + 8];  // f16 digits of the queries, original space
    float warp_ref[2][C::WARPS][C::kRows];
    float warp_sum[2][C::WARPS][C::kRows];
    float warp_factor[2][C::WARPS][C::kRows];
    float row_ref[2][C::kRows];
    float row_sum[2][C::kRows];
    float q_bias[C::kRows];  // query . key center, log2 units
    float q_exact_scale[C::kRows];
    int table_head;
    int is_last;
    unsigned scan[C::WARPS];
    unsigned longest;                 // units of a sequence
    unsigned pieces_of[kPieceSizes];  // pieces of all sequences by size
    int piece;                        // units of a piece
    int per_block;                    // pieces of a block
    // then unsigned prefix[batch + 1]
};

/// Positions of one sequence that one query reads from codes and from f16 rows.
struct Reach {
    int len;       // cells
    int exact_lo;  // cells below `sink` and cells from here on may be f16 rows
    int sinks;     // f16 rows at the front
    int first;     // lowest cell that any query sees
    int code_end;  // cells from here on are read from f16 rows by every query
};

__device__ __forceinline__ Reach reach_of(const DecodeArgs& a, int seq) {
    Reach r;
    r.len = max(a.kv_lens[seq], 0);
    const int first_query = r.len - a.num_q;
    r.sinks = min(a.sink, r.len);
    r.exact_lo = a.recent > 0 ? min(r.len, max(r.sinks, first_query + 1 - a.recent)) : r.len;
    r.first = a.sliding_window == INT_MAX ? 0 : max(0, first_query + 1 - a.sliding_window);
    r.code_end = max(0, r.len - a.recent);
    return r;
}

/// Work of one sequence and head in units of a chunk of codes. A granule of f16 rows counts as two.
template <class C>
struct Units {
    int chunk0;    // first chunk
    int chunks;    // of codes
    int granules;  // of 16 f16 rows

    __device__ __forceinline__ explicit Units(const Reach& r) {
        const int begin = max(r.first, 0);
        chunk0 = begin / C::kChunk;
        const bool any = r.code_end > max(r.sinks, begin);
        chunks = any ? (r.code_end + C::kChunk - 1) / C::kChunk - chunk0 : 0;
        granules = (r.sinks + r.len - r.exact_lo + 15) / 16;
    }
    __device__ __forceinline__ int total() const { return max(1, chunks + 2 * granules); }
};

/// A cut of all work into pieces of `piece` units, the last of an item shorter, and `per_block` consecutive ones for a block.
struct Split {
    int piece;
    int per_block;
    unsigned long long pieces;

    __device__ __forceinline__ unsigned long long begin(int block) const {
        return min(static_cast<unsigned long long>(block) * per_block, pieces);
    }
    __device__ __forceinline__ int block_of(unsigned long long i) const { return static_cast<int>(i / per_block); }
};

/// Units that a block loses with every item that it touches: queries, first reads, sums of its warps.
inline constexpr int kItemUnits = 24;

/// Size of piece `i` of those that are tried: even parts of the longest sequence, then some for even shares across items.
template <class C>
__device__ __forceinline__ int piece_size(int i, unsigned longest) {
    const int units = i < kPieceSizes - 4 ? (longest + i) / (i + 1) : C::WARPS << (i - (kPieceSizes - 4));
    return (units + C::WARPS - 1) / C::WARPS * C::WARPS;
}

/// prefix[s] <- pieces of the sequences before s, for one head and row tile; prefix[batch] the total. Whole block.
template <class C>
__device__ __forceinline__ Split split_work(const DecodeArgs& a, Shared<C>& sm, unsigned* prefix, int grid) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    if (threadIdx.x < kPieceSizes) {
        sm.pieces_of[threadIdx.x] = 0;
        sm.longest = 0;
    }
    __syncthreads();
    unsigned longest = 0;
    for (int s = threadIdx.x; s < a.batch; s += C::kThreads) {
        prefix[s] = static_cast<unsigned>(Units<C>(reach_of(a, s)).total());
        longest = max(longest, prefix[s]);
    }
    if (longest > 0) {
        atomicMax(&sm.longest, longest);
    }
    __syncthreads();
    const unsigned size = piece_size<C>(lane, sm.longest);
    unsigned pieces = 0;
    for (int s = warp; s < a.batch; s += C::WARPS) {
        pieces += (prefix[s] + size - 1) / size;
    }
    if (pieces > 0) {
        atomicAdd(&sm.pieces_of[lane], pieces);
    }
    __syncthreads();
    if (warp == 0) {
        const unsigned long long all = static_cast<unsigned long long>(sm.pieces_of[lane]) * a.num_kv_heads * a.row_tiles;
        const unsigned per_block = static_cast<unsigned>((all + grid - 1) / grid);
        const unsigned per_item = max(1u, sm.pieces_of[lane] / a.batch);
        const unsigned items = per_block % per_item == 0   ? per_block / per_item
                               : per_item % per_block == 0 ? 1u
                                                           : per_block / per_item + 2u;
        const unsigned cost = per_block * min(size, sm.longest) + items * kItemUnits;
        unsigned least = cost;
#pragma unroll
        for (int step = 16; step >= 1; step /= 2) {
            least = min(least, __shfl_xor_sync(kAllLanes, least, step));
        }
        const unsigned best = __ballot_sync(kAllLanes, cost == least);
        if (lane == __ffs(best) - 1) {
            sm.piece = size;
            sm.per_block = per_block;
        }
    }
    __syncthreads();
    const unsigned piece = sm.piece;
    unsigned carry = 0;
    for (int base = 0; base < a.batch; base += C::kThreads) {
        const int s = base + static_cast<int>(threadIdx.x);
        const unsigned own = s < a.batch ? (prefix[s] + piece - 1) / piece : 0u;
        unsigned sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const unsigned other = __shfl_up_sync(kAllLanes, sum, step);
            sum += lane >= step ? other : 0u;
        }
        if (lane == 31) {
            sm.scan[warp] = sum;
        }
        __syncthreads();
        unsigned before = carry;
        for (int w = 0; w < C::WARPS; ++w) {
            before += w < warp ? sm.scan[w] : 0u;
            carry += sm.scan[w];
        }
        if (s < a.batch) {
            prefix[s] = before + sum - own;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        prefix[a.batch] = carry;
    }
    __syncthreads();
    return {sm.piece, sm.per_block, static_cast<unsigned long long>(carry) * a.num_kv_heads * a.row_tiles};
}

/// Where in the grid of (KV head, sequence, row tile) a piece lies. Heads come first, so that a block that crosses into the next
/// sequence keeps its table; row tiles last, as they read the same codes.
struct Place {
    int seq;
    int head;
    int row_tile;
    int item;
    unsigned long long first_piece;  // of the item
    unsigned pieces;                 // of the item

    __device__ __forceinline__ Place(const DecodeArgs& a, const unsigned* prefix, unsigned long long piece) {
        const unsigned long long per_head = static_cast<unsigned long long>(prefix[a.batch]) * a.row_tiles;
        head = static_cast<int>(piece / per_head);
        const unsigned long long in_head = piece - head * per_head;
        int low = 0;
        int high = a.batch;
        while (high - low > 1) {
            const int mid = (low + high) / 2;
            (static_cast<unsigned long long>(prefix[mid]) * a.row_tiles <= in_head ? low : high) = mid;
        }
        seq = low;
        pieces = prefix[low + 1] - prefix[low];
        const unsigned long long seq_begin = static_cast<unsigned long long>(prefix[low]) * a.row_tiles;
        row_tile = static_cast<int>((in_head - seq_begin) / pieces);
        item = (head * a.batch + seq) * a.row_tiles + row_tile;
        first_piece = head * per_head + seq_begin + static_cast<unsigned long long>(row_tile) * pieces;
    }
};

}  // namespace vecinfer::cuda
