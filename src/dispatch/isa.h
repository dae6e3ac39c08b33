// Run-time choice of the CPU instruction set. Decided once; every kernel table is picked by it.
#pragma once

#include <span>
#include <string_view>

#include "vecinfer/status.h"

namespace vecinfer {

/// `avx512` is F, BW, DQ and VL; `avx512vbmi` adds VBMI and VNNI (Ice Lake, Zen 4 and later).
enum class Isa { scalar, avx2, avx512, avx512vbmi };

std::string_view isa_name(Isa isa) noexcept;
/// Compiled in and supported by this CPU, slowest first.
std::span<const Isa> available_isas() noexcept;
/// The ISA a value of VECINFER_ISA asks for. Empty: the last, hence fastest, of `available`. An unknown name is
/// ErrorCode::invalid_argument, a known one that is not in `available` ErrorCode::unsupported; both list the right ones.
Result<Isa> choose_isa(std::string_view wanted, std::span<const Isa> available);
/// The ISA in use: VECINFER_ISA=scalar|avx2|avx512|avx512vbmi if set, else the fastest available. A wrong or unsupported value of
/// the variable is an error that lists the right ones; until it is dealt with kernels run as scalar. Read once per process.
Result<Isa> selected_isa();
/// As selected_isa, but never fails; for kernels.
Isa active_isa() noexcept;

}  // namespace vecinfer
