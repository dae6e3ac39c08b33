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

std::array<Family, 3> make_families() {
    // With a calibration this measured best, see docs/results/quality.md.
    const AutomaticParts calibrated{{.smooth = true, .hadamard = true, .center = true}, kHadamard, Norm::vector};
    Scheme million = defaults("million", vq(4, 8), vq(4, 8));
    million.scope = Scope::subspace;
    million.window.sink = 0;
    return {{{"vecinfer", kVqWidths, kVqWidths, defaults("vecinfer", vq(4, 8), vq(4, 8)), kGaussian, calibrated},
             {"million", kPqWidths, kPqWidths, million, {}, {}},
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
