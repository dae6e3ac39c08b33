"""`vecinfer compare` and `vecinfer inspect` with a real model and stock llama.cpp tools."""

import json
import pathlib
import shutil
import sys
import unittest

from stock_tools import smollm2, tool, vecinfer, work_folder

TEXT = pathlib.Path(__file__).parents[2] / "share" / "text" / "heldout.txt"


class Compare(unittest.TestCase):
    def test_two_schemes_against_stock_f16(self):
        tool("llama-perplexity")
        out = work_folder() / "compare"
        shutil.rmtree(out, ignore_errors=True)
        arguments = ["compare", "-m", smollm2(), "-f", str(TEXT), "--out", str(out), "--ctx", "512", "--chunks", "1",
                     "--schemes", "vecinfer:k4v4@free,vecinfer:k2v2@free", "--lengths", "512", "--depths", "0.2,0.8",
                     "--speed-depths", "0", "-t", "2", "--json"]
        done = vecinfer(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        base, k4, k2 = result["rows"]
        self.assertEqual([row["status"] for row in result["rows"]], ["ok"] * 3)
        self.assertEqual(base["quality"]["kld_mean"], 0)
        self.assertLess(k4["quality"]["kld_mean"], 0.05)
        self.assertLess(k4["quality"]["kld_mean"], k2["quality"]["kld_mean"])
        self.assertLess(k2["quality"]["kld_mean"], 0.5)
        self.assertLess(abs(k4["quality"]["ppl_ratio"] - k4["quality"]["ppl"] / base["quality"]["ppl"]), 0.001)
        self.assertLess(k2["effective_bits"], k4["effective_bits"])
        for row in result["rows"]:
            self.assertEqual(row["retrieval"]["total"], 2)
            self.assertTrue(all(run["tps"] > 0 for run in row["speed"]["runs"]))
        self.assertEqual(base["retrieval"]["exact"], 2)
        self.assertEqual(k4["retrieval"]["exact"], 2)

        # Nothing is measured twice: without its tools the command still has the answer.
        for log in (out / "logs").iterdir():
            log.unlink()
        again = vecinfer(*arguments)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(list((out / "logs").iterdir()), [])
        self.assertEqual(json.loads(again.stdout)["rows"], result["rows"])


class Inspect(unittest.TestCase):
    def test_a_real_model(self):
        done = vecinfer("inspect", "-m", smollm2(), "-f", str(TEXT), "--scheme", "vecinfer:k2v2", "--codebooks", "none", "--layer",
                        "5", "-t", "2", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(len(result["layers"]), 30)
        self.assertEqual(result["detail"]["layer"], 5)
        for layer in result["layers"]:
            spread = {entry["transform"]: entry for entry in layer["keys"]["spread"]}
            self.assertLess(spread["hadamard"]["kurtosis"], spread["none"]["kurtosis"])
            self.assertLess(abs(spread["center+smooth+hadamard"]["kurtosis"] - 3), 0.5)
            self.assertEqual(len(layer["keys"]["relative_mse"]), 3)
            for error in layer["keys"]["relative_mse"] + layer["values"]["relative_mse"]:
                self.assertGreater(error, 0.05)  # 2 bits: 0.0977 on normal entries
                self.assertLess(error, 0.15)
            for usage in layer["values"]["code_usage"]:
                self.assertEqual(usage["num_centroids"], 256)
                self.assertEqual(usage["codes"], 512 * 16)
        self.assertEqual(len(result["detail"]["keys"][0]["channel_mean_abs"]), 3 * 64)

    def test_a_layer_that_is_not_there(self):
        done = vecinfer("inspect", "-m", smollm2(), "-f", str(TEXT), "--codebooks", "none", "--layer", "30")
        self.assertEqual(done.returncode, 1)
        self.assertIn("0 to 29", done.stderr)


if __name__ == "__main__":
    program = unittest.main(exit=False)
    skipped_all = program.result.testsRun == len(program.result.skipped)
    sys.exit(77 if program.result.wasSuccessful() and skipped_all else not program.result.wasSuccessful())
