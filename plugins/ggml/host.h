// The CPU backend that is wrapped, and the process-wide state of the plugin.
#pragma once

#include <string>

#include "config.h"
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace vecinfer::plugin {

struct Plugin {
    Config config;
    Status config_status;  // not ok: every allocation is refused
};

Plugin& plugin();

ggml_backend_reg_t registry();
ggml_backend_dev_t device();
ggml_backend_buffer_type_t buffer_type();

ggml_backend_dev_t cpu_device();
void* cpu_proc(const char* name);

/// One line on stderr: "vecinfer: error: ...". The same line is not repeated back to back.
void report_error(const std::string& message);

}  // namespace vecinfer::plugin
