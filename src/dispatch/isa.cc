#include "dispatch/isa.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string>

namespace vecinfer {
namespace {

constexpr std::array kAllIsas = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vbmi};

bool cpu_supports(Isa isa) noexcept {
    if (isa == Isa::scalar) {
        return true;
    }
#if defined(__x86_64__)
    // The instruction sets named in vecinfer_isa_sources; f16c comes with every CPU that has avx2 and fma.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (isa == Isa::avx2) {
        return avx2;
    }
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (isa == Isa::avx512) {
        return avx512;
    }
    return avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

struct IsaList {
    std::array<Isa, kAllIsas.size()> isas{};
    std::size_t count = 0;
};

IsaList detect() noexcept {
    IsaList list;
    for (Isa isa : kAllIsas) {
        if (cpu_supports(isa)) {
            list.isas[list.count++] = isa;
        }
    }
    return list;
}

std::string names(std::span<const Isa> isas) {
    std::string text;
    for (Isa isa : isas) {
        text += text.empty() ? "" : ", ";
        text += isa_name(isa);
    }
    return text;
}

}  // namespace

std::string_view isa_name(Isa isa) noexcept {
    switch (isa) {
        case Isa::scalar: return "scalar";
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512vbmi: return "avx512vbmi";
    }
    return "unknown";
}

std::span<const Isa> available_isas() noexcept {
    static const IsaList list = detect();
    return {list.isas.data(), list.count};
}

Result<Isa> choose_isa(std::string_view wanted, std::span<const Isa> available) {
    if (wanted.empty()) {
        return available.back();
    }
    for (Isa isa : available) {
        if (wanted == isa_name(isa)) {
            return isa;
        }
    }
    for (Isa isa : kAllIsas) {
        if (wanted == isa_name(isa)) {
            return Status(ErrorCode::unsupported, fmt::format("VECINFER_ISA: got {}, which this CPU or build lacks, expected {}",
                                                              wanted, names(available)));
        }
    }
    return argument_error("VECINFER_ISA", wanted, names(available));
}

Result<Isa> selected_isa() {
    static const Result<Isa> selected = [] {
        const char* wanted = std::getenv("VECINFER_ISA");
        return choose_isa(wanted == nullptr ? "" : wanted, available_isas());
    }();
    return selected;
}

Isa active_isa() noexcept {
    static const Isa active = [] {
        const Result<Isa> selected = selected_isa();
        return selected.ok() ? selected.value() : Isa::scalar;
    }();
    return active;
}

}  // namespace vecinfer
