#include "vecinfer/attention.h"

#include <gtest/gtest.h>

#include <limits>

#include "cache_fixture.h"
#include "codec/f16.h"
#include "dispatch/isa.h"
#include "scheme/spelling.h"

namespace vecinfer::testing {
namespace {

struct Case {
    std::string name;
    int num_kv_heads = 2;
    int group = 4;
    int head_dim_k = 64;
    int head_dim_v = 64;
    int sub_dim = 4;
    int code_bits = 8;
    int v_sub_dim = 0;  // 0: as the keys
    Norm norm = Norm::vector;
    int kv_len = 200;
    int num_tokens = 1;
    WindowSpec window{0, 0};
    Prefill prefill = Prefill::windowed;
    float soft_cap = 0;
    float max_bias = 0;
    bool mask = true;
    bool sinks = false;
    int sliding = 0;  // sliding-window mask of that width
    int holes = 0;    // every holes-th cell is hidden
    float magnitude = 1.0f;
    TransformSpec key_transform{true, true};
    TransformSpec value_transform{false, false};
    bool per_subspace = false;
    std::string key_scalar;  // names of scalar codecs, empty: vq
    std::string value_scalar;
    float query_magnitude = 1.0f;
};

// Many query rows: several tiles, blocks that only some rows see, rows that read f16 beside rows that read codes.
void add_prompts(std::vector<Case>& all) {
    const Case prompt{.group = 3, .kv_len = 700, .num_tokens = 130, .window = {32, 4}};
    const auto add = [&](const std::string& name, auto change) {
        Case c = prompt;
        change(c);
        c.name = "prompt_" + name;
        all.push_back(c);
    };
    for (const int tokens : {2, 4, 5, 7, 8, 11, 16, 17, 63, 65}) {
        add("tokens" + std::to_string(tokens), [&](Case& c) { c.num_tokens = tokens; });
    }
    for (const int group : {1, 2, 4, 5, 7, 8, 16}) {
        add("gqa" + std::to_string(group), [&](Case& c) { c.group = group; });
    }
    for (const int head_dim : {32, 40, 72, 80, 96, 112, 128, 192, 256, 576}) {
        add("dim" + std::to_string(head_dim), [&](Case& c) {
            c.group = 2;
            c.num_tokens = 35;
            c.head_dim_k = c.head_dim_v = head_dim;
        });
    }
    for (const CodecSpec& spec : supported_vq_specs()) {
        for (const bool per_subspace : {false, true}) {
            for (const Norm norm : {Norm::vector, Norm::none}) {
                add("d" + std::to_string(spec.sub_dim) + "b" + std::to_string(spec.code_bits) + (per_subspace ? "_pq" : "") +
                        (norm == Norm::none ? "_no_norm" : ""),
                    [&](Case& c) {
                        c.head_dim_k = 80;
                        c.sub_dim = spec.sub_dim;
                        c.code_bits = spec.code_bits;
                        c.num_tokens = 40;
                        c.per_subspace = per_subspace;
                        c.norm = norm;
                    });
            }
        }
    }
    add("k2v8", [](Case& c) { c.sub_dim = 2, c.v_sub_dim = 8; });
    add("k8v2", [](Case& c) { c.sub_dim = 8, c.v_sub_dim = 2; });
    add("dims_differ", [](Case& c) { c.head_dim_k = 128, c.head_dim_v = 72; });
    add("exact_batch", [](Case& c) { c.prefill = Prefill::exact; });
    add("no_window", [](Case& c) { c.window = {0, 0}; });
    add("no_history", [](Case& c) { c.kv_len = 130; });
    add("short", [](Case& c) { c.kv_len = c.num_tokens = 20; });
    add("several_chunks", [](Case& c) { c.kv_len = 2500, c.num_tokens = 20; });
    add("soft_cap", [](Case& c) { c.soft_cap = 5.0f; });
    add("alibi", [](Case& c) { c.max_bias = 8.0f; });
    add("sinks", [](Case& c) { c.sinks = true; });
    add("no_mask", [](Case& c) { c.mask = false; });
    add("holes", [](Case& c) { c.holes = 3; });
    add("sliding", [](Case& c) { c.sliding = 100; });
    add("sharp", [](Case& c) { c.query_magnitude = 4.0f; });
    add("flat", [](Case& c) { c.query_magnitude = 0.01f; });
    add("zero_query", [](Case& c) { c.query_magnitude = 0.0f; });
    add("huge_keys", [](Case& c) { c.magnitude = 6e4f; });
    add("tiny_keys", [](Case& c) { c.magnitude = 1e-7f; });
    add("value_hadamard", [](Case& c) { c.value_transform = {false, true}; });
    add("kivi", [](Case& c) {
        c.head_dim_k = c.head_dim_v = 128, c.key_scalar = "b2-token32-asym", c.value_scalar = "b2-channel32-asym";
    });
    add("innerq", [](Case& c) { c.key_scalar = "b3-channel32-sym", c.value_scalar = "b2-token32-hybrid"; });
}

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const int group : {1, 2, 3, 5, 7, 8, 16}) {
        all.push_back({.name = "gqa" + std::to_string(group), .group = group});
    }
    for (const int head_dim : {64, 80, 96, 112, 128, 192, 256}) {
        all.push_back({.name = "dim" + std::to_string(head_dim),
                       .head_dim_k = head_dim,
                       .head_dim_v = head_dim,
                       .num_tokens = 3,
                       .window = {16, 2}});
    }
    for (const CodecSpec& s : supported_vq_specs()) {
        all.push_back({.name = "d" + std::to_string(s.sub_dim) + "b" + std::to_string(s.code_bits),
                       .sub_dim = s.sub_dim,
                       .code_bits = s.code_bits});
    }
    for (const CodecSpec& s : supported_vq_specs()) {
        all.push_back({.name = "pq_d" + std::to_string(s.sub_dim) + "b" + std::to_string(s.code_bits),
                       .head_dim_k = 80,
                       .sub_dim = s.sub_dim,
                       .code_bits = s.code_bits,
                       .num_tokens = 2,
                       .window = {16, 2},
                       .per_subspace = true});
    }
    const std::pair<const char*, const char*> scalars[] = {{"b2-token32-asym", "b2-channel32-asym"},
                                                           {"b4-token32-asym", "b4-channel32-asym"},
                                                           {"b3-channel32-sym", "b3-token32-sym"},
                                                           {"b3-channel32-sym", "b2-token32-hybrid"},
                                                           {"b4-channel64-sym", "b4-token64-sym"},
                                                           {"b8-channel16-hybrid", "b8-token16-asym"},
                                                           {"b3-channel64-asym", ""}};
    for (std::size_t i = 0; i < std::size(scalars); ++i) {
        for (const bool transformed : {false, true}) {
            all.push_back({.name = "scalar" + std::to_string(i) + (transformed ? "_transformed" : ""),
                           .head_dim_k = 128,
                           .kv_len = 333,
                           .num_tokens = 3,
                           .window = {64, 2},
                           .sinks = true,
                           .key_transform = {transformed, transformed},
                           .value_transform = {false, transformed},
                           .key_scalar = scalars[i].first,
                           .value_scalar = scalars[i].second});
        }
    }
    for (const int kv_len : {1, 63, 64, 65, 1023, 1025, 2500}) {
        all.push_back({.name = "len" + std::to_string(kv_len), .kv_len = kv_len, .window = {32, 4}});
    }
    all.push_back({.name = "dims_differ", .head_dim_k = 128, .head_dim_v = 64, .window = {8, 0}});
    all.push_back({.name = "prompt", .kv_len = 300, .num_tokens = 100, .window = {32, 4}});
    all.push_back({.name = "prompt_exact", .kv_len = 300, .num_tokens = 100, .window = {32, 4}, .prefill = Prefill::exact});
    all.push_back({.name = "prompt_only", .kv_len = 130, .num_tokens = 130, .window = {16, 0}});
    all.push_back({.name = "speculative", .kv_len = 400, .num_tokens = 5, .window = {32, 4}});
    all.push_back({.name = "soft_cap", .window = {16, 0}, .soft_cap = 5.0f});
    all.push_back({.name = "alibi", .group = 3, .num_tokens = 4, .max_bias = 8.0f});
    all.push_back({.name = "sinks", .num_tokens = 4, .window = {16, 2}, .sinks = true});
    all.push_back({.name = "no_mask", .window = {16, 2}, .mask = false});
    all.push_back({.name = "sliding", .kv_len = 700, .num_tokens = 9, .window = {16, 0}, .sliding = 100});
    all.push_back({.name = "window_covers_all", .kv_len = 50, .num_tokens = 2, .window = {64, 4}});
    all.push_back({.name = "value_hadamard", .num_tokens = 3, .window = {16, 2}, .value_transform = {false, true}});
    all.push_back({.name = "no_transform", .num_tokens = 3, .window = {16, 2}, .key_transform = {false, false}});
    // Long enough for several runs of the fused kernels, with tails of every kind.
    for (const int group : {1, 3, 4, 5, 7, 8, 16}) {
        all.push_back({.name = "long_gqa" + std::to_string(group), .num_kv_heads = 1, .group = group, .kv_len = 2500 + group});
    }
    for (const int head_dim : {64, 80, 96, 112, 128, 192, 256}) {
        all.push_back({.name = "long_dim" + std::to_string(head_dim),
                       .group = 3,
                       .head_dim_k = head_dim,
                       .head_dim_v = head_dim,
                       .kv_len = 700});
    }
    for (const int k : {2, 4, 8}) {
        for (const int v : {2, 4, 8}) {
            for (const Norm norm : {Norm::vector, Norm::none}) {
                all.push_back({.name = "k" + std::to_string(k) + "v" + std::to_string(v) + (norm == Norm::none ? "_no_norm" : ""),
                               .group = 3,
                               .sub_dim = k,
                               .v_sub_dim = v,
                               .norm = norm,
                               .kv_len = 1100,
                               .window = {20, 0}});
            }
        }
    }
    all.push_back({.name = "long_soft_cap", .group = 3, .kv_len = 1500, .window = {16, 2}, .soft_cap = 5.0f});
    all.push_back({.name = "long_alibi", .group = 3, .kv_len = 1500, .num_tokens = 2, .max_bias = 8.0f});
    all.push_back({.name = "long_sinks", .group = 3, .kv_len = 1500, .num_tokens = 3, .sinks = true});
    all.push_back({.name = "long_holes", .group = 3, .kv_len = 1500, .num_tokens = 2, .holes = 3});
    all.push_back({.name = "long_sliding", .group = 2, .kv_len = 3000, .num_tokens = 4, .sliding = 777});
    all.push_back({.name = "long_no_mask", .kv_len = 1333, .mask = false});
    all.push_back({.name = "long_sharp", .group = 3, .kv_len = 3000, .query_magnitude = 2.5f});
    all.push_back({.name = "long_zero_query", .kv_len = 700, .query_magnitude = 0.0f});
    add_prompts(all);
    all.push_back({.name = "huge_keys", .num_tokens = 2, .window = {16, 2}, .magnitude = 6e4f});
    all.push_back({.name = "tiny_keys", .num_tokens = 2, .window = {16, 2}, .magnitude = 1e-7f});
    return all;
}

// A filled pair of caches and the arguments of one call: the last num_tokens cells are the batch.
struct Problem {
    explicit Problem(const Case& c)
        : k(shape(c, c.head_dim_k, c.key_transform, c.sub_dim, c.key_scalar), 1),
          v(shape(c, c.head_dim_v, c.value_transform, c.v_sub_dim > 0 ? c.v_sub_dim : c.sub_dim, c.value_scalar), 2) {
        const int history = c.kv_len - c.num_tokens;
        const int heads = c.num_kv_heads * c.group;
        const std::vector<float> k_rows = normal_rows(c.kv_len, c.num_kv_heads * c.head_dim_k, 11, c.magnitude);
        const std::vector<float> v_rows = normal_rows(c.kv_len, c.num_kv_heads * c.head_dim_v, 12);
        for (int begin = 0; begin < history; begin += 50) {
            const int end = std::min(begin + 50, history);
            k.write(0, iota(begin, end), iota(begin, end), k_rows.data() + begin * c.num_kv_heads * c.head_dim_k);
            v.write(0, iota(begin, end), iota(begin, end), v_rows.data() + begin * c.num_kv_heads * c.head_dim_v);
        }
        positions = iota(history, c.kv_len);
        k_plan = k.write(0, positions, positions, k_rows.data() + history * c.num_kv_heads * c.head_dim_k);
        v_plan = v.write(0, positions, positions, v_rows.data() + history * c.num_kv_heads * c.head_dim_v);

        q = normal_rows(c.num_tokens, heads * c.head_dim_k, 13, c.query_magnitude);
        out.assign(static_cast<std::size_t>(c.num_tokens) * heads * c.head_dim_v, 7.0f);
        lse.assign(static_cast<std::size_t>(c.num_tokens) * heads, 7.0f);
        sinks = normal_rows(1, heads, 14);
        for (int t = 0; t < c.num_tokens; ++t) {
            for (int cell = 0; cell < c.kv_len; ++cell) {
                const int distance = positions[t] - cell;
                const bool hidden =
                    distance < 0 || (c.sliding > 0 && distance >= c.sliding) || (c.holes > 0 && cell % c.holes == 1);
                mask.push_back(hidden ? 0xfc00 : f32_to_f16(c.max_bias > 0 ? static_cast<float>(-distance) : 0.0f));
            }
        }
        p.num_tokens = c.num_tokens;
        p.num_qo_heads = heads;
        p.kv_len = c.kv_len;
        p.sm_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim_k)) / std::max(1.0f, c.magnitude);
        p.soft_cap = c.soft_cap;
        p.alibi_max_bias = c.max_bias;
        p.q = q.data();
        p.q_token_stride = heads * c.head_dim_k;
        p.q_head_stride = c.head_dim_k;
        p.out = out.data();
        p.out_token_stride = heads * c.head_dim_v;
        p.out_head_stride = c.head_dim_v;
        p.mask = c.mask ? mask.data() : nullptr;
        p.mask_token_stride = c.kv_len;
        p.sinks = c.sinks ? sinks.data() : nullptr;
        p.lse = lse.data();
        p.k_exact = k_plan.exact;
        p.v_exact = v_plan.exact;
        p.positions = positions.data();
        p.window = c.window;
        p.prefill = c.prefill;
    }

    static Shape shape(const Case& c, int head_dim, TransformSpec transform, int sub_dim, const std::string& scalar = "") {
        CodecSpec spec;
        EXPECT_TRUE(scalar.empty() || spelling::find_codec(scalar, spec)) << scalar;
        return {.num_kv_heads = c.num_kv_heads,
                .head_dim = head_dim,
                .sub_dim = sub_dim,
                .code_bits = c.code_bits,
                .norm = c.norm,
                .per_subspace = c.per_subspace,
                .transform = transform,
                .scalar = spec,
                .num_cells = c.kv_len,
                .window = c.window};
    }

    OwnedCache k;
    OwnedCache v;
    WritePlan k_plan;
    WritePlan v_plan;
    std::vector<std::int32_t> positions;
    std::vector<float> q;
    std::vector<float> out;
    std::vector<float> lse;
    std::vector<float> sinks;
    std::vector<std::uint16_t> mask;
    AttentionParams p;
};

std::string method_of(const Problem& problem) {
    const Result<AttentionTask> task = AttentionTask::create(problem.k.cache, problem.v.cache, 0, problem.p);
    EXPECT_TRUE(task.ok()) << task.status().message();
    return task->method();
}

// Kernels of an ISA that the CPU lacks cannot be forced; the tests then say so.
#define SKIP_WITHOUT_THE_ISA()                             \
    if (!selected_isa().ok()) {                            \
        GTEST_SKIP() << selected_isa().status().message(); \
    }

class Attention : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override { SKIP_WITHOUT_THE_ISA(); }
};

TEST(AttentionMethod, FollowsTheIsaAndTheShape) {
    SKIP_WITHOUT_THE_ISA();
    const std::string decode = method_of(Problem({.name = "", .kv_len = 600}));
    const std::string prompt = method_of(Problem({.name = "", .kv_len = 600, .num_tokens = 100}));
    switch (active_isa()) {
        case Isa::avx512vbmi:
            EXPECT_EQ(decode, "lut/avx512vbmi");
            EXPECT_EQ(prompt, "matrix/avx512vbmi");
            break;
        case Isa::avx512:
            EXPECT_EQ(decode, "lut/avx2");
            EXPECT_EQ(prompt, "matrix/avx512");
            break;
        case Isa::avx2:
            EXPECT_EQ(decode, "lut/avx2");
            EXPECT_EQ(prompt, "matrix/avx2");
            break;
        case Isa::scalar:
            EXPECT_EQ(decode, "tile");
            EXPECT_EQ(prompt, "tile");
            break;
    }
    EXPECT_EQ(method_of(Problem({.name = "", .code_bits = 12, .kv_len = 600})), prompt);  // no look-up for wide codes
    EXPECT_EQ(
        method_of(Problem(
            {.name = "", .kv_len = 600, .window = {32, 0}, .key_scalar = "b2-token32-asym", .value_scalar = "b2-token32-asym"})),
        "tile");
    EXPECT_EQ(method_of(Problem({.name = "", .kv_len = 60, .window = {64, 0}})), "tile");  // no block is read from codes alone
}

TEST_P(Attention, AgreesWithFp64OnTheSameCodes) {
    Problem problem(GetParam());
    std::vector<double> expected(problem.out.size());
    ASSERT_TRUE(attention_reference(problem.k.cache, problem.v.cache, 0, problem.p, expected.data()).ok());
    const Status status = attention(problem.k.cache, problem.v.cache, 0, problem.p, 2);
    ASSERT_TRUE(status.ok()) << status.message();
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        error += (problem.out[i] - expected[i]) * (problem.out[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    const std::string method = method_of(problem);
    EXPECT_LT(std::sqrt(error / size), method == "tile" ? 2e-5 : method.starts_with("matrix") ? 5e-4 : 2e-3) << method;
}

TEST_P(Attention, IsTheSameForAnyNumberOfThreads) {
    Problem problem(GetParam());
    ASSERT_TRUE(attention(problem.k.cache, problem.v.cache, 0, problem.p, 1).ok());
    const std::vector<float> one = problem.out;
    const std::vector<float> one_lse = problem.lse;
    for (const int threads : {2, 5}) {
        std::fill(problem.out.begin(), problem.out.end(), 7.0f);
        ASSERT_TRUE(attention(problem.k.cache, problem.v.cache, 0, problem.p, threads).ok());
        EXPECT_EQ(one, problem.out);
        EXPECT_EQ(one_lse, problem.lse);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention, ::testing::ValuesIn(cases()), [](const auto& tested) { return tested.param.name; });

// A batch decoded in one call gives each query what it would get alone: the window follows positions, not batches.
TEST(AttentionBatch, SplitOfAPromptDoesNotChangeIt) {
    const Case c{.name = "", .kv_len = 180, .num_tokens = 60, .window = {16, 2}};
    Problem whole(c);
    ASSERT_TRUE(attention(whole.k.cache, whole.v.cache, 0, whole.p, 1).ok());
    const std::vector<float> k_rows = normal_rows(180, 128, 11);
    const std::vector<float> v_rows = normal_rows(180, 128, 12);
    Case history = c;
    history.kv_len = 121;
    history.num_tokens = 1;
    Problem parts(history);
    // The caches of `parts` hold 121 cells only; make ones of full size and feed token by token.
    OwnedCache k(Problem::shape(c, 64, c.key_transform, c.sub_dim), 1);
    OwnedCache v(Problem::shape(c, 64, c.value_transform, c.sub_dim), 2);
    k.write(0, iota(0, 120), iota(0, 120), k_rows.data());
    v.write(0, iota(0, 120), iota(0, 120), v_rows.data());
    for (int t = 0; t < 60; ++t) {
        const WritePlan k_plan = k.write(0, {120 + t}, {120 + t}, k_rows.data() + (120 + t) * 128);
        const WritePlan v_plan = v.write(0, {120 + t}, {120 + t}, v_rows.data() + (120 + t) * 128);
        AttentionParams p = whole.p;
        std::vector<float> out(whole.p.out_token_stride);
        const std::int32_t position = 120 + t;
        p.num_tokens = 1;
        p.kv_len = 121 + t;
        p.q += t * p.q_token_stride;
        p.mask += t * p.mask_token_stride;
        p.out = out.data();
        p.lse = nullptr;
        p.k_exact = k_plan.exact;
        p.v_exact = v_plan.exact;
        p.positions = &position;
        ASSERT_TRUE(attention(k.cache, v.cache, 0, p, 1).ok());
        for (std::size_t i = 0; i < out.size(); ++i) {
            // One token alone takes a fused kernel where the batch takes tiles.
            ASSERT_NEAR(whole.out[t * out.size() + i], out[i], active_isa() == Isa::scalar ? 2e-6 : 2e-3) << "token " << t;
        }
    }
}

TEST(AttentionMask, RowWithoutVisibleKeysIsZero) {
    Problem problem({.name = "", .num_tokens = 3, .window = {16, 0}});
    std::fill(problem.mask.begin() + 200, problem.mask.begin() + 400, 0xfc00);
    ASSERT_TRUE(attention(problem.k.cache, problem.v.cache, 0, problem.p, 1).ok());
    const std::size_t row = problem.p.out_token_stride;
    for (std::size_t i = 0; i < row; ++i) {
        EXPECT_NE(0.0f, problem.out[i]);
        EXPECT_EQ(0.0f, problem.out[row + i]);
    }
    EXPECT_EQ(-std::numeric_limits<float>::infinity(), problem.lse[8]);
}

TEST(AttentionArguments, AreChecked) {
    const auto message = [](auto change) {
        Problem problem({.name = ""});
        change(problem.p);
        return attention(problem.k.cache, problem.v.cache, 0, problem.p, 1).message();
    };
    EXPECT_EQ("num_qo_heads: got 7, expected a multiple of 2 KV heads", message([](AttentionParams& p) { p.num_qo_heads = 7; }));
    EXPECT_EQ("kv_len: got 201, expected 1 to 200 cells", message([](AttentionParams& p) { p.kv_len = 201; }));
    EXPECT_EQ("kv_len: got 0, expected 1 to 200 cells", message([](AttentionParams& p) { p.kv_len = 0; }));
    EXPECT_EQ("num_tokens: got 0, expected at least 1", message([](AttentionParams& p) { p.num_tokens = 0; }));
    EXPECT_EQ("q: got null, expected a pointer", message([](AttentionParams& p) { p.q = nullptr; }));
    EXPECT_EQ("mask_heads: got 3, expected a divisor of 8 query heads", message([](AttentionParams& p) { p.mask_heads = 3; }));
}

}  // namespace
}  // namespace vecinfer::testing
