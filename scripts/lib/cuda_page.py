"""docs/results/cuda.md and its picture from the result files of scripts/bench-cuda.

Usage: cuda_page.py bench_cuda.json sdpa.json DOCS
Copies both files to DOCS as cuda.json, so that the page can be written again from there: cuda_page.py DOCS/cuda.json DOCS
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "results"))
import pictures  # noqa: E402

SHAPE = ("batch", "context", "num_qo_heads", "num_kv_heads", "head_dim")
WIDTHS = {"vecinfer:k2v2": "2", "vecinfer:k4v4": "4", "vecinfer:k4v2": "4, 2", "vecinfer:k3v3": "3", "vecinfer:k1.5v1.5": "1.5",
          "vecinfer:k1.5v1": "1.5, 1", "vecinfer:k1v1": "1"}


def baseline(data, row):
    """The fastest f16 attention on the same shape; none where several query tokens make the comparison unfair."""
    same = [b for b in data["sdpa"]["rows"] if "graph_ms" in b and all(b[k] == row[k] for k in SHAPE)]
    return min(same, key=lambda b: b["graph_ms"]) if same and row["num_q"] == 1 else None


def cells(data, row):
    base = baseline(data, row)
    name = f"{row['batch']} x {row['context'] // 1024}k" if row["context"] >= 1024 else f"{row['batch']} x {row['context']}"
    return [name, f"{row['num_qo_heads']}/{row['num_kv_heads']} x {row['head_dim']}", WIDTHS.get(row["scheme"], row["scheme"]),
            f"{row['page_size']}" if row["page_size"] else "-", f"{row['num_q']}", row["kernel"].rsplit("/", 1)[0],
            f"{1000 * base['graph_ms']:.1f} ({base['backend']})" if base else "-", f"{1000 * row['graph_ms']:.1f}",
            f"{base['graph_ms'] / row['graph_ms']:.2f}" if base else "-",
            f"{row['bytes'] / row['graph_ms'] / 1e9:.2f}",
            f"{100 * row['bytes'] / row['graph_ms'] * 1000 / data['bench']['streaming_bytes_per_s']:.0f}%"]


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows]) + "\n"


def page(data):
    bench = data["bench"]
    rows, seen = [], set()
    for row in bench["rows"]:
        line = cells(data, row)
        if tuple(line[:6]) not in seen:
            seen.add(tuple(line[:6]))
            rows.append(line)
    encode = [[e["scheme"] if "scheme" in e else f"d{e['sub_dim']}b8", f"{e['tokens']}", f"{e['num_kv_heads']} x {e['head_dim']}", f"{e['median_ms']:.2f}"]
              for e in bench["encode"]]
    return "\n".join([
        "# Decode attention on a GPU\n", "Written by `scripts/lib/cuda_page.py` from what `scripts/bench-cuda` measured; do not edit.\n",
        f"{bench['device']}, one layer, window of 128 tokens and 4 sinks in f16, merge of blocks included; microseconds per call inside a "
        "CUDA graph, data larger than the L2 cache and walked through. Baseline: the faster of PyTorch's flash and cuDNN attention "
        f"in f16 (PyTorch {data['sdpa']['torch']}) in the same run. Streaming: a kernel that only reads reaches "
        f"{bench['streaming_bytes_per_s'] / 1e12:.2f} TB/s. Commit {bench['commit']}. Data: [cuda.json](cuda.json).\n",
        table(["batch x context", "heads", "bits", "page", "query tokens", "kernel", "f16, us", "us", "ratio", "TB/s", "of streaming"],
              rows),
        "![Ratio to f16 attention against context](pictures/cuda.svg)\n", "## Encoding keys and values of one layer\n",
        table(["codec", "tokens", "heads", "ms"], encode)])


def picture(data, path):
    series = {}
    for row in data["bench"]["rows"]:
        base = baseline(data, row)
        if base and row["scheme"] == "vecinfer:k2v2" and row["page_size"] == 0 and tuple(row[k] for k in SHAPE[2:]) == (32, 8, 128):
            series.setdefault(row["batch"], {})[row["context"]] = base["graph_ms"] / row["graph_ms"]
    script, plots = "set logscale x 2\nset xlabel 'tokens in the cache of each sequence'\nset ylabel 'times as fast as f16 attention'\n" \
                    "set yrange [0:*]\nset key outside right top reverse Left samplen 2\n", ["1 lc rgb '#999999' dt 2 notitle"]
    for i, (batch, points) in enumerate(sorted(series.items())):
        script += pictures.block(f"s{i}", sorted(points.items()))
        plots.append(f"$s{i} using 1:2 with linespoints lc rgb '{pictures.COLOURS[i]}' lw 2 pt {pictures.MARKS[i]} ps 1 "
                     f"title 'batch {batch}'")
    pictures.draw(path, script + "plot " + ", ".join(plots), width=860)


def main():
    *sources, docs = map(pathlib.Path, sys.argv[1:])
    if len(sources) == 2:
        data = {"format": "vecinfer-cuda", "version": 1, "bench": json.loads(sources[0].read_text()),
                "sdpa": json.loads(sources[1].read_text())}
        (docs / "cuda.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    elif len(sources) == 1:
        data = json.loads(sources[0].read_text())
    else:
        sys.exit(__doc__)
    (docs / "cuda.md").write_text(page(data))
    picture(data, docs / "pictures" / "cuda.svg")


if __name__ == "__main__":
    main()
