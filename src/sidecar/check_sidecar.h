// What must hold for every sidecar, whether it comes from a file or goes into one.
#pragma once

#include "vecinfer/sidecar.h"

namespace vecinfer {

/// `sidecar.scheme` must be resolved. Errors: invalid_argument, naming the layer and the part.
Status check_sidecar(const Sidecar& sidecar);

}  // namespace vecinfer
