// KV cache tensors of llama.cpp: how they are recognised, and the packed cache behind each.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "host.h"
#include "vecinfer/cache.h"

namespace vecinfer::plugin {

enum class Side { key, value };

/// What a tensor's name and shape tell.
struct CacheName {
    Side side;
    int layer;
};

inline const ggml_tensor* root_of(const ggml_tensor* t) {
    return t->view_src != nullptr ? t->view_src : t;
}

/// Whether `t` is a whole cache tensor as llama.cpp names them before allocation: cache_k_l<N> or cache_v_l<N>.
bool parse_cache_name(const ggml_tensor* t, CacheName* name);

/// Packed cache behind one cache tensor. Codes come to life when the head size is known: from the sidecar, or from the first
/// graph.
class CacheTensor {
public:
    static Result<CacheTensor> create(const ggml_tensor* root, const CacheName& name, std::byte* memory);
    /// Bytes the packed form of `root` takes; an error if it cannot be packed.
    static Result<CacheGeometry> geometry_for(const ggml_tensor* root, const CacheName& name);

    /// Fixes the head size. Repeated calls must agree.
    Status bind(int head_dim);
    bool bound() const noexcept { return codec_ != nullptr; }
    PackedCache& cache() noexcept { return cache_; }
    Side side() const noexcept { return name_.side; }
    int layer() const noexcept { return name_.layer; }
    const CacheGeometry& geometry() const noexcept { return geometry_; }
    /// Sidecar in use, or null when data-free.
    const Sidecar* sidecar() const noexcept { return sidecar_; }

    /// Rows as llama.cpp saves and copies them: one nominal f16 row each. `row` counts over all streams.
    void export_rows(std::int64_t row, std::int64_t count, std::byte* out);
    /// Codecs that group tokens want the rows of a group together, but llama.cpp may bring them one by one: rows of incomplete
    /// groups wait until flush_imports, which whoever reads or writes the cache calls first.
    void import_rows(std::int64_t row, std::int64_t count, const std::byte* in);
    void flush_imports();
    void clear(std::uint8_t value);

    /// Rows whose import was refused, with the reason. They may not be read until they are written again.
    const std::set<std::int64_t>& refused() const noexcept { return refused_; }
    const std::string& refusal() const noexcept { return refusal_; }
    void forgive(std::int64_t row) { refused_.erase(row); }

    /// Stand-in positions for models without RoPE: the order of writing.
    std::int32_t next_position = 0;

private:
    void import_now(std::int64_t row, const std::byte* in);
    void import_groups(bool complete_only);

    CacheName name_{};
    CacheGeometry geometry_;
    std::byte* memory_ = nullptr;
    const Sidecar* sidecar_ = nullptr;
    const LayerCalibration* calibration_ = nullptr;
    std::unique_ptr<RowCodec> codec_;
    PackedCache cache_;
    std::map<std::int64_t, std::vector<std::byte>> pending_;  // imports that wait for the head size or their group
    std::set<std::int64_t> refused_;
    std::string refusal_;
};

}  // namespace vecinfer::plugin
