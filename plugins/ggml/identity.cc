#include "identity.h"

#include <fmt/format.h>

#include <cstdio>
#include <mutex>
#include <unordered_set>

#include "buffer.h"

namespace vecinfer::plugin {

namespace {

std::mutex mutex;
std::unordered_set<const void*> verified;

// Layer of "blk.<N>.attn_norm.weight", or -1.
int norm_layer(const ggml_tensor* t) {
    int layer = -1;
    int end = 0;
    if (t->name[0] != 'b' || std::sscanf(t->name, "blk.%d.attn_norm.weight%n", &layer, &end) != 1 || end == 0 ||
        t->name[end] != '\0') {
        return -1;
    }
    return layer;
}

}  // namespace

Status check_identity(ggml_cgraph* graph) {
    const Config& config = plugin().config;
    if (config.sidecars.empty()) {
        return {};
    }
    const std::lock_guard lock(mutex);
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        const ggml_tensor* weight = node->op == GGML_OP_MUL ? node->src[1] : nullptr;
        if (weight == nullptr || weight->data == nullptr || weight->type != GGML_TYPE_F32 || verified.contains(weight->data)) {
            continue;
        }
        const int layer = norm_layer(weight);
        const ggml_backend_buffer_t buffer = root_of(weight)->buffer;
        if (layer < 0 || buffer == nullptr || (!is_our_buffer(buffer) && !ggml_backend_buffer_is_host(buffer))) {
            continue;
        }
        const std::uint64_t hash = hash64({static_cast<const std::byte*>(weight->data), ggml_nbytes(weight)});
        bool known = false;
        bool fits = false;
        for (const Sidecar& sidecar : config.sidecars) {
            const auto& hashes = sidecar.model.layer_hashes;
            const std::uint64_t expected = static_cast<std::size_t>(layer) < hashes.size() ? hashes[layer] : 0;
            known = known || expected != 0;
            fits = fits || expected == hash;
        }
        if (known && !fits) {
            return {ErrorCode::mismatch, fmt::format("VECINFER_CODEBOOKS: {} was calibrated on \"{}\" ({}), but the model that "
                                                     "runs is another one (layer {} has hash "
                                                     "{:016x}): calibrate this model, or set VECINFER_CODEBOOKS=none",
                                                     config.sidecar_paths.front(), config.sidecars.front().model.name,
                                                     config.sidecars.front().model.architecture, layer, hash)};
        }
        verified.insert(weight->data);
    }
    return {};
}

void forget_identities() {
    const std::lock_guard lock(mutex);
    verified.clear();
}

}  // namespace vecinfer::plugin
