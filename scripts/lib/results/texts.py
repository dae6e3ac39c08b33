"""The texts: cut out of the evaluation folder and of the project's own sources, once, into a folder of plain files."""

import pathlib

# name: (file of the evaluation folder, first byte, length); a negative first byte counts from the end of the body
CUTS = {
    "wiki": ("wiki.test.raw", 0, 300_000),
    "pride": ("pride_and_prejudice_pg1342.txt", -400_000, 400_000),
    "sherlock": ("sherlock_holmes_pg1661.txt", 20_000, 200_000),
    "zh-train": ("zh_xiyouji.txt", 0, 600_000),
    "zh-test": ("zh_xiyouji.txt", -300_000, 300_000),
}
SOURCES = {"code-train": ("src", "include"), "code-test": ("cli", "plugins")}
SOURCE_LIMIT = 300_000


class Missing(Exception):
    pass


def body(data):
    """A Gutenberg book without the licence at both ends; other files whole."""
    begin = data.find(b"*** START OF THE PROJECT GUTENBERG")
    end = data.find(b"*** END OF THE PROJECT GUTENBERG")
    if begin < 0 or end < 0:
        return data
    return data[data.index(b"\n", begin) + 1:end]


def cut(data, first, length):
    """`length` bytes from `first` on, both ends moved to the next line."""
    first = max(0, len(data) + first) if first < 0 else min(first, len(data))
    end = min(first + length, len(data))
    if first > 0:
        first = data.index(b"\n", first) + 1
    if end < len(data):
        end = data.index(b"\n", end) + 1
    return data[first:end]


def sources(root, folders):
    paths = sorted(p for folder in folders for pattern in ("*.cc", "*.h") for p in (root / folder).rglob(pattern))
    return cut(b"\n".join(p.read_bytes() for p in paths), 0, SOURCE_LIMIT)


def prepare(root, evaluation, folder):
    """Writes every text into `folder`. `evaluation` is the folder with text/wiki.test.raw and the others."""
    root, evaluation, folder = pathlib.Path(root), pathlib.Path(evaluation), pathlib.Path(folder)
    missing = sorted({file for file, _, _ in CUTS.values() if not (evaluation / "text" / file).is_file()})
    if missing:
        raise Missing(f"no {', '.join(missing)} in {evaluation / 'text'}: point VECINFER_EVAL_DIR at the folder of the evaluation "
                      "texts (WikiText-2 raw test split, Project Gutenberg's books 1342 and 1661, the Chinese novel Xiyouji as "
                      "plain text)")
    folder.mkdir(parents=True, exist_ok=True)
    for name, (file, first, length) in CUTS.items():
        data = cut(body((evaluation / "text" / file).read_bytes()), first, length)
        (folder / f"{name}.txt").write_bytes(data)
    for name, folders in SOURCES.items():
        data = sources(root, folders)
        if not data:
            raise Missing(f"no sources in {root}: {', '.join(folders)}")
        (folder / f"{name}.txt").write_bytes(data)
