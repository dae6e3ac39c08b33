// Bit allocation against trying every choice.
#include "vecinfer/allocation.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace vecinfer::testing {
namespace {

const std::vector<CodecSpec> kCandidates = {
    {CodecKind::vq, 8, 8, 0, Axis::channel, Levels::symmetric},  // 1 bit
    {CodecKind::vq, 4, 8, 0, Axis::channel, Levels::symmetric},  // 2
    {CodecKind::vq, 2, 8, 0, Axis::channel, Levels::symmetric},  // 4
};

double cost_of(std::span<const LayerCosts> layers, std::span<const LayerChoice> choices) {
    double sum = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        sum += layers[i].key[choices[i].key] + layers[i].value[choices[i].value];
    }
    return sum;
}

std::vector<LayerCosts> random_layers(int n, unsigned seed, bool same_shape) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<LayerCosts> layers;
    for (int i = 0; i < n; ++i) {
        LayerCosts layer{{2 * i + 1, same_shape ? 2 : 1 + static_cast<int>(random() % 3), 64, same_shape ? 64 : 128}, {}, {}};
        for (std::vector<double>* costs : {&layer.key, &layer.value}) {
            const double scale = uniform(random);
            *costs = {scale * (1 + uniform(random)), scale * uniform(random), 0.0};
        }
        layers.push_back(layer);
    }
    return layers;
}

double least_cost(const std::vector<LayerCosts>& layers, double target) {
    double best = std::numeric_limits<double>::infinity();
    int combinations = 1;
    for (std::size_t i = 0; i < 2 * layers.size(); ++i) {
        combinations *= 3;
    }
    for (int code = 0; code < combinations; ++code) {
        std::vector<LayerChoice> choices;
        int rest = code;
        for (const LayerCosts& layer : layers) {
            choices.push_back({layer.shape.layer, rest % 3, rest / 3 % 3});
            rest /= 9;
        }
        if (mean_code_bits(kCandidates, layers, choices) <= target + 1e-9) {
            best = std::min(best, cost_of(layers, choices));
        }
    }
    return best;
}

TEST(Allocation, BestOfAllChoices) {
    for (const bool same_shape : {true, false}) {
        for (unsigned seed = 0; seed < 6; ++seed) {
            const std::vector<LayerCosts> layers = random_layers(4, seed, same_shape);
            for (const double target : {1.0, 1.3, 2.0, 2.25, 3.1, 4.0, 9.0}) {
                const auto choices = allocate_bits(kCandidates, layers, target);
                ASSERT_TRUE(choices.ok()) << choices.status().message();
                EXPECT_LE(mean_code_bits(kCandidates, layers, choices.value()), target + 1e-9);
                EXPECT_NEAR(cost_of(layers, choices.value()), least_cost(layers, target), 1e-12)
                    << "seed " << seed << " target " << target;
            }
        }
    }
}

TEST(Allocation, CoarsenedBudgetIsNeverExceeded) {
    // Head sizes without a common step make more than 2^16 steps.
    std::vector<LayerCosts> layers;
    for (int i = 0; i < 40; ++i) {
        layers.push_back({{i, 4096, 1000 + i, 1023 - i}, {1.0 + i, 0.5, 0.0}, {2.0, 0.1 * i, 0.0}});
    }
    for (const double target : {1.001, 2.25, 3.999}) {
        const auto choices = allocate_bits(kCandidates, layers, target);
        ASSERT_TRUE(choices.ok()) << choices.status().message();
        EXPECT_LE(mean_code_bits(kCandidates, layers, choices.value()), target + 1e-9);
        EXPECT_GT(mean_code_bits(kCandidates, layers, choices.value()), target - 0.1);
    }
}

TEST(Allocation, SchemeHasTheCommonPairAndRangesOfTheOthers) {
    const std::vector<LayerChoice> choices = {{0, 2, 1}, {1, 2, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {5, 1, 0}, {7, 1, 0}};
    const Scheme scheme = with_choices(parse_scheme("vecinfer:k4v4").value(), kCandidates, choices);
    EXPECT_EQ(to_string(scheme), "vecinfer:k2v2,layers=0-1:k4v2/5:k2v1/7:k2v1");
    for (const LayerChoice& choice : choices) {
        EXPECT_EQ(scheme_of_layer(scheme, choice.layer).key, kCandidates[choice.key]);
        EXPECT_EQ(scheme_of_layer(scheme, choice.layer).value, kCandidates[choice.value]);
    }
}

TEST(Allocation, RefusesWhatItCannotServe) {
    const std::vector<LayerCosts> layers = random_layers(2, 1, true);
    EXPECT_FALSE(allocate_bits({}, layers, 2).ok());
    EXPECT_FALSE(allocate_bits(kCandidates, {}, 2).ok());
    const auto narrow = allocate_bits(kCandidates, layers, 0.9);
    ASSERT_FALSE(narrow.ok());
    EXPECT_NE(narrow.status().message().find("target bits"), std::string::npos) << narrow.status().message();
    EXPECT_FALSE(allocate_bits(kCandidates, layers, std::numeric_limits<double>::quiet_NaN()).ok());
    std::vector<LayerCosts> bad = layers;
    bad[1].key[0] = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(allocate_bits(kCandidates, bad, 2).ok());
    bad = layers;
    bad[0].value.pop_back();
    EXPECT_FALSE(allocate_bits(kCandidates, bad, 2).ok());
}

}  // namespace
}  // namespace vecinfer::testing
