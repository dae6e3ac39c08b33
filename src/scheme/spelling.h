// Words of the scheme spelling, shared by the parser, the printer and the checks.
#pragma once

#include <string>
#include <string_view>

#include "vecinfer/scheme.h"

namespace vecinfer::spelling {

inline constexpr int kMaxRecent = 4096;
inline constexpr int kMaxSink = 256;

/// Untrusted text for an error message: one line, printable, cut after 40 characters; "nothing" when empty.
std::string shown(std::string_view text);

/// "d2b8, d4b8, ..."
std::string codec_names();

/// "auto", "none" or the steps in order joined by +, e.g. "center+smooth-opt+hadamard".
std::string transform_name(const TransformSpec& spec);

}  // namespace vecinfer::spelling
