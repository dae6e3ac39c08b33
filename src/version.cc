#include "vecinfer/version.h"

#include "dispatch/isa.h"

namespace vecinfer {

std::string_view version() noexcept {
    return VECINFER_VERSION;
}

std::string_view build_commit() noexcept {
    return VECINFER_COMMIT;
}

std::vector<std::string_view> available_isa_names() {
    std::vector<std::string_view> names;
    for (const Isa isa : available_isas()) {
        names.push_back(isa_name(isa));
    }
    return names;
}

Result<std::string_view> selected_isa_name() {
    const Result<Isa> isa = selected_isa();
    if (!isa.ok()) {
        return isa.status();
    }
    return isa_name(isa.value());
}

}  // namespace vecinfer
