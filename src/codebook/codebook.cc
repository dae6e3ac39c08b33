#include "vecinfer/codebook.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "codebook/kmeans.h"
#include "fnv.h"

namespace vecinfer {

Status check_vq_spec(int sub_dim, int code_bits) {
    std::string names;
    for (const CodecSpec& spec : supported_vq_specs()) {
        if (spec.sub_dim == sub_dim && spec.code_bits == code_bits) {
            return {};
        }
        names += fmt::format("{}d{}b{}", names.empty() ? "" : ", ", spec.sub_dim, spec.code_bits);
    }
    return argument_error("sub_dim and code_bits", fmt::format("d{}b{}", sub_dim, code_bits), "one of " + names);
}

Status validate(const Codebook& codebook) {
    if (Status status = check_vq_spec(codebook.sub_dim, codebook.code_bits); !status.ok()) {
        return status;
    }
    const std::size_t expected = static_cast<std::size_t>(codebook.sub_dim) << codebook.code_bits;
    if (codebook.centroids.size() != expected) {
        return argument_error("centroids", fmt::format("{} values", codebook.centroids.size()),
                              fmt::format("{} x {} = {}", codebook.num_centroids(), codebook.sub_dim, expected));
    }
    if (!std::isfinite(codebook.scale) || codebook.scale <= 0.0f) {
        return argument_error("scale", fmt::format("{}", codebook.scale), "a positive finite number");
    }
    return {};
}

std::uint64_t hash(const Codebook& codebook) noexcept {
    Fnv fnv;
    fnv.add(static_cast<std::uint64_t>(codebook.sub_dim));
    fnv.add(static_cast<std::uint64_t>(codebook.code_bits));
    fnv.add(std::span<const float>(&codebook.scale, 1));
    fnv.add(std::span<const std::int8_t>(codebook.centroids));
    return fnv.value();
}

Codebook round_to_int8(std::span<const float> centroids, int sub_dim, int code_bits) {
    float largest = 0.0f;
    for (float c : centroids) {
        largest = std::max(largest, std::abs(c));
    }
    Codebook codebook;
    codebook.sub_dim = sub_dim;
    codebook.code_bits = code_bits;
    // All-zero centroids need some scale; a subnormal one would round away.
    codebook.scale = largest == 0.0f ? 1.0f : std::max(largest / 127.0f, std::numeric_limits<float>::min());
    codebook.centroids.reserve(centroids.size());
    for (float c : centroids) {
        const long rounded = std::lround(static_cast<double>(c) / codebook.scale);
        codebook.centroids.push_back(static_cast<std::int8_t>(std::clamp(rounded, -127l, 127l)));
    }
    return codebook;
}

}  // namespace vecinfer
