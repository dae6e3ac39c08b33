// Writes seed inputs for the fuzz targets: valid sidecars of several shapes, and scheme spellings.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "vecinfer/sidecar.h"

namespace {

vecinfer::Codebook codebook(const vecinfer::CodecSpec& spec) {
    vecinfer::Codebook out{.sub_dim = spec.sub_dim, .code_bits = spec.code_bits, .scale = 0.5f, .centroids = {}};
    for (int i = 0; i < out.num_centroids() * spec.sub_dim; ++i) {
        out.centroids.push_back(static_cast<std::int8_t>(i * 37 % 255 - 127));
    }
    return out;
}

vecinfer::Sidecar sidecar(const vecinfer::Scheme& scheme, int num_layers, int num_heads) {
    vecinfer::Sidecar out;
    out.scheme = scheme;
    out.model = {"llama", "seed", "norm", {1, 2}};
    out.facts = {.text_hash = 1, .tokens = 2, .seed = 3, .tool = "seed"};
    for (int layer = 0; layer < num_layers; ++layer) {
        vecinfer::LayerCalibration calibration;
        calibration.shape = {layer * 2, num_heads, 8, 16};
        if (scheme.key_transform.smooth) {
            calibration.smooth_factors.assign(static_cast<std::size_t>(num_heads) * 8, 0.75f);
        }
        calibration.key_codebooks.assign(vecinfer::codebook_count(scheme.key, scheme.scope, num_heads, 8), codebook(scheme.key));
        calibration.value_codebooks.assign(vecinfer::codebook_count(scheme.value, scheme.scope, num_heads, 16),
                                           codebook(scheme.value));
        out.layers.push_back(calibration);
    }
    return out;
}

bool write(const std::filesystem::path& path, const char* data, std::size_t size) {
    std::ofstream out(path, std::ios::binary);
    out.write(data, static_cast<std::streamsize>(size));
    return out.good();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s <folder>\n", argv[0]);
        return 2;
    }
    const std::filesystem::path folder = argv[1];
    std::error_code error;
    std::filesystem::create_directories(folder / "sidecar", error);
    std::filesystem::create_directories(folder / "scheme", error);
    bool good = !error;
    int index = 0;
    for (const char* text :
         {"vecinfer", "f16", "million:k2v4", "vecinfer:k4v2,kt=hadamard,vt=hadamard,scope=layer",
          "vecinfer:k2v2,kt=smooth,norm=none",
          "vecinfer:k=d4b8,v=d2b8,kt=smooth+hadamard,vt=none,norm=vector,scope=head,recent=64,sink=0,prefill=exact"}) {
        const std::string name = "seed" + std::to_string(index++);
        good = good && write(folder / "scheme" / name, text, std::char_traits<char>::length(text));
        const vecinfer::Result<vecinfer::Scheme> scheme = vecinfer::resolve(vecinfer::parse_scheme(text).value(), true);
        if (scheme->is_f16()) {
            continue;
        }
        const vecinfer::Result<std::vector<std::byte>> bytes =
            vecinfer::serialize_sidecar(sidecar(scheme.value(), 1 + index % 2, 2));
        good =
            good && bytes.ok() && write(folder / "sidecar" / name, reinterpret_cast<const char*>(bytes->data()), bytes->size());
    }
    if (!good) {
        std::fprintf(stderr, "%s: cannot write the seeds\n", argv[1]);
        return 1;
    }
    return 0;
}
