"""Pictures of the results page, drawn by gnuplot as SVG."""

import os
import pathlib
import subprocess
import tempfile

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#5e3c99", "#4d4d4d")
MARKS = (7, 5, 9, 13, 11, 15, 4, 6)
LEAST_KLD = 1e-4  # divergences below are noise, may be negative, and have no logarithm
COMMON = """set encoding utf8
set grid lc rgb '#e4e4e4' lt 1
set border 3
set tics nomirror
"""
KLD_AXIS = """set logscale y
set format y '%g'
set mytics 10
set ylabel 'mean KL divergence to f16 (nats)'
"""


class Failed(Exception):
    pass


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def draw(path, script, width=860, height=480):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "picture.gnuplot"
        kind = "pngcairo" if path.suffix == ".png" else "svg dynamic"
        head = (f"set terminal {kind} size {width},{height} noenhanced font 'sans-serif,13' background '#ffffff'\n"
                f"set output {quoted(str(path))}\n")
        file.write_text(head + COMMON + script + "\n")
        try:
            done = subprocess.run(["gnuplot", str(file)], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
        except FileNotFoundError:
            raise Failed("gnuplot is not installed (Debian package gnuplot-nox)") from None
    if done.returncode != 0 or not path.exists():
        raise Failed(f"gnuplot failed on {path.name}: {done.stderr.strip()}")


def kld(result):
    return max(result["quality"]["kld_mean"], LEAST_KLD)


def block(name, rows):
    return f"${name} << EOD\n" + "".join(" ".join(map(str, row)) + "\n" for row in rows) + "EOD\n"


def short(widths):
    """k2v2 is 2; widths that differ stay as they are."""
    k, _, v = widths.removeprefix("k").partition("v")
    return k if k == v and widths.startswith("k") else widths


def families(rows, context, path):
    """Effective bits against divergence, a line per family."""
    series = {}
    for (family, widths, codebooks), result in rows:
        if result["scheme"] == "f16":
            continue
        name = f"{family}, {codebooks}" if family.startswith("vecinfer") and "paper" not in family else family
        series.setdefault(name, []).append((result["bits"]["effective"][str(context)], kld(result), short(widths)))
    script, plots = "set key outside right top reverse Left samplen 2\nset xlabel 'effective bits per value at " \
                    f"{context} tokens (everything counted)'\n", []
    for i, (name, points) in enumerate(series.items()):
        script += block(f"s{i}", [(x, y, quoted(label)) for x, y, label in sorted(points)])
        colour, mark = COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]
        plots.append(f"$s{i} using 1:2 with linespoints lc rgb '{colour}' lw 1.5 pt {mark} ps 0.9 title {quoted(name)}")
        plots.append(f"$s{i} using 1:2:3 with labels left offset 0.6,0.5 font ',10' tc rgb '{colour}' notitle")
    draw(path, KLD_AXIS + script + "plot " + ", ".join(plots), width=960, height=540)


def lines(series, xlabel, path, logscale_x=False, levels=()):
    """series: [(name, [(x, kld)])]; levels: [(name, kld)], horizontal."""
    script = f"set xlabel {quoted(xlabel)}\nset key outside top center horizontal reverse Left samplen 2\n"
    if logscale_x:
        script += "set logscale x 2\n"
    xs = sorted({x for _, points in series for x, _ in points})
    script += "set xtics (" + ", ".join(f"'{x:g}' {x}" for x in xs) + ")\n"
    pad = 0.03 * (xs[-1] - xs[0] + 1)
    script += f"set xrange [{xs[0] / 1.15}:{xs[-1] * 1.15}]\n" if logscale_x else f"set xrange [{xs[0] - pad}:{xs[-1] + pad}]\n"
    ys = [y for _, points in series for _, y in points] + [y for _, y in levels]
    script += f"set yrange [{min(ys) / 1.5}:{max(ys) * 1.5}]\n"
    plots = []
    for i, (name, points) in enumerate(series):
        script += block(f"s{i}", points)
        plots.append(f"$s{i} using 1:2 with linespoints lc rgb '{COLOURS[i]}' lw 2 pt {MARKS[i]} ps 1 title {quoted(name)}")
    for i, (name, level) in enumerate(levels):
        plots.append(f"{level} with lines lc rgb '{COLOURS[i]}' lw 1.5 dt 2 title {quoted(name)}")
    draw(path, KLD_AXIS + script + "plot " + ", ".join(plots))


def bars(series, path):
    """series: [(name, {label: kld})]; a group of bars per label."""
    labels = list(dict.fromkeys(label for _, values in series for label in values))
    script = "set style data histogram\nset style histogram clustered gap 1\nset style fill solid 0.85 border -1\n" \
             "set xtics rotate by -35 scale 0\nset key outside top center horizontal reverse Left\nset rmargin 8\nset boxwidth 0.9\n"
    least = min(v for _, values in series for v in values.values())
    script += f"set yrange [{least / 2}:*]\n"
    script += block("d", [(quoted(label), *(values.get(label, "NaN") for _, values in series)) for label in labels])
    plots = [f"$d using {i + 2}{':xtic(1)' if i == 0 else ''} lc rgb '{COLOURS[i]}' title {quoted(name)}"
             for i, (name, _) in enumerate(series)]
    draw(path, KLD_AXIS + script + "plot " + ", ".join(plots), height=520)
