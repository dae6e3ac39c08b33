// parse_scheme takes any text; what it accepts must be valid, print, and parse back to the same scheme.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "vecinfer/scheme.h"

namespace {

void require(bool condition) {
    if (!condition) {
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const vecinfer::Result<vecinfer::Scheme> scheme = vecinfer::parse_scheme({reinterpret_cast<const char*>(data), size});
    if (!scheme.ok()) {
        require(!scheme.status().message().empty() && scheme.status().message().size() < 512);
        return 0;
    }
    require(vecinfer::validate(scheme.value()).ok());
    require(vecinfer::parse_scheme(vecinfer::to_string(scheme.value())).value() == scheme.value());
    require(vecinfer::parse_scheme(vecinfer::to_long_string(scheme.value())).value() == scheme.value());
    for (const bool calibrated : {false, true}) {
        const vecinfer::Result<vecinfer::Scheme> resolved = vecinfer::resolve(scheme.value(), calibrated);
        if (resolved.ok()) {
            require(vecinfer::resolve(resolved.value(), calibrated).value() == resolved.value());
        }
    }
    return 0;
}
