#include "scheme_option.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "process.h"
#include "verb.h"

namespace vecinfer::cli {

CLI::Option* SchemeOption::add_to(CLI::App& app, const std::string& description) {
    CLI::Option* option = app.add_option("-s,--scheme", text_, description)->type_name("SCHEME");
    option_ = option;
    return option;
}

bool SchemeOption::given() const {
    return option_ != nullptr && option_->count() > 0;
}

Result<std::optional<Scheme>> SchemeOption::asked() const {
    constexpr const char* kVariable = "VECINFER_SCHEME";
    const std::optional<std::string> text = given() ? text_ : environment_value(kVariable);
    if (!text) {
        return std::optional<Scheme>();
    }
    const Result<Scheme> scheme = parse_scheme(*text);
    if (scheme.ok()) {
        return std::optional(scheme.value());
    }
    return given() ? scheme.status()
                   : Status(scheme.status().code(), fmt::format("{}: {}", kVariable, scheme.status().message()));
}

CLI::Option* add_codebooks_option(CLI::App& app, std::string& value) {
    return app
        .add_option("--codebooks", value,
                    "sidecar of `vecinfer calibrate`, or none for data-free codebooks (default: a fitting one beside the model)")
        ->check([](const std::string& text) { return text.empty() ? "got nothing, expected a sidecar file or none" : ""; })
        ->type_name("FILE|none");
}

int scheme_error(std::string_view message) {
    return usage_error("", message);
}

}  // namespace vecinfer::cli
