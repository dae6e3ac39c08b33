// Families: named sets of defaults, with the widths that their short spellings know.
#pragma once

#include <span>
#include <string_view>

#include "vecinfer/scheme.h"

namespace vecinfer {

struct Width {
    std::string_view name;  // bits per value
    CodecSpec spec;
};

/// What `auto` becomes.
struct AutomaticParts {
    TransformSpec key_transform;
    TransformSpec value_transform;
    Norm norm = Norm::none;  // of vector-quantized sides
};

struct Family {
    std::string_view name;
    std::span<const Width> key_widths;
    std::span<const Width> value_widths;
    Scheme defaults;
    AutomaticParts data_free;
    AutomaticParts calibrated;
};

/// Null for a name that does not exist, and for f16, which has no options.
const Family* find_family(std::string_view name);

}  // namespace vecinfer
