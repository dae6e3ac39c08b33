#include "compare/scrape.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

namespace vecinfer::cli {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        lines.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return lines;
}

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(" \t\r");
    return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// What follows `label` in a line, wherever it stands: messages may have a time before them. Blanks in `label` stand for any
// number.
std::optional<std::string_view> behind(std::string_view line, std::string_view label) {
    for (std::size_t begin = 0; begin < line.size(); ++begin) {
        std::size_t at = begin;
        const bool matches = std::all_of(label.begin(), label.end(), [&](char c) {
            if (c == ' ') {
                at = std::min(line.find_first_not_of(' ', at), line.size());
                return true;
            }
            return at < line.size() && line[at++] == c;
        });
        if (matches) {
            return line.substr(at);
        }
    }
    return std::nullopt;
}

// The number behind `label` on the first line that holds it.
Result<double> number(std::string_view text, std::string_view label) {
    for (const std::string_view line : lines_of(text)) {
        const std::optional<std::string_view> rest = behind(line, label);
        if (!rest) {
            continue;
        }
        const std::string_view digits = trimmed(*rest);
        double value = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        if (error == std::errc() && end != digits.data()) {
            return value;
        }
        return Status(ErrorCode::corrupt_data,
                      fmt::format("no number behind '{}' in the tool's output, got '{}'", label, digits));
    }
    return Status(ErrorCode::corrupt_data, fmt::format("no '{}' in the tool's output", label));
}

// The number behind the "±" of that line; null if there is none.
Json standard_error(std::string_view text, std::string_view label) {
    constexpr std::string_view kSign = "\u00b1";
    for (const std::string_view line : lines_of(text)) {
        const std::size_t at = behind(line, label) ? line.find(kSign) : std::string_view::npos;
        if (at != std::string_view::npos) {
            const std::string_view digits = trimmed(line.substr(at + kSign.size()));
            double value = 0;
            const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
            return error == std::errc() && end != digits.data() ? Json(value) : Json();
        }
    }
    return nullptr;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

Result<Json> scrape_perplexity(std::string_view text) {
    const Result<double> ppl = number(text, "Final estimate: PPL = ");
    if (!ppl.ok()) {
        return ppl.status();
    }
    return Json{{"ppl", ppl.value()}, {"ppl_ratio", 1.0}, {"kld_mean", 0.0}, {"kld_mean_err", 0.0},
                {"kld_p99", 0.0},     {"kld_max", 0.0},   {"top1", 1.0}};
}

Result<Json> scrape_divergence(std::string_view text) {
    Json json;
    for (const auto& [name, label] : {std::pair{"ppl", "Mean PPL(Q) :"},
                                      {"ppl_ratio", "Mean PPL(Q)/PPL(base) :"},
                                      {"kld_mean", "Mean KLD:"},
                                      {"kld_p99", "99.0% KLD:"},
                                      {"kld_max", "Maximum KLD:"},
                                      {"top1", "Same top p:"}}) {
        const Result<double> value = number(text, label);
        if (!value.ok()) {
            return value.status();
        }
        json[name] = value.value();
    }
    json["top1"] = json["top1"].get<double>() / 100;
    json["kld_mean_err"] = standard_error(text, "Mean KLD:");
    return json;
}

Result<Json> scrape_bench(std::string_view text) {
    const Status broken(ErrorCode::corrupt_data, "llama-bench printed no list of measurements");
    const std::size_t begin = text.find('[');
    const Json runs = begin == std::string_view::npos ? Json() : Json::parse(text.substr(begin), nullptr, false);
    if (!runs.is_array() || runs.empty()) {
        return broken;
    }
    Json speeds = Json::array();
    for (const Json& run : runs) {
        if (!run.is_object() || !run.contains("samples_ts") || !run["samples_ts"].is_array() || run["samples_ts"].empty()) {
            return broken;
        }
        const auto samples = run["samples_ts"].get<std::vector<double>>();
        const bool decode = run.value("n_gen", 0) > 0;
        speeds.push_back({{"kind", decode ? "decode" : "prompt"},
                          {"tokens", run.value(decode ? "n_gen" : "n_prompt", 0)},
                          {"depth", run.value("n_depth", 0)},
                          {"tps", median(samples)},
                          {"tps_min", *std::min_element(samples.begin(), samples.end())},
                          {"tps_max", *std::max_element(samples.begin(), samples.end())}});
    }
    return speeds;
}

Result<Json> scrape_retrieval(std::string_view text) {
    std::map<std::pair<int, double>, std::pair<int, int>> cells;
    int exact = 0;
    int total = 0;
    for (const std::string_view line : lines_of(text)) {
        const Json json = Json::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains("exact")) {
            continue;
        }
        auto& cell = cells[{json.value("length", 0), json.value("depth", 0.0)}];
        cell.first += json["exact"] == true ? 1 : 0;
        exact += json["exact"] == true ? 1 : 0;
        ++cell.second;
        ++total;
    }
    if (total == 0) {
        return Status(ErrorCode::corrupt_data, "no answers in the tool's output");
    }
    Json list = Json::array();
    for (const auto& [place, counts] : cells) {
        list.push_back({{"length", place.first}, {"depth", place.second}, {"exact", counts.first}, {"total", counts.second}});
    }
    return Json{{"exact", exact}, {"total", total}, {"cells", list}};
}

Failure failure_of(std::string_view output, int exit_code) {
    constexpr std::string_view kPrefix = "vecinfer: error: ";
    std::string last;
    for (const std::string_view line : lines_of(output)) {
        if (const std::size_t at = line.find(kPrefix); at != std::string_view::npos) {
            return {std::string(trimmed(line.substr(at + kPrefix.size()))), true};
        }
        if (!trimmed(line).empty()) {
            last = trimmed(line);
        }
    }
    if (exit_code > 128) {
        return {fmt::format("ended by signal {}{}{}", exit_code - 128, last.empty() ? "" : ": ", last)};
    }
    return {last.empty() ? fmt::format("exit code {}", exit_code) : fmt::format("exit code {}: {}", exit_code, last)};
}

}  // namespace vecinfer::cli
