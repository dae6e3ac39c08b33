"""Finds and starts the programs: stock llama-perplexity, vecinfer-calibrate, vecinfer; reads what they print."""

import hashlib
import json
import os
import pathlib
import re
import subprocess

import plan

NAMES = {"perplexity": "llama-perplexity", "calibrate": "vecinfer-calibrate", "vecinfer": "vecinfer",
         "plugin": "libggml-vecinfer.so"}
# What a folder of binaries must hold to run on a machine without a build tree.
LIBRARIES = ("libggml-base.so.0", "libggml-cpu.so.0", "libggml.so.0", "libllama.so.0", "libllama-common.so.0",
             "libllama-perplexity-impl.so", "libmtmd.so.0", "libgomp.so.1", "libstdc++.so.6")


class Failed(Exception):
    pass


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Tools:
    def __init__(self, folders):
        self.folders = [pathlib.Path(folder).resolve() for folder in folders]
        self.paths = {}
        for what, name in NAMES.items():
            found = [folder / name for folder in self.folders if (folder / name).is_file()]
            if not found:
                raise Failed(f"no {name} in {', '.join(map(str, self.folders))}")
            self.paths[what] = str(found[0])
        # What decides a result besides its inputs.
        self.stamp = hashlib.sha256("".join(sha256(self.paths[w]) for w in ("plugin", "calibrate")).encode()).hexdigest()[:16]

    def environment(self, **extra):
        """Settings of the caller's shell must not reach the measurements, above all not the stock baseline."""
        kept = {k: v for k, v in os.environ.items()
                if k == "VECINFER_ISA" or not (k.startswith(("VECINFER_", "LLAMA_ARG_")) or k == "GGML_BACKEND_PATH")}
        kept["LD_LIBRARY_PATH"] = ":".join([*map(str, self.folders), *filter(None, [kept.get("LD_LIBRARY_PATH")])])
        kept.setdefault("OMP_WAIT_POLICY", "passive")  # several runs share the machine
        return {**kept, **extra}

    def perplexity(self, job, model, text, chunks, logits, sidecar, threads):
        """Command and environment of a quality run; the base writes `logits`, all others read them."""
        context = str(plan.CONTEXT)
        command = [self.paths["perplexity"], "-m", model, "-c", context, "-b", context, "-ub", str(plan.MICRO_BATCH), "-fa", "on",
                   "-t", str(threads), "--kl-divergence-base", logits]
        if job.is_base():
            return [*command, "-f", text, "--chunks", str(chunks)], self.environment()
        command.append("--kl-divergence")
        if not job.scheme:
            return [*command, "-ctk", job.cache, "-ctv", job.cache], self.environment()
        return [*command, "-dev", "VecInfer"], self.environment(
            GGML_BACKEND_PATH=self.paths["plugin"], VECINFER_SCHEME=job.scheme, VECINFER_CODEBOOKS=sidecar or "none",
            VECINFER_QUIET="1")

    def calibration(self, scheme, model, text, chunks, out, threads):
        command = [self.paths["calibrate"], "--model", model, "--text", text, "--out", out, "--scheme", scheme, "--chunks",
                   str(chunks), "--ctx", str(plan.CALIBRATION_CONTEXT), "--threads", str(threads), "--json"]
        return command, self.environment(GGML_BACKEND_PATH=self.paths["plugin"])

    def costs(self, job, model):
        """Bits per value: `stored` are codes, scales and norms of one more token, `effective` counts everything at a context."""
        if not job.scheme:
            bits = plan.PEER_BITS.get(job.cache, 16.0)
            return {"stored": bits, "effective": {str(c): bits for c in plan.FOOTPRINTS}}
        costs = {"effective": {}}
        for context in plan.FOOTPRINTS:
            command = [self.paths["vecinfer"], "info", "--scheme", job.scheme, "-m", model, "--ctx", str(context), "--json"]
            if job.calibration:
                command.append("--calibrated")
            done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                raise Failed(f"vecinfer info: {done.stderr.strip() or done.returncode}")
            info = json.loads(done.stdout)
            costs["stored"] = 16 * info["kv_bytes_per_token"] / info_f16(info, job)
            costs["effective"][str(context)] = info["effective_bits"]
        return costs


def info_f16(info, job):
    return info["kv_bytes_per_token"] if job.scheme == "f16" else info["f16"]["kv_bytes_per_token"]


FIGURES = {"ppl": r"Mean PPL\(Q\) *:", "ppl_ratio": r"Mean PPL\(Q\)/PPL\(base\) *:", "kld_mean": r"Mean +KLD:",
           "kld_p99": r"99\.0% +KLD:", "kld_max": r"Maximum KLD:", "top1": r"Same top p:"}


def quality(job, output):
    """The figures of llama-perplexity; `<figure>_err` is its standard error where it prints one."""
    if job.is_base():
        found = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", output)
        if not found:
            raise Failed("no final perplexity in the output")
        return {"ppl": float(found[1]), "ppl_err": float(found[2])}
    figures = {}
    for name, label in FIGURES.items():
        found = re.search(label + r" *(-?[0-9.]+)(?: *± *([0-9.]+))?", output)
        if not found:
            raise Failed(f"no number behind '{label}' in the output")
        scale = 0.01 if name == "top1" else 1
        figures[name] = float(found[1]) * scale
        if found[2]:
            figures[f"{name}_err"] = float(found[2]) * scale
    return figures


def reason(output, code):
    """Why a tool failed: our own error line if there is one, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    ours = [line for line in lines if "vecinfer: error" in line or "VECINFER_" in line]
    return f"exit code {code}: {(ours or lines or ['no output'])[-1]}"


def machine():
    cpu, flags = "unknown CPU", ()
    try:
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
            if line.startswith("flags"):
                flags = line.split()
                break
    except OSError:
        pass
    isa = next((i for i in ("avx512vbmi", "avx512f", "avx2") if i in flags), "none of avx2, avx512")
    return {"cpu": cpu, "cpus": len(os.sched_getaffinity(0)), "isa": isa}
