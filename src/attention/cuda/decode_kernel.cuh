// Decode attention: one wave of blocks, each with a contiguous share of all (KV head, sequence, chunk) work. The block that
// finishes an item last merges what the others left and writes the outputs.
#pragma once

#include "attention/cuda/combine.cuh"
#include "attention/cuda/exact.cuh"
#include "attention/cuda/query.cuh"
#include "attention/cuda/scalar.cuh"

namespace vecinfer::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::MINB) decode_kernel(const __grid_constant__ DecodeArgs a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Shared<C>& sm = *reinterpret_cast<Shared<C>*>(memory);
    unsigned* prefix = reinterpret_cast<unsigned*>(memory + sizeof(Shared<C>));
    // The same for all lanes, and the compiler knows.
    const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x >> 5), 0);
    if (threadIdx.x == 0) {
        sm.table_head = -1;
    }
    const Split split = split_work<C>(a, sm, prefix, gridDim.x);
    const int block = blockIdx.x;
    const unsigned long long last = split.begin(block + 1);
    for (unsigned long long piece = split.begin(block); piece < last;) {
        const Place at(a, prefix, piece);
        const Reach reach = reach_of(a, at.seq);
        const Units<C> units(reach);
        const int first = static_cast<int>(piece - at.first_piece);
        const int taken = static_cast<int>(min(last - piece, static_cast<unsigned long long>(at.pieces - first)));
        const int begin = first * split.piece;
        const int end = min((first + taken) * split.piece, units.total());
        piece += taken;

        const int chunk = units.chunk0 + min(begin, units.chunks) + warp;
        const int chunk_end = units.chunk0 + min(end, units.chunks);
        // From the last warp on: the first ones have one chunk of codes more.
        const int granule = (max(begin - units.chunks, 0) + 1) / 2 + C::WARPS - 1 - warp;
        const int granule_end = min((max(end - units.chunks, 0) + 1) / 2, units.granules);
        if constexpr (!C::General) {  // small pages: a chunk lies in several
            if (chunk < chunk_end) {
                prefetch_codes<C>(a, at, reach, chunk);
            }
        }
        if (granule < granule_end) {
            prefetch_exact<C>(a, at, reach, granule);
        }

        __syncthreads();  // nobody reads the former item's queries and sums any more
        const bool refill = !C::kScalar && sm.table_head != at.head && begin < units.chunks;
        prepare_queries<C>(a, sm, at);
        if constexpr (!C::kScalar) {
            if (refill) {
                fill_tables<C>(a, sm, at.head);
            }
        }
        __syncthreads();
        if (refill && threadIdx.x == 0) {
            sm.table_head = at.head;
        }

        const int b0 = split.block_of(at.first_piece);
        const int b1 = split.block_of(at.first_piece + at.pieces - 1);
        const bool alone = b0 == b1;
        const std::size_t slot = static_cast<std::size_t>(block) + at.item;
        LaneState<C> states[2];
        if constexpr (C::kScalar) {
            attend_scalar<C>(a, sm, at, reach, chunk, chunk_end, sm.o[warp], sm.warp[warp].stage, states[0]);
        } else {
            attend_codes<C>(a, sm, at, reach, chunk, chunk_end, sm.o[warp], sm.warp[warp].stage, states[0]);
        }
        attend_exact<C>(a, sm, at, reach, granule, granule_end, sm.warp[warp].o_exact, states[1]);
        combine_stats<C>(sm, states);
        float* partial = a.partials + slot * 2 * C::kWarpFloats;
        for (int i = threadIdx.x; i < 2 * C::kWarpFloats; i += C::kThreads) {
            const int kind = i / C::kWarpFloats;
            const int index = i % C::kWarpFloats;
            const int row = element_row<C>(index, kind == 1);
            if (sm.row_ref[kind][row] == -INFINITY) {
                continue;  // nothing of this kind: its factor is 0 wherever it is merged
            }
            const float x = combined<C>(sm, kind, index);
            if (alone) {
                sm.rows[kind][row][element_channel<C>(index, kind == 1)] = x;
            } else {
                partial[i] = x;
            }
        }
        __syncthreads();
        if (!alone) {
            if (threadIdx.x < 2 * C::kRows) {
                const int kind = threadIdx.x / C::kRows;
                const int row = threadIdx.x % C::kRows;
                a.stats[slot * 2 * C::kRows + threadIdx.x] = make_float2(sm.row_ref[kind][row], sm.row_sum[kind][row]);
            }
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) {
                const unsigned before = atomicAdd(a.counters + at.item, 1u);
                sm.is_last = before == static_cast<unsigned>(b1 - b0);
                if (sm.is_last) {
                    a.counters[at.item] = 0;  // for the next launch
                }
            }
            __syncthreads();
            if (!sm.is_last) {
                continue;
            }
            __threadfence();
            merge_blocks<C>(a, sm, at.item, b0, b1);
        }
        write_outputs<C>(a, sm, at);
    }
}

/// Bytes of shared memory of a block.
template <class C>
constexpr std::size_t shared_bytes(int batch) {
    return sizeof(Shared<C>) + sizeof(unsigned) * (static_cast<std::size_t>(batch) + 1);
}

}  // namespace vecinfer::cuda
