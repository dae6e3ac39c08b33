#include "config.h"

#include <fmt/format.h>

#include <cstdlib>

#include "dispatch/isa.h"

namespace vecinfer::plugin {

namespace {

std::string variable(const char* name, const char* fallback) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : fallback;
}

Status in_variable(const char* name, const Status& status) {
    return {status.code(), fmt::format("{}: {}", name, status.message())};
}

}  // namespace

Result<Config> read_config() {
    Config config;
    const std::string quiet = variable("VECINFER_QUIET", "0");
    if (quiet != "0" && quiet != "1") {
        return argument_error("VECINFER_QUIET", quiet, "0 or 1");
    }
    config.quiet = quiet == "1";
    if (Result<Isa> isa = selected_isa(); !isa.ok()) {
        return isa.status();
    }
    Result<Scheme> scheme = parse_scheme(variable("VECINFER_SCHEME", "vecinfer:k2v2"));
    if (!scheme.ok()) {
        return in_variable("VECINFER_SCHEME", scheme.status());
    }
    config.scheme = scheme.value();
    config.spelling = to_string(config.scheme);
    const Result<Scheme> calibrated = resolve(config.scheme, true);
    if (!calibrated.ok()) {
        return in_variable("VECINFER_SCHEME", calibrated.status());
    }
    std::string paths = variable("VECINFER_CODEBOOKS", "none");
    if (!learns(calibrated.value()) || paths == "none") {
        paths.clear();
    }
    for (std::size_t begin = 0; begin < paths.size();) {
        const std::size_t end = std::min(paths.find(':', begin), paths.size());
        const std::string path = paths.substr(begin, end - begin);
        begin = end + 1;
        Result<Sidecar> sidecar = load_sidecar(path);
        if (!sidecar.ok()) {
            return in_variable("VECINFER_CODEBOOKS", sidecar.status());
        }
        if (Status status = check_scheme(sidecar->scheme, config.scheme); !status.ok()) {
            return in_variable("VECINFER_CODEBOOKS", {status.code(), fmt::format("{}: {}", path, status.message())});
        }
        config.sidecars.push_back(std::move(sidecar).value());
        config.sidecar_paths.push_back(path);
    }
    // Data-free caches must be possible without anything that a calibration would have to supply.
    if (Result<Scheme> resolved = resolve(config.scheme, !config.sidecars.empty()); !resolved.ok()) {
        return in_variable(
            "VECINFER_SCHEME",
            {resolved.status().code(),
             fmt::format("{}; make a calibration with `vecinfer calibrate -m MODEL -f TEXT --scheme {}` and name its "
                         "file in VECINFER_CODEBOOKS",
                         resolved.status().message(), config.spelling)});
    } else {
        config.scheme = resolved.value();
    }
    return config;
}

}  // namespace vecinfer::plugin
