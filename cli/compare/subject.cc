#include "compare/subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sidecar_choice.h"
#include "verb.h"

namespace vecinfer::cli {
namespace {

struct CacheType {
    std::string_view name;
    double bits;  // with scales
    int block;    // values per block: heads must be a multiple
};
constexpr std::array kCacheTypes = {
    CacheType{"q8_0", 8.5, 32}, CacheType{"q5_1", 6.0, 32}, CacheType{"q5_0", 5.5, 32},   CacheType{"q4_1", 5.0, 32},
    CacheType{"q4_0", 4.5, 32}, CacheType{"bf16", 16.0, 1}, CacheType{"iq4_nl", 4.5, 32},
};

Json costs_json(double bits, double bytes, double effective_bits, double effective_bytes) {
    return {{"bits", bits},
            {"bytes_per_token", bytes},
            {"effective_bits", effective_bits},
            {"effective_bytes_per_token", effective_bytes}};
}

// Whether a calibration changes anything about the cache.
bool learns_from_samples(const Scheme& scheme) {
    const Result<Scheme> free = resolve(scheme, false);
    const Result<Scheme> calibrated = resolve(scheme, true);
    return !free.ok() || (calibrated.ok() && !(free.value() == calibrated.value()) && learns(calibrated.value()));
}

Status resolve_subject(Subject& subject) {
    const Result<Scheme> resolved =
        resolve(subject.scheme, subject.codebooks == Codebooks::made || subject.codebooks == Codebooks::file);
    if (!resolved.ok()) {
        return resolved.status();
    }
    subject.resolved = resolved.value();
    return {};
}

}  // namespace

std::vector<std::string> split_schemes(std::span<const std::string> lists) {
    std::vector<std::string> schemes;
    for (const std::string& list : lists) {
        bool first = true;
        for (std::size_t begin = 0; begin <= list.size();) {
            const std::size_t end = std::min(list.find(',', begin), list.size());
            const std::string part = list.substr(begin, end - begin);
            const bool is_option = part.find('=') != std::string::npos && part.find('=') < part.find(':');
            if (is_option && !first) {
                schemes.back() += "," + part;
            } else {
                schemes.push_back(part);
                first = false;
            }
            begin = end + 1;
        }
    }
    return schemes;
}

std::vector<std::string> default_schemes() {
    std::vector<std::string> schemes = {"vecinfer:k4v4", "vecinfer:k4v2", "vecinfer:k2v2"};
    for (const std::string_view family : scheme_families()) {
        if (family != "f16" && family != "vecinfer" && parse_scheme(family).ok()) {
            schemes.emplace_back(family);
        }
    }
    return schemes;
}

Result<Subject> scheme_subject(const Scheme& scheme, const std::optional<std::string>& suffix, bool can_calibrate) {
    Subject subject{.kind = SubjectKind::scheme, .name = to_string(scheme), .scheme = scheme};
    if (suffix == "") {
        return argument_error("--schemes", subject.name + "@", "free or a sidecar file behind @");
    }
    if (suffix && suffix != "free") {
        subject.codebooks = Codebooks::file;
        subject.sidecar = *suffix;
    } else if (!scheme.is_f16() && learns_from_samples(scheme)) {
        subject.codebooks = !suffix && can_calibrate ? Codebooks::made : Codebooks::data_free;
    }
    if (subject.codebooks == Codebooks::data_free) {
        subject.name += "@free";
    } else if (subject.codebooks == Codebooks::file) {
        subject.name += "@" + subject.sidecar;
    }
    if (const Status status = resolve_subject(subject); !status.ok()) {
        subject.problem = subject.codebooks == Codebooks::data_free && !suffix
                              ? fmt::format("needs a calibration: give --calibration-text ({})", status.message())
                              : status.message();
    }
    return subject;
}

Result<Subject> parse_peer(const std::string& text) {
    std::vector<std::string_view> names;
    for (const CacheType& type : kCacheTypes) {
        if (type.name == text) {
            return Subject{.kind = SubjectKind::peer, .name = text, .cache_type = text};
        }
        names.push_back(type.name);
    }
    return argument_error("--peers", text.empty() ? "nothing" : text, fmt::format("one of {}", fmt::join(names, ", ")));
}

Subject base_subject() {
    return {.kind = SubjectKind::base, .name = "f16, stock", .cache_type = "f16"};
}

Status check_inputs(const Subject& subject, const ModelInfo& model, const std::string& model_path) {
    Status status = check_layers(subject.scheme, static_cast<int>(model.identity.layer_hashes.size()));
    if (status.ok() && subject.codebooks == Codebooks::file) {
        status = choose_sidecar(model_path, subject.scheme, subject.sidecar).status();
    }
    return status.ok() ? status : Status(status.code(), fmt::format("--schemes: '{}': {}", subject.name, status.message()));
}

void examine_subject(Subject& subject, const ModelInfo& model, std::int64_t context) {
    if (!subject.problem.empty()) {
        return;
    }
    const Result<Footprint> f16 = footprint(f16_scheme(), model.layers, context, false);
    if (!f16.ok()) {
        subject.problem = f16.status().message();
        return;
    }
    const double f16_bytes = f16->f16_bytes_per_token;
    if (subject.kind != SubjectKind::scheme) {
        const auto* type = std::find_if(kCacheTypes.begin(), kCacheTypes.end(),
                                        [&](const CacheType& t) { return t.name == subject.cache_type; });
        const double bits = type == kCacheTypes.end() ? 16 : type->bits;
        for (const LayerShape& shape : model.layers) {
            if (type != kCacheTypes.end() && (shape.head_dim_k % type->block != 0 || shape.head_dim_v % type->block != 0)) {
                subject.problem = fmt::format("layer {} has heads of {}/{} channels, {} stores blocks of {}", shape.layer,
                                              shape.head_dim_k, shape.head_dim_v, subject.cache_type, type->block);
                return;
            }
        }
        subject.costs = costs_json(bits, f16_bytes * bits / 16, bits, f16_bytes * bits / 16);
        return;
    }
    const bool calibrated = subject.codebooks == Codebooks::made || subject.codebooks == Codebooks::file;
    const Result<Footprint> print = footprint(subject.resolved, model.layers, context, calibrated);
    if (!print.ok()) {
        subject.problem = print.status().message();
        return;
    }
    subject.costs = costs_json(16 * print->code_bytes_per_token / f16_bytes, print->code_bytes_per_token,
                               print->effective_bits_per_value, print->total_bytes_per_token);
}

Scheme calibration_scheme(const Subject& subject) {
    Scheme scheme = subject.resolved;
    const Scheme plain;
    scheme.window = plain.window;
    scheme.prefill = plain.prefill;
    return scheme;
}

}  // namespace vecinfer::cli
