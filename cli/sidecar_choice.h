// Which codebooks a launch uses: a file the user names, one found beside the model, or none (data-free).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "vecinfer/scheme.h"
#include "vecinfer/sidecar.h"
#include "vecinfer/status.h"

namespace vecinfer::cli {

struct SidecarChoice {
    Scheme scheme;                              // the scheme to launch with
    std::optional<std::filesystem::path> path;  // absolute; nullopt: data-free
    std::string explanation;                    // one line for the user
};

/// File name of a model without ".gguf" and without the "-00001-of-00003" of a split model.
std::string model_stem(const std::filesystem::path& model);

/// "<model stem>.vecinfer.gguf" beside the model.
std::filesystem::path default_sidecar(const std::filesystem::path& model);

/// ok() if every file of a list separated by ":" is a sidecar that can be read.
Status check_codebooks(const std::string& list);

/// ok() if `path` is a regular file that starts as a GGUF file does.
Status check_gguf(const std::filesystem::path& path, std::string_view argument);

/// ok() if the model was trained for contexts of `context` tokens, or does not say.
Status check_context(std::int64_t context, const ModelInfo& model);

/// Tokens of a piece of calibration text unless the user says otherwise: 1024, or the model's context if that is less.
std::int64_t calibration_context(const ModelInfo& model);

/// ok() if the sidecar was calibrated for this model: architecture, layer shapes and layer hashes. The error names both files.
Status check_model(const Sidecar& sidecar, const std::filesystem::path& sidecar_path, const ModelInfo& model,
                   const std::filesystem::path& model_path);

/// `codebooks`: "none", a file or several separated by ":" (the first that fits; all must be sidecars), or nullopt to look beside
/// the model for <stem>.vecinfer.gguf and <stem>.*.vecinfer.gguf. `scheme`: nullopt if the user gave none: then a file named by
/// the user decides, else the default scheme if a file fits it, else that of <stem>.vecinfer.gguf. Its `layers` must be in the
/// model. A scheme that learns nothing from a calibration takes no file, and none is opened. A named file must fit scheme and
/// model. Of those beside the model the first that fits is taken; one that is damaged or made for another model is an error if
/// none fits, one for another scheme is not.
Result<SidecarChoice> choose_sidecar(const std::filesystem::path& model, const std::optional<Scheme>& scheme,
                                     const std::optional<std::string>& codebooks);

}  // namespace vecinfer::cli
