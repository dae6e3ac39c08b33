// bench_cuda: decode attention over packed caches on the GPU, and the streaming limit of its memory, as JSON. Times are device
// times between events; `graph_ms` is the mean of calls replayed from one graph. scripts/bench-cuda runs it beside PyTorch.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "codec/cuda/pack.h"
#include "codec/cuda/tables.h"
#include "codec/f16.h"
#include "cuda/decode_case.h"
#include "cuda/device_kernels.h"
#include "cuda/encode_case.h"
#include "cuda/variants.h"
#include "vecinfer/version.h"

namespace vecinfer::bench {
namespace {

using nlohmann::json;

constexpr const char* kShaped = "vecinfer:k2v2,encode=shaped";

struct Times {
    double median = 0;  // ms
    double low = 0;     // 10th percentile
    double high = 0;    // 90th percentile
    double graph = 0;
};

/// call(i) launches call number i on the stream; it has `copies` sets of data.
template <class Call>
Times measure(int repeats, int copies, cudaStream_t stream, Call&& call) {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int i = 0; i < 3; ++i) {
        call(i);
    }
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        check(cudaEventRecord(begin, stream), "event");
        call(i);
        check(cudaEventRecord(end, stream), "event");
        check(cudaEventSynchronize(end), "measured call");
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    Times t{times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};

    const int calls = std::max(24, copies);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < calls; ++i) {
        call(i);
    }
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    std::vector<double> replays;
    for (int i = 0; i < 7; ++i) {
        check(cudaEventRecord(begin, stream), "event");
        check(cudaGraphLaunch(exec, stream), "graph");
        check(cudaEventRecord(end, stream), "event");
        check(cudaEventSynchronize(end), "graph");
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        replays.push_back(ms / calls);
    }
    std::sort(replays.begin(), replays.end());
    t.graph = replays[replays.size() / 2];
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return t;
}

double streaming_limit(cudaStream_t stream) {
    constexpr std::size_t kBytes = std::size_t{4} << 30;
    cuda::DevicePointer<std::uint8_t> memory;
    cuda::DevicePointer<std::uint32_t> sink;
    check(cuda::allocate(kBytes, memory, "streaming buffer"));
    check(cuda::allocate(1, sink, "streaming buffer"));
    fill_bytes(memory.get(), kBytes, 0, 255, 1, stream);
    const Times t = measure(20, 1, stream, [&](int) { read_only(memory.get(), kBytes, sink.get(), stream); });
    return static_cast<double>(kBytes) / t.median * 1e3;
}

double difference(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
    double d = 0;
    double n = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = f16_to_f32(a[i]);
        const double y = f16_to_f32(b[i]);
        d += (x - y) * (x - y);
        n += y * y;
    }
    return std::sqrt(d / n);
}

json row(const DecodeShape& s, const std::string& kernel, const DecodeCaseData& data, const Times& t, double limit) {
    return {{"batch", s.batch},
            {"context", s.context},
            {"num_qo_heads", s.num_qo_heads},
            {"num_kv_heads", s.num_kv_heads},
            {"head_dim", s.head_dim},
            {"num_q", s.num_q},
            {"page_size", s.page_size},
            {"recent", s.recent},
            {"sink", s.sink},
            {"scheme", s.scheme},
            {"kernel", kernel},
            {"bytes", data.bytes()},
            {"copies", data.copies()},
            {"median_ms", t.median},
            {"p10_ms", t.low},
            {"p90_ms", t.high},
            {"graph_ms", t.graph},
            {"bytes_per_s", static_cast<double>(data.bytes()) / t.graph * 1e3},
            {"fraction_of_streaming", static_cast<double>(data.bytes()) / t.graph * 1e3 / limit}};
}

/// "main": the table of contexts and batches; "more": pages, heads, schemes; "all": both, in this order.
std::vector<DecodeShape> shapes(const std::string& which) {
    std::vector<DecodeShape> out;
    if (which == "encode") {
        return out;
    }
    if (which != "more") {
        out = {{1, 64},    {1, 4096},  {1, 32768},  {1, 131072}, {1, 196608}, {8, 8192},
               {8, 32768}, {8, 65536}, {8, 196608}, {32, 8192},  {32, 32768}};
    }
    if (which != "main") {
        for (const int page_size : {16, 64, 128}) {
            out.push_back({.batch = 8, .context = 65536, .page_size = page_size});
        }
        out.push_back({.batch = 8, .context = 65536, .num_qo_heads = 8});
        out.push_back({.batch = 8, .context = 65536, .num_qo_heads = 64});
        out.push_back({.batch = 8, .context = 65536, .num_qo_heads = 40});
        out.push_back({.batch = 8, .context = 65536, .head_dim = 64});
        out.push_back({.batch = 8, .context = 65536, .num_kv_heads = 8, .head_dim = 256});
        out.push_back({.batch = 8, .context = 65536, .num_q = 4});
        out.push_back({.batch = 8, .context = 65536, .recent = 0, .sink = 0});
        for (const int context : {65536, 196608}) {
            for (const char* scheme :
                 {"vecinfer:k4v4", "vecinfer:k4v2", "vecinfer:k3v3", "vecinfer:k1.5v1.5", "vecinfer:k1.5v1", "vecinfer:k1v1",
                  "million:k2v2", "million:k4v4", "rotated:k2v2", "rotated:k3v3", "rotated:k4v4", "kivi:k2v2", "kivi:k4v4",
                  "innerq:k3v2", "innerq:k3v2h", "innerq:k3v3", "innerq:k4v4"}) {
                out.push_back({.batch = 8, .context = context, .scheme = scheme});
            }
        }
    }
    return out;
}

std::vector<const cuda::DecodeKernel*> variants_of(const DecodeShape& s, const cuda::LayerCodec& codec) {
    std::vector<const cuda::DecodeKernel*> found;
    for (const std::span<const cuda::DecodeKernel> table : {decode_variants(), decode_variants_other()}) {
        for (const cuda::DecodeKernel& v : table) {
            if (v.head_dim == s.head_dim && v.k == cuda::page_spec(codec.tables().k.spec) &&
                v.v == cuda::page_spec(codec.tables().v.spec) && v.k_own == codec.tables().k.own_books &&
                s.num_qo_heads / s.num_kv_heads * s.num_q <= v.rows && (v.general || s.page_size == 0 || s.page_size >= 64)) {
                found.push_back(&v);
            }
        }
    }
    return found;
}

int blocks_of(const cuda::DecodeKernel& v, const cudaDeviceProp& device) {
    return std::min(device.multiProcessorCount * v.blocks_per_multiprocessor, v.max_blocks);
}

}  // namespace

int run(int argc, char** argv) {
    CLI::App app("Decode attention over packed caches on the current GPU");
    std::string out = "bench_cuda.json";
    bool with_variants = false;
    bool no_encode = false;
    std::string which = "all";
    int only = -1;
    int repeats = 30;
    app.add_option("--json", out, "result file");
    app.add_flag("--variants", with_variants, "also kernels that are not shipped");
    app.add_option("--shapes", which, "main: contexts and batches; more: pages, heads, schemes; all: both; encode: none")
        ->check(CLI::IsMember({"main", "more", "all", "encode"}));
    app.add_flag("--no-encode", no_encode, "decode attention only");
    app.add_option("--only", only, "one shape by its number in --shapes, one launch, for a profiler; writes nothing");
    app.add_option("--repeats", repeats, "timed calls per shape")->check(CLI::Range(3, 10000));
    CLI11_PARSE(app, argc, argv);

    cudaDeviceProp device{};
    check(cudaGetDeviceProperties(&device, 0), "device");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "stream");
    const std::vector<DecodeShape> all = shapes(which);
    if (only >= 0) {
        if (only >= static_cast<int>(all.size())) {
            check(argument_error("--only", std::to_string(only), fmt::format("0 to {}", all.size() - 1)));
        }
        const DecodeCaseData data(all[only]);
        data.launch(0, stream);
        if (with_variants) {
            for (const cuda::DecodeKernel* v : variants_of(all[only], data.codec())) {
                data.launch(*v, blocks_of(*v, device), 0, stream);
            }
        }
        check(cudaDeviceSynchronize(), "launch");
        return 0;
    }
    const double limit = streaming_limit(stream);
    fmt::print("{}, {} multiprocessors, streaming {:.3f} TB/s\n", device.name, device.multiProcessorCount, limit * 1e-12);
    json rows = json::array();
    json encodings = json::array();
    // After every shape: what was measured survives an interruption.
    const auto save = [&] {
        const json result = {{"device", device.name},    {"compute_capability", fmt::format("{}.{}", device.major, device.minor)},
                             {"commit", build_commit()}, {"streaming_bytes_per_s", limit},
                             {"repeats", repeats},       {"rows", rows},
                             {"encode", encodings}};
        std::ofstream file(out);
        file << result.dump(1) << '\n';
        if (!file.flush()) {
            check(Status(ErrorCode::io_error, out + ": could not be written"));
        }
    };
    for (const DecodeShape& s : all) {
        const DecodeCaseData data(s);
        const auto report = [&](const std::string& kernel, const Times& t) {
            rows.push_back(row(s, kernel, data, t, limit));
            fmt::print(
                "{:3} x {:6} {}/{}x{} q{} page {:3} {:13} {:26} {:.4f} ms [{:.4f} {:.4f}] graph {:.4f} ms {:.3f} TB/s {:.0f}%\n",
                s.batch, s.context, s.num_qo_heads, s.num_kv_heads, s.head_dim, s.num_q, s.page_size, s.scheme, kernel, t.median,
                t.low, t.high, t.graph, static_cast<double>(data.bytes()) / t.graph * 1e-9,
                rows.back()["fraction_of_streaming"].get<double>() * 100);
            std::fflush(stdout);
        };
        report(data.kernel(), measure(repeats, data.copies(), stream, [&](int i) { data.launch(i % data.copies(), stream); }));
        data.launch(0, stream);
        check(cudaStreamSynchronize(stream), "launch");
        const std::vector<std::uint16_t> expected = data.output();
        for (const cuda::DecodeKernel* v :
             with_variants ? variants_of(s, data.codec()) : std::vector<const cuda::DecodeKernel*>()) {
            const int blocks = blocks_of(*v, device);
            const Times t =
                measure(repeats, data.copies(), stream, [&](int i) { data.launch(*v, blocks, i % data.copies(), stream); });
            data.launch(*v, blocks, 0, stream);
            check(cudaStreamSynchronize(stream), "launch");
            const double d = difference(data.output(), expected);
            report(fmt::format("{}{}", v->name, d < 2e-3 ? "" : fmt::format(" WRONG {:.1e}", d)), t);
        }
        save();
    }
    const std::vector<std::string> encoded = {"vecinfer:k2v2",     kShaped,         "vecinfer:k4v4", "vecinfer:k3v3",
                                              "vecinfer:k1.5v1.5", "vecinfer:k1v1", "million:k2v2",  "rotated:k3v3",
                                              "kivi:k2v2",         "innerq:k3v2",   "innerq:k3v2h"};
    for (const std::string& scheme : no_encode ? std::vector<std::string>() : encoded) {
        const bool shaped = scheme == kShaped;
        const DecodeShape s{
            .batch = 8, .context = 32768, .scheme = shaped ? "vecinfer:k2v2" : scheme, .shaping = shaped ? shaping_rank(128) : 0};
        const EncodeCaseData data(s);
        const Times t = measure(10, 1, stream, [&](int) { data.launch(stream); });
        encodings.push_back({{"batch", s.batch},
                             {"tokens", data.num_tokens()},
                             {"num_kv_heads", s.num_kv_heads},
                             {"head_dim", s.head_dim},
                             {"scheme", scheme},
                             {"bytes", data.bytes()},
                             {"median_ms", t.median},
                             {"p10_ms", t.low},
                             {"p90_ms", t.high},
                             {"graph_ms", t.graph}});
        fmt::print("encode {} tokens {}x{} {}: {:.3f} ms [{:.3f} {:.3f}]\n", data.num_tokens(), s.num_kv_heads, s.head_dim,
                   scheme, t.median, t.low, t.high);
    }
    save();
    return 0;
}

}  // namespace vecinfer::bench

int main(int argc, char** argv) {
    return vecinfer::bench::run(argc, argv);
}
