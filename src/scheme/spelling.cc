#include "scheme/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "scheme/family.h"

namespace vecinfer {
namespace {

template <class T>
struct Word {
    std::string_view name;
    T value;
};
// Steps of a transform in the order they are applied, joined by +. Values may not be smoothed: no query undoes it for them.
constexpr std::string_view kKeySteps =
    "auto, none, or center, smooth or smooth-opt, hadamard in this order joined by +, or full, or center+full";
constexpr std::string_view kValueSteps = "auto, none, or center, hadamard in this order joined by +, or full, or center+full";
constexpr std::array<Word<Norm>, 3> kNorms = {{{"auto", Norm::automatic}, {"none", Norm::none}, {"vector", Norm::vector}}};
constexpr std::array<Word<Scope>, 3> kScopes = {{{"layer", Scope::layer}, {"head", Scope::head}, {"subspace", Scope::subspace}}};
constexpr std::array<Word<Axis>, 2> kAxes = {{{"channel", Axis::channel}, {"token", Axis::token}}};
constexpr std::array<Word<Levels>, 3> kLevels = {
    {{"sym", Levels::symmetric}, {"asym", Levels::asymmetric}, {"hybrid", Levels::hybrid}}};
constexpr int kScalarBits[] = {2, 3, 4, 8};
constexpr int kGroups[] = {16, 32, 64, 128};
constexpr std::array<Word<Prefill>, 2> kPrefills = {{{"windowed", Prefill::windowed}, {"exact", Prefill::exact}}};

constexpr std::array<Word<Encode>, 4> kEncodes = {
    {{"auto", Encode::automatic}, {"nearest", Encode::nearest}, {"unbiased", Encode::unbiased}, {"shaped", Encode::shaped}}};

constexpr std::array<std::string_view, 11> kOptions = {"k",      "v",    "kt",      "vt",     "norm",  "scope",
                                                       "recent", "sink", "prefill", "encode", "layers"};

template <class Table>
std::string names(const Table& table) {
    std::string out;
    for (const auto& entry : table) {
        out += out.empty() ? "" : ", ";
        out += entry.name;
    }
    return out;
}

template <class T, std::size_t N>
std::string_view name_of(const std::array<Word<T>, N>& table, T value) noexcept {
    for (const Word<T>& word : table) {
        if (word.value == value) {
            return word.name;
        }
    }
    return table[0].name;
}

Status scheme_error(std::string_view part, std::string_view got, std::string_view expected) {
    return argument_error(fmt::format("scheme: {}", part), spelling::shown(got), expected);
}

template <class T, std::size_t N>
Status parse_word(std::string_view option, std::string_view text, const std::array<Word<T>, N>& table, T& out) {
    for (const Word<T>& word : table) {
        if (word.name == text) {
            out = word.value;
            return {};
        }
    }
    return scheme_error(option, text, fmt::format("one of {}", names(table)));
}

Status parse_transform(std::string_view option, std::string_view text, bool may_smooth, TransformSpec& out) {
    TransformSpec spec;
    auto next = [rest = text](std::string_view step) mutable {
        if (!rest.starts_with(step) || (rest.size() > step.size() && rest[step.size()] != '+')) {
            return false;
        }
        rest.remove_prefix(std::min(rest.size(), step.size() + 1));
        return true;
    };
    if (text == "auto") {
        spec.automatic = true;
    } else if (text != "none") {
        spec.center = next("center");
        spec.full = next("full");
        spec.optimal = may_smooth && next("smooth-opt");
        spec.smooth = spec.optimal || (may_smooth && next("smooth"));
        spec.hadamard = next("hadamard");
        const bool both = spec.full && (spec.smooth || spec.hadamard);
        if (text.empty() || both || spelling::transform_name(spec) != text) {
            return scheme_error(option, text, may_smooth ? kKeySteps : kValueSteps);
        }
    }
    out = spec;
    return {};
}

Status parse_number(std::string_view option, std::string_view text, int high, int& out) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > high) {
        return scheme_error(option, text, fmt::format("0 to {}", high));
    }
    out = value;
    return {};
}

Status parse_codec(std::string_view option, std::string_view text, CodecSpec& out) {
    if (spelling::find_codec(text, out)) {
        return {};
    }
    return scheme_error(option, text, fmt::format("one of {}", spelling::codec_names()));
}

Status parse_width(std::string_view text, std::span<const Width> widths, CodecSpec& out) {
    for (const Width& width : widths) {
        if (width.name == text) {
            out = width.spec;
            return {};
        }
    }
    return scheme_error("width", text, fmt::format("one of {}", names(widths)));
}

std::string_view width_name(const CodecSpec& spec, std::span<const Width> widths) noexcept {
    for (const Width& width : widths) {
        if (width.spec == spec) {
            return width.name;
        }
    }
    return {};
}

Status parse_widths(std::string_view text, const Family& family, CodecSpec& key, CodecSpec& value) {
    const std::size_t v = text.find('v');
    if (text.empty() || text[0] != 'k' || v == std::string_view::npos) {
        return scheme_error("widths", text, "k<width>v<width>, for example k2v2, or option=value");
    }
    if (Status s = parse_width(text.substr(1, v - 1), family.key_widths, key); !s.ok()) {
        return s;
    }
    return parse_width(text.substr(v + 1), family.value_widths, value);
}

Status parse_override(std::string_view text, const Family& family, LayerOverride& out) {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) {
        return scheme_error("layers", text, "<layer or first-last>:<codecs>, for example 0-1:k4v4");
    }
    const std::string_view range = text.substr(0, colon);
    const std::size_t dash = range.find('-');
    if (Status s = parse_number("layers", range.substr(0, dash), spelling::kMaxLayer, out.first); !s.ok()) {
        return s;
    }
    out.last = out.first;
    if (dash != std::string_view::npos) {
        if (Status s = parse_number("layers", range.substr(dash + 1), spelling::kMaxLayer, out.last); !s.ok()) {
            return s;
        }
    }
    const std::string_view codecs = text.substr(colon + 1);
    if (codecs == "f16") {
        out.f16 = true;
        out.key = out.value = f16_scheme().key;
        return {};
    }
    if (const std::size_t plus = codecs.find('+'); plus != std::string_view::npos) {
        if (Status s = parse_codec("layers", codecs.substr(0, plus), out.key); !s.ok()) {
            return s;
        }
        return parse_codec("layers", codecs.substr(plus + 1), out.value);
    }
    return parse_widths(codecs, family, out.key, out.value);
}

Status parse_layers(std::string_view text, const Family& family, std::vector<LayerOverride>& out) {
    while (true) {
        const std::size_t slash = text.find('/');
        LayerOverride next;
        if (Status s = parse_override(text.substr(0, slash), family, next); !s.ok()) {
            return s;
        }
        out.push_back(next);
        if (slash == std::string_view::npos) {
            return {};
        }
        text.remove_prefix(slash + 1);
    }
}

Status parse_option(std::string_view option, std::string_view text, const Family& family, Scheme& out) {
    if (option == "layers") {
        return parse_layers(text, family, out.layers);
    }
    if (option == "k") {
        return parse_codec(option, text, out.key);
    }
    if (option == "v") {
        return parse_codec(option, text, out.value);
    }
    if (option == "kt") {
        return parse_transform(option, text, true, out.key_transform);
    }
    if (option == "vt") {
        return parse_transform(option, text, false, out.value_transform);
    }
    if (option == "norm") {
        return parse_word(option, text, kNorms, out.norm);
    }
    if (option == "scope") {
        return parse_word(option, text, kScopes, out.scope);
    }
    if (option == "recent") {
        return parse_number(option, text, spelling::kMaxRecent, out.window.recent);
    }
    if (option == "sink") {
        return parse_number(option, text, spelling::kMaxSink, out.window.sink);
    }
    if (option == "encode") {
        return parse_word(option, text, kEncodes, out.encode);
    }
    return parse_word(option, text, kPrefills, out.prefill);
}

/// Bit of kOptions, or nothing for a name that does not exist.
std::optional<unsigned> option_bit(std::string_view option) noexcept {
    for (unsigned i = 0; i < kOptions.size(); ++i) {
        if (kOptions[i] == option) {
            return 1u << i;
        }
    }
    return std::nullopt;
}

Status parse_parts(std::string_view parts, const Family& family, Scheme& out) {
    unsigned seen = 0;
    bool first = true;
    while (true) {
        const std::size_t comma = parts.find(',');
        const std::string_view part = parts.substr(0, comma);
        const std::size_t equals = part.find('=');
        if (equals == std::string_view::npos) {
            if (!first) {
                return scheme_error("option", part, fmt::format("option=value with option one of {}", fmt::join(kOptions, ", ")));
            }
            if (Status s = parse_widths(part, family, out.key, out.value); !s.ok()) {
                return s;
            }
            seen |= *option_bit("k") | *option_bit("v");
        } else {
            const std::string_view option = part.substr(0, equals);
            const std::optional<unsigned> bit = option_bit(option);
            if (!bit) {
                return scheme_error("option", option, fmt::format("one of {}", fmt::join(kOptions, ", ")));
            }
            if (seen & *bit) {
                return scheme_error(option, "a second value", "it once (the short widths set k and v)");
            }
            seen |= *bit;
            if (Status s = parse_option(option, part.substr(equals + 1), family, out); !s.ok()) {
                return s;
            }
        }
        if (comma == std::string_view::npos) {
            return {};
        }
        parts.remove_prefix(comma + 1);
        first = false;
    }
}

}  // namespace

namespace spelling {

std::string shown(std::string_view text) {
    constexpr std::size_t kMaxShown = 40;
    if (text.empty()) {
        return "nothing";
    }
    std::string out;
    for (const char c : text.substr(0, kMaxShown)) {
        out += (c >= 0x20 && c < 0x7f) ? c : '?';
    }
    return text.size() > kMaxShown ? out + "..." : out;
}

std::string codec_names() {
    std::string out;
    for (const CodecSpec& spec : supported_vq_specs()) {
        out += codec_name(spec) + ", ";
    }
    return out + "b<2, 3, 4 or 8>-<channel or token><16, 32 or 64>-<sym, asym or hybrid>";
}

std::string codec_name(const CodecSpec& spec) {
    if (spec.kind != CodecKind::scalar) {
        return fmt::format("d{}b{}", spec.sub_dim, spec.code_bits);
    }
    return fmt::format("b{}-{}{}-{}", spec.code_bits, name_of(kAxes, spec.axis), spec.group, name_of(kLevels, spec.levels));
}

bool find_codec(std::string_view name, CodecSpec& out) {
    for (const CodecSpec& spec : supported_vq_specs()) {
        if (codec_name(spec) == name) {
            out = spec;
            return true;
        }
    }
    for (const int bits : kScalarBits) {
        for (const auto& [axis_name, axis] : kAxes) {
            for (const int group : kGroups) {
                for (const auto& [levels_name, levels] : kLevels) {
                    const CodecSpec spec{CodecKind::scalar, 1, bits, group, axis, levels};
                    if ((axis == Axis::channel || group <= 64) && codec_name(spec) == name) {
                        out = spec;
                        return true;
                    }
                }
            }
        }
    }
    return false;
}

std::string range_name(const LayerOverride& layers) {
    return layers.first == layers.last ? fmt::format("{}", layers.first) : fmt::format("{}-{}", layers.first, layers.last);
}

std::string transform_name(const TransformSpec& spec) {
    if (spec.automatic) {
        return "auto";
    }
    std::string name;
    const auto add = [&name](bool on, std::string_view step) {
        if (on) {
            name += name.empty() ? "" : "+";
            name += step;
        }
    };
    add(spec.center, "center");
    add(spec.full, "full");
    add(spec.smooth, spec.optimal ? "smooth-opt" : "smooth");
    add(spec.hadamard, "hadamard");
    return name.empty() ? "none" : name;
}

}  // namespace spelling

namespace {

// The layers option, or nothing; widths by name where `family` has names for both.
std::string layers_text(const Scheme& scheme, const Family* family) {
    std::string out;
    for (const LayerOverride& o : scheme.layers) {
        out += out.empty() ? ",layers=" : "/";
        out += spelling::range_name(o) + ":";
        const std::string_view k = family != nullptr ? width_name(o.key, family->key_widths) : std::string_view();
        const std::string_view v = family != nullptr ? width_name(o.value, family->value_widths) : std::string_view();
        if (o.f16) {
            out += "f16";
        } else if (!k.empty() && !v.empty()) {
            out += fmt::format("k{}v{}", k, v);
        } else {
            out += fmt::format("{}+{}", spelling::codec_name(o.key), spelling::codec_name(o.value));
        }
    }
    return out;
}

}  // namespace

Result<Scheme> parse_scheme(std::string_view text) {
    const std::size_t end = std::min(text.find_first_of(":,"), text.size());
    const std::string_view family = text.substr(0, end);
    const std::string_view parts = text.substr(std::min(end + 1, text.size()));
    if (family == "f16") {
        if (end < text.size()) {
            return scheme_error("f16", parts, "no options: nothing is compressed");
        }
        return f16_scheme();
    }
    const Family* known = find_family(family);
    if (known == nullptr) {
        return scheme_error("family", family, fmt::format("one of {}", fmt::join(scheme_families(), ", ")));
    }
    Scheme out = known->defaults;
    if (end < text.size()) {
        if (text[end] == ',') {
            return scheme_error("family", text, fmt::format("a colon after {}, for example {}:recent=64", family, family));
        }
        if (Status s = parse_parts(parts, *known, out); !s.ok()) {
            return s;
        }
    }
    if (Status s = validate(out); !s.ok()) {
        return s;
    }
    return out;
}

std::string to_string(const Scheme& scheme) {
    if (scheme.is_f16()) {
        return "f16";
    }
    const Family* family = find_family(scheme.family);
    if (family == nullptr) {
        return to_long_string(scheme);
    }
    const Scheme& defaults = family->defaults;
    std::string out = scheme.family + ":";
    if (const std::string_view k = width_name(scheme.key, family->key_widths), v = width_name(scheme.value, family->value_widths);
        !k.empty() && !v.empty()) {
        out += fmt::format("k{}v{}", k, v);
    } else {
        out += fmt::format("k={},v={}", spelling::codec_name(scheme.key), spelling::codec_name(scheme.value));
    }
    if (scheme.key_transform != defaults.key_transform) {
        out += fmt::format(",kt={}", spelling::transform_name(scheme.key_transform));
    }
    if (scheme.value_transform != defaults.value_transform) {
        out += fmt::format(",vt={}", spelling::transform_name(scheme.value_transform));
    }
    if (scheme.norm != defaults.norm) {
        out += fmt::format(",norm={}", name_of(kNorms, scheme.norm));
    }
    if (scheme.scope != defaults.scope) {
        out += fmt::format(",scope={}", name_of(kScopes, scheme.scope));
    }
    if (scheme.window.recent != defaults.window.recent) {
        out += fmt::format(",recent={}", scheme.window.recent);
    }
    if (scheme.window.sink != defaults.window.sink) {
        out += fmt::format(",sink={}", scheme.window.sink);
    }
    if (scheme.prefill != defaults.prefill) {
        out += fmt::format(",prefill={}", name_of(kPrefills, scheme.prefill));
    }
    if (scheme.encode != defaults.encode) {
        out += fmt::format(",encode={}", name_of(kEncodes, scheme.encode));
    }
    return out + layers_text(scheme, family);
}

std::string to_long_string(const Scheme& scheme) {
    if (scheme.is_f16()) {
        return "f16";
    }
    const std::string out = fmt::format(
        "{}:k={},v={},kt={},vt={},norm={},scope={},recent={},sink={},prefill={},encode={}", scheme.family,
        spelling::codec_name(scheme.key), spelling::codec_name(scheme.value), spelling::transform_name(scheme.key_transform),
        spelling::transform_name(scheme.value_transform), name_of(kNorms, scheme.norm), name_of(kScopes, scheme.scope),
        scheme.window.recent, scheme.window.sink, name_of(kPrefills, scheme.prefill), name_of(kEncodes, scheme.encode));
    return out + layers_text(scheme, nullptr);
}

}  // namespace vecinfer
