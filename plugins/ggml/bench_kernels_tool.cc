// vecinfer-bench-kernels: attention over packed caches against ggml's f16 flash attention, in one process and interleaved, so
// that whatever slows the machine down hits both.
//
// Caches are cold: every call works on another copy of the data, and all copies together exceed the last-level cache. Both sides
// work on the same `tokens` query tokens, the last of the context and causally masked: 1 is decoding, 2 to 16 speculative
// decoding, 512 a prompt batch. Time is wall time of the calling thread with `threads` threads at work.
#include <fmt/format.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "standard_streams.h"
#include "vecinfer/attention.h"
#include "vecinfer/version.h"

namespace {

using nlohmann::json;
using vecinfer::AttentionTask;
using vecinfer::PackedCache;
using vecinfer::Result;
using vecinfer::RowCodec;
using vecinfer::Scheme;

constexpr int kFewTokens = 16;                  // beyond, a batch is a prompt
constexpr ggml_fp16_t kMinusInfinity = 0xfc00;  // f16

struct Options {
    std::vector<std::string> shapes = {"9/3x64", "32/8x128"};
    std::vector<int> lengths = {1024, 8192, 32768};
    std::vector<std::string> schemes = {"vecinfer:k2v2"};
    std::vector<int> tokens = {1};
    int threads = 2;
    int repeats = 7;
    int megabytes = 256;  // of data to walk through on each side
};

struct Shape {
    int num_qo_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
};

[[noreturn]] void die(const std::string& message) {
    fmt::print(stderr, "vecinfer-bench-kernels: error: {}\n", message);
    std::exit(1);
}

Shape parse_shape(const std::string& text) {
    Shape s;
    int end = 0;
    if (std::sscanf(text.c_str(), "%d/%dx%d%n", &s.num_qo_heads, &s.num_kv_heads, &s.head_dim, &end) != 3 ||
        end != static_cast<int>(text.size()) || s.num_kv_heads < 1 || s.num_qo_heads < 1 ||
        s.num_qo_heads % s.num_kv_heads != 0 || s.head_dim < 8 || s.head_dim % 8 != 0) {
        die("shape: got " + text + ", expected query heads/KV heads x head_dim, e.g. 9/3x64");
    }
    return s;
}

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Free {
    void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory allocate(std::size_t bytes) {
    Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
    if (memory == nullptr) {
        die(fmt::format("no memory for {} bytes", bytes));
    }
    return memory;
}

// Prompt batches take long and read each cell once per query tile, so two copies are cold enough for them.
int copies_for(std::size_t bytes, int megabytes, int tokens) {
    const std::size_t most = tokens > kFewTokens ? 2 : 256;
    return static_cast<int>(std::clamp<std::size_t>((static_cast<std::size_t>(megabytes) << 20) / bytes, 2, most));
}

// Token i of the last `tokens` of a context sees all cells up to its own.
std::vector<ggml_fp16_t> causal_mask(int tokens, int kv_len) {
    std::vector<ggml_fp16_t> mask(static_cast<std::size_t>(tokens) * kv_len, ggml_fp16_t{0});
    for (int i = 0; i < tokens; ++i) {
        for (int cell = kv_len - tokens + i + 1; cell < kv_len; ++cell) {
            mask[static_cast<std::size_t>(i) * kv_len + cell] = kMinusInfinity;
        }
    }
    return mask;
}

// One side (K or V) of `count` equal layers.
struct Side {
    std::unique_ptr<RowCodec> codec;
    std::vector<Memory> memory;
    std::vector<PackedCache> caches;
};

RowCodec make_codec(const vecinfer::CodecSpec& spec, const vecinfer::TransformSpec& transform, const Shape& shape) {
    std::vector<vecinfer::HeadTransform> transforms;
    for (int h = 0; h < shape.num_kv_heads; ++h) {
        Result<vecinfer::HeadTransform> t = vecinfer::HeadTransform::create(shape.head_dim, transform, {});
        if (!t.ok()) {
            die(t.status().message());
        }
        transforms.push_back(std::move(t).value());
    }
    const vecinfer::Codebook* book = vecinfer::universal_codebook(spec.sub_dim, spec.code_bits);
    if (book == nullptr) {
        die("no universal codebook for this scheme");
    }
    Result<RowCodec> codec = RowCodec::create(spec, vecinfer::Norm::vector, shape.head_dim, transforms, {*book});
    if (!codec.ok()) {
        die(codec.status().message());
    }
    return std::move(codec).value();
}

Side make_side(RowCodec codec, int kv_len, int count, unsigned seed) {
    Side side;
    side.codec = std::make_unique<RowCodec>(std::move(codec));
    vecinfer::CacheGeometry g;
    g.row_dim = side.codec->row_dim();
    g.codec = side.codec->spec();
    g.num_heads = side.codec->num_heads();
    g.norm = side.codec->has_norm();
    g.num_cells = kv_len;
    g.window = {0, 0};
    for (int i = 0; i < count; ++i) {
        side.memory.push_back(allocate(g.total_bytes()));
        if (i > 0) {
            std::copy_n(side.memory[0].get(), g.total_bytes(), side.memory[i].get());
        } else {
            std::fill_n(side.memory[0].get(), g.total_bytes(), std::byte{0});
        }
        Result<PackedCache> cache = PackedCache::create(g, side.codec.get(), side.memory[i].get());
        if (!cache.ok()) {
            die(cache.status().message());
        }
        side.caches.push_back(cache.value());
        if (i == 0) {
            std::mt19937 rng(seed);
            std::normal_distribution<float> normal;
            std::vector<float> rows(static_cast<std::size_t>(64) * g.row_dim);
            for (int begin = 0; begin < kv_len; begin += 64) {
                std::vector<std::int32_t> cells;
                for (int c = begin; c < std::min(kv_len, begin + 64); ++c) {
                    cells.push_back(c);
                }
                std::generate(rows.begin(), rows.end(), [&] { return normal(rng); });
                const auto plan = side.caches[0].plan_write(0, cells, cells);
                if (!plan.ok()) {
                    die(plan.status().message());
                }
                side.caches[0].write_rows(plan.value(), rows.data(), g.row_dim, 0, 1);
            }
        }
    }
    return side;
}

// Threads that run layer after layer together, as the threads of a ggml graph do. Returns the seconds that took. New threads may
// start on one core, so they spin first until the scheduler has had time to spread them.
double run_layers(std::vector<AttentionTask>& tasks, int threads) {
    constexpr double kSettle = 0.03;
    std::atomic<int> arrived{0};
    std::atomic<bool> go{false};
    std::atomic<int> done{0};
    const auto work = [&](int ith) {
        arrived.fetch_add(1);
        while (!go.load()) {
            if (ith == 0 && arrived.load() == threads) {
                const double begin = seconds();
                while (threads > 1 && seconds() - begin < kSettle) {
                }
                go.store(true);
            }
        }
        const double begin = seconds();
        for (std::size_t i = 0; i < tasks.size(); ++i) {
            tasks[i].run(ith, threads);
            done.fetch_add(1);
            while (done.load() < static_cast<int>(i + 1) * threads) {
            }
        }
        return seconds() - begin;
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) {
        others.emplace_back(work, i);
    }
    const double time = work(0);
    for (std::thread& t : others) {
        t.join();
    }
    return time;
}

struct Ggml {
    struct FreeContext {
        void operator()(ggml_context* c) const { ggml_free(c); }
    };
    std::unique_ptr<ggml_context, FreeContext> context;
    ggml_cgraph* graph = nullptr;
    ggml_cplan plan{};
    std::vector<std::uint8_t> work;
    int layers = 0;
};

// q: layout (tokens, num_qo_heads, head_dim).
Ggml make_ggml(const Shape& s, const float* q, int tokens, int kv_len, int layers, int threads) {
    Ggml g;
    g.layers = layers;
    const std::size_t side = static_cast<std::size_t>(s.num_kv_heads) * s.head_dim * kv_len * 2;
    g.context.reset(
        ggml_init({2 * side * layers + static_cast<std::size_t>(kv_len) * tokens * 2 +
                       static_cast<std::size_t>(tokens) * s.num_qo_heads * s.head_dim * 4 * (layers + 1) + (64u << 20),
                   nullptr, false}));
    if (g.context == nullptr) {
        die("no memory for ggml");
    }
    ggml_context* c = g.context.get();
    g.graph = ggml_new_graph_custom(c, 2048, false);
    ggml_tensor* rows = ggml_new_tensor_3d(c, GGML_TYPE_F32, s.head_dim, s.num_qo_heads, tokens);
    std::copy_n(q, static_cast<std::size_t>(tokens) * s.num_qo_heads * s.head_dim, static_cast<float*>(rows->data));
    ggml_tensor* query = ggml_permute(c, rows, 0, 2, 1, 3);
    ggml_tensor* mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, kv_len, tokens);
    std::ranges::copy(causal_mask(tokens, kv_len), static_cast<ggml_fp16_t*>(mask->data));
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    ggml_tensor* first[2] = {nullptr, nullptr};
    for (int i = 0; i < layers; ++i) {
        ggml_tensor* kv[2];
        for (int j = 0; j < 2; ++j) {
            kv[j] = ggml_new_tensor_3d(c, GGML_TYPE_F16, s.head_dim, s.num_kv_heads, kv_len);
            auto* x = static_cast<ggml_fp16_t*>(kv[j]->data);
            if (i == 0) {
                first[j] = kv[j];
                std::generate_n(x, side / 2, [&] { return ggml_fp32_to_fp16(normal(rng)); });
            } else {
                std::copy_n(static_cast<const ggml_fp16_t*>(first[j]->data), side / 2, x);
            }
        }
        ggml_tensor* out = ggml_flash_attn_ext(c, query, ggml_permute(c, kv[0], 0, 2, 1, 3), ggml_permute(c, kv[1], 0, 2, 1, 3),
                                               mask, 1.0f / std::sqrt(static_cast<float>(s.head_dim)), 0, 0);
        ggml_build_forward_expand(g.graph, out);
    }
    g.plan = ggml_graph_plan(g.graph, threads, nullptr);
    g.work.resize(g.plan.work_size + 64);
    g.plan.work_data = g.work.data();
    return g;
}

double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("model name")) {
            return line.substr(line.find(':') + 2);
        }
    }
    return "unknown";
}

json measure(const Options& options, const Shape& s, int tokens, int kv_len, const Scheme& scheme) {
    const std::size_t f16_bytes = static_cast<std::size_t>(s.num_kv_heads) * s.head_dim * kv_len * 4;
    std::mt19937 rng(1);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    const std::ptrdiff_t token_stride = static_cast<std::ptrdiff_t>(s.num_qo_heads) * s.head_dim;
    std::vector<float> q(tokens * token_stride);
    std::generate(q.begin(), q.end(), [&] { return normal(rng); });
    Ggml ggml = make_ggml(s, q.data(), tokens, kv_len, copies_for(f16_bytes, options.megabytes, tokens), options.threads);

    RowCodec k_codec = make_codec(scheme.key, scheme.key_transform, s);
    RowCodec v_codec = make_codec(scheme.value, scheme.value_transform, s);
    const std::size_t bytes =
        static_cast<std::size_t>(kv_len) * s.num_kv_heads *
        (2 + k_codec.num_subspaces() * k_codec.code_bits() / 8 + v_codec.num_subspaces() * v_codec.code_bits() / 8);
    const int layers = copies_for(bytes, options.megabytes, tokens);
    Side k = make_side(std::move(k_codec), kv_len, layers, 11);
    Side v = make_side(std::move(v_codec), kv_len, layers, 12);

    std::vector<float> out(q.size());
    const std::vector<std::uint16_t> mask = causal_mask(tokens, kv_len);
    vecinfer::AttentionParams p;
    p.num_tokens = tokens;
    p.num_qo_heads = s.num_qo_heads;
    p.kv_len = kv_len;
    p.sm_scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    p.q = q.data();
    p.q_token_stride = p.out_token_stride = token_stride;
    p.q_head_stride = p.out_head_stride = s.head_dim;
    p.out = out.data();
    p.mask = mask.data();
    p.mask_token_stride = kv_len;

    std::vector<double> ours;
    std::vector<double> theirs;
    std::string method;
    Memory workspace;
    std::size_t workspace_bytes = 0;
    for (int i = 0; i <= options.repeats; ++i) {  // the first round warms up
        const double t0 = seconds();
        ggml_graph_compute(ggml.graph, &ggml.plan);
        const double ggml_time = (seconds() - t0) / ggml.layers;

        std::vector<AttentionTask> tasks;
        for (int l = 0; l < layers; ++l) {
            Result<AttentionTask> task = AttentionTask::create(k.caches[l], v.caches[l], 0, p);
            if (!task.ok()) {
                die(task.status().message());
            }
            tasks.push_back(std::move(task).value());
            method = tasks.back().method();
            if (tasks.back().workspace_bytes(options.threads) > workspace_bytes) {
                workspace_bytes = tasks.back().workspace_bytes(options.threads);
                workspace = allocate(workspace_bytes);
            }
        }
        for (AttentionTask& task : tasks) {
            task.bind_workspace(workspace.get());
        }
        const double our_time = run_layers(tasks, options.threads) / layers;
        if (i > 0) {
            theirs.push_back(ggml_time);
            ours.push_back(our_time);
        }
    }
    const double per_cell = 1e9 / (static_cast<double>(kv_len) * s.num_kv_heads);
    // Multiply-adds of both matrix products over what the mask leaves visible.
    const double pairs = static_cast<double>(tokens) * (kv_len - (tokens - 1) / 2.0) * s.num_qo_heads;
    const double products = 2.0 * pairs * s.head_dim;
    const auto stats = [&](const std::vector<double>& x) {
        return json{{"median_us", median(x) * 1e6},
                    {"min_us", *std::min_element(x.begin(), x.end()) * 1e6},
                    {"max_us", *std::max_element(x.begin(), x.end()) * 1e6},
                    {"median_ns_per_cell_and_kv_head", median(x) * per_cell},
                    {"median_giga_mac_per_s", products / median(x) * 1e-9}};
    };
    return {{"shape", {{"num_qo_heads", s.num_qo_heads}, {"num_kv_heads", s.num_kv_heads}, {"head_dim", s.head_dim}}},
            {"tokens", tokens},
            {"kv_len", kv_len},
            {"scheme", to_string(scheme)},
            {"method", method},
            {"layers", {{"vecinfer", layers}, {"ggml", ggml.layers}}},
            {"vecinfer", stats(ours)},
            {"ggml_f16", stats(theirs)},
            {"speedup", median(theirs) / median(ours)},
            {"speedup_of_minima", *std::ranges::min_element(theirs) / *std::ranges::min_element(ours)}};
}

int measure_all(const Options& options) {
    const Result<std::string_view> isa = vecinfer::selected_isa_name();
    if (!isa.ok()) {
        die(isa.status().message());
    }

    std::size_t width = 18;
    for (const std::string& scheme : options.schemes) {
        width = std::max(width, scheme.size());
    }
    json results = json::array();
    for (const std::string& shape_text : options.shapes) {
        const Shape shape = parse_shape(shape_text);
        for (const std::string& scheme_text : options.schemes) {
            const Result<Scheme> parsed = vecinfer::parse_scheme(scheme_text);
            const Result<Scheme> scheme = parsed.ok() ? vecinfer::resolve(parsed.value(), false) : parsed;
            if (!scheme.ok() || scheme->is_f16()) {
                die(scheme.ok() ? "scheme: got f16, which is what others are compared with" : scheme.status().message());
            }
            for (const int kv_len : options.lengths) {
                for (const int tokens : options.tokens) {
                    if (tokens > kv_len) {
                        die(fmt::format("tokens: got {}, expected at most {}, the context", tokens, kv_len));
                    }
                    results.push_back(measure(options, shape, tokens, kv_len, scheme.value()));
                    const json& r = results.back();
                    const std::string line = fmt::format(
                        "{:>9} {:<{}} {:>7} cells {:>4} tokens  {:<18} {:10.1f} us   ggml f16 {:10.1f} us   {:.2f}x\n",
                        shape_text, scheme_text, width, kv_len, tokens, r["method"].get<std::string>(),
                        r["vecinfer"]["median_us"].get<double>(), r["ggml_f16"]["median_us"].get<double>(),
                        r["speedup"].get<double>());
                    std::fputs(line.c_str(), stderr);
                }
            }
        }
    }
    const json report = {{"benchmark", "attention kernels, cold caches"},
                         {"hardware", {{"cpu", cpu_name()}, {"threads", options.threads}}},
                         {"isa", isa.value()},
                         {"vecinfer", {{"version", vecinfer::version()}, {"commit", vecinfer::build_commit()}}},
                         {"repeats", options.repeats},
                         {"megabytes", options.megabytes},
                         {"results", results}};
    std::cout << report.dump(2) << "\n";
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Attention kernels against ggml's f16 flash attention on the CPU."};
    app.add_option("--shape", options.shapes);
    app.add_option("--kv-len", options.lengths)->check(CLI::Range(1, 1 << 22));
    app.add_option("--scheme", options.schemes);
    app.add_option("--tokens", options.tokens, "Query tokens of a call, the last of the context")->check(CLI::Range(1, 1 << 14));
    app.add_option("--threads", options.threads)->check(CLI::Range(1, 512));
    app.add_option("--repeats", options.repeats)->check(CLI::Range(1, 1000));
    app.add_option("--megabytes", options.megabytes)->check(CLI::Range(1, 1 << 16));
    return vecinfer::cli::run_program([&] {
        CLI11_PARSE(app, argc, argv);
        return measure_all(options);
    });
}
