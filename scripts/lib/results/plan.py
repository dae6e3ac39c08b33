"""What is measured: groups of rows, each row one cache on one model and text."""

import dataclasses
import re

CONTEXT = 2048  # tokens of a chunk; its second half is scored
MICRO_BATCH = 64  # small, so that nearly all keys a query reads come from the cache, as they do when decoding
CALIBRATION_CONTEXT = 512
FOOTPRINTS = (8192, 32768)  # contexts at which window and codebooks are shared out over tokens

# Models by the names of scripts/models; smollm2-bias is made from smollm2 (key_bias.py).
MODELS = {
    "smollm2": {"title": "SmolLM2-135M-Instruct (Q4_1)", "short": "SmolLM2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf", "chunks": 3},
    "gemma3": {"title": "gemma-3-270m (Q4_K_M)", "short": "gemma-3", "file": "gemma-3-270m-q4_k_m.gguf", "chunks": 2},
    "smollm2-bias": {"title": "SmolLM2-135M-Instruct with key biases", "short": "SmolLM2 + biases", "file": "smollm2-bias.gguf",
                     "chunks": 3},
}
TEST_TEXT = "wiki"
CALIBRATION_TEXT = "pride"
CALIBRATION_CHUNKS = 32
FEW_CHUNKS = 8  # for groups that compare settings with one another, each with a calibration of its own
TRANSFER_TEXTS = {"English prose": ("pride", "sherlock"), "code": ("code-train", "code-test"), "Chinese": ("zh-train", "zh-test")}

PEER_BITS = {"q4_0": 4.5, "q5_1": 6.0, "q8_0": 8.5}  # blocks of 32 values with an f16 scale, q5_1 also with an f16 minimum

DEFAULT_KEYS = "center+smooth-opt+hadamard"  # what kt=auto means with a calibration
PAPER = "kt=smooth+hadamard,vt=none,norm=none,encode=nearest,sink=0"  # the published recipe


@dataclasses.dataclass(frozen=True)
class Calibration:
    text: str
    chunks: int


@dataclasses.dataclass(frozen=True)
class Job:
    """One quality run. cache is a llama.cpp cache type; `f16` with a scheme runs through the plugin, without it is the base."""

    model: str
    text: str
    cache: str = "f16"
    scheme: str = ""
    calibration: Calibration | None = None

    def base(self):
        return Job(self.model, self.text)

    def is_base(self):
        return self.cache == "f16" and not self.scheme


@dataclasses.dataclass(frozen=True)
class Row:
    """A job and its place in the group's table; tier 2 is measured after all of tier 1."""

    labels: tuple
    job: Job
    tier: int = 1


def calibrated_scheme(scheme):
    """The part of a scheme that a calibration depends on: a window changes what is read from codes, not the codes; and codebooks
    for shaped encoding serve unbiased encoding as well."""
    return re.sub(r",(recent=\d+|sink=\d+|prefill=[a-z]+|encode=unbiased)", "", scheme)


def calibrated(model, scheme, chunks=CALIBRATION_CHUNKS, train=CALIBRATION_TEXT, text=TEST_TEXT):
    return Job(model, text, scheme=scheme, calibration=Calibration(train, chunks))


def free(model, scheme, text=TEST_TEXT):
    return Job(model, text, scheme=scheme)


def schemes(model):
    """Bits against quality, every family."""
    rows = [Row(("vecinfer", w, "calibrated"), calibrated(model, f"vecinfer:{w}"))
            for w in ("k2v2", "k4v4", "k1.5v1.5", "k1.5v1", "k1v1", "k3v3", "k4v2")]
    rows += [Row(("vecinfer", w, "data-free"), free(model, f"vecinfer:{w}")) for w in ("k2v2", "k4v4", "k1v1", "k3v3")]
    rows += [Row(("vecinfer, the paper's recipe", w, "calibrated"), calibrated(model, f"vecinfer:{w},{PAPER}"))
             for w in ("k2v2", "k4v4", "k1v1")]
    rows += [Row(("million", w, "calibrated"), calibrated(model, f"million:{w}")) for w in ("k2v2", "k4v4", "k2.5v2.5", "k3v3")]
    rows += [Row(("innerq", w, "calibrated"), calibrated(model, f"innerq:{w}")) for w in ("k3v3", "k3v2", "k3v2h", "k4v4")]
    rows += [Row(("kivi", w, "none"), free(model, f"kivi:{w}")) for w in ("k2v2", "k4v4")]
    rows += [Row(("rotated", w, "none"), free(model, f"rotated:{w}")) for w in ("k2v2", "k3v3", "k4v4")]
    rows += [Row(("llama.cpp", t, "none"), Job(model, TEST_TEXT, cache=t)) for t in PEER_BITS]
    rows.append(Row(("f16 through the plugin", "16", "none"), free(model, "f16")))
    return rows


TRANSFORMS = ("none", "smooth", "hadamard", "smooth+hadamard", "center+hadamard", "center+smooth+hadamard", "smooth-opt+hadamard",
              DEFAULT_KEYS, "full", "center+full")
TRANSFORMS_AT_1_5 = ("none", "smooth", "hadamard", "smooth+hadamard", "center+hadamard", DEFAULT_KEYS, "center+full")


def with_keys(widths, kt):
    return f"vecinfer:{widths}" if kt == DEFAULT_KEYS else f"vecinfer:{widths},kt={kt}"


def transforms(model):
    """Key transforms, all else at its defaults; then the four of the paper with its norm, values and encoding."""
    rows = [Row(("2 bits", kt), calibrated(model, with_keys("k2v2", kt), FEW_CHUNKS)) for kt in TRANSFORMS]
    for kt in ("none", "smooth", "hadamard", "smooth+hadamard"):
        scheme = f"vecinfer:k2v2,{PAPER}".replace("smooth+hadamard", kt)
        rows.append(Row(("2 bits, the paper's setting", kt), calibrated(model, scheme, FEW_CHUNKS)))
    if model == "smollm2":  # codebooks of 4096 centroids take minutes each
        rows += [Row(("1.5 bits", kt), calibrated(model, with_keys("k1.5v1.5", kt), FEW_CHUNKS), 2) for kt in TRANSFORMS_AT_1_5]
    return rows


def bias(model):
    """A model whose first and last layer have key biases; each job also exists on the model it was made from."""
    rows = []
    for w in ("k2v2", "k4v4"):
        rows.append(Row(("vecinfer", w, "calibrated"), calibrated(model, f"vecinfer:{w}", FEW_CHUNKS)))
        rows.append(Row(("vecinfer", w, "data-free"), free(model, f"vecinfer:{w}")))
        rows.append(Row(("vecinfer, the paper's recipe", w, "calibrated"), calibrated(model, f"vecinfer:{w},{PAPER}")))
    rows += [Row((f"vecinfer, kt={kt}", "k2v2", "calibrated"), calibrated(model, with_keys("k2v2", kt), FEW_CHUNKS))
             for kt in ("none", "hadamard", "smooth+hadamard", "center+hadamard")]
    rows += [Row(("million", w, "calibrated"), calibrated(model, f"million:{w}")) for w in ("k2v2", "k4v4")]
    rows += [Row(("innerq", w, "calibrated"), calibrated(model, f"innerq:{w}")) for w in ("k3v3",)]
    rows += [Row((f, w, "none"), free(model, f"{f}:{w}")) for f in ("kivi", "rotated") for w in ("k2v2", "k4v4")]
    rows += [Row(("llama.cpp", t, "none"), Job(model, TEST_TEXT, cache=t)) for t in ("q4_0", "q8_0")]
    return rows


def codebooks(model):
    """Codebook sizes at equal bits, and how many codebooks there are; encoded alike, as single channels cannot be shaped."""
    sizes = (("2", "d1b2: 4 centroids", "k=d1b2,v=d1b2", 1), ("2", "d4b8: 256 centroids", "k2v2", 1),
             ("4", "d1b4: 16 centroids", "k=d1b4,v=d1b4", 1), ("4", "d2b8: 256 centroids", "k4v4", 1),
             ("3", "d1b3: 8 centroids", "k=d1b3,v=d1b3", 2), ("3", "d4b12: 4096 centroids", "k3v3", 2))
    rows = [Row((bits, codec, "one per layer"), calibrated(model, f"vecinfer:{widths},encode=unbiased", FEW_CHUNKS), tier)
            for bits, codec, widths, tier in sizes]
    for scope, name in (("head", "KV head"), ("subspace", "KV head and subspace")):
        rows.append(Row(("2", "d4b8: 256 centroids", f"one per {name}"),
                        calibrated(model, f"vecinfer:k2v2,encode=unbiased,scope={scope}", FEW_CHUNKS)))
    rows.append(Row(("2", "d4b8: 256 centroids", "universal, data-free"), free(model, "vecinfer:k2v2")))
    return rows


SIDE_WIDTHS = ("1", "2", "4")


def sides(model):
    """Widths of keys against widths of values."""
    rows = []
    for k in SIDE_WIDTHS:
        for v in SIDE_WIDTHS:
            rows.append(Row((k, v), calibrated(model, f"vecinfer:k{k}v{v}", FEW_CHUNKS)))
    return rows


def texts(model):
    """Codebooks of one kind of text on another. The tests are other texts of the same kinds."""
    rows = []
    for test, (_, text) in TRANSFER_TEXTS.items():
        for train, (source, _) in TRANSFER_TEXTS.items():
            rows.append(Row((train, test), calibrated(model, "vecinfer:k2v2", train=source, text=text)))
        rows.append(Row(("data-free", test), free(model, "vecinfer:k2v2", text=text)))
    return rows


def windows(model):
    """Tokens kept in f16; codebooks are those of the default window."""
    rows = [Row((str(recent), "4"), calibrated(model, window_scheme(recent, 4))) for recent in (0, 16, 32, 64, 128, 256)]
    rows += [Row(("128", str(sink)), calibrated(model, window_scheme(128, sink))) for sink in (0, 8)]
    rows.append(Row(("0", "0"), calibrated(model, window_scheme(0, 0))))
    return rows


def window_scheme(recent, sink):
    text = "vecinfer:k2v2"
    text += f",recent={recent}" if recent != 128 else ""
    return text + (f",sink={sink}" if sink != 4 else "")


def calibration(model):
    """How many chunks of calibration text are enough."""
    rows = [Row(("0",), free(model, "vecinfer:k2v2"))]
    rows += [Row((str(n),), calibrated(model, "vecinfer:k2v2", chunks=n)) for n in (1, 2, 4, 8, 16, 32, 64)]
    return rows


GROUPS = {"schemes": schemes, "calibration": calibration, "sides": sides, "transforms": transforms, "bias": bias,
          "windows": windows, "codebooks": codebooks, "texts": texts}  # in order of importance
LETTERS = {"a": ("schemes",), "b": ("transforms", "bias"), "c": ("codebooks",), "d": ("sides",), "e": ("texts",),
           "f": ("windows",), "g": ("calibration",)}


def models_of(group):
    return ("smollm2-bias",) if group == "bias" else ("smollm2", "gemma3")


def parse_groups(text):
    """Names of groups, or the letters that stand for them, joined by commas; all for an empty text."""
    chosen = []
    for word in filter(None, text.split(",")):
        if word not in GROUPS and word not in LETTERS:
            raise ValueError(f"group: got '{word}', expected one of {', '.join(GROUPS)}, or a letter {', '.join(LETTERS)}")
        chosen += LETTERS.get(word, (word,))
    return list(dict.fromkeys(chosen)) or list(GROUPS)


def tier_of(group, model, row):
    """On the second model the groups that explain, rather than compare, come last."""
    return row.tier if model != "gemma3" or group in ("schemes", "calibration") else 2


def jobs(groups, models, tiers=(1, 2)):
    """Every job once, each base before its first user, by tier, then as `groups` and `models` are ordered."""
    ordered = {}
    for tier in tiers:
        for group in groups:
            for model in models_of(group):
                if model not in models:
                    continue
                for row in GROUPS[group](model):
                    if tier_of(group, model, row) == tier:
                        ordered[row.job.base()] = None
                        ordered[row.job] = None
    return list(ordered)
