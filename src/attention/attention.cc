// Checks, the cut of one call into pieces, and the online softmax over tiles. Tile math lives in attention/cpu.
//
// A piece is (query tile, KV head, context split). All query heads of a KV head are rows of one tile, so each code is decoded
// once per tile. Every tile has two readings: codes (with transformed queries) and, where rows are at hand in f16, exact rows.
// Which one a (query, cell) pair uses is decided by position; scores are picked per pair and values are summed in two
// accumulators, because codes live in the transformed value space.
#include "vecinfer/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "attention/cpu/tile.h"
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

constexpr int kTileRows = 48;      // query rows (tokens x heads of a group) that share a decoded tile
constexpr int kSplitCells = 1024;  // context per piece when there are few rows; a multiple of kBlockCells
constexpr int kFewRows = 16;       // at most this many rows in total per KV head: split the context
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

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

}  // namespace

struct AttentionTask::State {
    PackedCache k;
    PackedCache v;
    int stream = 0;
    AttentionParams p;
    const cpu::TileKernels* kernels = nullptr;
    const float* norm_table = nullptr;

    int group = 1;        // query heads per KV head
    int tile_tokens = 1;  // query tokens per tile
    int num_tiles = 1;    // query tiles
    int num_splits = 1;
    int split_cells = 0;
    std::vector<float> slopes;  // [num_qo_heads]

    std::byte* workspace = nullptr;
    std::atomic<int> next_piece{0};
    std::unique_ptr<std::atomic<int>[]> splits_left;  // per (tile, KV head)

    int dk() const { return k.codec().head_dim(); }
    int dv() const { return v.codec().head_dim(); }
    int num_kv_heads() const { return k.codec().num_heads(); }
    int tile_rows() const { return tile_tokens * group; }
    int num_pieces() const { return num_tiles * num_kv_heads() * num_splits; }

    // Partial result of one piece: per row max, sum and dv outputs (original space).
    std::size_t partial_floats() const { return static_cast<std::size_t>(tile_rows()) * (2 + dv()); }
    std::size_t partials_floats() const { return num_splits == 1 ? 0 : num_pieces() * partial_floats(); }
    std::size_t scratch_floats() const {
        const std::size_t rows = tile_rows();
        return rows * (2 * dk() + 2 * dv() + 2 * kBlockCells + 4) +
               2 * static_cast<std::size_t>(kBlockCells) * std::max(dk(), dv()) + kBlockCells +
               2 * static_cast<std::size_t>(split_cells) + 64;
    }

    void run_piece(int piece, float* scratch);
    void finish_rows(const float* max, const float* sum, const float* out, int tile, int kv_head) const;
    void merge(int tile, int kv_head, float* scratch) const;
};

namespace {

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

void AttentionTask::State::run_piece(int piece, float* scratch) {
    const int split = piece % num_splits;
    const int kv_head = piece / num_splits % num_kv_heads();
    const int tile = piece / num_splits / num_kv_heads();
    const int token0 = tile * tile_tokens;
    const int tokens = std::min(tile_tokens, p.num_tokens - token0);
    const int rows = tokens * group;
    const int begin = split * split_cells;
    const int end = std::min(begin + split_cells, p.kv_len);
    const Exactness exactness{p};

    float* q_exact = scratch;
    float* q_code = q_exact + rows * dk();
    float* s_exact = q_code + rows * dk();
    float* s_code = s_exact + rows * kBlockCells;
    float* mask = s_code + rows * kBlockCells;  // of the row in work
    float* o_exact = mask + kBlockCells;
    float* o_code = o_exact + rows * dv();
    float* row_max = o_code + rows * dv();
    float* row_sum = row_max + rows;
    float* k_bias = row_sum + rows;     // what scores over codes lack when keys are centered
    float* code_share = k_bias + rows;  // sum of the probabilities whose values come from codes
    float* tile_code = code_share + rows;
    float* tile_exact = tile_code + kBlockCells * std::max(dk(), dv());
    auto* k_index = reinterpret_cast<std::int32_t*>(tile_exact + kBlockCells * std::max(dk(), dv()));
    auto* v_index = k_index + split_cells;

    const float score_scale = p.soft_cap != 0 ? p.sm_scale / p.soft_cap : p.sm_scale;
    for (int r = 0; r < rows; ++r) {
        const float* q = p.q + (token0 + r / group) * p.q_token_stride + (kv_head * group + r % group) * p.q_head_stride;
        for (int d = 0; d < dk(); ++d) {
            q_exact[r * dk() + d] = q[d] * score_scale;
        }
        k.codec().transform(kv_head).forward_query(q_exact + r * dk(), q_code + r * dk());
        k_bias[r] = k.codec().transform(kv_head).query_bias(q_exact + r * dk());
        code_share[r] = 0;
        row_max[r] = kMinusInfinity;
        row_sum[r] = 0;
    }
    std::fill(o_exact, o_exact + rows * dv(), 0.0f);
    std::fill(o_code, o_code + rows * dv(), 0.0f);
    index_exact(p.k_exact, begin, end, k_index);
    index_exact(p.v_exact, begin, end, v_index);

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

    for (int cell0 = begin; cell0 < end; cell0 += kBlockCells) {
        const int cells = std::min(kBlockCells, end - cell0);
        const int mask_heads = p.mask != nullptr ? p.mask_heads : 0;
        bool any_visible = false;
        bool k_code = false;
        bool k_exact = false;
        bool v_code = false;
        bool v_exact = false;
        for (int token = 0; token < tokens; ++token) {
            for (int t = 0; t < cells; ++t) {
                bool visible = mask_heads == 0;
                for (int m = 0; m < mask_heads && !visible; ++m) {
                    visible =
                        p.mask[m * p.mask_head_stride + (token0 + token) * p.mask_token_stride + cell0 + t] != kF16MinusInfinity;
                }
                if (visible) {
                    any_visible = true;
                    (is_exact(p.k_exact, k_index, token, cell0 + t) ? k_exact : k_code) = true;
                    (is_exact(p.v_exact, v_index, token, cell0 + t) ? v_exact : v_code) = true;
                }
            }
        }
        if (!any_visible) {
            continue;
        }

        if (k_code) {
            decode(k, cell0);
            kernels->scores(q_code, tile_code, rows, dk(), s_code);
        }
        if (k_exact) {
            load_exact(p.k_exact, k_index, cell0, cells, kv_head, dk());
            kernels->scores(q_exact, tile_exact, rows, dk(), s_exact);
        }
        for (int r = 0; r < rows; ++r) {
            float* s = s_code + r * kBlockCells;
            const float* exact = s_exact + r * kBlockCells;
            const int token = r / group;
            for (int t = 0; k_code && t < cells; ++t) {
                s[t] += k_bias[r];
            }
            if (!k_code) {
                std::copy(exact, exact + kBlockCells, s);
            } else if (k_exact) {
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
                const int head = kv_head * group + r % group;
                kernels->from_f16(
                    p.mask + head % mask_heads * p.mask_head_stride + (token0 + token) * p.mask_token_stride + cell0, cells,
                    mask);
                for (int t = 0; t < cells; ++t) {
                    s[t] += slopes[head] * mask[t];
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
        if (v_exact) {
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
        if (v_code) {
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

// Always in split order, so that the result does not depend on which thread came last.
void AttentionTask::State::merge(int tile, int kv_head, float* scratch) const {
    const int rows = std::min(tile_tokens, p.num_tokens - tile * tile_tokens) * group;
    float* max = scratch;
    float* sum = max + rows;
    float* out = sum + rows;
    std::fill(max, max + rows, kMinusInfinity);
    std::fill(sum, sum + rows + rows * dv(), 0.0f);
    for (int split = 0; split < num_splits; ++split) {
        const float* partial = reinterpret_cast<const float*>(workspace) +
                               ((tile * num_kv_heads() + kv_head) * num_splits + split) * partial_floats();
        for (int r = 0; r < rows; ++r) {
            const float m = std::max(max[r], partial[r]);
            if (m == kMinusInfinity) {
                continue;
            }
            const float a = max[r] == kMinusInfinity ? 0.0f : std::exp(max[r] - m);
            const float b = partial[r] == kMinusInfinity ? 0.0f : std::exp(partial[r] - m);
            const float* o = partial + 2 * rows + r * dv();
            sum[r] = sum[r] * a + partial[rows + r] * b;
            for (int d = 0; d < dv(); ++d) {
                out[r * dv() + d] = out[r * dv() + d] * a + o[d] * b;
            }
            max[r] = m;
        }
    }
    finish_rows(max, sum, out, tile, kv_head);
}

void AttentionTask::State::finish_rows(const float* max, const float* sum, const float* out, int tile, int kv_head) const {
    const int token0 = tile * tile_tokens;
    const int rows = std::min(tile_tokens, p.num_tokens - token0) * group;
    for (int r = 0; r < rows; ++r) {
        const int token = token0 + r / group;
        const int head = kv_head * group + r % group;
        float m = max[r];
        float total = sum[r];
        float factor = 1.0f;
        if (p.sinks != nullptr) {
            const float with_sink = std::max(m, p.sinks[head]);
            factor = m == kMinusInfinity ? 0.0f : std::exp(m - with_sink);
            total = total * factor + std::exp(p.sinks[head] - with_sink);
            m = with_sink;
        }
        const float inv = total > 0 ? factor / total : 0.0f;
        float* y = p.out + token * p.out_token_stride + head * p.out_head_stride;
        for (int d = 0; d < dv(); ++d) {
            y[d] = out[r * dv() + d] * inv;
        }
        if (p.lse != nullptr) {
            p.lse[token * p.num_qo_heads + head] = total > 0 ? m + std::log(total) : kMinusInfinity;
        }
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
    s.split_cells = p.num_tokens * s.group <= kFewRows ? std::min(kSplitCells, whole) : whole;
    s.num_splits = (p.kv_len + s.split_cells - 1) / s.split_cells;
    for (int h = 0; h < p.num_qo_heads; ++h) {
        s.slopes.push_back(alibi_slope(p.alibi_max_bias, h, p.num_qo_heads));
    }
    const int groups = s.num_tiles * s.num_kv_heads();
    s.splits_left = std::make_unique<std::atomic<int>[]>(groups);
    for (int i = 0; i < groups; ++i) {
        s.splits_left[i] = s.num_splits;
    }
    return task;
}

std::size_t AttentionTask::workspace_bytes(int num_threads) const noexcept {
    const State& s = *state_;
    return sizeof(float) * (layout::align64(s.partials_floats()) + num_threads * layout::align64(s.scratch_floats()));
}

void AttentionTask::bind_workspace(std::byte* workspace) noexcept {
    state_->workspace = workspace;
}

void AttentionTask::run(int ith, int) noexcept {
    State& s = *state_;
    float* scratch =
        reinterpret_cast<float*>(s.workspace) + layout::align64(s.partials_floats()) + ith * layout::align64(s.scratch_floats());
    for (int piece = s.next_piece.fetch_add(1); piece < s.num_pieces(); piece = s.next_piece.fetch_add(1)) {
        s.run_piece(piece, scratch);
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
