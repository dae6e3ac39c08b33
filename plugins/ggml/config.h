// What the environment asks for. Read once, when the backend is loaded.
#pragma once

#include <string>
#include <vector>

#include "vecinfer/scheme.h"
#include "vecinfer/sidecar.h"
#include "vecinfer/status.h"

namespace vecinfer::plugin {

/// Environment, documented in docs/llama_cpp_plugin.md:
///   VECINFER_SCHEME     scheme spelling, default vecinfer:k2v2; f16 passes everything through
///   VECINFER_CODEBOOKS  sidecar file, several separated by ':' (the first that fits a model's cache is used), or none:
///   data-free.
///                       Not looked at for schemes that learn nothing from a calibration
///   VECINFER_ISA        scalar, avx2, avx512 or avx512vbmi
///   VECINFER_QUIET      1: no start line
struct Config {
    Scheme scheme;         // resolved
    std::string spelling;  // as asked for
    std::vector<Sidecar> sidecars;
    std::vector<std::string> sidecar_paths;
    bool quiet = false;
};

Result<Config> read_config();

}  // namespace vecinfer::plugin
