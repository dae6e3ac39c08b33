"""Stock llama.cpp tools with real models through the plugin.

Run as `stock_tools_test.py [Class.test ...]`; exits with 77 if nothing could run. Paths come from the environment, see CMakeLists.txt.
"""

import json
import pathlib
import shutil
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from stock_tools import (Server, complete, environment, gemma3, perplexity, run, setting, sidecar_for, smollm2, tensor_offset, tool,
                         work_folder)

PROMPT = "The capital of France is"
STORY = ("The lighthouse keeper climbed the stairs every evening at six. He carried a lamp, a book and a cup of tea. From the top he could "
         "see the harbour, the fishing boats and the long grey line of the coast. ")


def counting(last):
    """A prompt whose continuation is known to any model that can count."""
    return "".join(f"{i}, " for i in range(1, last + 1)).rstrip()


class PluginTest(unittest.TestCase):
    def succeeded(self, outcome):
        self.assertEqual(outcome.code, 0, outcome.log[-3000:])
        self.assertNotEqual(outcome.text.strip(), "", outcome.log[-3000:])
        self.assertEqual(outcome.errors(), [])

    def refused(self, outcome, *parts):
        """A non-zero exit that is not a signal, and one error line that names every part; before it no more than warnings."""
        self.assertGreater(outcome.code, 0, f"exit {outcome.code}\n{outcome.log[-3000:]}")
        self.assertEqual(outcome.text.strip(), "")
        self.assertEqual(len(outcome.errors()), 1, outcome.log[-3000:])
        self.assertEqual([line for line in outcome.lines() if not line.startswith("vecinfer: warning:")], outcome.errors())
        for part in parts:
            self.assertIn(part, outcome.errors()[0])


class PassThrough(PluginTest):
    def same_text(self, model, prompt, tokens, context):
        stock = complete(model, prompt, tokens, plugin=False, context=context)
        plugin = complete(model, prompt, tokens, scheme="f16", context=context)
        self.succeeded(stock)
        self.succeeded(plugin)
        self.assertEqual(plugin.text, stock.text)

    def test_smollm2_equals_stock(self):
        self.same_text(smollm2(), STORY * 3 + "Then", 32, 512)

    def test_gemma3_equals_stock(self):
        self.same_text(gemma3(), STORY + "Then", 24, 512)


class Compressed(PluginTest):
    def test_text_and_reported_size(self):
        outcome = complete(smollm2(), PROMPT, context=8192)
        self.succeeded(outcome)
        self.assertIn("Paris", outcome.text)
        f16 = complete(smollm2(), PROMPT, 1, scheme="f16", context=8192)
        self.assertGreater(outcome.kv_mib("VecInfer"), 0)
        self.assertGreater(f16.kv_mib("VecInfer") / outcome.kv_mib("VecInfer"), 6.5)

    def test_gemma3_text(self):
        outcome = complete(gemma3(), counting(60), 8, context=512)
        self.succeeded(outcome)
        self.assertTrue(outcome.text.strip().startswith("61, 62"), outcome.text)

    def test_every_width(self):
        for scheme in ("vecinfer:k4v4", "vecinfer:k3v3", "vecinfer:k4v2", "vecinfer:k1.5v1.5", "vecinfer:k1v1"):
            with self.subTest(scheme):
                outcome = complete(smollm2(), PROMPT, 8, scheme=scheme)
                self.succeeded(outcome)
                self.assertIn("Paris", outcome.text)

    def test_calibrated_text(self):
        outcome = complete(smollm2(), PROMPT, codebooks=sidecar_for(smollm2(), "smollm2"))
        self.succeeded(outcome)
        self.assertIn("Paris", outcome.text)

    def test_widths_chosen_by_measurement(self):
        sidecar = sidecar_for(smollm2(), "smollm2", "vecinfer:k2v2", 2, "--target-bits", "2.25", "--widths", "4,2", "--measure-chunks", "1")
        report = json.loads(sidecar.with_suffix(".json").read_text())
        bits = report["bits"]
        self.assertLessEqual(bits["code_bits"], 2.25)
        self.assertGreater(bits["code_bits"], 2.2)
        self.assertEqual(len(bits["layers"]), 30)
        widths = [layer[side] for layer in bits["layers"] for side in ("key_width", "value_width")]
        self.assertEqual(sum(widths) / len(widths), bits["code_bits"])
        # A side is worth two more bits where two bits cost most; no layer kept at 2 may cost more than one raised to 4.
        costs = [(layer[f"{side}_cost"][0], layer[f"{side}_width"]) for layer in bits["layers"] for side in ("key", "value")]
        self.assertGreaterEqual(min(c for c, w in costs if w == 4), max(c for c, w in costs if w == 2))
        mixed = complete(smollm2(), PROMPT, scheme=report["scheme"], codebooks=sidecar)
        self.succeeded(mixed)
        self.assertIn("Paris", mixed.text)
        two = complete(smollm2(), PROMPT, 1, scheme="vecinfer:k2v2").kv_mib("VecInfer")
        four = complete(smollm2(), PROMPT, 1, scheme="vecinfer:k4v4").kv_mib("VecInfer")
        self.assertGreater(mixed.kv_mib("VecInfer"), two)
        self.assertLess(mixed.kv_mib("VecInfer"), (two + four) / 2)

    def test_perplexity_is_near_f16(self):
        f16 = perplexity(smollm2(), "f16")
        four = perplexity(smollm2(), "vecinfer:k4v4")
        two = perplexity(smollm2(), "vecinfer:k2v2")
        self.assertLess(four / f16, 1.05)
        self.assertLess(two / f16, 1.6)
        self.assertNotEqual(two, f16)


class KeyBiases(PluginTest):
    """Keys of the first and last layer with constants of 30 times their typical magnitude in a few channels, as biases make them."""

    def test_perplexity_stays_bounded(self):
        sys.path.insert(0, str(setting("VECINFER_TEST_TEXT").parent / "scripts/lib/results"))
        import key_bias
        model = work_folder() / "smollm2-bias.gguf"
        if not model.exists():
            key_bias.make(smollm2(), model)
        window = ",recent=32"
        f16 = perplexity(model, "f16")
        for scheme, bound in (("vecinfer:k4v4", 1.05), ("vecinfer:k2v2", 1.3)):
            with self.subTest(f"{scheme} calibrated: the mean of the keys is subtracted"):
                sidecar = sidecar_for(str(model), "smollm2-bias", scheme, 8)
                self.assertLess(perplexity(model, scheme + window, sidecar) / f16, bound)
        with self.subTest("kept layers, without a calibration"):
            self.assertLess(perplexity(model, f"vecinfer:k4v4{window},layers=0:f16/29:f16") / f16, 1.1)


class Families(PluginTest):
    """The other schemes, with windows so small that most of the prompt is read from codes."""

    def test_data_free(self):
        for scheme in ("rotated:k3v3,recent=32", "kivi:k4v4,recent=32", "innerq:k4v4,recent=64,sink=4",
                       "vecinfer:k4v4,recent=32,layers=0-1:f16/29:k3v3"):
            with self.subTest(scheme):
                outcome = complete(smollm2(), counting(100), 8, scheme=scheme, context=1024)
                self.succeeded(outcome)
                self.assertTrue(outcome.text.strip().startswith("101"), outcome.text)

    def test_layers_in_f16_are_in_the_reported_size(self):
        def size(scheme):
            return complete(smollm2(), PROMPT, 1, scheme=scheme, context=4096).kv_mib("VecInfer")

        packed = size("vecinfer:k2v2,recent=0,sink=0")
        half = size("vecinfer:k2v2,recent=0,sink=0,layers=0-14:f16")
        self.assertAlmostEqual(half, (packed + size("f16")) / 2, delta=0.02)

    def test_product_quantization(self):
        outcome = complete(smollm2(), counting(100), 8, scheme="million:k4v4,recent=32", context=1024,
                           codebooks=sidecar_for(smollm2(), "smollm2", "million:k4v4", 16))
        self.succeeded(outcome)
        self.assertTrue(outcome.text.strip().startswith("101"), outcome.text)
        self.refused(complete(smollm2(), PROMPT, scheme="million:k2v2"), "scope", "subspace",
                     "`vecinfer calibrate -m MODEL -f TEXT --scheme million:k2v2`")

    def test_codebooks_that_nobody_needs_are_not_opened(self):
        damaged = work_folder() / "damaged.gguf"
        damaged.write_bytes(b"GGUF")
        outcome = complete(smollm2(), PROMPT, 1, scheme="kivi:k4v4", codebooks=damaged)
        self.succeeded(outcome)
        self.assertIn("kivi:k4v4, no codebooks needed, ", outcome.lines()[0])

    def test_a_shaped_calibration_serves_the_other_encodings(self):
        sidecar = sidecar_for(smollm2(), "smollm2")
        for encode in ("nearest", "unbiased"):
            with self.subTest(encode):
                outcome = complete(smollm2(), PROMPT, 8, scheme=f"vecinfer:k2v2,encode={encode}", codebooks=sidecar)
                self.succeeded(outcome)
                self.assertIn("Paris", outcome.text)

    def test_channel_norm(self):
        outcome = complete(smollm2(), counting(100), 8, scheme="innerq:k4v4,recent=64", context=1024,
                           codebooks=sidecar_for(smollm2(), "smollm2", "innerq:k4v4", 16))
        self.succeeded(outcome)
        self.assertTrue(outcome.text.strip().startswith("101"), outcome.text)

    def test_rejected_drafts_leave_no_trace(self):
        prompt = STORY * 8 + counting(20)
        scheme = "kivi:k4v4,recent=32"
        plain = complete(smollm2(), prompt, 24, scheme=scheme)
        self.succeeded(plain)
        draft = run([tool("llama-speculative-simple"), "-m", smollm2(), "-md", smollm2(), "-p", prompt, "-n", "24", "-c", "1024", "-t", "2",
                     "--temp", "0", "-dev", "VecInfer", "-devd", "VecInfer", "--spec-type", "draft-simple", "--spec-draft-n-max", "4"],
                    environment(scheme))
        self.assertEqual(draft.code, 0, draft.log[-3000:])
        self.assertEqual(draft.errors(), [])
        text = draft.text[draft.text.index(prompt) + len(prompt):] if prompt in draft.text else draft.text
        self.assertTrue(text.strip().startswith(plain.text.strip()), f"{text!r} instead of {plain.text!r}")

    def test_shift_past_the_end(self):
        outcome = complete(smollm2(), PROMPT, 300, "--context-shift", "--ignore-eos", scheme="kivi:k4v4,recent=32", context=256)
        self.succeeded(outcome)
        self.assertGreater(len(outcome.text.split()), 50)


class Refusal(PluginTest):
    def test_flash_attention_off(self):
        self.refused(complete(smollm2(), PROMPT, 4, "-fa", "off"), "-fa on")

    def test_tiny_heads(self):
        model = str(setting("VECINFER_EVAL_DIR") / "models" / "stories260K-f32.gguf")
        if not pathlib.Path(model).exists():
            self.skipTest(f"{model} does not exist")
        self.refused(complete(model, "Once upon a time"), "32", "64", "VECINFER_SCHEME=f16")
        self.succeeded(complete(model, "Once upon a time", scheme="f16"))

    def test_unknown_scheme(self):
        self.refused(complete(smollm2(), PROMPT, scheme="nonsense:k2"), "VECINFER_SCHEME", "nonsense", "vecinfer")

    def test_unknown_width(self):
        self.refused(complete(smollm2(), PROMPT, scheme="vecinfer:k7v2"), "VECINFER_SCHEME", "7", "1.5")

    def test_layers_beyond_the_model(self):
        self.refused(complete(smollm2(), PROMPT, scheme="vecinfer:k2v2,layers=28-30:f16"), "VECINFER_SCHEME", "28-30", "the model has 30")
        self.refused(complete(smollm2(), PROMPT, 16, "-ngl", "10", scheme="vecinfer:k2v2,layers=30:f16"), "the model has 30")
        self.succeeded(complete(smollm2(), PROMPT, 1, "-ngl", "10", scheme="vecinfer:k2v2,layers=0:f16/29:k4v4"))

    def test_quantized_cache(self):
        self.refused(complete(smollm2(), PROMPT, 4, "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"), "q8_0", "-ctk")

    def test_missing_codebooks(self):
        self.refused(complete(smollm2(), PROMPT, codebooks="no/such/file.gguf"), "VECINFER_CODEBOOKS", "no/such/file.gguf")

    def test_model_as_codebooks(self):
        self.refused(complete(smollm2(), PROMPT, codebooks=smollm2()), "VECINFER_CODEBOOKS", "llama", "sidecar")

    def test_codebooks_of_another_shape(self):
        sidecar = sidecar_for(smollm2(), "smollm2")
        self.refused(complete(gemma3(), PROMPT, codebooks=sidecar), "VECINFER_CODEBOOKS", str(sidecar), "256 channels", "3 KV heads of 64")

    def test_codebooks_of_another_scheme(self):
        sidecar = sidecar_for(smollm2(), "smollm2")
        self.refused(complete(smollm2(), PROMPT, scheme="vecinfer:k4v4", codebooks=sidecar), str(sidecar), "d2b8", "d4b8")

    def test_codebooks_of_another_model_of_the_same_shape(self):
        sidecar = sidecar_for(smollm2(), "smollm2")
        other = work_folder() / "smollm2-finetuned.gguf"
        shutil.copyfile(smollm2(), other)
        try:
            with open(other, "r+b") as file:
                file.seek(tensor_offset(other, "blk.0.attn_norm.weight"))
                low = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([low ^ 1]))
            self.refused(complete(str(other), PROMPT, codebooks=sidecar), "VECINFER_CODEBOOKS", str(sidecar), "hash")
            self.succeeded(complete(str(other), PROMPT))
        finally:
            other.unlink()

    def test_more_memory_than_there_is(self):
        self.refused(complete(smollm2(), PROMPT, context=3_000_000, memory_limit=6 << 30), "allocation of", "MiB")


class Context(PluginTest):
    def test_shift_past_the_end(self):
        outcome = complete(smollm2(), PROMPT, 300, "--context-shift", "--ignore-eos", context=256)
        self.succeeded(outcome)
        self.assertGreater(len(outcome.text.split()), 50)

    def test_shift_keeps_counting(self):
        outcome = complete(gemma3(), counting(30), 260, "--context-shift", "--ignore-eos", "--keep", "4", context=256)
        self.succeeded(outcome)
        numbers = [int(part) for part in outcome.text.replace("\n", " ").split(",") if part.strip().isdigit()]
        self.assertEqual(numbers[:20], list(range(31, 51)))
        self.assertGreater(len(numbers), 40)

    def test_end_of_context_without_shift(self):
        outcome = complete(smollm2(), PROMPT, 300, "--ignore-eos", context=256)
        self.assertGreaterEqual(outcome.code, 0, outcome.log[-3000:])
        self.assertEqual(outcome.errors(), [])

    def test_prompt_beyond_the_sliding_window(self):
        for last, tokens in ((222, 1000), (450, 2049)):
            with self.subTest(last):
                outcome = complete(gemma3(), counting(last), 6, "--perf", context=4096)
                self.succeeded(outcome)
                line = next(line for line in outcome.log.splitlines() if "prompt eval time" in line)
                self.assertGreaterEqual(int(line.split("/")[1].split()[0]), tokens)
                self.assertTrue(outcome.text.strip().startswith(str(last + 1)), outcome.text)


class Offload(PluginTest):
    def test_some_layers(self):
        outcome = complete(smollm2(), PROMPT, 16, "-ngl", "10")
        self.succeeded(outcome)
        self.assertIn("Paris", outcome.text)
        self.assertGreater(outcome.kv_mib("CPU"), 0)
        self.assertGreater(outcome.kv_mib("VecInfer"), 0)

    def test_cache_left_on_the_cpu(self):
        outcome = complete(smollm2(), PROMPT, 16, "-nkvo")
        self.succeeded(outcome)
        self.assertIn("Paris", outcome.text)
        self.assertEqual(outcome.kv_mib("VecInfer"), 0)

    def test_speculative_decoding(self):
        prompt = STORY * 8 + counting(20)
        plain = complete(smollm2(), prompt, 24)
        self.succeeded(plain)
        draft = run([tool("llama-speculative-simple"), "-m", smollm2(), "-md", smollm2(), "-p", prompt, "-n", "24", "-c", "1024", "-t", "2",
                     "--temp", "0", "-dev", "VecInfer", "-devd", "VecInfer", "--spec-type", "draft-simple", "--spec-draft-n-max", "4"],
                    environment())
        self.assertEqual(draft.code, 0, draft.log[-3000:])
        self.assertEqual(draft.errors(), [])
        text = draft.text[draft.text.index(prompt) + len(prompt):] if prompt in draft.text else draft.text
        self.assertTrue(text.strip().startswith(plain.text.strip()), f"{text!r} instead of {plain.text!r}")


class ServerTest(PluginTest):
    def test_repeated_request(self):
        with Server(smollm2(), "-c", "2048", "-np", "1") as server:
            texts = [server.text(STORY * 5 + "Then") for _ in range(3)]
        self.assertEqual(texts[1], texts[0])
        self.assertEqual(texts[2], texts[0])

    def test_two_slots(self):
        prompts = [STORY * 5 + "Then", counting(100)]
        with Server(smollm2(), "-c", "4096", "-np", "2") as server:
            alone = [server.text(prompt, id_slot=i) for i, prompt in enumerate(prompts)]
            with ThreadPoolExecutor(2) as pool:
                together = list(pool.map(lambda i: server.text(prompts[i], id_slot=i), range(2)))
            again = [server.text(prompt, id_slot=1 - i) for i, prompt in enumerate(prompts)]
        self.assertEqual(together, alone)
        self.assertEqual(again, alone)
        self.assertTrue(alone[1].strip().startswith("101"), alone[1])

    # The sequences of a unified cache share one window, so their texts may differ from solo runs by quantization error.
    def test_one_cache_for_all_slots(self):
        prompts = [counting(20 + i) for i in range(3)]
        with Server(smollm2(), "-c", "1024", "-np", "3", "-kvu") as server:
            with ThreadPoolExecutor(3) as pool:
                together = list(pool.map(lambda prompt: server.text(prompt, 8), prompts))
            self.assertTrue(all(any(c.isdigit() for c in text) for text in together), together)
            self.assertNotIn("vecinfer: error", server.log())

    def test_sequences_copied_between_slots(self):
        with Server(smollm2(), "-c", "4096", "-np", "3") as server:
            status, answers = server.complete(STORY * 6 + "Then", n_cmpl=3)
            expected = server.text(STORY * 6 + "Then")
        self.assertEqual(status, 200, answers)
        self.assertEqual([answer["content"] for answer in answers], [expected] * 3)

    def test_context_shift(self):
        with Server(smollm2(), "-c", "256", "-np", "1", "--context-shift") as server:
            status, answer = server.complete("Once upon a time", 300, ignore_eos=True)
            self.assertEqual((status, answer["tokens_predicted"]), (200, 300))
            self.assertNotIn("vecinfer: error", server.log())

    def slot(self, server, action, name="slot.bin"):
        return server.request(f"/slots/0?action={action}", {"filename": name})

    def slot_options(self):
        folder = work_folder() / f"slots-{self.id().rsplit('.', 1)[1]}"
        folder.mkdir(exist_ok=True)
        self.addCleanup(shutil.rmtree, folder)
        return ["-c", "2048", "-np", "1", "--slot-save-path", f"{folder}/"]

    def test_saved_slot(self):
        options = self.slot_options()
        prompt = STORY * 6
        with Server(smollm2(), *options) as server:
            server.text(prompt, 1)
            self.assertEqual(self.slot(server, "save")[0], 200)
            expected = server.text(prompt + "Then")
            server.text(counting(50))
            self.assertEqual(self.slot(server, "restore")[0], 200)
            status, answer = server.complete(prompt + "Then")
            self.assertEqual((status, answer["content"]), (200, expected))
            self.assertLess(answer["timings"]["prompt_n"], 10, "the restored rows were not used")
        with Server(smollm2(), *options) as server:
            self.assertEqual(self.slot(server, "restore")[0], 200)
            status, answer = server.complete(prompt + "Then")
            self.assertEqual((status, answer["content"]), (200, expected))
            self.assertLess(answer["timings"]["prompt_n"], 10, "the restored rows were not used")

    def refused_slot(self, saved_with, restored_with):
        options = self.slot_options()
        prompt = STORY * 6
        with Server(smollm2(), *options, scheme=saved_with) as server:
            server.text(prompt, 1)
            self.assertEqual(self.slot(server, "save")[0], 200)
        with Server(smollm2(), *options, scheme=restored_with) as server:
            expected = server.text(counting(50))
            restored, _ = self.slot(server, "restore")
            status, _ = server.complete(prompt + "Then")
            self.assertTrue(restored != 200 or status != 200, "neither the restore nor the request that reads it failed")
            self.assertIn("vecinfer: error: restored state", server.log())
            self.assertEqual(server.text(counting(50)), expected)
            self.assertNotEqual(server.text(prompt + "Then"), "")

    def test_slot_of_another_scheme(self):
        self.refused_slot("vecinfer:k4v4", "vecinfer:k2v2")

    def test_slot_saved_as_f16(self):
        self.refused_slot("f16", "vecinfer:k2v2")


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.testsRun == 0 or len(result.skipped) >= result.testsRun else 0)
