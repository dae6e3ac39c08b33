// Encodes a head's vector with the universal codebook and decodes it, as a program outside the project would.
#include <vecinfer/scheme.h>
#include <vecinfer/sidecar.h>

#include <cstdio>
#include <random>
#include <vector>

int main() {
    const vecinfer::LayerShape shape{0, 2, 64, 64};
    const vecinfer::Result<vecinfer::Scheme> parsed = vecinfer::parse_scheme("vecinfer:k4v4,recent=0,sink=0");
    if (!parsed.ok()) {
        std::fprintf(stderr, "%s\n", parsed.status().message().c_str());
        return 1;
    }
    const vecinfer::Scheme scheme = vecinfer::resolve(parsed.value(), false).value();
    const vecinfer::Result<vecinfer::RowCodec> codec = vecinfer::make_key_codec(scheme, shape, nullptr);
    if (!codec.ok()) {
        std::fprintf(stderr, "%s\n", codec.status().message().c_str());
        return 1;
    }
    std::vector<float> x(64);
    std::vector<float> y(64);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& entry : x) {
        entry = normal(rng);
    }
    std::vector<std::uint16_t> codes(static_cast<std::size_t>(codec->num_subspaces()));
    std::uint8_t norm = 0;
    codec->encode(1, x.data(), codes.data(), &norm);
    codec->decode_original(1, codes.data(), &norm, y.data());
    double error = 0;
    double energy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        error += (x[i] - y[i]) * (x[i] - y[i]);
        energy += x[i] * x[i];
    }
    if (!(error < 0.05 * energy)) {
        std::fprintf(stderr, "relative error of a 4-bit row: got %g, expected less than 0.05\n", error / energy);
        return 1;
    }
    return 0;
}
