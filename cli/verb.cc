#include "verb.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include "standard_streams.h"

namespace vecinfer::cli {
namespace {

// Messages may quote file names and arguments, which may hold anything; an error stays one line.
std::string one_line(std::string_view text) {
    std::string line(text);
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
    while (!line.empty() && line.back() == ' ') {
        line.pop_back();
    }
    return line;
}

// CLI11's own help spells out ranges and exclusions beside each option, which pushes everything out of line.
class HelpFormatter : public CLI::Formatter {
public:
    explicit HelpFormatter(std::string_view usage) : usage_(usage) { column_width(26); }

    std::string make_usage(const CLI::App* app, std::string) const override {
        return fmt::format("\nUsage: {} {}\n", app->get_name(), usage_);
    }

    std::string make_option_opts(const CLI::Option* option) const override {
        const std::string type = option->get_type_size() == 0 ? "" : option->get_type_name();
        return type.empty() ? "" : " " + type.substr(0, type.find(':'));
    }

private:
    std::string usage_;
};

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i + 1;
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({substituted, row[j] + 1, diagonal + 1});
        }
    }
    return row[b.size()];
}

}  // namespace

int fail(std::string_view message) {
    write_error_line("error: " + one_line(message));
    return kExitFailure;
}

int usage_error(std::string_view verb, std::string_view message) {
    write_error_line(fmt::format("error: {} (see `vecinfer {}{}--help`)", one_line(message), verb, verb.empty() ? "" : " "));
    return kExitUsage;
}

void note(std::string_view message) {
    write_error_line(one_line(message));
}

void set_up_help(CLI::App& app, std::string_view usage, std::string_view examples) {
    app.formatter(std::make_shared<HelpFormatter>(usage));
    // The formatter puts an empty line before it.
    app.footer(std::string(examples.substr(examples.find_first_not_of('\n'))));
}

Parsed parse_args(CLI::App& app, std::string_view verb, const VerbCall& call, std::string_view passthrough_tool, int& exit_code) {
    app.allow_extras();
    std::vector<std::string> reversed(call.args.rbegin(), call.args.rend());
    try {
        app.parse(reversed);
    } catch (const CLI::CallForHelp&) {
        fmt::print("{}", app.help());
        exit_code = kExitOk;
        return Parsed::finished;
    } catch (const CLI::ParseError& error) {
        exit_code = usage_error(verb, error.what());
        return Parsed::finished;
    }
    const std::vector<std::string> extras = app.remaining();
    if (!extras.empty() && !passthrough_tool.empty()) {
        exit_code = usage_error(
            verb, fmt::format("unexpected argument '{}'; arguments for {} go after `--`", extras.front(), passthrough_tool));
        return Parsed::finished;
    }
    if (!extras.empty()) {
        exit_code = usage_error(verb, fmt::format("unexpected argument '{}'", extras.front()));
        return Parsed::finished;
    }
    if (passthrough_tool.empty() && !call.passthrough.empty()) {
        exit_code = usage_error(verb, fmt::format("{} takes no arguments after `--`, got '{}'", verb, call.passthrough.front()));
        return Parsed::finished;
    }
    return Parsed::proceed;
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
    std::string_view best;
    std::size_t best_distance = word.size() / 3 + 2;  // farther than this is no typing mistake
    for (const std::string_view candidate : candidates) {
        const bool is_prefix = word.size() >= 2 && candidate.starts_with(word);
        const std::size_t distance = is_prefix ? 0 : edit_distance(word, candidate);
        if (distance < best_distance) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best;
}

}  // namespace vecinfer::cli
