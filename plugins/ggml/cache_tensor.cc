#include "cache_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace vecinfer::plugin {

namespace {

// The calibration whose layer has this row width; the first sidecar that fits wins.
struct Match {
    const Sidecar* sidecar = nullptr;
    const LayerCalibration* layer = nullptr;
};

int row_dim_of(const LayerShape& shape, Side side) {
    return shape.num_kv_heads * (side == Side::key ? shape.head_dim_k : shape.head_dim_v);
}

Result<Match> find_calibration(const CacheName& name, int row_dim) {
    const Config& config = plugin().config;
    std::string seen;
    for (std::size_t i = 0; i < config.sidecars.size(); ++i) {
        for (const LayerCalibration& layer : config.sidecars[i].layers) {
            if (layer.shape.layer != name.layer) {
                continue;
            }
            if (row_dim_of(layer.shape, name.side) == row_dim) {
                return Match{&config.sidecars[i], &layer};
            }
            seen += fmt::format("{} is for {} KV heads of {} in layer {}; ", config.sidecar_paths[i], layer.shape.num_kv_heads,
                                name.side == Side::key ? layer.shape.head_dim_k : layer.shape.head_dim_v, name.layer);
        }
    }
    if (config.sidecars.empty()) {
        return Match{};
    }
    return Status{
        ErrorCode::mismatch,
        fmt::format("VECINFER_CODEBOOKS: no codebooks for layer {} with {} channels per token ({}the model's cache needs them; "
                    "calibrate this model, or set VECINFER_CODEBOOKS=none)",
                    name.layer, row_dim, seen)};
}

}  // namespace

bool parse_cache_name(const ggml_tensor* t, CacheName* name) {
    if (t == nullptr || t->view_src != nullptr || t->op != GGML_OP_NONE) {
        return false;
    }
    const char* s = t->name;
    if (std::strncmp(s, "cache_k_l", 9) != 0 && std::strncmp(s, "cache_v_l", 9) != 0) {
        return false;
    }
    const char* digits = s + 9;
    const std::size_t n = std::strspn(digits, "0123456789");
    if (n == 0 || n > 6 || digits[n] != '\0') {
        return false;  // "cache_k_l0 (view) (copy)" is not a cache
    }
    if (name != nullptr) {
        *name = {s[6] == 'k' ? Side::key : Side::value, std::atoi(digits)};
    }
    return true;
}

Result<CacheGeometry> CacheTensor::geometry_for(const ggml_tensor* root, const CacheName& name) {
    const Scheme scheme = scheme_of_layer(plugin().config.scheme, name.layer);
    const CodecSpec& spec = name.side == Side::key ? scheme.key : scheme.value;
    CacheGeometry g;
    if (root->type != GGML_TYPE_F16) {
        return Status{ErrorCode::unsupported,
                      fmt::format("{}: got a {} cache, expected f16: run without -ctk and -ctv, or set VECINFER_SCHEME=f16",
                                  root->name, ggml_type_name(root->type))};
    }
    g.row_dim = static_cast<int>(root->ne[0]);
    g.codec = spec;
    g.num_cells = static_cast<int>(root->ne[1]);
    g.num_streams = static_cast<int>(root->ne[2]);
    g.window = scheme.window;
    if (g.row_dim < 64 || g.row_dim % 16 != 0) {
        return Status{
            ErrorCode::unsupported,
            fmt::format("{}: got {} channels per token, expected a multiple of 16, at least 64; this model's heads are too small "
                        "to pack (VECINFER_SCHEME=f16 runs it)",
                        root->name, g.row_dim)};
    }
    Result<Match> match = find_calibration(name, g.row_dim);
    if (!match.ok()) {
        return match.status();
    }
    g.norm = scheme.norm == Norm::vector && spec.kind == CodecKind::vq;
    g.num_heads = match->layer != nullptr ? match->layer->shape.num_kv_heads : (g.row_dim + 63) / 64;
    return g;
}

Result<CacheTensor> CacheTensor::create(const ggml_tensor* root, const CacheName& name, std::byte* memory) {
    Result<CacheGeometry> geometry = geometry_for(root, name);
    if (!geometry.ok()) {
        return geometry.status();
    }
    Result<Match> match = find_calibration(name, geometry->row_dim);
    CacheTensor tensor;
    tensor.name_ = name;
    tensor.geometry_ = geometry.value();
    tensor.memory_ = memory;
    tensor.sidecar_ = match->sidecar;
    tensor.calibration_ = match->layer;
    if (match->layer != nullptr) {
        const LayerShape& shape = match->layer->shape;
        if (Status status = tensor.bind(name.side == Side::key ? shape.head_dim_k : shape.head_dim_v); !status.ok()) {
            return status;
        }
    }
    return tensor;
}

Status CacheTensor::bind(int head_dim) {
    const char side = name_.side == Side::key ? 'k' : 'v';
    if (codec_ != nullptr) {
        if (codec_->head_dim() == head_dim) {
            return {};
        }
        return {ErrorCode::mismatch,
                fmt::format("cache_{}_l{}: got heads of {} channels, expected {} as {}", side, name_.layer, head_dim,
                            codec_->head_dim(), sidecar_ != nullptr ? "the codebooks have" : "before")};
    }
    if (head_dim < 16 || geometry_.row_dim % head_dim != 0) {
        return {ErrorCode::unsupported,
                fmt::format("cache_{}_l{}: got heads of {} channels in rows of {}, expected head sizes of 64 to 256 "
                            "(VECINFER_SCHEME=f16 runs this model)",
                            side, name_.layer, head_dim, geometry_.row_dim)};
    }
    if (head_dim < 64 && calibration_ == nullptr) {
        return {ErrorCode::unsupported,
                fmt::format("cache_{}_l{}: got heads of {} channels, expected 64 to 256 without a calibration: "
                            "calibrate the model, or set VECINFER_SCHEME=f16",
                            side, name_.layer, head_dim)};
    }
    const LayerShape shape{name_.layer, geometry_.row_dim / head_dim, head_dim, head_dim};
    const LayerShape& wanted = calibration_ != nullptr ? calibration_->shape : shape;
    const Scheme& scheme = plugin().config.scheme;
    Result<RowCodec> codec =
        name_.side == Side::key ? make_key_codec(scheme, wanted, calibration_) : make_value_codec(scheme, wanted, calibration_);
    if (!codec.ok()) {
        return codec.status();
    }
    auto owned = std::make_unique<RowCodec>(std::move(codec).value());
    Result<PackedCache> cache = PackedCache::create(geometry_, owned.get(), memory_);
    if (!cache.ok()) {
        return cache.status();
    }
    codec_ = std::move(owned);
    cache_ = cache.value();
    for (const auto& [row, bytes] : std::exchange(pending_, {})) {
        import_now(row, bytes.data());
    }
    flush_imports();
    return {};
}

void CacheTensor::flush_imports() {
    if (bound() && !pending_.empty()) {
        import_groups(false);
    }
}

void CacheTensor::import_groups(bool complete_only) {
    const std::int64_t group = geometry_.codec.group;
    const std::int64_t num_cells = geometry_.num_cells;
    for (auto begin = pending_.begin(); begin != pending_.end();) {
        const std::int64_t stream = begin->first / num_cells;
        const std::int64_t first = begin->first % num_cells / group * group;
        const std::int64_t size = std::min(group, num_cells - first);
        std::vector<std::int32_t> cells;
        std::vector<std::byte> rows;
        auto end = begin;
        for (; end != pending_.end() && end->first < stream * num_cells + first + size; ++end) {
            cells.push_back(static_cast<std::int32_t>(end->first % num_cells));
            rows.insert(rows.end(), end->second.begin(), end->second.end());
        }
        if (complete_only && static_cast<std::int64_t>(cells.size()) < size) {
            begin = end;
            continue;
        }
        // Every row was checked when it came, so only running out of memory could be reported here.
        if (const Status status = cache_.import_rows(static_cast<int>(stream), cells, rows.data()); !status.ok()) {
            for (const std::int32_t cell : cells) {
                refused_.insert(stream * num_cells + cell);
            }
            refusal_ = status.message();
        }
        begin = pending_.erase(begin, end);
    }
}

void CacheTensor::export_rows(std::int64_t row, std::int64_t count, std::byte* out) {
    const std::size_t nominal = static_cast<std::size_t>(geometry_.row_dim) * 2;
    flush_imports();
    for (std::int64_t i = row; i < row + count; ++i, out += nominal) {
        const auto it = pending_.find(i);
        if (bound()) {
            cache_.export_row(static_cast<int>(i / geometry_.num_cells), static_cast<int>(i % geometry_.num_cells), out);
        } else if (it != pending_.end()) {
            std::copy(it->second.begin(), it->second.end(), out);
        } else {
            std::fill(out, out + nominal, std::byte{0});
        }
    }
}

void CacheTensor::import_rows(std::int64_t row, std::int64_t count, const std::byte* in) {
    const std::size_t nominal = static_cast<std::size_t>(geometry_.row_dim) * 2;
    for (std::int64_t i = row; i < row + count; ++i, in += nominal) {
        if (bound()) {
            import_now(i, in);
        } else {
            pending_[i].assign(in, in + nominal);
        }
    }
    if (bound() && !pending_.empty()) {
        import_groups(true);
    }
}

void CacheTensor::import_now(std::int64_t row, const std::byte* in) {
    const bool waits = geometry_.codec.groups_tokens();
    const Status status =
        waits ? cache_.check_row(in)
              : cache_.import_row(static_cast<int>(row / geometry_.num_cells), static_cast<int>(row % geometry_.num_cells), in);
    if (status.ok() && waits) {
        pending_[row].assign(in, in + static_cast<std::ptrdiff_t>(geometry_.row_dim) * 2);
    }
    if (status.ok()) {
        refused_.erase(row);
    } else {
        refused_.insert(row);
        refusal_ = status.message();
    }
}

void CacheTensor::clear(std::uint8_t value) {
    std::memset(memory_, value, geometry_.total_bytes());
    pending_.clear();
    refused_.clear();
    next_position = 0;
}

}  // namespace vecinfer::plugin
