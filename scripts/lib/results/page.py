"""docs/results/schemes.md and its pictures, from the results that exist. States what was computed and nothing else."""

import pathlib
import re

import key_bias
import pictures
import plan

HEADINGS = {
    "schemes": "Bits against quality",
    "calibration": "How much calibration text is enough",
    "sides": "Keys against values",
    "transforms": "Key transforms",
    "bias": "Key biases",
    "windows": "Tokens kept in f16",
    "codebooks": "Codebook sizes at equal bits",
    "texts": "Codebooks of one kind of text on another",
}
ABOUT = {
    "schemes": "Every family at its default window. *stored*: bits per value of codes, scales and norms, what each further token "
               "takes; *at N*: with window and codebooks, everything shared out over one sequence of N tokens. Peers of llama.cpp "
               "keep no window. The paper's recipe is `{paper}`. Rows marked \u2022 have no other row with both fewer "
               "effective bits (at {context} tokens, the model's context) and a lower mean KLD.",
    "calibration": "`vecinfer:k2v2`; a chunk is {calibration_context} tokens; 0 is data-free.",
    "sides": "Mean KLD of `vecinfer:k<row>v<column>`, calibrated; widths in bits, rows keys, columns values.",
    "transforms": "`vecinfer` with `kt=` as given and all else at its calibrated defaults (`vt=hadamard,norm=vector,encode=shaped`); "
                  "the paper's setting has `vt=none,norm=none,encode=nearest,sink=0`.",
    "bias": "A copy of SmolLM2 whose first and last layer add constants of about {factor} times a key's typical magnitude to {pairs} "
            "channels of each KV head, where RoPE turns slowest (`scripts/lib/results/key_bias.py`). *without*: the same cache on the "
            "unchanged model.",
    "windows": "`vecinfer:k2v2`, calibrated at the default window (`recent=128,sink=4`).",
    "codebooks": "`vecinfer`, calibrated, `encode=unbiased` throughout, as codes of single channels cannot be shaped.",
    "texts": "Mean KLD of `vecinfer:k2v2`; rows: what the codebooks were calibrated on, columns: the text "
             "measured, another one of its kind.",
}
MODEL_CONTEXT = {"smollm2": 8192, "gemma3": 32768, "smollm2-bias": 8192}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def number(value, digits=3):
    return f"{value:.{digits}f}"


def kld_text(result):
    q = result["quality"]
    digits = 4 if q["kld_mean"] < 0.1 else 3
    return f"{q['kld_mean']:.{digits}f} \u00b1 {q['kld_mean_err']:.{digits}f}"


FIGURE_HEAD = ["mean KLD", "99% KLD", "ppl ratio", "same top-1"]


def figures(result):
    q = result["quality"]
    return [kld_text(result), number(q["kld_p99"], 2 if q["kld_p99"] >= 1 else 3), number(q["ppl_ratio"]), f"{100 * q['top1']:.1f}%"]


def bits(result, contexts=plan.FOOTPRINTS):
    costs = result["bits"]
    return [number(costs["stored"], 2), *(number(costs["effective"][str(c)], 2) for c in contexts)]


def is_f16(result):
    return result["scheme"] == "f16"


def front(rows, context):
    """Indices of rows that no other row beats in both bits and divergence."""
    points = [(r["bits"]["effective"][str(context)], r["quality"]["kld_mean"]) for _, r in rows]
    return {i for i, (b, k) in enumerate(points) if not is_f16(rows[i][1])
            and not any(not is_f16(rows[j][1]) and b2 <= b and k2 <= k and (b2, k2) != (b, k)
                        for j, (b2, k2) in enumerate(points))}


def measured(store, group, model):
    """What the tables of a group were measured with, in one line."""
    results = [r for _, r in store.rows(group, model)]
    chunks = sorted({r["chunks"] for r in results})
    calibrations = sorted({(r["calibration"]["text"], r["calibration"]["chunks"]) for r in results if r["calibration"]})
    words = [f"{' or '.join(map(str, chunks))} chunks of {plan.CONTEXT} tokens ({chunks[0] * (plan.CONTEXT // 2 - 1)}"
             + (f" to {chunks[-1] * (plan.CONTEXT // 2 - 1)}" if len(chunks) > 1 else "") + " scored)"]
    bases = {}
    for result in results:
        if base := store.base(result):
            bases.setdefault(base["text"], set()).add(f"{base['quality']['ppl']:.2f}")
    if bases:
        words.append("f16 perplexity " + ", ".join(" or ".join(sorted(values)) + (f" ({text})" if len(bases) > 1 else "")
                                                   for text, values in sorted(bases.items())))
    sizes = sorted({c for _, c in calibrations})
    if sizes and group not in ("calibration",):
        words.append(f"calibrated on {' or '.join(map(str, sizes))} x {plan.CALIBRATION_CONTEXT} tokens")
    return f"**{plan.MODELS[model]['title']}**: " + "; ".join(words) + "."


def best(rows, context, limit, ours):
    """The row with the lowest divergence of those with at most `limit` effective bits."""
    fitting = [(labels, r) for labels, r in rows if not is_f16(r) and r["bits"]["effective"][str(context)] <= limit
               and r["scheme"].startswith("vecinfer") == ours]
    return min(fitting, key=lambda row: row[1]["quality"]["kld_mean"], default=None)


def row_text(row, context):
    (family, widths, codebooks), result = row
    name = f"{family} {widths}" + (f", {codebooks}" if family.startswith("vecinfer") else "")
    return f"{name} ({result['bits']['effective'][str(context)]:.2f} bits, KLD {result['quality']['kld_mean']:.4f})"


def claims(rows):
    """Sentences with computed figures: the best of ours and of the others under limits on effective bits."""
    lines = []
    for context in plan.FOOTPRINTS:
        ours, other = best(rows, context, 2.3, True), best(rows, context, 3.1, False)
        lines.append(f"- At {context} tokens: best `vecinfer` with at most 2.3 effective bits: "
                     f"{row_text(ours, context) if ours else 'none'}; best other with at most 3.1: "
                     f"{row_text(other, context) if other else 'none'}.")
    by_name = {(labels[0], labels[1], labels[2]): r for labels, r in rows}
    ours, q4 = by_name.get(("vecinfer", "k4v4", "calibrated")), by_name.get(("llama.cpp", "q4_0", "none"))
    if ours and q4:
        a, b = ours["quality"]["kld_mean"], q4["quality"]["kld_mean"]
        lines.append(f"- `vecinfer:k4v4`, calibrated, has {a / b:.2f} times the KLD of llama.cpp's q4_0 ({a:.4f} against {b:.4f}).")
    return "\n".join(lines) + "\n"


class Page:
    def __init__(self, store, folder):
        self.store, self.folder = store, pathlib.Path(folder)
        self.notes = self.read_notes()

    def read_notes(self):
        """schemes_intro.md: text for the head of the page, then under `## <group>` text for below a group's tables."""
        path = self.folder / "schemes_intro.md"
        parts = re.split(r"^## +(\S+)\s*$", path.read_text() if path.exists() else "", flags=re.MULTILINE)
        unknown = [name for name in parts[1::2] if name not in plan.GROUPS]
        if unknown:
            raise ValueError(f"{path}: no group '{unknown[0]}', expected one of {', '.join(plan.GROUPS)}")
        return {"": parts[0].strip(), **{name: text.strip() for name, text in zip(parts[1::2], parts[2::2])}}

    def picture(self, name, drawer, caption):
        path = self.folder / "pictures" / f"{name}.svg"
        drawer(path)
        return f"![{caption}](pictures/{name}.svg)\n"

    def write(self):
        parts = ["# Schemes on two small models\n",
                 "Written by `scripts/results page`; do not edit. What is said about the figures stands in `schemes_intro.md`.\n"]
        if self.notes[""]:
            parts.append(self.notes[""] + "\n")
        parts.append(self.how())
        for group in plan.GROUPS:
            models = [m for m in plan.models_of(group) if self.store.rows(group, m)]
            if not models:
                continue
            parts.append(f"## {HEADINGS[group]}\n")
            contexts = " and ".join(dict.fromkeys(str(MODEL_CONTEXT[m]) for m in models))
            parts.append(self.about(group, contexts))
            parts += getattr(self, group)(models)
            if self.notes.get(group):
                parts.append(self.notes[group] + "\n")
        path = self.folder / "schemes.md"
        path.write_text("\n".join(parts))
        return path

    def about(self, group, contexts):
        return ABOUT[group].format(context=contexts, calibration_context=plan.CALIBRATION_CONTEXT, factor=key_bias.FACTOR,
                                   pairs=key_bias.PAIRS, paper=plan.PAPER) + "\n"

    def how(self):
        results = [r for r in self.store.by_identity.values()]
        machines = sorted({f"{r['machine']['cpu']} ({r['machine']['cpus']} CPUs, {r['machine']['isa']})" for r in results})
        commits = sorted({r["commit"] for r in results})
        files = ", ".join(f"[{g}](schemes_{g}.json)" for g in plan.GROUPS
                          if any(self.store.rows(g, m) for m in plan.models_of(g)))
        return (f"Stock `llama-perplexity -c {plan.CONTEXT} -ub {plan.MICRO_BATCH} -fa on`, second half of every chunk scored, so "
                f"all but the window and the current {plan.MICRO_BATCH} tokens are read from codes. Base: the f16 cache of the stock "
                "CPU backend. Unless said otherwise the text is the start of WikiText-2's raw test split, and calibrations saw the "
                "end of *Pride and Prejudice*, never the test text. KLD: Kullback-Leibler divergence of next-token distributions "
                "from the base's in nats, mean \u00b1 standard error over tokens. All rows of a table share their text, so differences "
                f"between rows are more certain than the standard errors say. Measured on {'; '.join(machines)}; commit {', '.join(commits)}. "
                f"Data: {files}. `scripts/results` repeats everything.\n")

    def full_table(self, group, model, names, with_bits=True):
        rows = self.store.rows(group, model)
        head = [*names, *(["stored", *(f"at {c}" for c in plan.FOOTPRINTS)] if with_bits else []), *FIGURE_HEAD]
        return table(head, [[*labels, *(bits(r) if with_bits else []), *figures(r)] for labels, r in rows])

    def schemes(self, models):
        parts = []
        for model in models:
            rows = self.store.rows("schemes", model)
            context = MODEL_CONTEXT[model]
            marked = front(rows, context)
            parts.append(measured(self.store, "schemes", model) + "\n")
            parts.append(self.picture(f"schemes_{model}", lambda path: pictures.families(rows, context, path),
                                      f"Bits against KLD, {plan.MODELS[model]['title']}"))
            lines = [["\u2022" if i in marked else "", *labels, *bits(r), *figures(r)] for i, (labels, r) in enumerate(rows)]
            parts.append(table(["", "family", "widths", "codebooks", "stored", *(f"at {c}" for c in plan.FOOTPRINTS), *FIGURE_HEAD],
                               lines))
            parts.append(claims(rows))
        return parts

    def calibration(self, models):
        parts, series, levels = [], [], []
        for model in models:
            rows = self.store.rows("calibration", model)
            parts.append(measured(self.store, "calibration", model) + "\n")
            lines = [[chunks, str(int(chunks) * plan.CALIBRATION_CONTEXT), self.seconds(r), *figures(r)] for (chunks,), r in rows]
            parts.append(table(["chunks", "tokens", "seconds", *FIGURE_HEAD], lines))
            points = [(int(c), pictures.kld(r)) for (c,), r in rows if c != "0"]
            if points:
                series.append((plan.MODELS[model]["short"], points))
                levels += [(f"{plan.MODELS[model]['short']}, data-free", pictures.kld(r)) for (c,), r in rows if c == "0"]
        if series:
            parts.append(self.picture("calibration", lambda path: pictures.lines(
                series, f"chunks of {plan.CALIBRATION_CONTEXT} calibration tokens", path, True, levels), "KLD over calibration text"))
        return parts

    @staticmethod
    def seconds(result):
        c = result["calibration"]
        return f"{c['seconds']:.0f} ({c['threads']} threads)" if c else "-"

    def matrix(self, group, model, first):
        rows = {labels: r for labels, r in self.store.rows(group, model)}
        across = list(dict.fromkeys(b for _, b in rows))
        down = list(dict.fromkeys(a for a, _ in rows))
        lines = [[a, *(kld_text(rows[a, b]) if (a, b) in rows else "-" for b in across)] for a in down]
        return table([first, *across], lines)

    def sides(self, models):
        parts = []
        for model in models:
            parts += [measured(self.store, "sides", model) + "\n", self.matrix("sides", model, "keys \\ values")]
        return parts

    def texts(self, models):
        parts = []
        for model in models:
            parts += [measured(self.store, "texts", model) + "\n", self.matrix("texts", model, "calibrated on \\ measured on")]
        return parts

    def transforms(self, models):
        parts, series = [], []
        for model in models:
            rows = self.store.rows("transforms", model)
            parts += [measured(self.store, "transforms", model) + "\n", self.full_table("transforms", model, ["", "keys"], False)]
            for bits_label in dict.fromkeys(labels[0] for labels, _ in rows):
                values = {kt: pictures.kld(r) for (label, kt), r in rows if label == bits_label}
                series.append((f"{plan.MODELS[model]['short']}, {bits_label}", values))
        parts.append(self.picture("transforms", lambda path: pictures.bars(series, path), "KLD by key transform"))
        return parts

    def bias(self, models):
        parts = []
        for model in models:
            lines = []
            for labels, r in self.store.rows("bias", model):
                job = next(row.job for row in plan.bias("smollm2") if row.labels == labels)
                plain = self.store.find(job)
                lines.append([*labels, kld_text(plain) if plain else "-", *figures(r)])
            parts.append(measured(self.store, "bias", model) + "\n")
            parts.append(table(["family", "widths", "codebooks", "without: mean KLD", *FIGURE_HEAD], lines))
        return parts

    def windows(self, models):
        parts, series = [], []
        for model in models:
            rows = self.store.rows("windows", model)
            parts += [measured(self.store, "windows", model) + "\n", self.full_table("windows", model, ["recent", "sink"])]
            points = sorted((int(recent), pictures.kld(r)) for (recent, sink), r in rows if sink == "4")
            if points:
                series.append((f"{plan.MODELS[model]['short']}, sink 4", points))
        if series:
            parts.append(self.picture("windows", lambda path: pictures.lines(series, "latest tokens kept in f16", path),
                                      "KLD over window size"))
        return parts

    def codebooks(self, models):
        parts = []
        for model in models:
            parts += [measured(self.store, "codebooks", model) + "\n",
                      self.full_table("codebooks", model, ["bits", "codec", "codebooks"])]
        return parts
