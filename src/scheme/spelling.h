// Words of the scheme spelling, shared by the parser, the printer and the checks.
#pragma once

#include <string>
#include <string_view>

#include "vecinfer/scheme.h"

namespace vecinfer::spelling {

inline constexpr int kMaxRecent = 4096;
inline constexpr int kMaxSink = 256;
inline constexpr int kMaxLayer = 65535;

/// Untrusted text for an error message: one line, printable, cut after 40 characters; "nothing" when empty.
std::string shown(std::string_view text);

/// Those that exist, for messages.
std::string codec_names();

/// "d4b8", "b2-token32-asym"
std::string codec_name(const CodecSpec& spec);

/// False if there is no codec of that name.
bool find_codec(std::string_view name, CodecSpec& out);

/// "7" or "0-1"
std::string range_name(const LayerOverride& layers);

/// "auto", "none" or the steps in order joined by +, e.g. "center+smooth-opt+hadamard".
std::string transform_name(const TransformSpec& spec);

}  // namespace vecinfer::spelling
