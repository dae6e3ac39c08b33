// Checks that the inspection functions share.
#pragma once

#include <string_view>

#include "vecinfer/calibrate.h"
#include "vecinfer/status.h"

namespace vecinfer::inspect {

/// Shapes, pointers, strides and finite entries.
Status check_rows(const KvRows& rows, std::string_view name);
Status check_queries(const QueryRows& queries, const KvRows& keys);

}  // namespace vecinfer::inspect
