#include "scheme/family.h"

#include <array>

namespace vecinfer {
namespace {

constexpr CodecSpec vq(int sub_dim, int code_bits) {
    return {CodecKind::vq, sub_dim, code_bits};
}

constexpr Width kVqWidths[] = {{"1", vq(8, 8)},    {"1.5", vq(8, 12)}, {"2", vq(4, 8)},
                               {"2.5", vq(4, 10)}, {"3", vq(4, 12)},   {"4", vq(2, 8)}};
constexpr Width kPqWidths[] = {{"2", vq(4, 8)}, {"2.5", vq(4, 10)}, {"3", vq(4, 12)}, {"4", vq(2, 8)}};
constexpr CodecSpec scalar(int bits, Axis axis, int group, Levels levels) {
    return {CodecKind::scalar, 1, bits, group, axis, levels};
}

constexpr CodecSpec kivi_key(int bits) {
    return scalar(bits, Axis::token, 32, Levels::asymmetric);
}
constexpr CodecSpec kivi_value(int bits) {
    return scalar(bits, Axis::channel, 32, Levels::asymmetric);
}
constexpr Width kKiviKeyWidths[] = {{"2", kivi_key(2)}, {"3", kivi_key(3)}, {"4", kivi_key(4)}};
constexpr Width kKiviValueWidths[] = {{"2", kivi_value(2)}, {"3", kivi_value(3)}, {"4", kivi_value(4)}};

// Published at 3 bits with groups of 32 and at 4 bits with groups of 64.
constexpr CodecSpec innerq(int bits, Axis axis, Levels levels) {
    return scalar(bits, axis, bits == 4 ? 64 : 32, levels);
}
constexpr Width kInnerqKeyWidths[] = {{"2", innerq(2, Axis::channel, Levels::symmetric)},
                                      {"3", innerq(3, Axis::channel, Levels::symmetric)},
                                      {"4", innerq(4, Axis::channel, Levels::symmetric)},
                                      {"2h", innerq(2, Axis::channel, Levels::hybrid)},
                                      {"3h", innerq(3, Axis::channel, Levels::hybrid)}};
constexpr Width kInnerqValueWidths[] = {{"2", innerq(2, Axis::token, Levels::symmetric)},
                                        {"3", innerq(3, Axis::token, Levels::symmetric)},
                                        {"4", innerq(4, Axis::token, Levels::symmetric)},
                                        {"2h", innerq(2, Axis::token, Levels::hybrid)},
                                        {"3h", innerq(3, Axis::token, Levels::hybrid)}};
constexpr Width kRotatedWidths[] = {{"2", vq(1, 2)}, {"3", vq(1, 3)}, {"4", vq(1, 4)}};

constexpr TransformSpec kHadamard{.hadamard = true};

Scheme defaults(std::string_view family, const CodecSpec& key, const CodecSpec& value) {
    Scheme scheme;
    scheme.family = family;
    scheme.key = key;
    scheme.value = value;
    return scheme;
}

// Data-free codebooks are made for unit-variance Gaussian entries, which only the Hadamard transform and the norm can promise.
constexpr AutomaticParts kGaussian{kHadamard, kHadamard, Norm::vector};

std::array<Family, 6> make_families() {
    // With a calibration this measured best, see docs/results/quality.md.
    const AutomaticParts calibrated{
        {.smooth = true, .hadamard = true, .center = true, .optimal = true}, kHadamard, Norm::vector, Encode::shaped};
    AutomaticParts data_free = kGaussian;
    data_free.encode = Encode::unbiased;
    // The published recipe, which exists with a calibration only.
    const AutomaticParts paper{{.smooth = true, .hadamard = true}, {}, Norm::none, Encode::nearest};
    Scheme vecinfer_paper = defaults("vecinfer-paper", vq(4, 8), vq(4, 8));
    vecinfer_paper.scope = Scope::head;
    vecinfer_paper.window.sink = 0;
    vecinfer_paper.prefill = Prefill::exact;
    Scheme million = defaults("million", vq(4, 8), vq(4, 8));
    million.scope = Scope::subspace;
    million.window.sink = 0;
    Scheme innerq_defaults = defaults("innerq", kInnerqKeyWidths[1].spec, kInnerqValueWidths[1].spec);
    innerq_defaults.window = {.recent = 96, .sink = 32};
    Scheme kivi = defaults("kivi", kivi_key(2), kivi_value(2));
    kivi.window.sink = 0;
    return {{{"vecinfer", kVqWidths, kVqWidths, defaults("vecinfer", vq(4, 8), vq(4, 8)), data_free, calibrated},
             {"vecinfer-paper", kVqWidths, kVqWidths, vecinfer_paper, paper, paper},
             {"million", kPqWidths, kPqWidths, million, {}, {}},
             {"innerq", kInnerqKeyWidths, kInnerqValueWidths, innerq_defaults, {}, {{.smooth = true}, {}, Norm::none}},
             {"kivi", kKiviKeyWidths, kKiviValueWidths, kivi, {}, {}},
             {"rotated", kRotatedWidths, kRotatedWidths, defaults("rotated", vq(1, 3), vq(1, 3)), kGaussian, kGaussian}}};
}

}  // namespace

const Family* find_family(std::string_view name) {
    static const auto families = make_families();
    for (const Family& family : families) {
        if (family.name == name) {
            return &family;
        }
    }
    return nullptr;
}

}  // namespace vecinfer
