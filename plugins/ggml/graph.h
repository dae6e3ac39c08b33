// One graph on its way through the CPU backend: nodes that touch a packed cache are served by us, everything else by the CPU
// backend, in one run.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "buffer.h"
#include "capture.h"
#include "vecinfer/attention.h"

namespace vecinfer::plugin {

/// Memory that outlives one graph, so that decoding does not allocate megabytes per token.
class Scratch {
public:
    /// At least `bytes`, 64-byte aligned; contents are lost when it grows.
    std::byte* reserve(std::size_t bytes);

private:
    std::unique_ptr<std::byte[]> memory_;
    std::size_t size_ = 0;
};

class GraphRun {
public:
    GraphRun(ggml_cgraph* graph, ggml_backend_t cpu, int num_threads, Scratch& workspace, Scratch& staging)
        : graph_(graph), cpu_(cpu), num_threads_(num_threads), workspace_(workspace), staging_(staging) {}

    /// Finds the nodes that are ours and plans their work. On error nothing in the graph has been changed.
    Status plan();
    /// Runs the whole graph on the CPU backend with our nodes patched to custom ops, then restores them.
    ggml_status compute();

private:
    struct Write {
        CacheTensor* cache;
        std::vector<WritePlan> plans;         // one per run of rows of one stream
        std::vector<int> first_rows;          // batch row where each plan starts
        std::vector<std::int32_t> positions;  // of all batch rows
    };
    struct Attend {
        CacheTensor* k;
        CacheTensor* v;
        std::vector<AttentionTask> tasks;  // one per stream
        int first_stream;
        std::deque<std::vector<ExactRow>> windows;  // rows at hand when the graph wrote none
        std::atomic<bool> refused{false};
    };
    struct Patch {
        GraphRun* run;
        ggml_tensor* node;
        ggml_op op;
        std::int32_t params[GGML_MAX_OP_PARAMS / sizeof(std::int32_t)];
        Write* write = nullptr;
        Attend* attend = nullptr;
        std::optional<CaptureRows> capture;
    };

    Status check_node(const ggml_tensor* node) const;
    Status plan_write(ggml_tensor* node);
    Status plan_attention(ggml_tensor* node);
    Status plan_shift(ggml_tensor* node);
    Status plan_capture(int index);
    Status bind_workspaces();
    Status bind_head_sizes();
    void find_positions();
    Patch& patch(ggml_tensor* node);

    static void run_patch(ggml_tensor* dst, int ith, int nth, void* userdata);
    static void run_write(const Write& write, const ggml_tensor* dst, int ith, int nth);
    static void run_attention(Attend& attend, const ggml_tensor* dst, int ith, int nth);

    ggml_cgraph* graph_;
    ggml_backend_t cpu_;
    int num_threads_;
    Scratch& workspace_;
    Scratch& staging_;
    const ggml_tensor* positions_ = nullptr;  // I32, of the batch's tokens
    std::deque<Write> writes_;
    std::deque<Attend> attends_;
    std::deque<Patch> patches_;
    std::map<const CacheTensor*, Write*> last_write_;
    bool positions_moved_ = false;
};

}  // namespace vecinfer::plugin
