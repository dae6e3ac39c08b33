#include "shift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace vecinfer::plugin {

namespace {

constexpr std::size_t kRowsAtOnce = 256;

struct ContextFree {
    void operator()(ggml_context* c) const { ggml_free(c); }
};

// Rows (over all streams) with a shift that is not 0.
std::vector<std::int64_t> shifted_rows(const ggml_tensor* rope) {
    const auto* shift = static_cast<const std::int32_t*>(rope->src[1]->data);
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < rope->ne[2]; ++i) {
        if (shift[i] != 0) {
            rows.push_back(i);
        }
    }
    return rows;
}

// One past the last of the next rows to do at once: at most kRowsAtOnce, of one stream, with no block of cells cut in two, so
// that groups of tokens are encoded as a whole.
std::size_t end_of_share(const std::vector<std::int64_t>& rows, std::size_t begin, std::int64_t num_cells) {
    const auto block = [&](std::size_t i) { return std::pair(rows[i] / num_cells, rows[i] % num_cells / kBlockCells); };
    std::size_t end = begin + 1;
    while (end < rows.size() && end < begin + kRowsAtOnce && block(end).first == block(begin).first) {
        ++end;
    }
    if (end < rows.size() && block(end) == block(end - 1)) {
        while (end > begin + 1 && block(end - 1) == block(end)) {
            --end;
        }
    }
    return end;
}

}  // namespace

void move_positions(const ggml_tensor* rope) {
    const auto* shift = static_cast<const std::int32_t*>(rope->src[1]->data);
    const std::vector<std::int64_t> rows = shifted_rows(rope);
    for (CacheTensor* cache : caches_beside(rope)) {
        const CacheGeometry& g = cache->geometry();
        cache->flush_imports();
        if (!cache->bound() || static_cast<std::int64_t>(g.num_cells) * g.num_streams != rope->ne[2]) {
            continue;
        }
        for (const std::int64_t row : rows) {
            cache->cache().move_position(static_cast<int>(row / g.num_cells), static_cast<int>(row % g.num_cells), shift[row]);
        }
    }
}

Status shift_keys(CacheTensor& cache, const ggml_tensor* rope, ggml_backend_t cpu) {
    const CacheGeometry& g = cache.geometry();
    const RowCodec& codec = cache.cache().codec();
    const std::int64_t head_dim = codec.head_dim();
    const std::int64_t num_heads = codec.num_heads();
    const auto* shift = static_cast<const std::int32_t*>(rope->src[1]->data);
    const std::size_t offset = rope->view_offs % root_of(rope)->nb[1] / sizeof(ggml_fp16_t);  // channels before the rotated ones
    if (rope->ne[1] != num_heads || rope->src[1]->type != GGML_TYPE_I32 ||
        offset + rope->ne[0] > static_cast<std::size_t>(head_dim)) {
        return {ErrorCode::unsupported,
                fmt::format("{}: this shape of K-shift is not supported; run without context shift", root_of(rope)->name)};
    }
    const std::vector<std::int64_t> rows = shifted_rows(rope);
    for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
        end = end_of_share(rows, begin, g.num_cells);
        const auto n = static_cast<std::int64_t>(end - begin);
        const std::unique_ptr<ggml_context, ContextFree> ctx(
            ggml_init({static_cast<std::size_t>(n * g.row_dim) * sizeof(float) + n * sizeof(std::int32_t) +
                           8 * ggml_tensor_overhead() + ggml_graph_overhead() + 1024,
                       nullptr, false}));
        if (ctx == nullptr) {
            return {ErrorCode::out_of_memory, "K-shift: out of memory"};
        }
        ggml_tensor* x = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, head_dim, num_heads, n);
        ggml_tensor* pos = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, n);
        for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t row = rows[begin + i];
            cache.cache().read_row(static_cast<int>(row / g.num_cells), static_cast<int>(row % g.num_cells),
                                   static_cast<float*>(x->data) + i * g.row_dim);
            static_cast<std::int32_t*>(pos->data)[i] = shift[row];
        }
        ggml_tensor* part = ggml_view_3d(ctx.get(), x, rope->ne[0], num_heads, n, x->nb[1], x->nb[2], offset * sizeof(float));
        ggml_tensor* rotated = ggml_rope_ext_inplace(ctx.get(), part, pos, rope->src[2], rope->op_params[1], rope->op_params[2],
                                                     0, 1.0f, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
        std::memcpy(rotated->op_params, rope->op_params, sizeof(rope->op_params));
        ggml_cgraph* graph = ggml_new_graph_custom(ctx.get(), 8, false);
        ggml_build_forward_expand(graph, rotated);
        if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS) {
            return {ErrorCode::unsupported, "K-shift: the CPU backend could not rotate keys"};
        }
        std::vector<std::int32_t> cells;
        for (std::int64_t i = 0; i < n; ++i) {
            cells.push_back(static_cast<std::int32_t>(rows[begin + i] % g.num_cells));
        }
        cache.cache().rewrite_rows(static_cast<int>(rows[begin] / g.num_cells), cells, static_cast<const float*>(x->data));
    }
    return {};
}

}  // namespace vecinfer::plugin
