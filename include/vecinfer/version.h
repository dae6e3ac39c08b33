// Version of the library and the instruction sets that it can use here, for messages, files and bug reports.
#pragma once

#include <string_view>
#include <vector>

#include "vecinfer/export.h"
#include "vecinfer/status.h"

namespace vecinfer VECINFER_API {

/// "major.minor.patch".
std::string_view version() noexcept;

/// Abbreviated git commit the build was configured from, "unknown" outside a git checkout.
std::string_view build_commit() noexcept;

/// Names of the CPU instruction sets compiled in and supported by this CPU, slowest first, e.g. {"scalar", "avx2"}.
std::vector<std::string_view> available_isa_names();

/// Name of the one in use. An error if the environment variable VECINFER_ISA names one that does not exist or is not supported.
Result<std::string_view> selected_isa_name();

}  // namespace VECINFER_API
