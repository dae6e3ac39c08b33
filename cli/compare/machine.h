// The machine that measures.
#pragma once

#include <string>

namespace vecinfer::cli {

std::string cpu_name();
/// CPUs that this process may use.
int usable_cpus();
/// Waits up to a few seconds until other programs use less than a fifth of the CPUs; false if they do not.
bool machine_is_quiet();

}  // namespace vecinfer::cli
