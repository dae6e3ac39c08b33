// How the universal codebooks are trained: k-means on N(0,1) entries, first on a smaller set to settle the centroids, then on a
// larger one so that they do not fit the sample. Every number that shapes the result is in this file.
#pragma once

#include <cstdint>
#include <vector>

#include "codebook/kmeans.h"
#include "random.h"

namespace vecinfer {

struct UniversalRecipe {
    int sub_dim;
    int code_bits;
    std::int64_t first_rows;
    int first_iterations;
    std::int64_t final_rows;
    int final_iterations;
};

inline constexpr UniversalRecipe kUniversalRecipes[] = {
    {2, 8, 65536, 60, 524288, 60},    {4, 8, 131072, 60, 1048576, 40},  {8, 8, 131072, 60, 1048576, 25},
    {4, 12, 262144, 40, 2097152, 8},  {8, 12, 262144, 25, 2097152, 6},  {4, 10, 262144, 40, 1048576, 15},
    {1, 2, 65536, 200, 1048576, 200}, {1, 3, 65536, 200, 1048576, 200}, {1, 4, 65536, 200, 1048576, 200},
};

inline constexpr std::uint64_t kUniversalSeed = 0x5645434e;

inline Codebook train_universal(const UniversalRecipe& recipe, int num_threads) {
    Random random(kUniversalSeed + static_cast<std::uint64_t>(100 * recipe.sub_dim + recipe.code_bits));
    std::vector<float> rows(static_cast<std::size_t>(recipe.final_rows * recipe.sub_dim));
    for (float& x : rows) {
        x = static_cast<float>(random.normal());
    }
    WeightedRows data{.rows = rows.data(), .n = recipe.first_rows, .sub_dim = recipe.sub_dim};
    std::vector<float> centroids = seed_centroids(data, 1 << recipe.code_bits, kUniversalSeed);
    lloyd(data, centroids, recipe.first_iterations, num_threads);
    data.n = recipe.final_rows;
    lloyd(data, centroids, recipe.final_iterations, num_threads);
    return round_to_int8(centroids, recipe.sub_dim, recipe.code_bits);
}

}  // namespace vecinfer
