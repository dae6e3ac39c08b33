"""Runs stock llama.cpp tools with the plugin for stock_tools_test.py."""

import json
import os
import pathlib
import resource
import socket
import struct
import subprocess
import time
import unittest
import urllib.error
import urllib.request

TOOL_SECONDS = 240


def setting(name):
    """A path from the environment that must exist, or the test is skipped."""
    value = os.environ.get(name, "")
    if not value or not pathlib.Path(value).exists():
        raise unittest.SkipTest(f"{name}: got {value!r}, which does not exist")
    return pathlib.Path(value)


def tool(name):
    path = setting("VECINFER_TOOLS") / name
    if not path.exists():
        raise unittest.SkipTest(f"{path} does not exist")
    return str(path)


def work_folder():
    folder = pathlib.Path(os.environ.get("VECINFER_TEST_WORK", "stock_tools_work"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def smollm2():
    return str(setting("VECINFER_MODEL_SMOLLM2"))


def gemma3():
    return str(setting("VECINFER_MODEL_GEMMA3"))


def environment(scheme=None, codebooks="none", plugin=True):
    """The environment of a tool. Threads that wait must not spin: tests share their cores with whatever else runs."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VECINFER_", "LLAMA_", "GGML_"))}
    env["OMP_WAIT_POLICY"] = "passive"
    if plugin:
        env["GGML_BACKEND_PATH"] = str(setting("VECINFER_PLUGIN"))
        env["VECINFER_CODEBOOKS"] = str(codebooks)
        if scheme is not None:
            env["VECINFER_SCHEME"] = scheme
    return env


class Outcome:
    def __init__(self, process):
        self.code = process.returncode
        self.text = process.stdout.decode("utf-8", "replace")
        self.log = process.stderr.decode("utf-8", "replace")

    def lines(self):
        """What the plugin says; what llama.cpp's log thread was writing may stand before it."""
        mark = "vecinfer: "
        return [line[line.index(mark):] for line in self.log.splitlines() if mark in line]

    def errors(self):
        return [line for line in self.lines() if line.startswith("vecinfer: error:")]

    def kv_mib(self, device):
        """KV buffer size that llama.cpp reports for a device, in MiB, over all of its caches."""
        total = 0.0
        for line in self.log.splitlines():
            if f"{device} KV buffer size" in line:
                total += float(line.split("=")[1].split()[0])
        return total


def run(command, env, memory_limit=None):
    def limit():
        if memory_limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))

    return Outcome(subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_SECONDS, check=False,
                                  preexec_fn=limit))


def vecinfer(*arguments):
    """The command itself, with the stock tools and the plugin."""
    env = environment(plugin=False)
    env["VECINFER_TOOLS"] = str(setting("VECINFER_TOOLS"))
    env["VECINFER_PLUGIN"] = str(setting("VECINFER_PLUGIN"))
    return subprocess.run([str(setting("VECINFER_COMMAND")), *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=TOOL_SECONDS, check=False)


def complete(model, prompt, tokens=16, *options, scheme=None, codebooks="none", plugin=True, context=512, memory_limit=None):
    """Greedy completion; `plugin=False` is llama.cpp as it is."""
    command = [tool("llama-completion"), "-m", model, "-p", prompt, "-n", str(tokens), "-c", str(context), "-t", "2", "--temp", "0",
               "-no-cnv", "--no-display-prompt", "--no-warmup", "-lv", "4", *options]
    if plugin:
        command += ["-dev", "VecInfer"]
    return run(command, environment(scheme, codebooks, plugin), memory_limit)


def sidecar_for(model, name, scheme="vecinfer:k2v2", chunks=2, *options):
    """A small calibrated sidecar, kept as long as it is newer than the plugin; what the helper says of it is beside it."""
    path = work_folder() / f"{'.'.join([name, scheme.replace(':', '.'), str(chunks), *options])}.gguf"
    plugin = setting("VECINFER_PLUGIN")
    if not path.exists() or path.stat().st_mtime < plugin.stat().st_mtime:
        made = run([str(setting("VECINFER_CALIBRATE")), "--model", model, "--text", str(setting("VECINFER_TEST_TEXT")), "--out", str(path),
                    "--chunks", str(chunks), "--ctx", "64", "--scheme", scheme, "--threads", "2", "--json", *options], environment())
        if made.code != 0:
            raise AssertionError(f"vecinfer-calibrate failed: {made.log}")
        path.with_suffix(".json").write_text(made.text)
    return path


def perplexity(model, scheme, codebooks="none"):
    """Perplexity of one chunk of 512 tokens of the test text."""
    outcome = run([tool("llama-perplexity"), "-m", str(model), "-f", str(setting("VECINFER_TEST_TEXT")), "-c", "512", "--chunks", "1",
                   "-t", "2", "-dev", "VecInfer"], environment(scheme, codebooks))
    if outcome.code != 0:
        raise AssertionError(f"llama-perplexity failed: {outcome.log[-3000:]}")
    line = next(line for line in (outcome.text + outcome.log).splitlines() if "Final estimate: PPL" in line)
    return float(line.split("PPL =")[1].split()[0])


def tensor_offset(path, wanted):
    """Byte offset of a tensor's data in a GGUF file."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(path, "rb") as file:
        def number(fmt):
            return struct.unpack("<" + fmt, file.read(struct.calcsize("<" + fmt)))[0]

        def text():
            return file.read(number("Q")).decode("utf-8", "replace")

        def skip(kind):
            if kind == 8:
                text()
            elif kind == 9:
                inner, count = number("I"), number("Q")
                if inner in sizes:
                    file.seek(sizes[inner] * count, 1)
                else:
                    for _ in range(count):
                        skip(inner)
            else:
                file.seek(sizes[kind], 1)

        file.seek(8)
        tensors, pairs = number("Q"), number("Q")
        for _ in range(pairs):
            text()
            skip(number("I"))
        found = None
        for _ in range(tensors):
            name, dims = text(), number("I")
            file.seek(8 * dims + 4, 1)
            offset = number("Q")
            if name == wanted:
                found = offset
        return (file.tell() + 31) // 32 * 32 + found


class Server:
    """llama-server on a free local port."""

    def __init__(self, model, *options, scheme=None, codebooks="none"):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log_path = work_folder() / f"server-{self.port}.log"
        command = [tool("llama-server"), "-m", model, "--host", "127.0.0.1", "--port", str(self.port), "-t", "2", "--no-warmup",
                   "-dev", "VecInfer", "-lv", "4", *options]
        env = environment(scheme, codebooks)
        self.log_file = open(self.log_path, "wb")
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.log_file, stderr=self.log_file)

    def __enter__(self):
        end = time.monotonic() + TOOL_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"llama-server ended: {self.log()[-2000:]}")
            try:
                if self.get("/health")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError("llama-server does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log_file.close()
        self.log_path.unlink(missing_ok=True)

    def log(self):
        return self.log_path.read_text("utf-8", "replace")

    def request(self, path, body=None):
        """(status, answer as JSON)."""
        data = json.dumps(body).encode() if body is not None else None
        query = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(query, timeout=TOOL_SECONDS) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def get(self, path):
        return self.request(path)

    def complete(self, prompt, tokens=12, **options):
        return self.request("/completion", {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": True, **options})

    def text(self, prompt, tokens=12, **options):
        status, answer = self.complete(prompt, tokens, **options)
        if status != 200:
            raise AssertionError(f"completion: got HTTP {status}: {answer}\n{self.log()[-2000:]}")
        return answer["content"]
