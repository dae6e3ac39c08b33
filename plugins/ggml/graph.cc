#include "graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "first_graph.h"
#include "identity.h"
#include "shift.h"

namespace vecinfer::plugin {

namespace {

// Mirrors ggml's private parameters of GGML_OP_CUSTOM.
struct CustomParams {
    ggml_custom_op_t fn;
    int n_tasks;
    void* userdata;
};
static_assert(sizeof(CustomParams) <= GGML_MAX_OP_PARAMS);

template <class T>
T* at(const ggml_tensor* t, std::int64_t i1, std::int64_t i2 = 0, std::int64_t i3 = 0) {
    return reinterpret_cast<T*>(static_cast<char*>(t->data) + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3]);
}

float op_param_f32(const ggml_tensor* t, int i) {
    float x;
    std::memcpy(&x, &t->op_params[i], sizeof(x));
    return x;
}

bool is_view_op(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

// Head size of the rows that SET_ROWS stores: llama.cpp flattens (head_dim, heads, tokens) right before it.
int head_dim_of_rows(const ggml_tensor* rows) {
    const ggml_tensor* heads = rows->op == GGML_OP_VIEW || rows->op == GGML_OP_RESHAPE ? rows->src[0] : nullptr;
    return heads != nullptr && heads->ne[0] * heads->ne[1] == rows->ne[0] ? static_cast<int>(heads->ne[0]) : 0;
}

}  // namespace

std::byte* Scratch::reserve(std::size_t bytes) {
    if (bytes + 64 > size_) {
        size_ = bytes + bytes / 4 + 64;
        memory_ = std::make_unique_for_overwrite<std::byte[]>(size_);
    }
    return memory_.get() + (64 - reinterpret_cast<std::uintptr_t>(memory_.get()) % 64) % 64;
}

GraphRun::Patch& GraphRun::patch(ggml_tensor* node) {
    Patch& p = patches_.emplace_back();
    p.run = this;
    p.node = node;
    p.op = node->op;
    std::memcpy(p.params, node->op_params, sizeof(p.params));
    return p;
}

// Positions are an input of the graph: RoPE's second source. Models without RoPE have none.
void GraphRun::find_positions() {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph_, i);
        if (node->op == GGML_OP_ROPE && node->src[1] != nullptr && cache_of(node) == nullptr) {
            const ggml_tensor* pos = node->src[1];
            if (pos->type == GGML_TYPE_I32 && is_view_op(pos->op) && pos->data != nullptr) {
                positions_ = pos;
                return;
            }
        }
    }
}

Status GraphRun::check_node(const ggml_tensor* node) const {
    for (const ggml_tensor* src : node->src) {
        if (src != nullptr && !is_view_op(node->op) && cache_of(src) != nullptr) {
            return {ErrorCode::unsupported,
                    fmt::format("{} ({}) reads the packed KV cache, which only flash attention can: run with -fa on",
                                ggml_op_name(node->op), node->name)};
        }
    }
    return {};
}

Status GraphRun::bind_head_sizes() {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph_, i);
        if (node->op == GGML_OP_FLASH_ATTN_EXT) {
            for (const ggml_tensor* side : {node->src[1], node->src[2]}) {
                if (CacheTensor* cache = cache_of(side)) {
                    if (Status status = cache->bind(static_cast<int>(side->ne[0])); !status.ok()) {
                        return status;
                    }
                    cache->flush_imports();
                }
            }
        } else if (node->op == GGML_OP_SET_ROWS) {
            CacheTensor* cache = cache_of(node);
            const int head_dim = cache != nullptr ? head_dim_of_rows(node->src[0]) : 0;
            if (head_dim > 0 && !cache->bound()) {
                if (Status status = cache->bind(head_dim); !status.ok()) {
                    return status;
                }
            }
            if (cache != nullptr) {
                cache->flush_imports();
            }
        }
    }
    return {};
}

Status GraphRun::plan() {
    try {
        if (Status status = check_identity(graph_); !status.ok()) {
            return status;
        }
        if (plugin().config.scheme.is_f16() && !capturing()) {
            return {};
        }
        if (Status status = check_layer_ranges(); !status.ok()) {
            return {status.code(), fmt::format("VECINFER_SCHEME: {}", status.message())};
        }
        find_positions();
        if (Status status = bind_head_sizes(); !status.ok()) {
            return status;
        }
        for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
            ggml_tensor* node = ggml_graph_node(graph_, i);
            Status status;
            if (capturing()) {
                status = plan_capture(i);
            } else if (node->op == GGML_OP_SET_ROWS && cache_of(node) != nullptr) {
                status = plan_write(node);
            } else if (node->op == GGML_OP_FLASH_ATTN_EXT && cache_of(node->src[1]) != nullptr) {
                status = plan_attention(node);
            } else if (node->op == GGML_OP_ROPE && cache_of(node) != nullptr) {
                status = plan_shift(node);
            } else {
                status = check_node(node);
            }
            if (!status.ok()) {
                return status;
            }
        }
        Status status = bind_workspaces();
        if (status.ok() && !capturing()) {
            announce(graph_);
        }
        return status;
    } catch (const std::bad_alloc&) {
        return {ErrorCode::out_of_memory, "planning a graph: out of memory"};
    }
}

Status GraphRun::plan_write(ggml_tensor* node) {
    CacheTensor* cache = cache_of(node);
    const ggml_tensor* rows = node->src[0];
    const ggml_tensor* index = node->src[1];
    const CacheGeometry& g = cache->geometry();
    if (rows->ne[0] != g.row_dim || rows->type != GGML_TYPE_F32 || index->type != GGML_TYPE_I64) {
        return {ErrorCode::unsupported,
                fmt::format("{}: got rows of {} values, expected {}: the value cache is transposed, run with -fa on",
                            root_of(node)->name, rows->ne[0], g.row_dim)};
    }
    if (!cache->bound()) {
        return {ErrorCode::unsupported, fmt::format("{}: the head size cannot be seen in the graph", root_of(node)->name)};
    }
    if (!is_view_op(index->op) || index->data == nullptr) {
        return {ErrorCode::unsupported, fmt::format("{}: cell indices are computed inside the graph", root_of(node)->name)};
    }
    const std::int64_t n = rows->ne[1];
    Write& write = writes_.emplace_back();
    write.cache = cache;
    const bool known = positions_ != nullptr && positions_->ne[0] >= n;
    for (std::int64_t i = 0; i < n; ++i) {
        write.positions.push_back(known ? static_cast<const std::int32_t*>(positions_->data)[i] : cache->next_position++);
    }
    const std::int64_t base = static_cast<std::int64_t>(node->view_offs / root_of(node)->nb[1]);
    for (std::int64_t i = 0; i < n;) {
        std::vector<std::int32_t> cells;
        const std::int64_t first = i;
        int stream = -1;
        for (; i < n; ++i) {
            const std::int64_t row =
                base + *reinterpret_cast<const std::int64_t*>(static_cast<const char*>(index->data) + i * index->nb[0]);
            if (stream >= 0 && row / g.num_cells != stream) {
                break;
            }
            stream = static_cast<int>(row / g.num_cells);
            cells.push_back(static_cast<std::int32_t>(row % g.num_cells));
            cache->forgive(row);
        }
        // Groups of tokens are planned from the rows that are in the window, which an earlier run of this batch has yet to write.
        for (const WritePlan& other : write.plans) {
            if (g.codec.groups_tokens() && other.stream == stream) {
                return {ErrorCode::unsupported,
                        fmt::format("{}: a batch that returns to stream {} after another one", root_of(node)->name, stream)};
            }
        }
        Result<WritePlan> plan = cache->cache().plan_write(
            stream, cells, std::span(write.positions).subspan(static_cast<std::size_t>(first), cells.size()));
        if (!plan.ok()) {
            return plan.status();
        }
        write.first_rows.push_back(static_cast<int>(first));
        write.plans.push_back(std::move(plan).value());
    }
    last_write_[cache] = &write;
    patch(node).write = &write;
    return {};
}

Status GraphRun::plan_attention(ggml_tensor* node) {
    CacheTensor* k = cache_of(node->src[1]);
    CacheTensor* v = cache_of(node->src[2]);
    if (v == nullptr || v == k) {
        return {ErrorCode::unsupported,
                fmt::format("{}: values are a view of keys (multi-head latent attention), which cannot be packed yet: "
                            "run with VECINFER_SCHEME=f16",
                            root_of(node->src[1])->name)};
    }
    if (node->src[1]->view_offs % root_of(node->src[1])->nb[2] != 0) {
        return {ErrorCode::unsupported, fmt::format("{}: attention over part of the cache", root_of(node->src[1])->name)};
    }
    Attend& attend = attends_.emplace_back();
    attend.k = k;
    attend.v = v;
    attend.first_stream = static_cast<int>(node->src[1]->view_offs / root_of(node->src[1])->nb[2]);
    patch(node).attend = &attend;
    return {};
}

Status GraphRun::plan_shift(ggml_tensor* node) {
    CacheTensor* cache = cache_of(node);
    if (!positions_moved_) {
        move_positions(node);
        positions_moved_ = true;
    }
    // A cache that is not bound was never written.
    if (Status status = cache->bound() ? shift_keys(*cache, node, cpu_) : Status(); !status.ok()) {
        return status;
    }
    patch(node);
    return {};
}

// Without a packed cache: nodes that store rows into an ordinary f16 cache of ours are done here, so that calibration sees the
// rows.
Status GraphRun::plan_capture(int index) {
    ggml_tensor* node = ggml_graph_node(graph_, index);
    CacheName name;
    if (node->op != GGML_OP_SET_ROWS || !parse_cache_name(root_of(node), &name)) {
        return {};
    }
    const int head_dim = head_dim_of_rows(node->src[0]);
    if (head_dim == 0 || node->src[1]->type != GGML_TYPE_I64 || node->src[0]->ne[0] != node->ne[0]) {
        return {ErrorCode::unsupported, fmt::format("{}: rows of this model cannot be captured", root_of(node)->name)};
    }
    CaptureRows rows{name.layer, name.side == Side::key ? 0 : 1, head_dim, nullptr, 0.0f};
    for (int i = index + 1; rows.side == 0 && i < ggml_graph_n_nodes(graph_); ++i) {
        const ggml_tensor* other = ggml_graph_node(graph_, i);
        if (other->op == GGML_OP_FLASH_ATTN_EXT && root_of(other->src[1]) == root_of(node)) {
            // Queries are computed before keys are stored; a graph that does it the other way round is not captured.
            const ggml_tensor* q = other->src[0];
            bool computed = false;
            for (int j = 0; j < index && !computed; ++j) {
                computed = ggml_graph_node(graph_, j) == root_of(q);
            }
            rows.queries = computed ? q : nullptr;
            rows.sm_scale = op_param_f32(other, 0);
            break;
        }
    }
    patch(node).capture = rows;
    return {};
}

Status GraphRun::bind_workspaces() {
    // Staged rows live until the graph ends: caches can be read by later layers.
    std::size_t staging = 0;
    for (Write& write : writes_) {
        for (const WritePlan& plan : write.plans) {
            staging += static_cast<std::size_t>(plan.staging_rows) * write.cache->geometry().row_dim;
        }
    }
    auto* rows = reinterpret_cast<std::uint16_t*>(staging > 0 ? staging_.reserve(staging * sizeof(std::uint16_t)) : nullptr);
    for (Write& write : writes_) {
        for (WritePlan& plan : write.plans) {
            plan.bind_staging(rows, write.cache->geometry().row_dim);
            rows += static_cast<std::size_t>(plan.staging_rows) * write.cache->geometry().row_dim;
        }
    }

    std::size_t bytes = 0;
    for (Patch& p : patches_) {
        if (p.attend == nullptr) {
            continue;
        }
        Attend& attend = *p.attend;
        const ggml_tensor* node = p.node;
        const ggml_tensor* q = node->src[0];
        const ggml_tensor* mask = node->src[3];
        for (std::int64_t s = 0; s < q->ne[3]; ++s) {
            const int stream = attend.first_stream + static_cast<int>(s);
            AttentionParams a;
            a.num_tokens = static_cast<int>(q->ne[1]);
            a.num_qo_heads = static_cast<int>(q->ne[2]);
            a.kv_len = static_cast<int>(node->src[1]->ne[1]);
            a.sm_scale = op_param_f32(node, 0);
            a.alibi_max_bias = op_param_f32(node, 1);
            a.soft_cap = op_param_f32(node, 2);
            a.q = at<const float>(q, 0, 0, s);
            a.q_token_stride = static_cast<std::ptrdiff_t>(q->nb[1] / sizeof(float));
            a.q_head_stride = static_cast<std::ptrdiff_t>(q->nb[2] / sizeof(float));
            a.out = at<float>(node, 0, 0, s);
            a.out_head_stride = static_cast<std::ptrdiff_t>(node->nb[1] / sizeof(float));
            a.out_token_stride = static_cast<std::ptrdiff_t>(node->nb[2] / sizeof(float));
            if (mask != nullptr) {
                a.mask = at<const std::uint16_t>(mask, 0, 0, s % mask->ne[3]);
                a.mask_token_stride = static_cast<std::ptrdiff_t>(mask->nb[1] / sizeof(std::uint16_t));
                a.mask_head_stride = static_cast<std::ptrdiff_t>(mask->nb[2] / sizeof(std::uint16_t));
                a.mask_heads = static_cast<int>(mask->ne[2]);
            }
            a.sinks = node->src[4] != nullptr ? static_cast<const float*>(node->src[4]->data) : nullptr;
            a.window = plugin().config.scheme.window;
            a.prefill = plugin().config.scheme.prefill;
            for (const auto& [cache, exact] : {std::pair(attend.k, &a.k_exact), std::pair(attend.v, &a.v_exact)}) {
                const auto it = last_write_.find(cache);
                const WritePlan* plan = nullptr;
                for (std::size_t i = 0; it != last_write_.end() && i < it->second->plans.size(); ++i) {
                    if (it->second->plans[i].stream == stream) {
                        plan = &it->second->plans[i];
                        if (cache == attend.k && plan->cells.size() == static_cast<std::size_t>(a.num_tokens)) {
                            a.positions = it->second->positions.data() + it->second->first_rows[i];
                        }
                    }
                }
                if (plan == nullptr) {
                    attend.windows.push_back(cache->cache().window(stream));
                }
                *exact =
                    plan != nullptr ? std::span<const ExactRow>(plan->exact) : std::span<const ExactRow>(attend.windows.back());
            }
            Result<AttentionTask> task = AttentionTask::create(attend.k->cache(), attend.v->cache(), stream, a);
            if (!task.ok()) {
                return {task.status().code(), fmt::format("{}: {}", node->name, task.status().message())};
            }
            bytes = std::max(bytes, task->workspace_bytes(num_threads_));
            attend.tasks.push_back(std::move(task).value());
        }
    }
    // Attention nodes run one after another, and so do the streams of one node on each thread: see run_attention.
    std::size_t streams = 1;
    for (const Attend& attend : attends_) {
        streams = std::max(streams, attend.tasks.size());
    }
    std::byte* workspace = workspace_.reserve(bytes * streams);
    for (Attend& attend : attends_) {
        for (std::size_t i = 0; i < attend.tasks.size(); ++i) {
            attend.tasks[i].bind_workspace(workspace + i * bytes);
        }
    }
    return {};
}

void GraphRun::run_write(const Write& write, const ggml_tensor* dst, int ith, int nth) {
    const ggml_tensor* rows = dst->src[0];
    const auto stride = static_cast<std::ptrdiff_t>(rows->nb[1] / sizeof(float));
    for (std::size_t i = 0; i < write.plans.size(); ++i) {
        write.cache->cache().write_rows(write.plans[i], static_cast<const float*>(rows->data) + write.first_rows[i] * stride,
                                        stride, ith, nth);
    }
}

namespace {

// A row whose import was refused must not be read: is it visible to any query?
bool reads_refused(const CacheTensor& cache, const ggml_tensor* node, int first_stream) {
    const ggml_tensor* mask = node->src[3];
    const int num_cells = cache.geometry().num_cells;
    for (const std::int64_t row : cache.refused()) {
        const std::int64_t stream = row / num_cells - first_stream;
        const std::int64_t cell = row % num_cells;
        if (stream < 0 || stream >= node->src[0]->ne[3] || cell >= node->src[1]->ne[1]) {
            continue;
        }
        if (mask == nullptr) {
            return true;
        }
        for (std::int64_t token = 0; token < node->src[0]->ne[1]; ++token) {
            if (at<const std::uint16_t>(mask, token, 0, stream % mask->ne[3])[cell] != 0xfc00) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace

void GraphRun::run_attention(Attend& attend, const ggml_tensor* dst, int ith, int nth) {
    if (ith == 0 && (reads_refused(*attend.k, dst, attend.first_stream) || reads_refused(*attend.v, dst, attend.first_stream))) {
        attend.refused = true;
    }
    for (AttentionTask& task : attend.tasks) {
        task.run(ith, nth);
    }
}

void GraphRun::run_patch(ggml_tensor* dst, int ith, int nth, void* userdata) {
    Patch& p = *static_cast<Patch*>(userdata);
    if (p.write != nullptr) {
        run_write(*p.write, dst, ith, nth);
    } else if (p.attend != nullptr) {
        // Workspaces were sized for num_threads_; pieces are claimed one by one, so the others do the work of a thread that stays
        // out.
        if (ith < p.run->num_threads_) {
            run_attention(*p.attend, dst, ith, nth);
        }
    } else if (p.capture.has_value() && ith == 0) {
        capture_write(*p.capture, dst);
    }
}

ggml_status GraphRun::compute() {
    for (Patch& p : patches_) {
        if (p.write == nullptr && p.attend == nullptr && !p.capture.has_value()) {
            p.node->op = GGML_OP_NONE;  // done while planning
            continue;
        }
        const CustomParams params{run_patch, GGML_N_TASKS_MAX, &p};
        p.node->op = GGML_OP_CUSTOM;
        std::memset(p.node->op_params, 0, sizeof(p.node->op_params));
        std::memcpy(p.node->op_params, &params, sizeof(params));
    }
    ggml_status status = ggml_backend_graph_compute(cpu_, graph_);
    for (Patch& p : patches_) {
        p.node->op = p.op;
        std::memcpy(p.node->op_params, p.params, sizeof(p.params));
    }
    for (Attend& attend : attends_) {
        if (attend.refused) {
            const CacheTensor& cache = attend.k->refused().empty() ? *attend.v : *attend.k;
            report_error(fmt::format("restored state: {}", cache.refusal()));
            status = GGML_STATUS_FAILED;
            break;
        }
    }
    return status;
}

}  // namespace vecinfer::plugin
