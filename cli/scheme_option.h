// --scheme, with VECINFER_SCHEME behind it, and --codebooks, the same for every verb that takes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "vecinfer/scheme.h"
#include "vecinfer/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace vecinfer::cli {

class SchemeOption {
public:
    /// Adds -s,--scheme to `app`, which must not outlive this.
    CLI::Option* add_to(CLI::App& app, const std::string& description);
    /// Whether --scheme was on the command line, if only as an empty text.
    bool given() const;
    /// The scheme of --scheme, else of VECINFER_SCHEME; nullopt if neither is set. An error says which of them is wrong.
    Result<std::optional<Scheme>> asked() const;

private:
    std::string text_;
    const CLI::Option* option_ = nullptr;
};

/// Adds --codebooks FILE|none to `app`; an empty value is an error.
CLI::Option* add_codebooks_option(CLI::App& app, std::string& value);

/// usage_error() for a scheme, pointing to the help that lists families, widths and options.
int scheme_error(std::string_view message);

}  // namespace vecinfer::cli
