// What is compared: the f16 cache of stock llama.cpp, schemes, and llama.cpp's own cache types.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compare/store.h"
#include "vecinfer/scheme.h"
#include "vecinfer/sidecar.h"
#include "vecinfer/status.h"

namespace vecinfer::cli {

enum class SubjectKind { base, scheme, peer };

/// Where the codebooks of a scheme come from.
enum class Codebooks { none, data_free, made, file };

struct Subject {
    SubjectKind kind = SubjectKind::base;
    std::string name;  // unique; as the user spells it, canonical: "vecinfer:k2v2@free", "q8_0"
    Scheme scheme;     // of kind scheme: as asked
    Scheme resolved;
    Codebooks codebooks = Codebooks::none;
    std::string sidecar;     // codebooks file: the user's file
    std::string cache_type;  // of base and peer
    std::string problem;     // why it cannot serve this model; empty if nothing is known against it
    Json costs;              // bits, bytes_per_token (codes, scales and norms), effective_bits, effective_bytes_per_token (all)
};

/// Splits lists of schemes at commas. Options of a scheme hold commas too: what has '=' and no ':' before it belongs to the
/// scheme before it.
std::vector<std::string> split_schemes(std::span<const std::string> lists);

/// One of each family and the widths of our own that are worth knowing.
std::vector<std::string> default_schemes();

/// `suffix`: what followed an @, "free" (data-free codebooks) or a sidecar file. Without one, codebooks are made where a scheme
/// has any, if `can_calibrate`; else it is data-free, and named so.
Result<Subject> scheme_subject(const Scheme& scheme, const std::optional<std::string>& suffix, bool can_calibrate);
/// A cache type of llama.cpp; unknown ones are refused with the known ones.
Result<Subject> parse_peer(const std::string& text);
Subject base_subject();

/// What a user got wrong about a scheme: a sidecar that is missing, damaged or for another model or scheme, or layers that the
/// model does not have.
Status check_inputs(const Subject& subject, const ModelInfo& model, const std::string& model_path);

/// Fills in costs at `context` tokens, or the problem: a shape that the scheme cannot serve.
void examine_subject(Subject& subject, const ModelInfo& model, std::int64_t context);

/// The scheme that is calibrated for `subject`; equal for all that can share a sidecar.
Scheme calibration_scheme(const Subject& subject);

}  // namespace vecinfer::cli
