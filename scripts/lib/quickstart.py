"""The comparison behind scripts/quickstart: runs the tools, collects their numbers, prints a table, writes result.json."""

import argparse
import hashlib
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time

CONTEXT = 2048  # tokens per evaluated chunk, and the depth at which decoding is timed
BUSY = 0.2  # share of CPU time that others may use before a timing counts as disturbed
PROMPT = "Why is the sky blue?"

# (scheme, calibrated?), best quality first; f16 is the stock tool without the plugin.
SCHEMES = [("vecinfer:k4v4", True), ("vecinfer:k2v2", True), ("vecinfer:k2v2", False)]


class Failed(Exception):
    pass


class Session:
    """Where everything is, and how commands are run and logged."""

    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(args.root) / "build" / "quickstart"
        self.out.mkdir(parents=True, exist_ok=True)
        self.start = float(os.environ.get("VECINFER_T0", time.time()))
        # Settings of the caller's shell must not reach the measurements, above all not the stock baseline.
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("VECINFER_", "LLAMA_ARG_")) and k != "GGML_BACKEND_PATH"}
        self.plugin_env = {**self.env, "VECINFER_TOOLS": args.tools, "VECINFER_PLUGIN": args.plugin}

    def say(self, text):
        print(f"[{time.time() - self.start:4.0f}s] {text}", file=sys.stderr, flush=True)

    def run(self, what, command, env):
        """Returns stdout and stderr; both also go to a log of their own."""
        self.say(what)
        if self.args.dry_run:
            print(shlex.join(command))
            return "", ""
        name = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        log = self.out / f"{name}.log"
        log.write_text(f"$ {shlex.join(command)}\n{done.stdout}\n{done.stderr}")
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            code = done.returncode
            end = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
            raise Failed(f"{tail}\n{what}: {end}; the whole log is {log}")
        return done.stdout, done.stderr

    def stock(self, what, tool, *arguments):
        return self.run(what, [str(pathlib.Path(self.args.tools) / tool), "-m", self.args.model, *arguments], self.env)

    def vecinfer(self, what, verb, options, passthrough=None):
        command = [self.args.vecinfer, verb, "-m", self.args.model, *options]
        if passthrough is not None:
            command += ["--", *passthrough]
        return self.run(what, command, self.plugin_env)


def number(pattern, text, what):
    found = re.search(pattern, text)
    if not found:
        raise Failed(f"no {what} in the output of the tool (looked for {pattern!r})")
    return float(found.group(1))


def calibration_text(session):
    """English text that is wherever Python is: the reference manual's topics. The held-out text has nothing to do with it."""
    from pydoc_data.topics import topics

    path = pathlib.Path(session.args.cache) / "calibration.txt"
    text = "\n\n".join(topics[key] for key in sorted(topics))
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return str(path)


def evaluation_arguments(args):
    # Small ubatches: nearly all keys that a query reads then come from the cache, as they do when decoding.
    return ["-c", str(CONTEXT), "-b", str(CONTEXT), "-ub", "64", "-fa", "on", "-t", str(args.threads)]


def bench_arguments(args):
    return ["-p", "0", "-n", "32", "-d", str(CONTEXT), "-r", str(args.repeats), "-fa", "on", "-t", str(args.threads),
            "-o", "json"]


def busy_share():
    """Share of the machine's CPU time that went to work, over half a second; 0 where the system does not tell."""
    def ticks():
        with open("/proc/stat", encoding="ascii") as stat:
            values = [int(v) for v in stat.readline().split()[1:9]]
        return sum(values), values[3] + values[4]

    try:
        total, idle = ticks()
        time.sleep(0.5)
        total_after, idle_after = ticks()
    except (OSError, ValueError):
        return 0.0
    return 1 - (idle_after - idle) / max(1, total_after - total)


def decode_speed(session, name, run):
    """Median, extremes, and whether other work kept the CPUs busy: then the tool's spinning threads make any number useless."""
    busy = 0.0
    if not session.args.dry_run:
        for _ in range(20):
            busy = busy_share()
            if busy < BUSY:
                break
    out, _ = run(f"{name}: decoding at depth {CONTEXT}")
    if session.args.dry_run:
        return {"decode_tps": 0.0}
    samples = json.loads(out)[0]["samples_ts"]
    quiet = busy < BUSY and max(samples) < 1.3 * min(samples)
    return {"decode_tps": statistics.median(samples), "decode_tps_min": min(samples), "decode_tps_max": max(samples),
            "quiet": quiet}


def cache_bytes(session, scheme, codebooks):
    """Bytes per token with everything counted, and of codes and norms alone."""
    subject = ["--scheme", scheme] if codebooks == "none" else [codebooks]
    out, _ = session.vecinfer(f"{scheme if scheme == 'f16' else f'{scheme} {label(codebooks)}'}: bytes per token", "info",
                              [*subject, "--ctx", str(CONTEXT), "--json"])
    if session.args.dry_run:
        return {"kv_bytes_per_token": 0.0, "kv_code_bytes_per_token": 0.0}
    info = json.loads(out)
    return {"kv_bytes_per_token": info["kv_bytes_per_token_total"], "kv_code_bytes_per_token": info["kv_bytes_per_token"]}


def label(codebooks):
    return "data-free" if codebooks == "none" else "calibrated"


def baseline(session, logits):
    args = session.args
    out, err = session.stock(f"f16 of the stock CPU backend: perplexity of {args.chunks} x {CONTEXT} held-out tokens",
                             "llama-perplexity", "-f", args.text, "--chunks", str(args.chunks),
                             "--kl-divergence-base", logits, *evaluation_arguments(args))
    ppl = 0.0 if args.dry_run else number(r"Final estimate: PPL = ([0-9.]+)", out + err, "perplexity")
    speed = decode_speed(session, "f16 of the stock CPU backend",
                         lambda what: session.stock(what, "llama-bench", *bench_arguments(args)))
    return {"scheme": "f16", "ppl": ppl, "kld": 0.0, **cache_bytes(session, "f16", "none"), **speed, "codebooks": None}


def compressed(session, scheme, codebooks, logits):
    name = f"{scheme} {label(codebooks)}"
    options = ["--scheme", scheme, "--codebooks", codebooks]
    out, err = session.vecinfer(f"{name}: perplexity and KL divergence to f16", "perplexity", options,
                                ["--kl-divergence", "--kl-divergence-base", logits, *evaluation_arguments(session.args)])
    ppl = kld = 0.0
    if not session.args.dry_run:
        ppl = number(r"Mean PPL\(Q\)\s*:\s*([0-9.]+)", out + err, "perplexity")
        kld = number(r"Mean\s+KLD:\s*(-?[0-9.]+)", out + err, "KL divergence")
    speed = decode_speed(session, name, lambda what: session.vecinfer(what, "bench", options, bench_arguments(session.args)))
    return {"scheme": scheme if codebooks != "none" else f"{scheme} (data-free)", "ppl": ppl, "kld": kld,
            **cache_bytes(session, scheme, codebooks), **speed, "codebooks": label(codebooks)}


def calibrate(session, scheme, text):
    path = session.out / f"{scheme.replace(':', '-')}.vecinfer.gguf"
    chunks, threads = str(session.args.calibration_chunks), str(session.args.threads)
    session.vecinfer(f"{scheme}: calibrating on {chunks} chunks", "calibrate",
                     ["-f", text, "--scheme", scheme, "--chunks", chunks, "-t", threads, "-o", str(path)])
    return str(path)


def answer(session, codebooks):
    out, _ = session.vecinfer(f"answering '{PROMPT}' from a 2-bit cache", "run",
                              ["--scheme", "vecinfer:k2v2", "--codebooks", codebooks],
                              ["-p", PROMPT, "-n", "48", "--temp", "0", "-cnv", "-st", "--no-display-prompt",
                               "-t", str(session.args.threads)])
    if not session.args.dry_run:
        print(f"\n{PROMPT}\n  {' '.join(out.split())}\n", flush=True)


def cpu_name():
    try:
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit(root):
    done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def table(rows):
    base = rows[0]
    lines = [f"{'scheme':<28}{'perplexity':>11}{'KL to f16':>11}{'KV bytes/token':>16}{'of f16':>8}"
             f"{'decode t/s':>12}{'of f16':>8}"]
    for row in rows:
        lines.append(f"{row['scheme']:<28}{row['ppl']:>11.3f}{row['kld']:>11.4f}{row['kv_bytes_per_token']:>16.0f}"
                     f"{row['kv_bytes_per_token'] / base['kv_bytes_per_token']:>8.3f}{row['decode_tps']:>12.1f}"
                     f"{row['decode_tps'] / base['decode_tps']:>8.2f}")
    return "\n".join(lines)


def write_result(session, rows):
    args = session.args
    result = {
        "model": pathlib.Path(args.model).name, "rows": rows, "commit": commit(args.root), "cpu": cpu_name(),
        "threads": args.threads, "context": CONTEXT, "evaluated_tokens": args.chunks * CONTEXT // 2,
        "calibration_chunks": args.calibration_chunks,
        "heldout_sha256": hashlib.sha256(pathlib.Path(args.text).read_bytes()).hexdigest(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seconds": round(time.time() - session.start),
    }
    path = session.out / "result.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(path)
    return path


def compare(session):
    text = calibration_text(session)
    books = {scheme: calibrate(session, scheme, text) for scheme in dict.fromkeys(s for s, calibrated in SCHEMES if calibrated)}
    answer(session, books["vecinfer:k2v2"])
    logits = str(session.out / "f16.logits")
    try:
        rows = [baseline(session, logits)]
        for scheme, calibrated in SCHEMES:
            rows.append(compressed(session, scheme, books[scheme] if calibrated else "none", logits))
    finally:
        pathlib.Path(logits).unlink(missing_ok=True)  # hundreds of megabytes
    if session.args.dry_run:
        return
    path = write_result(session, rows)
    print(f"\n{pathlib.Path(session.args.model).name}, {session.args.threads} threads, {cpu_name()}, context {CONTEXT}")
    print(table(rows))
    print(f"\nPerplexity over {session.args.chunks * CONTEXT // 2} tokens of text that calibration has not seen; bytes count "
          f"codes, norms, window and\ncodebooks at a context of {CONTEXT}. Written to {os.path.relpath(path, session.args.root)}")
    disturbed = [row["scheme"] for row in rows if not row["quiet"]]
    if disturbed:
        print(f"Other programs were busy while decoding was timed ({', '.join(disturbed)}): do not trust those speeds.")
    session.say("done")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("root", "cache", "tools", "vecinfer", "plugin", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--text", help="held-out text (default: share/text/heldout.txt)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("--calibration-chunks", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if args.threads < 1 or args.chunks < 1:
        parser.error(f"--threads and --chunks must be at least 1, got {args.threads} and {args.chunks}")
    args.text = args.text or str(pathlib.Path(args.root) / "share" / "text" / "heldout.txt")
    try:
        compare(Session(args))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
