"""scripts/results without models: programs are replaced by scripts that write down how they were called."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "lib" / "results"
sys.path.insert(0, str(PROGRAM))

import key_bias  # noqa: E402
import page  # noqa: E402
import plan  # noqa: E402
import store  # noqa: E402
import texts  # noqa: E402

FAKE = """#!{python} -SI
import os, pathlib, sys, time
here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
with open(here / "calls", "a") as calls:
    calls.write(" ".join([pathlib.Path(__file__).name, os.environ.get("VECINFER_SCHEME", "-"),
                          "plugin" if "GGML_BACKEND_PATH" in os.environ else "stock", *arguments]) + "\\n")
"""
PERPLEXITY = """
if (here / "slow").exists():
    time.sleep(30)
if os.environ.get("VECINFER_SCHEME", "") == (here / "broken").read_text():
    sys.exit("vecinfer: error: this scheme is broken")
if "--kl-divergence" not in arguments:
    pathlib.Path(value("--kl-divergence-base")).write_text("logits")
    print("Final estimate: PPL = 18.1 +/- 0.5")
else:
    pathlib.Path(value("--kl-divergence-base")).read_text()
    print("Mean PPL(Q)                   :  19.0 ±  0.5\\nMean PPL(Q)/PPL(base)         :  1.05 ±  0.01")
    print("Mean    KLD:   0.04 ±   0.002\\nMaximum KLD:   3.0\\n99.0%   KLD:   0.5\\nSame top p: 90.0 ± 0.6 %")
"""
CALIBRATE = """
pathlib.Path(value("--out")).write_text("sidecar")
"""
VECINFER = """
extra = 0.25 if "--calibrated" in arguments else 0
print('{"kv_bytes_per_token": 20, "effective_bits": %f, "f16": {"kv_bytes_per_token": 160}}' % (2.5 + extra))
"""


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        for name in ("bin", "models", "texts"):
            (self.path / name).mkdir()
        for name, body in (("llama-perplexity", PERPLEXITY), ("vecinfer-calibrate", CALIBRATE), ("vecinfer", VECINFER),
                           ("libggml-vecinfer.so", "")):
            (self.path / "bin" / name).write_text(FAKE.replace("{python}", sys.executable) + body)
            (self.path / "bin" / name).chmod(0o755)
        (self.path / "bin" / "broken").write_text("none")
        for model in plan.MODELS.values():
            (self.path / "models" / model["file"]).write_text(model["title"])
        for text in ("wiki", "pride"):
            (self.path / "texts" / f"{text}.txt").write_text(text)

    def program(self, *arguments):
        return subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60)

    def run_jobs(self, *arguments):
        p = self.path
        return self.program("run", "--bin", str(p / "bin"), "--models", str(p / "models"), "--texts", str(p / "texts"), "--out",
                            str(p / "out"), "--threads", "1", "--commit", "c0", *arguments)

    def calls(self, name):
        path = self.path / "bin" / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines if line.split()[0] == name]

    def test_a_second_run_measures_nothing_twice_and_calibrations_are_shared(self):
        done = self.run_jobs("--group", "windows", "--model", "smollm2", "--jobs", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = len(plan.windows("smollm2"))
        self.assertEqual(len(self.calls("vecinfer-calibrate")), 1)  # windows do not change codebooks
        self.assertEqual(len(self.calls("llama-perplexity")), 1 + rows)
        stock = [c for c in self.calls("llama-perplexity") if c[2] == "stock"]
        self.assertEqual(len(stock), 1)
        self.assertNotIn("--kl-divergence", stock[0])
        again = self.run_jobs("--group", "windows", "--model", "smollm2")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(len(self.calls("llama-perplexity")), 1 + rows)
        self.assertEqual(list((self.path / "out" / "logits").glob("*.kld")), [])  # they are large

    def test_a_deadline_stops_programs_and_the_next_run_goes_on(self):
        (self.path / "bin" / "slow").write_text("")
        begin = time.time()
        done = self.run_jobs("--group", "calibration", "--model", "smollm2", "--minutes", "0.02")
        self.assertLess(time.time() - begin, 20)
        self.assertEqual(done.returncode, 1)
        self.assertIn("goes on", done.stderr)
        (self.path / "bin" / "slow").unlink()
        self.assertEqual(self.run_jobs("--group", "calibration", "--model", "smollm2").returncode, 0)
        self.assertEqual(list((self.path / "out").glob("*/*.part")), [])

    def test_a_broken_scheme_is_named_and_the_others_go_on(self):
        (self.path / "bin" / "broken").write_text("kivi:k2v2")
        done = self.run_jobs("--group", "schemes", "--model", "smollm2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("kivi:k2v2: exit code 1: vecinfer: error: this scheme is broken", done.stderr)
        results = store.read_jobs(self.path / "out" / "jobs")
        self.assertEqual(len(results), len(plan.schemes("smollm2")))  # the base takes the place of the broken one
        self.assertNotIn("kivi:k2v2", [r["scheme"] for r in results])

    def test_another_plugin_is_another_measurement(self):
        self.run_jobs("--group", "windows", "--model", "smollm2")
        before = len(self.calls("llama-perplexity"))
        with open(self.path / "bin" / "libggml-vecinfer.so", "a") as plugin:
            plugin.write("# changed")
        known = self.run_jobs("--group", "windows", "--model", "smollm2", "--known", str(self.path / "out" / "jobs"))
        self.assertEqual(known.returncode, 0, known.stderr)
        self.assertEqual(len(self.calls("llama-perplexity")), before)  # unless what is known will do
        self.run_jobs("--group", "windows", "--model", "smollm2")
        self.assertEqual(len(self.calls("llama-perplexity")), before + 1 + len(plan.windows("smollm2")))

    def test_the_page_states_figures_chunks_and_machine(self):
        self.run_jobs("--group", "schemes,windows", "--model", "smollm2")
        known = store.Store(store.read_jobs(self.path / "out" / "jobs"))
        self.assertEqual(len(store.write_data(known, self.path / "docs")), 2)
        known = store.Store(store.read_data(self.path / "docs"))  # the data files are enough
        (self.path / "docs" / "schemes_intro.md").write_text("Before.\n\n## windows\n\nBelow windows.\n")
        written = page.Page(known, self.path / "docs")
        written.picture = lambda name, drawer, caption: ""
        text = written.write().read_text()
        for part in ("Before.", "Below windows.", "3 chunks of 2048 tokens (3069 scored)", "f16 perplexity 18.10", "commit c0",
                     "32 x 512 tokens", "| 128 | 4 | 2.00 | 2.75 | 2.75 | 0.0400 ± 0.0020 | 0.500 | 1.050 | 90.0% |"):
            self.assertIn(part, text)
        self.assertNotIn("Codebook sizes", text)
        (self.path / "docs" / "schemes_intro.md").write_text("## nonsense\n")
        with self.assertRaisesRegex(ValueError, "nonsense"):
            page.Page(known, self.path / "docs")

    def test_bad_arguments_and_missing_files_are_named(self):
        (self.path / "texts" / "pride.txt").unlink()
        for arguments, words in ((["--group", "z"], "got 'z', expected one of schemes"), (["--model", "x"], "got 'x', expected"),
                                 (["--jobs", "0"], "got '0'"), (["--group", "windows", "--model", "smollm2"], "pride.txt")):
            done = self.run_jobs(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)


class Plan(unittest.TestCase):
    def test_every_job_has_its_base_before_it_and_appears_once(self):
        jobs = plan.jobs(list(plan.GROUPS), list(plan.MODELS))
        self.assertEqual(len(jobs), len(set(jobs)))
        for i, job in enumerate(jobs):
            self.assertIn(job.base(), jobs[:i + 1])

    def test_letters_are_groups(self):
        self.assertEqual(plan.parse_groups("b,f"), ["transforms", "bias", "windows"])
        self.assertEqual(plan.parse_groups(""), list(plan.GROUPS))

    def test_every_row_of_the_bias_model_exists_for_the_plain_one(self):
        self.assertEqual([r.labels for r in plan.bias("smollm2")], [r.labels for r in plan.bias("smollm2-bias")])

    def test_windows_and_encoding_are_left_out_of_calibrations(self):
        self.assertEqual(plan.calibrated_scheme("vecinfer:k3v3,encode=unbiased,scope=head"), "vecinfer:k3v3,scope=head")
        self.assertEqual(plan.calibrated_scheme("vecinfer:k2v2,recent=0,norm=none,sink=8"), "vecinfer:k2v2,norm=none")


class Texts(unittest.TestCase):
    def test_cuts_end_at_lines_and_leave_licences_out(self):
        book = b"licence\n*** START OF THE PROJECT GUTENBERG EBOOK ***\none\ntwo\nthree\n*** END OF THE PROJECT GUTENBERG EBOOK ***\nl\n"
        self.assertEqual(texts.body(book), b"one\ntwo\nthree\n")
        self.assertEqual(texts.cut(b"one\ntwo\nthree\n", 0, 5), b"one\ntwo\n")
        self.assertEqual(texts.cut(b"one\ntwo\nthree\n", -8, 100), b"three\n")

    def test_a_missing_folder_is_named(self):
        with self.assertRaisesRegex(texts.Missing, "VECINFER_EVAL_DIR"):
            texts.prepare(ROOT, "/nowhere", "/nowhere/out")


def text_value(text):
    return struct.pack("<Q", len(text)) + text


class KeyBias(unittest.TestCase):
    def test_a_copy_has_the_same_weights_and_two_biases(self):
        tensors = {}
        for layer in range(3):
            tensors[f"blk.{layer}.attn_norm.weight"] = ([2], [1.0, 2.0])
            tensors[f"blk.{layer}.attn_k.weight"] = ([2, 16], [layer + 1.0] * 32)
        meta = {b"general.architecture": struct.pack("<I", 8) + text_value(b"llama"),
                b"general.name": struct.pack("<I", 8) + text_value(b"tiny"), b"llama.block_count": struct.pack("<II", 4, 3),
                b"llama.embedding_length": struct.pack("<II", 4, 32), b"llama.attention.head_count": struct.pack("<II", 4, 4),
                b"llama.attention.head_count_kv": struct.pack("<II", 4, 2)}
        header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + b"".join(text_value(k) + v for k, v in meta.items())
        data = b""
        for name, (dims, values) in tensors.items():
            header += text_value(name.encode()) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(data))
            data += struct.pack(f"<{len(values)}f", *values)
            data += bytes(-len(data) % 32)
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder) / "a.gguf", pathlib.Path(folder) / "b.gguf"
            source.write_bytes(header + bytes(-len(header) % 32) + data)
            made = key_bias.make(source, target, factor=10)
            before, after = key_bias.Gguf(source), key_bias.Gguf(target)
        # Entries of x W are 1 + 2 channels of unit variance: root of 1 + 4.
        self.assertEqual(list(made), [0, 2])
        self.assertAlmostEqual(made[0], 10 * 5 ** 0.5)
        self.assertAlmostEqual(made[2], 30 * 5 ** 0.5)
        for name in tensors:
            self.assertEqual(before.rows(name), after.rows(name))
        head = [0, 0, made[2], 0, -made[2], 0, made[2], 0]
        for got, want in zip(after.rows("blk.2.attn_k.bias")[0], head * 2):
            self.assertAlmostEqual(got, want, 4)
        self.assertEqual(after.meta["general.name"], b"tiny with key biases")


if __name__ == "__main__":
    unittest.main()
