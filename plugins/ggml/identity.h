// Codebooks belong to one model. Its norm weights, seen in the graph, tell whether this is the one.
#pragma once

#include "host.h"

namespace vecinfer::plugin {

/// ErrorCode::mismatch if a layer of the running model is not the one that the sidecars were calibrated on. Each weight is hashed
/// once.
Status check_identity(ggml_cgraph* graph);
/// After memory was freed: another model may come to lie at the same addresses.
void forget_identities();

}  // namespace vecinfer::plugin
