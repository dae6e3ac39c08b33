#include "sidecar_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <vector>

#include "launch.h"
#include "verb.h"

namespace vecinfer::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSidecarSuffix = ".vecinfer.gguf";

std::string shape_text(const LayerShape& shape) {
    return fmt::format("{} KV heads of {}/{} channels", shape.num_kv_heads, shape.head_dim_k, shape.head_dim_v);
}

std::string model_text(const ModelIdentity& identity) {
    return identity.name.empty() ? identity.architecture : fmt::format("{} '{}'", identity.architecture, identity.name);
}

Result<Scheme> default_scheme() {
    return parse_scheme(kDefaultScheme);
}

Status check_layers_of(const fs::path& model, const Scheme& scheme) {
    if (model.empty() || scheme.layers.empty()) {
        return {};
    }
    const Result<ModelInfo> info = read_model_info(model);
    if (!info.ok()) {
        return Status(info.status().code(), "model: " + info.status().message());
    }
    return check_layers(scheme, static_cast<int>(info->identity.layer_hashes.size()));
}

Status fits_scheme(const Sidecar& sidecar, const fs::path& path, const Scheme& wanted) {
    const Result<Scheme> resolved = resolve(wanted, true);
    if (!resolved.ok()) {
        return resolved.status();
    }
    const Result<Scheme> have = resolve(sidecar.scheme, true);
    if (!have.ok()) {
        return have.status();
    }
    const Status fit = check_scheme(have.value(), resolved.value());
    if (fit.ok()) {
        return fit;
    }
    return Status(ErrorCode::mismatch, fmt::format("codebooks {} were calibrated for scheme {}, which cannot serve {}: {}",
                                                   path.string(), to_string(sidecar.scheme), to_string(wanted), fit.message()));
}

Result<SidecarChoice> data_free(const fs::path& model, const Scheme& scheme, std::string_view why) {
    const Result<Scheme> resolved = resolve(scheme, false);
    if (!resolved.ok()) {
        const std::string spelling = to_string(scheme);
        const Launch remedy{.argv = {"vecinfer", "calibrate", "-m", model.empty() ? "MODEL" : model.string(), "-f", "TEXT",
                                     "--scheme", spelling}};
        return Status(ErrorCode::mismatch, fmt::format("scheme {} needs a calibration ({}): {}; make one with `{}`", spelling,
                                                       why, resolved.status().message(), shell_line(remedy)));
    }
    return SidecarChoice{scheme, std::nullopt,
                         fmt::format("scheme {}, {} ({})", to_string(scheme),
                                     learns(resolved.value()) ? "data-free codebooks" : "not calibrated", why)};
}

Result<SidecarChoice> with_sidecar(const Scheme& scheme, const fs::path& path) {
    std::error_code error;
    const fs::path full = fs::absolute(path, error);
    // The plugin takes several files, separated by colons.
    if (full.string().find(':') != std::string::npos) {
        return argument_error("codebooks", full.string(), "a path without ':'");
    }
    return SidecarChoice{scheme, error ? path : full, fmt::format("scheme {}, codebooks {}", to_string(scheme), path.string())};
}

Result<SidecarChoice> named_sidecar(const fs::path& model, const std::optional<Scheme>& scheme, const fs::path& path) {
    const Result<Sidecar> sidecar = load_sidecar(path);
    if (!sidecar.ok()) {
        return Status(sidecar.status().code(), "codebooks: " + sidecar.status().message());
    }
    const Scheme wanted = scheme.value_or(sidecar->scheme);
    if (const Status fit = fits_scheme(sidecar.value(), path, wanted); !fit.ok()) {
        return fit;
    }
    if (!model.empty()) {
        const Result<ModelInfo> info = read_model_info(model);
        if (!info.ok()) {
            return Status(info.status().code(), "model: " + info.status().message());
        }
        if (const Status fit = check_model(sidecar.value(), path, info.value(), model); !fit.ok()) {
            return fit;
        }
    }
    return with_sidecar(wanted, path);
}

// The files of a list as the plugin takes it in VECINFER_CODEBOOKS.
std::vector<std::string> files_of(const std::string& list) {
    std::error_code error;
    if (fs::exists(list, error)) {
        return {list};
    }
    std::vector<std::string> files;
    for (std::size_t begin = 0; begin <= list.size();) {
        const std::size_t end = std::min(list.find(':', begin), list.size());
        files.push_back(list.substr(begin, end - begin));
        begin = end + 1;
    }
    return files;
}

// The first file that fits, else why the first does not. One that nobody can read is a mistake, and not passed over; one for
// another model or scheme is what lists are for.
Result<SidecarChoice> named_sidecars(const fs::path& model, const std::optional<Scheme>& scheme, const std::string& list) {
    if (const Status status = check_codebooks(list); !status.ok()) {
        return Status(status.code(), "codebooks: " + status.message());
    }
    Status first_failure;
    for (const std::string& file : files_of(list)) {
        const Result<SidecarChoice> choice = named_sidecar(model, scheme, file);
        if (choice.ok()) {
            return choice;
        }
        if (first_failure.ok()) {
            first_failure = choice.status();
        }
    }
    return first_failure;
}

// The plain name first, then the others by name.
std::vector<fs::path> candidates_beside(const fs::path& model) {
    const std::string prefix = model_stem(model) + ".";
    const fs::path plain = default_sidecar(model);
    std::vector<fs::path> found;
    std::error_code error;
    const fs::path folder = model.has_parent_path() ? model.parent_path() : fs::path(".");
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with(prefix) && name.ends_with(kSidecarSuffix) && name != plain.filename()) {
            found.push_back(plain.parent_path() / name);
        }
    }
    std::sort(found.begin(), found.end());
    if (fs::exists(plain, error)) {
        found.insert(found.begin(), plain);
    }
    return found;
}

// `asked`: whether the user named the scheme. If not, a file with the plain name may bring another one.
Result<SidecarChoice> sidecar_beside(const fs::path& model, const Scheme& scheme, bool asked) {
    const std::vector<fs::path> candidates = candidates_beside(model);
    if (candidates.empty()) {
        return data_free(model, scheme, fmt::format("no {} beside the model", default_sidecar(model).filename().string()));
    }
    const Result<ModelInfo> info = read_model_info(model);
    if (!info.ok()) {
        return Status(info.status().code(), "model: " + info.status().message());
    }

    Status broken;
    std::string other_scheme;
    std::optional<Scheme> plain;
    for (const fs::path& path : candidates) {
        const Result<Sidecar> sidecar = load_sidecar(path);
        Status fit = sidecar.ok() ? check_model(sidecar.value(), path, info.value(), model)
                                  : Status(sidecar.status().code(), "codebooks: " + sidecar.status().message());
        if (!fit.ok()) {
            if (broken.ok()) {
                broken = fit;
            }
            continue;
        }
        if (fits_scheme(sidecar.value(), path, scheme).ok()) {
            return with_sidecar(scheme, path);
        }
        other_scheme = fmt::format("{} is for {}", path.filename().string(), to_string(sidecar->scheme));
        if (!asked && path == default_sidecar(model)) {
            plain = sidecar->scheme;
        }
    }
    if (plain) {
        return with_sidecar(*plain, default_sidecar(model));
    }
    if (!broken.ok()) {
        return Status(broken.code(), broken.message() + "; --codebooks none goes without");
    }
    return data_free(model, scheme, other_scheme);
}

}  // namespace

std::string model_stem(const fs::path& model) {
    std::string stem = model.filename().string();
    if (stem.ends_with(".gguf")) {
        stem.resize(stem.size() - 5);
    }
    constexpr std::size_t kSplitLength = sizeof("-00001-of-00003") - 1;
    if (stem.size() > kSplitLength) {
        const std::string tail = stem.substr(stem.size() - kSplitLength);
        const auto digits = [&](std::size_t begin) {
            return std::all_of(tail.begin() + begin, tail.begin() + begin + 5, [](char c) { return c >= '0' && c <= '9'; });
        };
        if (tail[0] == '-' && digits(1) && tail.substr(6, 4) == "-of-" && digits(10)) {
            stem.resize(stem.size() - kSplitLength);
        }
    }
    return stem;
}

fs::path default_sidecar(const fs::path& model) {
    return model.parent_path() / (model_stem(model) + std::string(kSidecarSuffix));
}

Status check_codebooks(const std::string& list) {
    for (const std::string& file : files_of(list)) {
        if (file.empty()) {
            return argument_error("list of sidecars", list, "a file name before and behind each ':'");
        }
        if (const Status status = load_sidecar(file).status(); !status.ok()) {
            return status;
        }
    }
    return {};
}

Status check_gguf(const fs::path& path, std::string_view argument) {
    std::error_code error;
    if (!fs::exists(path, error)) {
        return Status(ErrorCode::not_found, fmt::format("{}: {} does not exist", argument, path.string()));
    }
    if (!fs::is_regular_file(path, error)) {
        return Status(ErrorCode::invalid_argument, fmt::format("{}: {} is not a file", argument, path.string()));
    }
    std::ifstream file(path, std::ios::binary);
    std::array<char, 4> magic{};
    if (!file) {
        return Status(ErrorCode::io_error, fmt::format("{}: cannot read {}", argument, path.string()));
    }
    file.read(magic.data(), magic.size());
    if (std::string_view(magic.data(), static_cast<std::size_t>(file.gcount())) != "GGUF") {
        return Status(ErrorCode::corrupt_data, fmt::format("{}: {} is not a GGUF file", argument, path.string()));
    }
    return {};
}

Status check_context(std::int64_t context, const ModelInfo& model) {
    if (model.context_length <= 0 || context <= model.context_length) {
        return {};
    }
    return argument_error("--ctx", std::to_string(context),
                          fmt::format("at most the model's context of {}", model.context_length));
}

std::int64_t calibration_context(const ModelInfo& model) {
    constexpr std::int64_t kDefault = 1024;
    return model.context_length > 0 ? std::min(kDefault, model.context_length) : kDefault;
}

Status check_model(const Sidecar& sidecar, const fs::path& sidecar_path, const ModelInfo& model, const fs::path& model_path) {
    const auto mismatch = [&](const std::string& what) {
        return Status(ErrorCode::mismatch,
                      fmt::format("codebooks {} were calibrated for another model ({}) than {} ({}): {}", sidecar_path.string(),
                                  model_text(sidecar.model), model_path.string(), model_text(model.identity), what));
    };
    if (sidecar.model.architecture != model.identity.architecture) {
        return mismatch(fmt::format("architecture {} against {}", sidecar.model.architecture, model.identity.architecture));
    }

    std::map<int, LayerShape> shapes;
    for (const LayerShape& shape : model.layers) {
        shapes[shape.layer] = shape;
    }
    for (const LayerCalibration& layer : sidecar.layers) {
        const auto found = shapes.find(layer.shape.layer);
        if (found == shapes.end()) {
            return mismatch(fmt::format("the model has no layer {} with a KV cache", layer.shape.layer));
        }
        if (found->second != layer.shape) {
            return mismatch(
                fmt::format("layer {} has {} against {}", layer.shape.layer, shape_text(layer.shape), shape_text(found->second)));
        }
    }
    const auto& have = sidecar.model.layer_hashes;
    const auto& want = model.identity.layer_hashes;
    if (have.size() != want.size()) {
        return mismatch(fmt::format("{} layers against {}", have.size(), want.size()));
    }
    const auto differing = std::mismatch(have.begin(), have.end(), want.begin());
    if (differing.first != have.end()) {
        return mismatch(fmt::format("the weights of layer {} differ", differing.first - have.begin()));
    }
    return {};
}

Result<SidecarChoice> choose_sidecar(const fs::path& model, const std::optional<Scheme>& scheme,
                                     const std::optional<std::string>& codebooks) {
    if (scheme) {
        if (const Status status = check_layers_of(model, *scheme); !status.ok()) {
            return status;
        }
        const Result<Scheme> calibrated = resolve(*scheme, true);
        if (!calibrated.ok()) {
            return calibrated.status();
        }
        // Files that lie about, sound or not, are none of its business.
        if (!learns(calibrated.value())) {
            if (codebooks && *codebooks != "none") {
                return argument_error("codebooks", *codebooks,
                                      fmt::format("none: scheme {} has no use for them", to_string(*scheme)));
            }
            return SidecarChoice{*scheme, std::nullopt,
                                 fmt::format("scheme {}, {}", to_string(*scheme),
                                             scheme->is_f16() ? "nothing is compressed" : "which needs no codebooks")};
        }
    }
    if (codebooks && *codebooks != "none") {
        return named_sidecars(model, scheme, *codebooks);
    }
    const Result<Scheme> wanted = scheme ? Result<Scheme>(*scheme) : default_scheme();
    if (!wanted.ok()) {
        return wanted.status();
    }
    if (codebooks) {
        return data_free(model, wanted.value(), "as asked");
    }
    if (model.empty()) {
        return data_free(model, wanted.value(), "no local model file to look beside");
    }
    return sidecar_beside(model, wanted.value(), scheme.has_value());
}

}  // namespace vecinfer::cli
