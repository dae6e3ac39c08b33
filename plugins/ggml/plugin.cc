// Entry point: registration with ggml, the check that this is the llama.cpp we were built for, and the line at start.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "backend_hooks.h"
#include "capture.h"
#include "host.h"

// Found by reading the file's bytes, so that tools can tell without loading it.
extern "C" __attribute__((used)) const char vecinfer_built_for[] =
    "VECINFER_PLUGIN_BUILT_FOR=" VECINFER_GGML_VERSION " (" VECINFER_GGML_COMMIT ")";

namespace vecinfer::plugin {

ggml_backend_dev_t cpu_device() {
    static ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return dev;
}

void* cpu_proc(const char* name) {
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu_device()), name);
}

void report_error(const std::string& message) {
    static std::mutex mutex;
    static std::string last;
    const std::lock_guard lock(mutex);
    if (message != last) {
        std::fprintf(stderr, "vecinfer: error: %s\n", message.c_str());
        last = message;
    }
}

namespace {

Plugin configured() {
    Plugin made;
    Result<Config> config = read_config();
    made.config_status = config.status();
    if (config.ok()) {
        made.config = std::move(config).value();
    }
    return made;
}

}  // namespace

Plugin& plugin() {
    static Plugin p = configured();
    return p;
}

namespace {

bool configure() {
    plugin() = configured();
    if (!plugin().config_status.ok()) {
        report_error(plugin().config_status.message());
    }
    return plugin().config_status.ok();
}

// Version strings can lie (local builds say "unknown"), so the numbering of the operations that matter is probed as well.
std::string version_problem() {
    const std::string running = fmt::format("{} ({})", ggml_version(), ggml_commit());
    const std::string built = VECINFER_GGML_VERSION " (" VECINFER_GGML_COMMIT ")";
    if (running != built) {
        return fmt::format("this plugin was built for ggml {}, but llama.cpp brings ggml {}: rebuild the plugin against it",
                           built, running);
    }
    const std::pair<ggml_op, const char*> probes[] = {{GGML_OP_NONE, "NONE"},
                                                      {GGML_OP_MUL, "MUL"},
                                                      {GGML_OP_SET_ROWS, "SET_ROWS"},
                                                      {GGML_OP_ROPE, "ROPE"},
                                                      {GGML_OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"},
                                                      {GGML_OP_CUSTOM, "CUSTOM"}};
    for (const auto& [op, name] : probes) {
        if (std::strcmp(ggml_op_name(op), name) != 0) {
            return fmt::format(
                "this plugin was built for another ggml {}: operation {} is called {} there: rebuild the plugin against it",
                built, name, ggml_op_name(op));
        }
    }
    return {};
}

const char* registry_name(ggml_backend_reg_t) {
    return "VecInfer";
}
std::size_t device_count(ggml_backend_reg_t) {
    return 1;
}
ggml_backend_dev_t get_device(ggml_backend_reg_t, std::size_t) {
    return device();
}

ggml_backend_buffer_type_t* extra_buffer_types(ggml_backend_dev_t) {
    auto fn = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(cpu_proc("ggml_backend_dev_get_extra_bufts"));
    return fn != nullptr ? fn(cpu_device()) : nullptr;
}

void* proc_address(ggml_backend_reg_t, const char* name) {
    const std::pair<const char*, void*> procs[] = {
        {"ggml_backend_set_n_threads", reinterpret_cast<void*>(set_num_threads)},
        {"ggml_backend_set_abort_callback", reinterpret_cast<void*>(set_abort_callback)},
        {"ggml_backend_cpu_set_threadpool", reinterpret_cast<void*>(set_threadpool)},
        {"ggml_backend_dev_get_extra_bufts", reinterpret_cast<void*>(extra_buffer_types)},
        {"vecinfer_set_capture", reinterpret_cast<void*>(set_capture)},
        {"vecinfer_configure", reinterpret_cast<void*>(configure)},
    };
    for (const auto& [key, fn] : procs) {
        if (std::strcmp(key, name) == 0) {
            return fn;
        }
    }
    return nullptr;
}

}  // namespace

ggml_backend_reg_t registry() {
    static ggml_backend_reg reg = {GGML_BACKEND_API_VERSION, {registry_name, device_count, get_device, proc_address}, nullptr};
    return &reg;
}

}  // namespace vecinfer::plugin

extern "C" {

GGML_BACKEND_API ggml_backend_reg_t ggml_backend_init(void);

/// "<ggml version> (<commit>)" of the llama.cpp this plugin was built for.
GGML_BACKEND_API const char* vecinfer_plugin_llama_version(void) {
    return std::strchr(vecinfer_built_for, '=') + 1;
}
}

ggml_backend_reg_t ggml_backend_init(void) {
    using namespace vecinfer::plugin;
    if (const std::string problem = version_problem(); !problem.empty()) {
        report_error(problem);
        return nullptr;
    }
    if (cpu_device() == nullptr) {
        report_error("llama.cpp's CPU backend is not loaded");
        return nullptr;
    }
    // With a wrong environment the device stays visible but refuses to allocate: a run must not go on without the cache it asked
    // for.
    if (!plugin().config_status.ok()) {
        report_error(plugin().config_status.message());
    } else if (plugin().config.scheme.is_f16() && !plugin().config.quiet) {
        std::fprintf(stderr, "vecinfer: f16, the KV cache is passed through unchanged\n");
    }
    return registry();
}
