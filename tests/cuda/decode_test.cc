#include <cmath>

#include "cuda/decode_problem.h"

namespace vecinfer::testing {
namespace {

using cuda::Number;

std::vector<DecodeCase> cases() {
    std::vector<DecodeCase> all;
    for (const int group : {1, 2, 3, 4, 5, 7, 8, 16}) {
        all.push_back({.name = "gqa" + std::to_string(group), .kv_lens = {777}, .group = group, .window = {16, 2}});
    }
    for (const int head_dim : {64, 128, 256}) {
        for (const int group : {1, 4, 7}) {
            all.push_back({.name = "dim" + std::to_string(head_dim) + "_gqa" + std::to_string(group),
                           .kv_lens = {1000, 333},
                           .group = group,
                           .head_dim = head_dim,
                           .window = {32, 4}});
        }
    }
    for (const auto& [k, v] : {std::pair(2, 2), std::pair(2, 4), std::pair(8, 8)}) {
        for (const int head_dim : {64, 128, 256}) {
            if ((head_dim == 64 && k == 8) || (head_dim == 256 && k != v) || (head_dim == 256 && k == 8)) {
                continue;  // no kernel
            }
            for (const int group : {1, 4, 7}) {
                all.push_back({.name = "k" + std::to_string(k) + "v" + std::to_string(v) + "_dim" + std::to_string(head_dim) +
                                       "_gqa" + std::to_string(group),
                               .kv_lens = {1000, 333, 16},
                               .group = group,
                               .head_dim = head_dim,
                               .k = {.sub_dim = k},
                               .v = {.sub_dim = v},
                               .window = {32, 4}});
            }
        }
    }
    // Codes of single channels.
    for (const auto& [k, v] : {std::pair(2, 2), std::pair(3, 3), std::pair(4, 4), std::pair(4, 2)}) {
        for (const int head_dim : {64, 128, 256}) {
            if (k != v && head_dim == 256) {
                continue;  // no kernel
            }
            for (const int group : {1, 4, 7}) {
                all.push_back({.name = "levels" + std::to_string(k) + std::to_string(v) + "_dim" + std::to_string(head_dim) +
                                       "_gqa" + std::to_string(group),
                               .kv_lens = {1000, 333, 16},
                               .group = group,
                               .head_dim = head_dim,
                               .k = {.sub_dim = 1, .code_bits = k},
                               .v = {.sub_dim = 1, .code_bits = v},
                               .window = {32, 4}});
            }
        }
    }
    // Codes of 12 bits, and codebooks per subspace.
    for (const auto& [k, v] : {std::pair(8, 8), std::pair(4, 4), std::pair(8, 0)}) {
        for (const int head_dim : {64, 128}) {
            if (head_dim == 64 && k == 8) {
                continue;  // no kernel
            }
            for (const int group : {1, 4, 7}) {
                all.push_back({.name = "wide" + std::to_string(k) + std::to_string(v) + "_dim" + std::to_string(head_dim) +
                                       "_gqa" + std::to_string(group),
                               .kv_lens = {1000, 333, 16},
                               .group = group,
                               .head_dim = head_dim,
                               .k = {.sub_dim = k, .code_bits = 12},
                               .v = {.sub_dim = v == 0 ? 8 : v, .code_bits = v == 0 ? 8 : 12},
                               .window = {32, 4}});
            }
        }
    }
    for (const int sub_dim : {2, 4}) {
        for (const int head_dim : {64, 128, 256}) {
            if (head_dim == 256 && sub_dim == 2) {
                continue;  // no kernel
            }
            for (const int group : {1, 4, 7}) {
                all.push_back(
                    {.name = "own" + std::to_string(sub_dim) + "_dim" + std::to_string(head_dim) + "_gqa" + std::to_string(group),
                     .kv_lens = {1000, 333, 16},
                     .group = group,
                     .head_dim = head_dim,
                     .k = {.sub_dim = sub_dim},
                     .v = {.sub_dim = sub_dim},
                     .own_books = true,
                     .window = {32, 4},
                     .hadamard = head_dim == 64});
            }
        }
    }
    all.push_back({.name = "wide_page16",
                   .kv_lens = {1, 1000, 17, 128},
                   .k = {.sub_dim = 8, .code_bits = 12},
                   .v = {.sub_dim = 8, .code_bits = 12},
                   .page_size = 16,
                   .window = {32, 4},
                   .soft_cap = 20.0f,
                   .sinks = true});
    all.push_back({.name = "own_page16",
                   .kv_lens = {1, 1000, 17, 128},
                   .k = {.sub_dim = 4},
                   .v = {.sub_dim = 4},
                   .own_books = true,
                   .page_size = 16,
                   .window = {32, 4},
                   .soft_cap = 20.0f,
                   .alibi = true});
    all.push_back({.name = "levels_page16",
                   .kv_lens = {1, 1000, 17, 128},
                   .k = {.sub_dim = 1, .code_bits = 3},
                   .v = {.sub_dim = 1, .code_bits = 3},
                   .page_size = 16,
                   .window = {32, 4},
                   .soft_cap = 20.0f,
                   .alibi = true,
                   .sinks = true});
    for (const int len : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 5000}) {
        all.push_back({.name = "len" + std::to_string(len), .kv_lens = {len}});
    }
    for (const int len : {1, 4, 5, 100, 132, 133, 134, 200, 260, 4099}) {
        all.push_back({.name = "window_len" + std::to_string(len), .kv_lens = {len}, .window = {128, 4}});
    }
    for (const int page_size : {16, 32, 64, 128}) {
        all.push_back({.name = "page" + std::to_string(page_size),
                       .kv_lens = {1, 1000, 17, 2049, 128},
                       .page_size = page_size,
                       .window = {32, 4}});
        all.push_back({.name = "page" + std::to_string(page_size) + "_dim64",
                       .kv_lens = {900, 64},
                       .group = 8,
                       .head_dim = 64,
                       .page_size = page_size});
    }
    std::vector<int> many;
    for (int i = 0; i < 40; ++i) {
        many.push_back(1 + i * i * 2);
    }
    all.push_back({.name = "ragged", .kv_lens = many, .window = {16, 2}});
    all.push_back({.name = "ragged_with_empty", .kv_lens = {0, 100, 0, 300}, .window = {16, 2}});
    all.push_back({.name = "one_head", .kv_lens = {20000}, .num_kv_heads = 1});
    all.push_back({.name = "eight_heads", .kv_lens = {4000, 3000}, .num_kv_heads = 8, .window = {128, 4}});
    for (const int num_q : {2, 4, 5, 8, 16}) {
        all.push_back({.name = "queries" + std::to_string(num_q), .kv_lens = {700, 300}, .num_q = num_q, .window = {32, 4}});
        all.push_back({.name = "queries" + std::to_string(num_q) + "_gqa1",
                       .kv_lens = {700, 300},
                       .group = 1,
                       .num_q = num_q,
                       .window = {16, 0}});
    }
    all.push_back({.name = "queries_no_window", .kv_lens = {700, 3}, .num_q = 3});
    for (const int width : {1, 20, 100, 128, 500, 5000}) {
        all.push_back({.name = "sliding" + std::to_string(width),
                       .kv_lens = {1500, 90},
                       .num_q = 2,
                       .window = {32, 4},
                       .sliding_window = width});
    }
    all.push_back({.name = "soft_cap", .window = {32, 4}, .soft_cap = 2.0f, .query_magnitude = 3.0f});
    all.push_back({.name = "alibi", .num_q = 2, .window = {32, 4}, .alibi = true});
    all.push_back({.name = "sinks", .window = {32, 4}, .sinks = true});
    all.push_back({.name = "sinks_only_window", .kv_lens = {20}, .window = {32, 4}, .sinks = true});
    all.push_back({.name = "smooth", .window = {32, 4}, .smooth = true});
    all.push_back({.name = "center", .window = {32, 4}, .smooth = true, .center = true});
    all.push_back({.name = "center_soft_cap", .window = {32, 4}, .soft_cap = 5.0f, .center = true});
    all.push_back({.name = "no_transform", .window = {32, 4}, .hadamard = false});
    all.push_back({.name = "f16", .window = {32, 4}, .q_type = Number::f16, .out_type = Number::f16});
    all.push_back({.name = "bf16", .window = {32, 4}, .q_type = Number::bf16, .out_type = Number::bf16});
    // The error of a score is 5e-5 of the spread of scores, that of p follows.
    all.push_back({.name = "peaked", .kv_lens = {5000}, .window = {128, 4}, .query_magnitude = 4.0f});
    all.push_back({.name = "sharp", .kv_lens = {5000}, .window = {128, 4}, .query_magnitude = 12.0f, .bound = 1e-3});
    all.push_back({.name = "very_sharp", .kv_lens = {5000}, .query_magnitude = 60.0f, .bound = 4e-3});
    all.push_back({.name = "flat", .kv_lens = {5000}, .query_magnitude = 1e-4f});
    all.push_back({.name = "zero_query", .query_magnitude = 0.0f});
    all.push_back({.name = "zero_norms", .kv_lens = {3000}, .zero_norms = 7});
    all.push_back({.name = "wide_norms", .kv_lens = {3000}, .norm_low = 90, .norm_high = 150});
    all.push_back({.name = "tiny_norms", .kv_lens = {3000}, .norm_low = 1, .norm_high = 3});
    all.push_back({.name = "huge_norms", .kv_lens = {3000}, .query_magnitude = 1e-4f, .norm_low = 240, .norm_high = 255});
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].seed = static_cast<unsigned>(i + 1);
    }
    return all;
}

CodecSpec scalar_spec(int bits, Axis axis, Levels levels) {
    return {CodecKind::scalar, 1, bits, bits == 4 && levels == Levels::symmetric ? 64 : 32, axis, levels};
}

struct ScalarPair {
    std::string name;
    CodecSpec k;
    CodecSpec v;
};

std::vector<ScalarPair> scalar_pairs() {
    const CodecSpec key = scalar_spec(3, Axis::channel, Levels::symmetric);
    return {{"kivi2", scalar_spec(2, Axis::token, Levels::asymmetric), scalar_spec(2, Axis::channel, Levels::asymmetric)},
            {"kivi4", scalar_spec(4, Axis::token, Levels::asymmetric), scalar_spec(4, Axis::channel, Levels::asymmetric)},
            {"innerq3v2", key, scalar_spec(2, Axis::token, Levels::symmetric)},
            {"innerq3v3", key, scalar_spec(3, Axis::token, Levels::symmetric)},
            {"innerq3v2h", key, scalar_spec(2, Axis::token, Levels::hybrid)},
            {"innerq4v4", scalar_spec(4, Axis::channel, Levels::symmetric), scalar_spec(4, Axis::token, Levels::symmetric)}};
}

std::vector<DecodeCase> scalar_cases() {
    std::vector<DecodeCase> all;
    for (const ScalarPair& pair : scalar_pairs()) {
        DecodeCase plain{.kv_lens = {1000, 333, 64, 65}, .k = pair.k, .v = pair.v, .window = {64, 4}, .hadamard = false};
        const auto add = [&](const std::string& name, const DecodeCase& c) {
            all.push_back(c);
            all.back().name = pair.name + "_" + name;
        };
        for (const int head_dim : {64, 128, 256}) {
            for (const int group : {1, 4, 7}) {
                DecodeCase c = plain;
                c.head_dim = head_dim;
                c.group = group;
                add("dim" + std::to_string(head_dim) + "_gqa" + std::to_string(group), c);
            }
        }
        for (const int page_size : {64, 128}) {
            DecodeCase c = plain;
            c.kv_lens = {1, 1000, 70, 2049, 128};
            c.page_size = page_size;
            add("page" + std::to_string(page_size), c);
        }
        DecodeCase c = plain;
        c.kv_lens = {5000};
        c.window = {128, 4};
        add("long", c);
        c.query_magnitude = 6.0f;
        c.bound = 2e-3;
        add("sharp", c);
        c = plain;
        c.kv_lens = {3000};
        c.soft_cap = 20.0f;
        c.alibi = c.sinks = true;
        add("bent", c);
        c = plain;
        c.sliding_window = 500;
        c.num_q = 3;
        add("sliding", c);
        c = plain;
        c.smooth = c.hadamard = c.center = true;
        add("transforms", c);
        c = plain;
        c.kv_lens = {700, 300, 0};
        c.num_q = 5;
        add("queries5", c);
        c = plain;
        c.scales = 1e-3f;
        add("small_scales", c);
        c.scales = 2000.0f;
        c.query_magnitude = 1e-3f;
        add("large_scales", c);
    }
    DecodeCase small_page{.name = "kivi2_page32",
                          .kv_lens = {900, 33},
                          .k = scalar_pairs()[0].k,
                          .v = scalar_pairs()[0].v,
                          .page_size = 32,
                          .window = {32, 0}};
    all.push_back(small_page);
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].bound = std::max(all[i].bound, 6e-4);
        all[i].seed = static_cast<unsigned>(i + 101);
    }
    return all;
}

class DecodeTest : public CudaTest, public ::testing::WithParamInterface<DecodeCase> {};

TEST_P(DecodeTest, AgreesWithTheReference) {
    DecodeProblem problem(GetParam());
    const Status status = problem.run();
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<double> expected;
    std::vector<double> expected_lse;
    problem.reference(expected, expected_lse);
    // f32 outputs: what integer digits cost. f16 and bf16: the rounding of the output comes on top.
    const double bound = GetParam().out_type == Number::f32 ? GetParam().bound : GetParam().out_type == Number::f16 ? 6e-4 : 2e-3;
    EXPECT_LE(relative_error(problem.output(), expected), bound);
    const std::vector<float> lse = problem.lse();
    for (std::size_t i = 0; i < lse.size(); ++i) {
        if (std::isinf(expected_lse[i])) {
            EXPECT_EQ(lse[i], expected_lse[i]) << i;
        } else {
            EXPECT_NEAR(lse[i], expected_lse[i], 1e-3 + 1e-4 * std::fabs(expected_lse[i])) << i;
        }
    }
}

TEST_P(DecodeTest, GivesTheSameBitsAgain) {
    DecodeProblem problem(GetParam());
    ASSERT_TRUE(problem.run().ok());
    const std::vector<double> first = problem.output();
    ASSERT_TRUE(problem.run().ok());
    EXPECT_EQ(first, problem.output());
}

INSTANTIATE_TEST_SUITE_P(Shapes, DecodeTest, ::testing::ValuesIn(cases()), [](const auto& each) { return each.param.name; });

INSTANTIATE_TEST_SUITE_P(Scalars, DecodeTest, ::testing::ValuesIn(scalar_cases()),
                         [](const auto& each) { return each.param.name; });

using DecodeStreamTest = CudaTest;

#ifndef VECINFER_EMULATED
// A captured graph that follows the lengths on the device.
TEST_F(DecodeStreamTest, IsCapturedInAGraph) {
    DecodeProblem problem({.kv_lens = {3000, 500}, .window = {32, 4}});
    std::vector<double> expected;
    std::vector<double> lse;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status status = cuda::decode_attention(problem.codec(), problem.cache(), problem.params(), problem.workspace(),
                                                 problem.workspace_bytes(), stream);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_TRUE(status.ok()) << status.message();
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    }
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    problem.reference(expected, lse);
    EXPECT_LE(relative_error(problem.output(), expected), 3e-4);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
}

#endif

// One workspace for calls of different shapes.
TEST_F(DecodeStreamTest, WorkspaceServesOtherShapes) {
    DecodeProblem large({.kv_lens = std::vector<int>(64, 600), .num_kv_heads = 4, .window = {16, 0}});
    DecodeProblem small({.kv_lens = {2000}, .num_kv_heads = 2});
    ASSERT_GE(large.workspace_bytes(), small.workspace_bytes());
    std::vector<double> expected;
    std::vector<double> lse;
    for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(cuda::decode_attention(small.codec(), small.cache(), small.params(), large.workspace(),
                                           large.workspace_bytes(), nullptr)
                        .ok());
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        small.reference(expected, lse);
        EXPECT_LE(relative_error(small.output(), expected), 3e-4);
        ASSERT_TRUE(large.run().ok());
        large.reference(expected, lse);
        EXPECT_LE(relative_error(large.output(), expected), 3e-4);
    }
}

}  // namespace
}  // namespace vecinfer::testing
