// The backend and device: the CPU backend under another name, with packed KV caches.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>

#include "backend_hooks.h"
#include "graph.h"

namespace vecinfer::plugin {

namespace {

constexpr const char* kDeviceName = "VecInfer";

struct BackendContext {
    ggml_backend_t cpu = nullptr;
    int num_threads = GGML_DEFAULT_N_THREADS;
    Scratch workspace;
    Scratch staging;
};

BackendContext& context(ggml_backend_t backend) {
    return *static_cast<BackendContext*>(backend->context);
}

const char* backend_name(ggml_backend_t) {
    return kDeviceName;
}

void backend_free(ggml_backend_t backend) {
    ggml_backend_free(context(backend).cpu);
    delete &context(backend);
    delete backend;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
    BackendContext& c = context(backend);
    GraphRun run(graph, c.cpu, c.num_threads, c.workspace, c.staging);
    if (Status status = run.plan(); !status.ok()) {
        report_error(status.message());
        return status.code() == ErrorCode::out_of_memory ? GGML_STATUS_ALLOC_FAILED : GGML_STATUS_FAILED;
    }
    return run.compute();
}

ggml_guid_t guid() {
    static ggml_guid id = {0x76, 0x65, 0x63, 0x69, 0x6e, 0x66, 0x65, 0x72, 0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x2d, 0x6b, 0x76};
    return &id;
}

const char* device_name(ggml_backend_dev_t) {
    return kDeviceName;
}
const char* device_description(ggml_backend_dev_t) {
    return "CPU with a packed KV cache";
}
void device_memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
    ggml_backend_dev_memory(cpu_device(), free, total);
}

// An integrated GPU: takes layers by default, and never shares them with a real card.
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_IGPU;
}

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props* props) {
    *props = {};
    props->name = device_name(dev);
    props->description = device_description(dev);
    props->type = device_type(dev);
    device_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.buffer_from_host_ptr = true;
    props->caps.mmap_support = true;
}

ggml_backend_t init_backend(ggml_backend_dev_t dev, const char*) {
    if (!plugin().config_status.ok()) {
        report_error(plugin().config_status.message());
        return nullptr;
    }
    ggml_backend_i i{};
    i.get_name = backend_name;
    i.free = backend_free;
    i.graph_compute = graph_compute;
    auto c = std::make_unique<BackendContext>();
    c->cpu = ggml_backend_dev_init(cpu_device(), nullptr);
    if (c->cpu == nullptr) {
        return nullptr;
    }
    return new ggml_backend{guid(), i, dev, c.release()};
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
    return buffer_type();
}

ggml_backend_buffer_t buffer_from_host_ptr(ggml_backend_dev_t, void* memory, std::size_t size, std::size_t) {
    if (!plugin().config_status.ok()) {
        report_error(plugin().config_status.message());
        return nullptr;
    }
    return wrap_host_memory(memory, size);
}

// By name and buffer only: while llama.cpp reserves graphs, caches have no data yet.
bool names_our_cache(const ggml_tensor* t) {
    CacheName name;
    return t != nullptr && parse_cache_name(root_of(t), &name) && !plugin().config.scheme.is_f16(name.layer) &&
           is_our_buffer(root_of(t)->buffer);
}

// With -ngl or -nkvo some layers keep their cache elsewhere, unpacked. That must not go unseen.
void warn_unpacked(const ggml_tensor* root) {
    static std::atomic<bool> warned{false};
    if (!plugin().config.scheme.is_f16() && root->buffer != nullptr && !warned.exchange(true)) {
        std::fprintf(stderr,
                     "vecinfer: warning: %s and perhaps more layers keep an f16 cache outside this device (-ngl, -nkvo)\n",
                     root->name);
    }
}

bool supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
    bool touches_cache = names_our_cache(op);
    for (const ggml_tensor* src : op->src) {
        touches_cache = touches_cache || names_our_cache(src);
    }
    if (touches_cache) {
        // Claimed even if it cannot be served: anyone else would read code bytes as f16. GraphRun::plan refuses it with the
        // reason.
        return true;
    }
    // Asked with an empty buffer: where should this weight live? Quantized ones are left to the CPU's own repacked types.
    const ggml_tensor* weight = op->src[0];
    if ((op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && is_our_buffer(weight->buffer) &&
        weight->buffer->size == 0 && ggml_is_quantized(weight->type)) {
        return false;
    }
    // Attention over a cache that is not ours (layers left on the CPU) stays with its owner, or llama.cpp turns flash attention
    // off for all.
    if (op->op == GGML_OP_FLASH_ATTN_EXT && op->src[1] != nullptr) {
        const ggml_tensor* root = root_of(op->src[1]);
        if (parse_cache_name(root, nullptr) && !is_our_buffer(root->buffer)) {
            warn_unpacked(root);
            return false;
        }
    }
    return ggml_backend_dev_supports_op(cpu_device(), op);
}

bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == buffer_type() || ggml_backend_dev_supports_buft(cpu_device(), type);
}

}  // namespace

ggml_backend_dev_t device() {
    static ggml_backend_device dev = [] {
        ggml_backend_device d{};
        d.iface.get_name = device_name;
        d.iface.get_description = device_description;
        d.iface.get_memory = device_memory;
        d.iface.get_type = device_type;
        d.iface.get_props = device_props;
        d.iface.init_backend = init_backend;
        d.iface.get_buffer_type = device_buffer_type;
        d.iface.buffer_from_host_ptr = buffer_from_host_ptr;
        d.iface.supports_op = supports_op;
        d.iface.supports_buft = supports_buft;
        d.reg = registry();
        return d;
    }();
    return &dev;
}

// llama.cpp sets these on our backend; the CPU backend inside must know too.
void set_num_threads(ggml_backend_t backend, int n) {
    context(backend).num_threads = std::max(n, 1);
    if (auto fn = reinterpret_cast<ggml_backend_set_n_threads_t>(cpu_proc("ggml_backend_set_n_threads"))) {
        fn(context(backend).cpu, n);
    }
}

void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void* data) {
    if (auto fn = reinterpret_cast<ggml_backend_set_abort_callback_t>(cpu_proc("ggml_backend_set_abort_callback"))) {
        fn(context(backend).cpu, callback, data);
    }
}

void set_threadpool(ggml_backend_t backend, ggml_threadpool_t pool) {
    if (auto fn = reinterpret_cast<void (*)(ggml_backend_t, ggml_threadpool_t)>(cpu_proc("ggml_backend_cpu_set_threadpool"))) {
        fn(context(backend).cpu, pool);
    }
}

}  // namespace vecinfer::plugin
