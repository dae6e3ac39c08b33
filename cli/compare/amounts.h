// Whether there is enough of everything that a comparison measures on, in the model's own tokens.
#pragma once

#include <filesystem>

#include "compare/options.h"
#include "vecinfer/status.h"

namespace vecinfer::cli {

/// Asks `helper` (vecinfer-retrieve), which loads the vocabulary alone. An error if the text does not fill its chunks, the
/// calibration text (if `calibrates`) not its pieces, or a length of retrieval does not hold its numbers.
Status check_amounts(const CompareOptions& options, const std::filesystem::path& helper, bool calibrates);

}  // namespace vecinfer::cli
