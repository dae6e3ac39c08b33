"""Speed of llama.cpp's caches and VecInfer's in stock llama-bench: interleaved rounds, a table, a picture; see scripts/bench-cpu."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "results"))
import pictures  # noqa: E402
from tools import machine  # noqa: E402

CACHES = "f16,q8_0,q4_0,vecinfer:k4v4,vecinfer:k2v2,vecinfer:k1v1"
FORMAT = {"format": "vecinfer-cpu-speed", "version": 1}


class Failed(Exception):
    pass


def at_least(least):
    def parse(text):
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"got '{text}', expected a whole number of at least {least}")
        return int(text)
    return parse


def depths(text):
    return sorted({at_least(0)(word) for word in text.split(",")})


def caches(text):
    """Comma-separated; an option of a scheme, which holds '=', belongs to the scheme before it."""
    names = []
    for word in text.split(","):
        if "=" in word and names and ":" in names[-1]:
            names[-1] += "," + word
        else:
            names.append(word)
    return names


def parse():
    parser = argparse.ArgumentParser(prog="scripts/bench-cpu", description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--bin", type=pathlib.Path, action="append", required=True)
    parser.add_argument("--caches", type=caches, default=caches(CACHES))
    parser.add_argument("--depths", type=depths, default=[0, 2048, 8192])
    parser.add_argument("--tokens", type=at_least(1), default=16)
    parser.add_argument("--prompt", type=at_least(0), default=512)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--commit")
    return parser.parse_args()


def find(folders, name):
    for folder in folders:
        if (folder / name).is_file():
            return str((folder / name).resolve())
    raise Failed(f"no {name} in {', '.join(map(str, folders))}")


def commit_of(args):
    if args.commit:
        return args.commit
    done = subprocess.run(["git", "-C", str(args.root), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                          text=True)
    return done.stdout.strip() or "unknown"


def measure(args, cache):
    """{("decode" or "prompt", depth): tokens/s} of one round."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VECINFER_", "LLAMA_ARG_")) and k != "GGML_BACKEND_PATH"}
    env["LD_LIBRARY_PATH"] = ":".join([*(str(f.resolve()) for f in args.bin), *filter(None, [env.get("LD_LIBRARY_PATH")])])
    command = [find(args.bin, "llama-bench"), "-m", str(args.model), "-p", str(args.prompt), "-n", str(args.tokens), "-d",
               ",".join(map(str, args.depths)), "-fa", "1", "-t", str(args.threads), "-r", "1", "-o", "json"]
    if ":" in cache:
        env |= {"GGML_BACKEND_PATH": find(args.bin, "libggml-vecinfer.so"), "VECINFER_SCHEME": cache,
                "VECINFER_CODEBOOKS": "none", "VECINFER_QUIET": "1"}
        command += ["-dev", "VecInfer"]
    else:
        command += ["-ctk", cache, "-ctv", cache]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise Failed(f"{cache}: llama-bench: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return {("decode" if row["n_gen"] else "prompt", row["n_depth"]): row["avg_ts"] for row in json.loads(done.stdout)}


def collect(args):
    """Samples of all rounds; each row and the f16 row are measured minutes apart, not hours."""
    samples = {}
    begin = time.time()
    for round_ in range(args.rounds):
        for cache in args.caches:
            for key, speed in measure(args, cache).items():
                samples.setdefault((cache, *key), []).append(speed)
            if sys.stderr.isatty():
                print(f"[{time.time() - begin:5.0f}s] round {round_ + 1} of {args.rounds}: {cache}", file=sys.stderr)
    return samples


def rows(samples):
    """Medians and extremes; `ratio` is to the f16 cache, if that was measured."""
    medians = {key: statistics.median(values) for key, values in samples.items()}
    result = []
    for (cache, what, depth), values in samples.items():
        base = medians.get(("f16", what, depth))
        result.append({"cache": cache, "what": what, "depth": depth, "tps": medians[cache, what, depth], "tps_min": min(values),
                       "tps_max": max(values), "ratio": medians[cache, what, depth] / base if base else None})
    return result


def table(data, what):
    by_cell = {(r["cache"], r["depth"]): r for r in data["rows"] if r["what"] == what}
    lines = ["| cache | " + " | ".join(f"depth {d}" for d in data["depths"]) + " |", "|---|" + "---|" * len(data["depths"])]
    for cache in data["caches"]:
        cells = []
        for depth in data["depths"]:
            row = by_cell[cache, depth]
            spread = (row["tps_max"] - row["tps_min"]) / 2
            ratio = f" ({row['ratio']:.2f}x)" if row["ratio"] and cache != "f16" else ""
            cells.append(f"{row['tps']:.1f} \u00b1 {spread:.1f}{ratio}")
        lines.append(f"| `{cache}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page(data):
    m = data["machine"]
    text = ["# Speed on a CPU\n", "Written by `scripts/bench-cpu`; do not edit.\n",
            f"Stock `llama-bench -fa 1 -t {data['threads']}` on {data['model']}, {data['rounds']} interleaved rounds on {m['cpu']} ({m['isa']}); "
            f"commit {data['commit']}. Tokens/s, median \u00b1 half the range; in brackets against the f16 cache. `f16`, `q8_0`, `q4_0` "
            "are llama.cpp's own caches on its CPU backend, the others run through the plugin with data-free codebooks, which "
            "take as long as calibrated ones.\n",
            f"## Decoding {data['tokens']} tokens\n", table(data, "decode"),
            "![Decode speed against depth](pictures/cpu_speed.svg)\n"]
    if data["prompt"]:
        text += [f"## Reading a prompt of {data['prompt']} tokens\n", table(data, "prompt")]
    return "\n".join(text)


def picture(data, path):
    script, plots = "set xlabel 'tokens in the cache'\nset ylabel 'tokens/s, decoding'\nset yrange [0:*]\n" \
                    "set key outside right top reverse Left samplen 2\n", []
    for i, cache in enumerate(data["caches"]):
        points = [(r["depth"], r["tps"], r["tps_min"], r["tps_max"]) for r in data["rows"]
                  if r["cache"] == cache and r["what"] == "decode"]
        script += pictures.block(f"s{i}", points)
        colour, mark = pictures.COLOURS[i % 8], pictures.MARKS[i % 8]
        plots.append(f"$s{i} using 1:2 with linespoints lc rgb '{colour}' lw 2 pt {mark} ps 1 title {pictures.quoted(cache)}")
        plots.append(f"$s{i} using 1:2:3:4 with yerrorbars lc rgb '{colour}' pt -1 notitle")
    pictures.draw(path, script + "plot " + ", ".join(plots), width=960)


def main():
    args = parse()
    out = args.out or args.root / "docs" / "results"
    try:
        if not args.model.is_file():
            raise Failed(f"--model: there is no file '{args.model}'")
        data = {**FORMAT, "model": args.model.name, "machine": machine(), "commit": commit_of(args), "threads": args.threads,
                "caches": args.caches, "depths": args.depths, "tokens": args.tokens, "prompt": args.prompt, "rounds": args.rounds,
                "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "rows": rows(collect(args))}
        out.mkdir(parents=True, exist_ok=True)
        for name, text in (("cpu_speed.json", json.dumps(data, indent=1, sort_keys=True) + "\n"), ("cpu_speed.md", page(data))):
            part = out / f"{name}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(out / name)
        print(page(data))
        picture(data, out / "pictures" / "cpu_speed.svg")
    except (Failed, pictures.Failed, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
