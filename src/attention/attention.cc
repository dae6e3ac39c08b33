// Checks, the cut of one call into pieces, queries, threads. piece.h walks the blocks of a piece.
//
// A piece is (query tile, KV head, context split). All query heads of a KV head are rows of one tile, so each code is decoded
// once per tile.
#include "vecinfer/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "attention/attention_state.h"
#include "attention/exactness.h"
#include "attention/piece.h"
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

constexpr int kTileRows = 192;   // query rows (tokens x heads of a group) that share a decoded tile
constexpr int kFewPieces = 16;   // pieces of a call to aim at while each is shorter than a run,
constexpr int kManyPieces = 64;  // and beyond
constexpr int kRunCells = kBlockCells * cpu::kRunBlocks;

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

}  // namespace

SideBooks AttentionTask::State::make_books(const RowCodec& codec) {
    SideBooks books;
    if (codec.spec().kind == CodecKind::vq) {
        books.per_head = codec.centroid_stride() == 0 ? 1 : codec.num_subspaces();
        for (int h = 0; h < codec.num_heads(); ++h) {
            for (int m = 0; m < books.per_head; ++m) {
                books.centroids.push_back(codec.codebook(h, m).centroids.data());
                books.scales.push_back(codec.codebook(h, m).scale);
            }
        }
    }
    return books;
}

cpu::FusedSide AttentionTask::State::side(const PackedCache& cache, const SideBooks& books, int kv_head) {
    const RowCodec& codec = cache.codec();
    const std::size_t first = static_cast<std::size_t>(kv_head) * books.per_head;
    cpu::FusedSide side{.sub_dim = codec.sub_dim(),
                        .code_bits = codec.code_bits(),
                        .num_subspaces = codec.num_subspaces(),
                        .norms = codec.has_norm(),
                        .book_step = books.per_head > 1 ? 1 : 0,
                        .books = books.centroids.data() + first,
                        .book_scales = books.scales.data() + first};
    if (books.per_head == 1) {
        const Codebook& book = codec.codebook(kv_head);
        side.scale = book.scale;
        side.by_channel = codec.centroids_by_channel(kv_head);
        side.planes = codec.centroid_planes(kv_head);
        side.centroids = book.centroids.data();
    }
    return side;
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
        fused->prepare(k_side(kv_head), code, row, queries.tables);
    }
}

void AttentionTask::State::look_at_mask_row(int token, int mask_head) const {
    const std::uint16_t* mask = p.mask + mask_head * p.mask_head_stride + token * p.mask_token_stride;
    std::atomic<std::uint8_t>* states = mask_states.get() + static_cast<std::ptrdiff_t>(token / tile_tokens) * num_blocks();
    for (int block = 0, cell = 0; cell < p.kv_len; ++block, cell += kBlockCells) {
        const auto state = static_cast<std::uint8_t>(kernels->mask_state(mask + cell, std::min(kBlockCells, p.kv_len - cell)));
        if ((states[block].load(std::memory_order_relaxed) & state) != state) {
            states[block].fetch_or(state, std::memory_order_relaxed);
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
    const int groups = s.num_tiles * s.num_kv_heads();
    s.split_cells = std::min(cells_per_piece(p.kv_len, groups), whole);
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
    if (s.mask_heads() > 0) {
        s.mask_states = std::make_unique<std::atomic<std::uint8_t>[]>(static_cast<std::size_t>(s.num_tiles) * s.num_blocks());
        s.masks_left = std::make_unique<std::atomic<int>[]>(s.num_tiles);
        for (int i = 0; i < s.num_tiles; ++i) {
            s.masks_left[i] = std::min(s.tile_tokens, p.num_tokens - i * s.tile_tokens) * s.mask_heads();
        }
    }
    const auto code_blocks = std::count(s.exact_blocks.begin(), s.exact_blocks.end(), 0);
    s.k_books = State::make_books(k.codec());
    s.v_books = State::make_books(v.codec());
    if (s.k_books.per_head > 0 && s.v_books.per_head > 0) {
        s.fused = cpu::fused_kernels(s.k_side(0), s.v_side(0), s.tile_rows(), static_cast<int>(code_blocks) * kBlockCells);
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
    for (int job = s.next_mask_row.fetch_add(1); job < s.num_mask_rows(); job = s.next_mask_row.fetch_add(1)) {
        const int token = job / s.mask_heads();
        s.look_at_mask_row(token, job % s.mask_heads());
        s.masks_left[token / s.tile_tokens].fetch_sub(1, std::memory_order_release);
    }
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
            State::Piece(s, piece, piece + 1 < end ? piece + 1 : s.num_pieces(), scratch).run();
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
