"""f16 decode attention through PyTorch's scaled_dot_product_attention: the baseline of scripts/bench-cuda.

Reads a result file of bench_cuda, measures every (batch, context, heads, head_dim, num_q = 1) shape in it with the flash and cuDNN
backends, each in two spellings (enable_gqa, and the query heads of a KV head as query rows, which is the same sum when one token
is decoded), and writes all of it as JSON.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
ROTATION = 640 << 20


def measure(call, repeats, copies):
    calls = max(24, copies)
    for i in range(3):
        call(i)
    torch.cuda.synchronize()
    times = []
    for i in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call(i)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    times.sort()
    result = {
        "median_ms": statistics.median(times),
        "p10_ms": times[len(times) // 10],
        "p90_ms": times[len(times) * 9 // 10],
    }
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    replays = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        replays.append(begin.elapsed_time(end) / calls)
    result["graph_ms"] = statistics.median(replays)
    return result


def shape_rows(shape, repeats):
    batch, context, heads, kv_heads, head_dim = shape
    one = 2 * batch * kv_heads * context * head_dim * 2
    copies = max(1, min(256, -(-ROTATION // one)))
    make = lambda h, n: torch.randn(batch, h, n, head_dim, device="cuda", dtype=torch.float16)
    k = [make(kv_heads, context) for _ in range(copies)]
    v = [make(kv_heads, context) for _ in range(copies)]
    q = make(heads, 1)
    spellings = {
        "gqa": (q, dict(enable_gqa=True)),
        "rows": (q.view(batch, kv_heads, heads // kv_heads, head_dim), {}),
    }
    for name, backend in BACKENDS.items():
        for spelling, (query, options) in spellings.items():
            row = dict(batch=batch, context=context, num_qo_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)
            row.update(backend=name, spelling=spelling, bytes=one)
            try:
                with sdpa_kernel(backend):
                    call = lambda i: F.scaled_dot_product_attention(query, k[i % copies], v[i % copies], **options)
                    row.update(measure(call, repeats, copies))
            except RuntimeError as error:
                row["error"] = str(error).splitlines()[0]
                torch.cuda.synchronize()
            yield row


def main():
    source, target = sys.argv[1:3]
    with open(source) as file:
        result = json.load(file)
    shapes = []
    for r in result["rows"]:
        shape = (r["batch"], r["context"], r["num_qo_heads"], r["num_kv_heads"], r["head_dim"])
        if r["num_q"] == 1 and shape not in shapes:
            shapes.append(shape)
    rows = []
    for shape in shapes:
        for row in shape_rows(shape, result["repeats"]):
            rows.append(row)
            print(shape, row["backend"], row["spelling"], row.get("graph_ms", row.get("error")), flush=True)
        torch.cuda.empty_cache()
        # After every shape: what was measured survives an interruption.
        with open(target, "w") as file:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, file, indent=1)

    print(f"\n{'batch x context':>16} {'heads':>9} {'f16 ms':>9} {'backend':>12} {'kernel':>34} {'ms':>8} {'ratio':>6}")
    for r in result["rows"]:
        key = ("batch", "context", "num_qo_heads", "num_kv_heads", "head_dim")
        same = [x for x in rows if "graph_ms" in x and all(x[k] == r[k] for k in key)]
        if not same or r["num_q"] != 1:
            continue
        best = min(same, key=lambda x: x["graph_ms"])
        print(
            f"{r['batch']:>5} x {r['context']:>8} {r['num_qo_heads']:>3}/{r['num_kv_heads']}x{r['head_dim']:<3}"
            f" {best['graph_ms']:>9.4f} {best['backend'] + '/' + best['spelling']:>12} {r['kernel']:>34} {r['graph_ms']:>8.4f}"
            f" {best['graph_ms'] / r['graph_ms']:>6.2f}"
        )


if __name__ == "__main__":
    main()
