// What is only known once llama.cpp has made its buffers and runs a graph: how many layers there are, and what the cache takes.
#pragma once

#include "host.h"

namespace vecinfer::plugin {

/// Remembers the layer that a weight or a cache of one of our buffers belongs to, by its name. llama.cpp puts the last layers on
/// the device first, so the highest one seen is the model's last.
void note_layer(const ggml_tensor* t);

/// An error if the scheme's `layers` names layers that no model in this process has.
Status check_layer_ranges();

/// The line at start: scheme, codebooks, bytes per token. Printed once, by the first graph that writes a cache and passed every
/// check, so that it does not promise what is refused a moment later.
void announce(ggml_cgraph* graph);

}  // namespace vecinfer::plugin
