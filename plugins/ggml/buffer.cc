#include "buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <unordered_map>

#include "first_graph.h"
#include "identity.h"

namespace vecinfer::plugin {

namespace {

struct BufferContext {
    void* base = nullptr;
    std::size_t mapped = 0;                               // bytes to unmap; 0 if the memory is not ours
    bool untouched = true;                                // fresh pages are zero already
    std::unordered_map<const void*, CacheTensor> caches;  // by tensor data
};

BufferContext& context(ggml_backend_buffer_t buffer) {
    return *static_cast<BufferContext*>(buffer->context);
}

void free_buffer(ggml_backend_buffer_t buffer) {
    BufferContext* c = &context(buffer);
    if (c->mapped > 0) {
        munmap(c->base, c->mapped);
    }
    delete c;
    forget_identities();
}

void* get_base(ggml_backend_buffer_t buffer) {
    return context(buffer).base;
}

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor* t) {
    CacheName name;
    note_layer(t);
    if (!parse_cache_name(t, &name) || plugin().config.scheme.is_f16(name.layer)) {
        return GGML_STATUS_SUCCESS;
    }
    Result<CacheTensor> cache = CacheTensor::create(t, name, static_cast<std::byte*>(t->data));
    if (!cache.ok()) {
        report_error(cache.status().message());
        return GGML_STATUS_ALLOC_FAILED;
    }
    context(buffer).caches.insert_or_assign(t->data, std::move(cache).value());
    return GGML_STATUS_SUCCESS;
}

// Transfers of a cache are whole nominal f16 rows: that is all llama.cpp asks for (state, sequence copies).
struct RowRange {
    std::int64_t first;
    std::int64_t count;
    bool whole;
};

RowRange row_range(const ggml_tensor* t, std::size_t offset, std::size_t size) {
    const std::size_t nominal = root_of(t)->nb[1];
    const std::size_t begin = (t->view_src != nullptr ? t->view_offs : 0) + offset;
    return {static_cast<std::int64_t>(begin / nominal), static_cast<std::int64_t>(size / nominal),
            begin % nominal == 0 && size % nominal == 0};
}

void memset_tensor(ggml_backend_buffer_t, ggml_tensor* t, std::uint8_t value, std::size_t offset, std::size_t size) {
    if (CacheTensor* cache = cache_of(t)) {
        const RowRange rows = row_range(t, offset, size);
        if (value == 0 && rows.first == 0 && rows.count == ggml_nrows(root_of(t))) {
            cache->clear(0);
        } else {
            report_error(fmt::format("{}: filling part of a packed cache is not supported", t->name));
        }
        return;
    }
    std::memset(static_cast<char*>(t->data) + offset, value, size);
}

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor* t, const void* data, std::size_t offset, std::size_t size) {
    context(buffer).untouched = false;
    if (CacheTensor* cache = cache_of(t)) {
        const RowRange rows = row_range(t, offset, size);
        if (rows.whole) {
            cache->import_rows(rows.first, rows.count, static_cast<const std::byte*>(data));
        } else {
            report_error(fmt::format("{}: writing part of a packed row is not supported", t->name));
        }
        return;
    }
    std::memcpy(static_cast<char*>(t->data) + offset, data, size);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor* t, void* data, std::size_t offset, std::size_t size) {
    if (CacheTensor* cache = cache_of(t)) {
        const RowRange rows = row_range(t, offset, size);
        std::memset(data, 0, size);
        if (rows.whole) {
            cache->export_rows(rows.first, rows.count, static_cast<std::byte*>(data));
        } else {
            report_error(fmt::format("{}: reading part of a packed row is not supported", t->name));
        }
        return;
    }
    std::memcpy(data, static_cast<const char*>(t->data) + offset, size);
}

// Stream to stream within one cache is a copy of packed bytes; everything else that touches a cache goes through get and set.
bool copy_tensor(ggml_backend_buffer_t, const ggml_tensor* src, ggml_tensor* dst) {
    CacheTensor* from = cache_of(src);
    CacheTensor* to = cache_of(dst);
    if (from == nullptr && to == nullptr) {
        const ggml_backend_buffer_t b = root_of(src)->buffer;
        if (ggml_backend_buffer_is_host(b) || is_our_buffer(b)) {
            std::memcpy(dst->data, src->data, ggml_nbytes(src));
            return true;
        }
        return false;
    }
    if (from == nullptr || from != to || !from->bound()) {
        return false;
    }
    const RowRange a = row_range(src, 0, ggml_nbytes(src));
    const RowRange b = row_range(dst, 0, ggml_nbytes(dst));
    const int cells = from->geometry().num_cells;
    if (a.count != cells || b.count != cells || a.first % cells != 0 || b.first % cells != 0 || !from->refused().empty()) {
        return false;
    }
    from->flush_imports();
    from->cache().copy_stream(static_cast<int>(a.first / cells), static_cast<int>(b.first / cells));
    return true;
}

void clear(ggml_backend_buffer_t buffer, std::uint8_t value) {
    BufferContext& c = context(buffer);
    if (value == 0 && c.untouched) {
        return;
    }
    std::memset(c.base, value, buffer->size);
    for (auto& [data, cache] : c.caches) {
        cache.clear(value);
    }
}

ggml_backend_buffer_i buffer_interface() {
    ggml_backend_buffer_i i{};
    i.free_buffer = free_buffer;
    i.get_base = get_base;
    i.init_tensor = init_tensor;
    i.memset_tensor = memset_tensor;
    i.set_tensor = set_tensor;
    i.get_tensor = get_tensor;
    i.cpy_tensor = copy_tensor;
    i.clear = clear;
    return i;
}

std::size_t available_memory() {
    std::ifstream in("/proc/meminfo");
    std::string key;
    std::size_t kib = 0;
    while (in >> key >> kib) {
        if (key == "MemAvailable:") {
            return kib * 1024;
        }
        in.ignore(64, '\n');
    }
    return SIZE_MAX;
}

const char* type_name(ggml_backend_buffer_type_t) {
    return "VecInfer";
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
    if (!plugin().config_status.ok()) {
        report_error(plugin().config_status.message());
        return nullptr;
    }
    auto c = std::make_unique<BufferContext>();
    if (size > 0) {
        const std::size_t available = available_memory();
        if (size > available) {
            report_error(fmt::format("allocation of {:.1f} MiB: got {:.1f} MiB of available memory; use a shorter context",
                                     size / 1048576.0, available / 1048576.0));
            return nullptr;
        }
        void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            report_error(fmt::format("allocation of {:.1f} MiB failed: {}", size / 1048576.0, std::strerror(errno)));
            return nullptr;
        }
        madvise(p, size, MADV_HUGEPAGE);
        c->base = p;
        c->mapped = size;
    }
    return ggml_backend_buffer_init(type, buffer_interface(), c.release(), size);
}

std::size_t alignment(ggml_backend_buffer_type_t) {
    return 64;
}

std::size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor* t) {
    CacheName name;
    if (parse_cache_name(t, &name) && !plugin().config.scheme.is_f16(name.layer)) {
        Result<CacheGeometry> geometry = CacheTensor::geometry_for(t, name);
        if (geometry.ok()) {
            return geometry->total_bytes();
        }
        // There is no way to say no here; init_tensor refuses the tensor with the reason.
    }
    return ggml_nbytes(t);
}

bool is_host(ggml_backend_buffer_type_t) {
    return false;
}

}  // namespace

ggml_backend_buffer_type_t buffer_type() {
    static ggml_backend_buffer_type type = [] {
        ggml_backend_buffer_type t{};
        t.iface.get_name = type_name;
        t.iface.alloc_buffer = alloc_buffer;
        t.iface.get_alignment = alignment;
        t.iface.get_alloc_size = alloc_size;
        t.iface.is_host = is_host;
        t.device = device();
        return t;
    }();
    return &type;
}

bool is_our_buffer(ggml_backend_buffer_t buffer) {
    return buffer != nullptr && buffer->buft == buffer_type();
}

CacheTensor* cache_of(const ggml_tensor* t) {
    if (t == nullptr) {
        return nullptr;
    }
    const ggml_tensor* root = root_of(t);
    if (!is_our_buffer(root->buffer)) {
        return nullptr;
    }
    auto& caches = context(root->buffer).caches;
    const auto it = caches.find(root->data);
    return it != caches.end() && parse_cache_name(root, nullptr) ? &it->second : nullptr;
}

std::vector<CacheTensor*> caches_beside(const ggml_tensor* t) {
    std::vector<CacheTensor*> all;
    for (auto& [data, cache] : context(root_of(t)->buffer).caches) {
        all.push_back(&cache);
    }
    return all;
}

ggml_backend_buffer_t wrap_host_memory(void* memory, std::size_t size) {
    auto c = std::make_unique<BufferContext>();
    c->base = memory;
    c->untouched = false;
    return ggml_backend_buffer_init(buffer_type(), buffer_interface(), c.release(), size);
}

}  // namespace vecinfer::plugin
