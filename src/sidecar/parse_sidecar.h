// The sidecar parser over any byte source, shared by the in-memory and the file entry points.
#pragma once

#include <memory>

#include "sidecar/gguf_reader.h"
#include "vecinfer/sidecar.h"

namespace vecinfer {

/// May throw std::bad_alloc.
Result<Sidecar> parse_sidecar_source(std::shared_ptr<const gguf::ByteSource> source);

}  // namespace vecinfer
