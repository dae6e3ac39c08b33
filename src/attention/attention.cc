// Checks, the cut of one call into pieces, and the online softmax over tiles. Tile math lives in attention/cpu.
//
// A piece is (query tile, KV head, context split). All query heads of a KV head are rows of one tile, so each code is decoded
// once per tile. Every tile has two readings: codes (with transformed queries) and, where rows are at hand in f16, exact rows.
// Which one a (query, cell) pair uses is decided by position; scores are picked per pair and values are summed in two
// accumulators, because codes live in the transformed value space. Blocks that are read from codes alone are collected into runs
// for the fused kernels, where the ISA has them.
#include "vecinfer/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "attention/attention_state.h"
#include "attention/exactness.h"
#include "cache/layout.h"
#include "codec/f16.h"
#include "dispatch/isa.h"

namespace vecinfer {

namespace cpu {

const TileKernels& tile_kernels() {
    static const TileKernels& table = []() -> const TileKernels& {
        switch (active_isa()) {
#if defined(__x86_64__)
            case Isa::avx512vbmi:
            case Isa::avx512: return tile_kernels_avx512();
            case Isa::avx2: return tile_kernels_avx2();
#endif
            default: return tile_kernels_scalar();
        }
    }();
    return table;
}

}  // namespace cpu

namespace {

constexpr int kTileRows = 48;    // query rows (tokens x heads of a group) that share a decoded tile
constexpr int kFewTokens = 16;   // up to this many query tokens the context is split
constexpr int kFewPieces = 16;   // pieces of a call to aim at while each is shorter than a run,
constexpr int kManyPieces = 64;  // and beyond
constexpr int kRunCells = kBlockCells * cpu::kRunBlocks;

cpu::ScalarBlock scalar_block(const RowCodec& codec) {
    const CodecSpec& spec = codec.spec();
    return {.head_dim = codec.head_dim(),
            .code_bits = spec.code_bits,
            .group = spec.group,
            .by_token = spec.groups_tokens(),
            .symmetric = spec.levels != Levels::asymmetric,
            .zeros = spec.levels != Levels::symmetric};
}

float alibi_slope(float max_bias, int head, int num_heads) {
    if (max_bias <= 0) {
        return 1.0f;
    }
    const int n = 1 << static_cast<int>(std::floor(std::log2(num_heads)));
    return head < n ? std::pow(std::exp2(-max_bias / n), static_cast<float>(head + 1))
                    : std::pow(std::exp2(-max_bias / 2.0f / n), static_cast<float>(2 * (head - n) + 1));
}

// Context per piece. Long pieces are cheaper, up to a run of the fused kernels; many pieces keep many threads busy. Never a
// function of the number of threads.
int cells_per_piece(int kv_len, int groups) {
    constexpr int kUnit = 4 * kBlockCells;
    const std::int64_t total = static_cast<std::int64_t>(kv_len) * groups;
    const std::int64_t cells = std::max(total / kManyPieces, std::clamp<std::int64_t>(total / kFewPieces, 2 * kUnit, kRunCells));
    return static_cast<int>((cells + kUnit - 1) / kUnit * kUnit);
}

// Rows at hand for the cells of one piece: index into the exact list per cell, or -1.
void index_exact(std::span<const ExactRow> rows, int begin, int end, std::int32_t* index) {
    std::fill(index, index + (end - begin), -1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].cell >= begin && rows[i].cell < end) {
            index[rows[i].cell - begin] = static_cast<std::int32_t>(i);
        }
    }
}

}  // namespace

bool AttentionTask::State::has_look_ups(const PackedCache& cache) {
    const RowCodec& codec = cache.codec();
    return codec.spec().kind == CodecKind::vq && codec.centroid_stride() == 0 && codec.sub_dim() > 1;
}

cpu::FusedSide AttentionTask::State::side(const PackedCache& cache, int kv_head) {
    const RowCodec& codec = cache.codec();
    const Codebook& book = codec.codebook(kv_head);
    return {.sub_dim = codec.sub_dim(),
            .code_bits = codec.code_bits(),
            .num_subspaces = codec.num_subspaces(),
            .norms = codec.has_norm(),
            .scale = book.scale,
            .by_channel = codec.centroids_by_channel(kv_head),
            .planes = codec.centroid_planes(kv_head),
            .centroids = book.centroids.data()};
}

void AttentionTask::State::prepare_row(const Queries& queries, int tile, int kv_head, int row) const {
    const float scale = p.soft_cap != 0 ? p.sm_scale / p.soft_cap : p.sm_scale;
    const float* q =
        p.q + (tile * tile_tokens + row / group) * p.q_token_stride + (kv_head * group + row % group) * p.q_head_stride;
    float* exact = queries.exact + row * dk();
    float* code = queries.code + row * dk();
    for (int d = 0; d < dk(); ++d) {
        exact[d] = q[d] * scale;
    }
    k.codec().transform(kv_head).forward_query(exact, code);
    queries.bias[row] = k.codec().transform(kv_head).query_bias(exact);
    if (fused != nullptr) {
        fused->prepare(side(k, kv_head), code, row, queries.tables);
    }
}

void AttentionTask::State::run_piece(int piece, int next_piece, float* scratch) {
    const int split = piece % num_splits;
    const int kv_head = piece / num_splits % num_kv_heads();
    const int tile = piece / num_splits / num_kv_heads();
    const int token0 = tile * tile_tokens;
    const int tokens = std::min(tile_tokens, p.num_tokens - token0);
    const int rows = tokens * group;
    const int begin = split * split_cells;
    const int end = std::min(begin + split_cells, p.kv_len);
    const Exactness exactness{p};

    Queries queries;
    if (num_splits == 1) {
        queries = queries_at(scratch);
        scratch += queries_floats();
        for (int r = 0; r < rows; ++r) {
            prepare_row(queries, tile, kv_head, r);
        }
    } else {
        queries = shared_queries(tile, kv_head);
        // Whoever claimed these rows did so before this piece was claimed and depends on nobody.
        while (rows_left[tile * num_kv_heads() + kv_head].load(std::memory_order_acquire) > 0) {
            std::this_thread::yield();
        }
    }
    auto* fused_scratch = reinterpret_cast<std::byte*>(scratch);
    float* run_masks = scratch + fused_bytes() / sizeof(float);
    float* s_exact = run_masks + run_masks_floats();
    float* s_code = s_exact + rows * kBlockCells;
    float* mask = s_code + rows * kBlockCells;  // of the row in work
    float* o_exact = mask + kBlockCells;
    float* o_code = o_exact + rows * dv();
    float* row_max = o_code + rows * dv();
    float* row_sum = row_max + rows;
    float* code_share = row_sum + rows;  // sum of the probabilities whose values come from codes
    float* tile_code = code_share + rows;
    float* tile_exact = tile_code + kBlockCells * std::max(dk(), dv());
    auto* k_index = reinterpret_cast<std::int32_t*>(tile_exact + kBlockCells * std::max(dk(), dv()));
    auto* v_index = k_index + split_cells;

    std::fill(code_share, code_share + rows, 0.0f);
    std::fill(row_max, row_max + rows, kMinusInfinity);
    std::fill(row_sum, row_sum + rows, 0.0f);
    std::fill(o_exact, o_exact + rows * dv(), 0.0f);
    std::fill(o_code, o_code + rows * dv(), 0.0f);
    const auto has_exact = [&](int cell0) { return exact_blocks[cell0 / kBlockCells] != 0; };
    for (int cell0 = begin; cell0 < end; cell0 += kBlockCells) {
        if (has_exact(cell0)) {
            index_exact(p.k_exact, begin, end, k_index);
            index_exact(p.v_exact, begin, end, v_index);
            break;
        }
    }

    const auto is_exact = [&](std::span<const ExactRow> list, const std::int32_t* index, int token, int cell) {
        const std::int32_t i = index[cell - begin];
        return i >= 0 && exactness(list[i], token0 + token);
    };
    // Fills the exact tile with the f16 rows at hand; cells without one are zero.
    const auto load_exact = [&](std::span<const ExactRow> list, const std::int32_t* index, int cell0, int cells, int head,
                                int dim) {
        for (int t = 0; t < kBlockCells; ++t) {
            const std::int32_t i = t < cells ? index[cell0 - begin + t] : -1;
            if (i >= 0) {
                kernels->from_f16(list[i].row + head * dim, dim, tile_exact + t * dim);
            } else {
                std::fill(tile_exact + t * dim, tile_exact + (t + 1) * dim, 0.0f);
            }
        }
    };
    const auto decode = [&](const PackedCache& cache, int cell0) {
        const RowCodec& codec = cache.codec();
        if (codec.spec().kind == CodecKind::scalar) {
            kernels->decode_scalars(cache.code_block(stream, kv_head, cell0 / kBlockCells), scalar_block(codec), tile_code);
            return;
        }
        kernels->decode_block(cache.code_block(stream, kv_head, cell0 / kBlockCells), codec.num_subspaces(), codec.sub_dim(),
                              codec.code_bits(), codec.centroids(kv_head), codec.centroid_stride(), codec.has_norm(), norm_table,
                              tile_code);
    };

    const int mask_heads = p.mask != nullptr ? p.mask_heads : 0;
    const auto mask_at = [&](int mask_head, int token, int cell) {
        return p.mask + mask_head * p.mask_head_stride + (token0 + token) * p.mask_token_stride + cell;
    };
    const auto look_at = [&](int cell0, int cells) {
        BlockUse use;
        use.plain = cells == kBlockCells;
        if (!has_exact(cell0)) {
            use.visible = mask_heads == 0;
            for (int i = 0; i < tokens * mask_heads; ++i) {
                const unsigned state = kernels->mask_state(mask_at(i / tokens, i % tokens, cell0), cells);
                use.visible |= (state & cpu::kMaskVisible) != 0;
                use.plain &= (state & cpu::kMaskNonzero) == 0;
            }
            use.k_code = use.v_code = use.visible;
            return use;
        }
        use.plain &= mask_heads == 0;
        for (int token = 0; token < tokens; ++token) {
            for (int t = 0; t < cells; ++t) {
                bool visible = mask_heads == 0;
                for (int m = 0; m < mask_heads && !visible; ++m) {
                    visible = *mask_at(m, token, cell0 + t) != kF16MinusInfinity;
                }
                if (visible) {
                    use.visible = true;
                    (is_exact(p.k_exact, k_index, token, cell0 + t) ? use.k_exact : use.k_code) = true;
                    (is_exact(p.v_exact, v_index, token, cell0 + t) ? use.v_exact : use.v_code) = true;
                }
            }
        }
        return use;
    };
    // Mask values of one row over a block, with the head's slope.
    const auto read_mask = [&](int row, int cell0, int cells, float* values) {
        const int head = kv_head * group + row % group;
        kernels->from_f16(mask_at(head % mask_heads, row / group, cell0), cells, values);
        for (int t = 0; t < cells; ++t) {
            values[t] *= slopes[head];
        }
    };

    // Blocks of a head lie side by side.
    const std::uint8_t* k_blocks = k.code_block(stream, kv_head, 0);
    const std::uint8_t* v_blocks = v.code_block(stream, kv_head, 0);
    const std::ptrdiff_t k_block_bytes = k.code_block(stream, kv_head, 1) - k_blocks;
    const std::ptrdiff_t v_block_bytes = v.code_block(stream, kv_head, 1) - v_blocks;

    cpu::FusedRun run;
    if (fused != nullptr) {
        run.k = side(k, kv_head);
        run.v = side(v, kv_head);
        run.rows = rows;
        run.queries = queries.tables;
        run.bias = queries.bias;
        run.soft_cap = p.soft_cap;
        run.row_max = row_max;
        run.row_sum = row_sum;
        run.code_share = code_share;
        run.o = o_code;
        run.o_other = o_exact;
        run.scratch = fused_scratch;
    }
    // next_cell: where the piece goes on, `end` if it does not.
    const auto flush = [&](int next_cell) {
        if (run.num_blocks == 0) {
            return;
        }
        int head = kv_head;
        int cell = next_cell;
        if (next_cell >= end) {
            head = next_piece / num_splits % num_kv_heads();
            cell = next_piece % num_splits * split_cells;
        }
        const bool any = next_cell < end || next_piece < num_pieces();
        run.next_k = any ? k.code_block(stream, head, cell / kBlockCells) : nullptr;
        run.next_v = any ? v.code_block(stream, head, cell / kBlockCells) : nullptr;
        fused->run(run);
        run.num_blocks = 0;
    };
    const auto add_to_run = [&](int cell0, int cells, bool plain) {
        const int i = run.num_blocks;
        run.k_blocks[i] = k_blocks + cell0 / kBlockCells * k_block_bytes;
        run.v_blocks[i] = v_blocks + cell0 / kBlockCells * v_block_bytes;
        run.masks[i] = nullptr;
        if (!plain) {
            float* values = run_masks + static_cast<std::size_t>(i) * rows * kBlockCells;
            run.masks[i] = values;
            std::fill(values, values + rows * kBlockCells, 0.0f);
            for (int r = 0; r < rows; ++r, values += kBlockCells) {
                if (mask_heads > 0) {
                    read_mask(r, cell0, cells, values);
                }
                std::fill(values + cells, values + kBlockCells, kMinusInfinity);
            }
        }
        if (++run.num_blocks == cpu::kRunBlocks) {
            flush(cell0 + kBlockCells);
        }
    };

    for (int cell0 = begin; cell0 < end; cell0 += kBlockCells) {
        const int cells = std::min(kBlockCells, end - cell0);
        const BlockUse use = look_at(cell0, cells);
        if (!use.visible) {
            continue;
        }
        if (fused != nullptr && !use.k_exact && !use.v_exact) {
            add_to_run(cell0, cells, use.plain);
            continue;
        }

        if (use.k_code) {
            decode(k, cell0);
            kernels->scores(queries.code, tile_code, rows, dk(), s_code);
        }
        if (use.k_exact) {
            load_exact(p.k_exact, k_index, cell0, cells, kv_head, dk());
            kernels->scores(queries.exact, tile_exact, rows, dk(), s_exact);
        }
        for (int r = 0; r < rows; ++r) {
            float* s = s_code + r * kBlockCells;
            const float* exact = s_exact + r * kBlockCells;
            const int token = r / group;
            for (int t = 0; use.k_code && t < cells; ++t) {
                s[t] += queries.bias[r];
            }
            if (!use.k_code) {
                std::copy(exact, exact + kBlockCells, s);
            } else if (use.k_exact) {
                for (int t = 0; t < cells; ++t) {
                    s[t] = is_exact(p.k_exact, k_index, token, cell0 + t) ? exact[t] : s[t];
                }
            }
            if (p.soft_cap != 0) {
                for (int t = 0; t < cells; ++t) {
                    s[t] = p.soft_cap * std::tanh(s[t]);
                }
            }
            if (mask_heads > 0) {
                read_mask(r, cell0, cells, mask);
                for (int t = 0; t < cells; ++t) {
                    s[t] += mask[t];
                }
            }
            for (int t = cells; t < kBlockCells; ++t) {
                s[t] = kMinusInfinity;
            }
            const float max = std::max(row_max[r], kernels->max_row(s));
            if (max == kMinusInfinity) {
                std::fill(s, s + kBlockCells, 0.0f);
                continue;
            }
            if (max > row_max[r]) {
                const float factor = row_max[r] == kMinusInfinity ? 0.0f : std::exp(row_max[r] - max);
                row_sum[r] *= factor;
                code_share[r] *= factor;
                kernels->scale(o_code + r * dv(), dv(), factor);
                kernels->scale(o_exact + r * dv(), dv(), factor);
                row_max[r] = max;
            }
            row_sum[r] += kernels->exp_row(s, max);
        }

        // s_code now holds the probabilities; the exact share moves to s_exact.
        if (use.v_exact) {
            for (int r = 0; r < rows; ++r) {
                float* code = s_code + r * kBlockCells;
                float* exact = s_exact + r * kBlockCells;
                for (int t = 0; t < kBlockCells; ++t) {
                    const bool e = t < cells && is_exact(p.v_exact, v_index, r / group, cell0 + t);
                    exact[t] = e ? code[t] : 0.0f;
                    code[t] = e ? 0.0f : code[t];
                }
            }
            load_exact(p.v_exact, v_index, cell0, cells, kv_head, dv());
            kernels->accumulate(s_exact, tile_exact, rows, dv(), o_exact);
        }
        if (use.v_code) {
            decode(v, cell0);
            for (int r = 0; r < rows; ++r) {
                const float* p_code = s_code + r * kBlockCells;
                for (int t = 0; t < kBlockCells; ++t) {
                    code_share[r] += p_code[t];
                }
            }
            kernels->accumulate(s_code, tile_code, rows, dv(), o_code);
        }
    }
    flush(end);

    for (int r = 0; r < rows; ++r) {
        float* code = o_code + r * dv();
        float* exact = o_exact + r * dv();
        v.codec().transform(kv_head).inverse_sum(code, code_share[r], code);
        for (int d = 0; d < dv(); ++d) {
            exact[d] += code[d];
        }
    }
    if (num_splits == 1) {
        finish_rows(row_max, row_sum, o_exact, tile, kv_head);
        return;
    }
    float* partial = reinterpret_cast<float*>(workspace) + piece * partial_floats();
    std::copy(row_max, row_max + rows, partial);
    std::copy(row_sum, row_sum + rows, partial + rows);
    std::copy(o_exact, o_exact + rows * dv(), partial + 2 * rows);
    if (splits_left[tile * num_kv_heads() + kv_head].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        merge(tile, kv_head, scratch);
    }
}

Result<AttentionTask> AttentionTask::create(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& p) {
    if (Status status = check_attention(k, v, stream, p); !status.ok()) {
        return status;
    }
    AttentionTask task;
    task.state_ = std::make_shared<State>();
    State& s = *task.state_;
    s.k = k;
    s.v = v;
    s.stream = stream;
    s.p = p;
    s.kernels = &cpu::tile_kernels();
    static const std::vector<float> norms = [] {
        std::vector<float> table(256);
        for (int i = 0; i < 256; ++i) {
            table[i] = decode_norm(static_cast<std::uint8_t>(i));
        }
        return table;
    }();
    s.norm_table = norms.data();
    s.group = p.num_qo_heads / k.codec().num_heads();
    s.tile_tokens = std::clamp(kTileRows / s.group, 1, p.num_tokens);
    s.num_tiles = (p.num_tokens + s.tile_tokens - 1) / s.tile_tokens;
    const int whole = (p.kv_len + kBlockCells - 1) / kBlockCells * kBlockCells;
    const int groups = s.num_tiles * s.num_kv_heads();
    s.split_cells = p.num_tokens <= kFewTokens ? std::min(cells_per_piece(p.kv_len, groups), whole) : whole;
    s.num_splits = (p.kv_len + s.split_cells - 1) / s.split_cells;
    for (int h = 0; h < p.num_qo_heads; ++h) {
        s.slopes.push_back(alibi_slope(p.alibi_max_bias, h, p.num_qo_heads));
    }
    s.splits_left = std::make_unique<std::atomic<int>[]>(groups);
    s.rows_left = std::make_unique<std::atomic<int>[]>(groups);
    for (int i = 0; i < groups; ++i) {
        s.splits_left[i] = s.num_splits;
        s.rows_left[i] = s.tile_rows();
    }
    s.exact_blocks.resize(whole / kBlockCells);
    for (const auto& list : {p.k_exact, p.v_exact}) {
        for (const ExactRow& row : list) {
            if (row.cell >= 0 && row.cell < p.kv_len) {
                s.exact_blocks[row.cell / kBlockCells] = 1;
            }
        }
    }
    const auto code_blocks = std::count(s.exact_blocks.begin(), s.exact_blocks.end(), 0);
    if (State::has_look_ups(k) && State::has_look_ups(v)) {
        s.fused =
            cpu::fused_kernels(State::side(k, 0), State::side(v, 0), s.tile_rows(), static_cast<int>(code_blocks) * kBlockCells);
    }
    return task;
}

const char* AttentionTask::method() const noexcept {
    return state_->fused != nullptr ? state_->fused->name : "tile";
}

std::size_t AttentionTask::workspace_bytes(int num_threads) const noexcept {
    const State& s = *state_;
    return sizeof(float) *
           (State::pad(s.partials_floats()) + s.shared_queries_floats() + num_threads * State::pad(s.scratch_floats()));
}

void AttentionTask::bind_workspace(std::byte* workspace) noexcept {
    state_->workspace = workspace;
}

void AttentionTask::run(int ith, int nth) noexcept {
    State& s = *state_;
    float* scratch = reinterpret_cast<float*>(s.workspace) + State::pad(s.partials_floats()) + s.shared_queries_floats() +
                     ith * State::pad(s.scratch_floats());
    for (int job = s.next_row.fetch_add(1); job < s.num_shared_rows(); job = s.next_row.fetch_add(1)) {
        const int group = job / s.tile_rows();  // of one tile and KV head
        const int tile = group / s.num_kv_heads();
        const int kv_head = group % s.num_kv_heads();
        const int row = job % s.tile_rows();
        if (tile * s.tile_tokens + row / s.group < s.p.num_tokens) {
            s.prepare_row(s.shared_queries(tile, kv_head), tile, kv_head, row);
        }
        s.rows_left[group].fetch_sub(1, std::memory_order_release);
    }
    // Each thread has a range of consecutive pieces, so that it can prefetch what it reads next; then it helps the others.
    const int queues = std::min(nth, State::kQueues);
    for (int i = 0; i < queues; ++i) {
        const int queue = (ith + i) % queues;
        const int begin = static_cast<int>(static_cast<std::int64_t>(s.num_pieces()) * queue / queues);
        const int end = static_cast<int>(static_cast<std::int64_t>(s.num_pieces()) * (queue + 1) / queues);
        for (int piece = begin + s.taken[queue].fetch_add(1); piece < end; piece = begin + s.taken[queue].fetch_add(1)) {
            s.run_piece(piece, piece + 1 < end ? piece + 1 : s.num_pieces(), scratch);
        }
    }
}

Status attention(const PackedCache& k, const PackedCache& v, int stream, const AttentionParams& params, int num_threads) {
    Result<AttentionTask> task = AttentionTask::create(k, v, stream, params);
    if (!task.ok()) {
        return task.status();
    }
    const int n = num_threads > 0 ? num_threads : std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::byte> memory(task->workspace_bytes(n) + 64);
    void* aligned = memory.data();
    std::size_t room = memory.size();
    task->bind_workspace(static_cast<std::byte*>(std::align(64, task->workspace_bytes(n), aligned, room)));
    std::vector<std::thread> threads;
    for (int i = 1; i < n; ++i) {
        threads.emplace_back([&task, i, n] { task->run(i, n); });
    }
    task->run(0, n);
    for (std::thread& t : threads) {
        t.join();
    }
    return {};
}

}  // namespace vecinfer
