#include "first_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <set>

#include "buffer.h"

namespace vecinfer::plugin {

namespace {

std::atomic<int> last_layer{-1};
std::atomic<bool> announced{false};

struct CacheSum {
    std::size_t bytes = 0;      // of one token in all layers
    std::size_t f16_bytes = 0;  // the same in f16
    std::set<int> layers;
    const Sidecar* sidecar = nullptr;
};

// Of the caches that `graph` writes, those that stay in f16 included.
CacheSum sum_caches(ggml_cgraph* graph) {
    CacheSum sum;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        const ggml_tensor* root = root_of(node);
        CacheName name;
        if (node->op != GGML_OP_SET_ROWS || !parse_cache_name(root, &name) || !is_our_buffer(root->buffer)) {
            continue;
        }
        const std::size_t f16_bytes = 2 * static_cast<std::size_t>(root->ne[0]);
        const CacheTensor* cache = cache_of(root);
        sum.layers.insert(name.layer);
        sum.f16_bytes += f16_bytes;
        sum.bytes += cache != nullptr ? cache->geometry().row_bytes() : f16_bytes;
        if (cache != nullptr && cache->sidecar() != nullptr) {
            sum.sidecar = cache->sidecar();
        }
    }
    return sum;
}

std::string codebooks_text(const Sidecar* sidecar) {
    const Config& config = plugin().config;
    for (std::size_t i = 0; i < config.sidecars.size(); ++i) {
        if (&config.sidecars[i] == sidecar) {
            return config.sidecar_paths[i];
        }
    }
    return learns(config.scheme) ? "data-free codebooks" : "no codebooks needed";
}

}  // namespace

void note_layer(const ggml_tensor* t) {
    CacheName cache;
    int layer = -1;
    if (parse_cache_name(t, &cache)) {
        layer = cache.layer;
    } else if (std::strncmp(t->name, "blk.", 4) != 0 || std::sscanf(t->name, "blk.%d.", &layer) != 1) {
        return;
    }
    int seen = last_layer.load();
    while (layer > seen && !last_layer.compare_exchange_weak(seen, layer)) {
    }
}

Status check_layer_ranges() {
    const int last = last_layer.load();
    return last < 0 ? Status() : check_layers(plugin().config.scheme, last + 1);
}

void announce(ggml_cgraph* graph) {
    const Config& config = plugin().config;
    if (config.quiet || announced.load()) {
        return;
    }
    const CacheSum sum = sum_caches(graph);
    if (sum.layers.empty() || announced.exchange(true)) {
        return;
    }
    std::fprintf(stderr, "vecinfer: %s, %s, %zu bytes per token in %zu %s (f16: %zu)\n", config.spelling.c_str(),
                 codebooks_text(sum.sidecar).c_str(), sum.bytes, sum.layers.size(), sum.layers.size() == 1 ? "layer" : "layers",
                 sum.f16_bytes);
}

}  // namespace vecinfer::plugin
