"""The launcher and `vecinfer calibrate` with a real model and stock llama.cpp tools."""

import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from stock_tools import environment, setting, smollm2, tool, vecinfer, work_folder

TEXT = pathlib.Path(__file__).parents[2] / "share" / "text" / "heldout.txt"
CONTEXT = 30_000_000  # 86 GiB of SmolLM2's cache at 2 bits


def available_gib():
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / (1 << 20)


class Memory(unittest.TestCase):
    def test_a_context_beyond_memory_is_an_error(self):
        if available_gib() > 80:
            self.skipTest("this machine has memory for it")
        for verb, arguments in (("run", ["-p", "x", "-n", "1"]), ("perplexity", ["-f", str(TEXT), "--chunks", "1"])):
            with self.subTest(verb):
                done = vecinfer(verb, "-m", smollm2(), "--codebooks", "none", "--", *arguments, "-c", str(CONTEXT), "-t", "2")
                self.assertGreater(done.returncode, 0, done.stderr[-3000:])
                errors = [line for line in done.stderr.splitlines() if "vecinfer: error:" in line]
                self.assertEqual(len(errors), 1, done.stderr[-3000:])
                self.assertIn("of available memory; use a shorter context", errors[0])
                self.assertNotIn("outside this device", done.stderr)


class Calibration(unittest.TestCase):
    def interrupted(self, number, *options):
        """What is left after a signal that comes while the text is read or layers are measured."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=work_folder()))
        env = environment()
        env["TMPDIR"] = str(folder)
        command = [str(setting("VECINFER_CALIBRATE")), "--model", smollm2(), "--text", str(TEXT), "--out", str(folder / "out.gguf"),
                   "--scheme", "vecinfer:k2v2", "--ctx", "64", "--threads", "2", *options]
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 200
        while process.poll() is None and time.monotonic() < end:
            if "--target-bits" not in options and time.monotonic() > end - 198 or list(folder.glob("vecinfer-bits-*")):
                process.send_signal(number)
                break
            time.sleep(0.05)
        _, log = process.communicate(timeout=60)
        left = [path.name for path in folder.iterdir()]
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        self.assertEqual(process.returncode, 128 + number, log)
        self.assertEqual([line for line in log.splitlines() if "vecinfer:" in line and "the text fills" not in line],
                         ["vecinfer: interrupted, nothing written"])
        self.assertEqual(left, [])

    def test_an_interrupt_while_text_is_read(self):
        self.interrupted(signal.SIGINT, "--chunks", "100000")

    def test_a_termination_while_layers_are_measured(self):
        self.interrupted(signal.SIGTERM, "--chunks", "2", "--target-bits", "2", "--widths", "1,2", "--no-recall")


class Amounts(unittest.TestCase):
    """`vecinfer compare` counts tokens before it measures."""

    def refused(self, code, message, *options):
        tool("llama-perplexity")
        out = work_folder() / "refused"
        done = vecinfer("compare", "-m", smollm2(), "-f", str(TEXT), "--out", str(out), "--schemes", "vecinfer:k2v2@free", *options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertFalse(out.exists())

    def test_too_many_chunks(self):
        self.refused(1, "expected at least 4096000 for 2000 chunks of 2048", "--chunks", "2000")

    def test_a_length_too_short_for_its_numbers(self):
        self.refused(2, "--lengths: got 130, expected at least ", "--lengths", "130")


class LostOutput(unittest.TestCase):
    def test_helpers_report_it(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([str(setting("VECINFER_CALIBRATE").parent / "vecinfer-retrieve"), "--check", "--model", smollm2(),
                                   "--text", str(TEXT)], env=environment(plugin=False), stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: cannot write to stdout: No space left on device", done.stderr)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    skipped_all = program.result.testsRun == len(program.result.skipped)
    sys.exit(77 if program.result.wasSuccessful() and skipped_all else not program.result.wasSuccessful())
