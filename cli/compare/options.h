// What `vecinfer compare` was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vecinfer::cli {

struct CompareOptions {
    std::string model;
    std::string text;
    std::vector<std::string> schemes;
    std::vector<std::string> peers;
    std::string out;
    std::string calibration_text;
    int context = 2048;
    int chunks = 2;
    int calibration_chunks = 4;
    std::int64_t calibration_context = 0;                    // tokens of a piece; from the model, see sidecar_choice.h
    std::vector<int> lengths;                                // of retrieval; empty: 512, 1024, 2048 as far as the model goes
    std::vector<double> depths = {0.1, 0.3, 0.5, 0.7, 0.9};  // of retrieval
    int keys = 1;
    std::uint64_t seed = 1;
    std::vector<int> speed_depths = {0, 2048};
    std::int64_t footprint_context = 0;  // 0: the model's
    int threads = 0;                     // 0: all that this process may use
    std::string tools_dir;
    bool speed = true;
    bool retrieval = true;
    bool json = false;
};

}  // namespace vecinfer::cli
