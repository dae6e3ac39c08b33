// A text with numbers in it and questions for them, to measure what a cache does to recall: prose hardly asks for it, and the few
// layers that find things again are not those that prose is most sensitive to.
#pragma once

#include <cstdint>

#include "divergence.h"

namespace vecinfer::plugin {

/// One passage for a context of `ctx` tokens: numbers at five depths and, as continuations, a question for each with its answer,
/// whose tokens are scored. No continuations where the context is too short for any.
Result<Passage> recall_passage(const ModelSession& session, int ctx, std::uint64_t seed);

}  // namespace vecinfer::plugin
