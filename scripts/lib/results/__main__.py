"""Measures schemes on small models and writes docs/results/schemes.md; started by scripts/results."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

import page
import plan
import runner
import store
import texts
import tools


def existing_folder(text):
    path = pathlib.Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"got '{text}', expected a folder that exists")
    return path


def at_least_one(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got '{text}', expected a whole number of at least 1")
    return int(text)


def groups(text):
    try:
        return plan.parse_groups(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def models(text):
    names = text.split(",")
    for name in names:
        if name not in plan.MODELS:
            raise argparse.ArgumentTypeError(f"got '{name}', expected one of {', '.join(plan.MODELS)}")
    return names


def parse():
    parser = argparse.ArgumentParser(prog="scripts/results", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    choice = argparse.ArgumentParser(add_help=False)
    choice.add_argument("--group", type=groups, default=list(plan.GROUPS), help="groups or letters a to g, comma-separated")
    choice.add_argument("--model", type=models, default=list(plan.MODELS), help="models, comma-separated")
    choice.add_argument("--tier", type=int, choices=(1, 2), default=2, help="1: leave out the rows that matter least")
    listing = verbs.add_parser("list", parents=[choice], help="what would be measured")
    listing.set_defaults(do=do_list)

    run = verbs.add_parser("run", parents=[choice], help="measure what has not been measured yet")
    run.add_argument("--bin", type=existing_folder, action="append", required=True, help="folder of binaries; may be repeated")
    run.add_argument("--models", type=existing_folder, required=True, help="folder of models")
    run.add_argument("--texts", type=existing_folder, required=True, help="folder of texts")
    run.add_argument("--out", type=pathlib.Path, required=True, help="folder of results")
    run.add_argument("--jobs", type=at_least_one, default=1, help="programs at once")
    run.add_argument("--threads", type=at_least_one, default=len(os.sched_getaffinity(0)), help="threads of each")
    run.add_argument("--minutes", type=float, help="stop after this time; the next run goes on")
    run.add_argument("--chunks", type=at_least_one, help="chunks of test text in place of the models' defaults")
    run.add_argument("--most-calibration-chunks", type=at_least_one, help="for trials: calibrate on no more than this")
    run.add_argument("--known", type=existing_folder, action="append", default=[],
                     help="results or data files of earlier builds: their rows are not measured again; may be repeated")
    run.add_argument("--present", action="store_true", help="leave out models that are not in the folder of models")
    run.add_argument("--commit", help="what was built (default: asks git)")
    run.set_defaults(do=do_run)

    text = verbs.add_parser("texts", help="cut the texts out of the evaluation folder")
    text.add_argument("--root", type=existing_folder, required=True)
    text.add_argument("--eval", required=True)
    text.add_argument("--out", type=pathlib.Path, required=True)
    text.set_defaults(do=do_texts)

    pages = verbs.add_parser("page", help="write the data files, the page and its pictures")
    pages.add_argument("--jobs-folder", type=pathlib.Path, action="append", default=[], help="results of runs; may be repeated")
    pages.add_argument("--docs", type=pathlib.Path, required=True)
    pages.set_defaults(do=do_page)

    bundle = verbs.add_parser("bundle", help="gather what another machine needs: programs, texts, models in pieces")
    bundle.add_argument("--bin", type=existing_folder, action="append", required=True)
    bundle.add_argument("--models", type=existing_folder, required=True)
    bundle.add_argument("--texts", type=existing_folder, required=True)
    bundle.add_argument("--out", type=pathlib.Path, required=True)
    bundle.add_argument("--piece-mib", type=at_least_one, default=60)
    bundle.add_argument("--commit")
    bundle.set_defaults(do=do_bundle)
    return parser.parse_args()


def commit_of(args):
    if args.commit:
        return args.commit
    for folder in args.bin:
        if (folder / "COMMIT").is_file():
            return (folder / "COMMIT").read_text().strip()
    here = pathlib.Path(__file__).resolve().parent
    done = subprocess.run(["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def do_list(args):
    for job in plan.jobs(args.group, args.model, range(1, args.tier + 1)):
        source = f"{job.calibration.text} x {job.calibration.chunks}" if job.calibration else "-"
        print(f"{job.model:<14}{job.text:<12}{job.scheme or job.cache + ' (llama.cpp)':<80}{source}")
    return 0


def do_run(args):
    settings = runner.Settings(out=args.out, models=args.models, texts=args.texts, threads=args.threads, parallel=args.jobs,
                               deadline=time.time() + 60 * args.minutes if args.minutes else None, commit=commit_of(args),
                               chunks=args.chunks, calibration_chunks=args.most_calibration_chunks)
    run = runner.Runner(tools.Tools(args.bin), settings)
    names = [m for m in args.model if not args.present or run.can_have(m)]
    known = store.Store([r for folder in args.known for r in store.read_jobs(folder) + store.read_data(folder)])
    jobs = [job for job in plan.jobs(args.group, names, range(1, args.tier + 1))
            if not (found := known.find(job)) or found["chunks"] < run.chunks(job)]
    return 0 if run.run(jobs) else 1


def do_texts(args):
    texts.prepare(args.root, args.eval, args.out)
    return 0


def do_page(args):
    results = store.read_data(args.docs)
    for folder in args.jobs_folder:
        results += store.read_jobs(folder)
    if not results:
        raise tools.Failed(f"no results in {args.docs} or {', '.join(map(str, args.jobs_folder)) or 'any folder of jobs'}")
    known = store.Store(results)
    for path in store.write_data(known, args.docs):
        print(path)
    print(page.Page(known, args.docs).write())
    return 0


def do_bundle(args):
    """bin/ with stripped programs and libraries, lib/ with this program, texts/, and models/ in pieces."""
    box = tools.Tools(args.bin)
    target = args.out / "bin"
    target.mkdir(parents=True, exist_ok=True)
    gathered = {pathlib.Path(p).name: pathlib.Path(p) for p in box.paths.values()}
    for name in tools.LIBRARIES:
        found = [f / name for f in box.folders if (f / name).exists()]
        if not found:
            out = subprocess.run([os.environ.get("CXX", "c++"), f"-print-file-name={name}"], capture_output=True, text=True).stdout
            found = [pathlib.Path(out.strip())] if "/" in out else []
        if not found:
            raise tools.Failed(f"no {name} in {', '.join(map(str, args.bin))}")
        gathered[name] = found[0]
    for name, path in gathered.items():
        shutil.copy(path.resolve(), target / name)
        subprocess.run(["strip", "--strip-unneeded", str(target / name)], check=True)
    (target / "COMMIT").write_text(commit_of(args) + "\n")
    for name, source in (("lib", pathlib.Path(__file__).resolve().parent), ("texts", args.texts)):
        shutil.rmtree(args.out / name, ignore_errors=True)
        shutil.copytree(source, args.out / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(args.out / "lib" / "remote.sh", args.out / "run.sh")
    shutil.rmtree(args.out / "models", ignore_errors=True)
    for model in plan.MODELS.values():
        path = args.models / model["file"]
        if path.exists() and "bias" not in model["file"]:
            split(path, args.out / "models", args.piece_mib << 20)
    for folder in sorted(p for p in args.out.glob("**") if p.is_dir()):
        size = sum(f.stat().st_size for f in folder.iterdir() if f.is_file())
        if size:
            print(f"{size / 2**20:8.1f} MiB  {folder}")
    return 0


def split(path, folder, size):
    """Pieces in folders of their own, so that each can travel alone: <model>.<i>/<file>.<i>of<count>."""
    data = path.read_bytes()
    count = -(-len(data) // size)
    for i in range(count):
        piece = folder / f"{path.name.split('-')[0].lower()}.{i}"
        piece.mkdir(parents=True, exist_ok=True)
        (piece / f"{path.name}.{i}of{count}").write_bytes(data[i * size:(i + 1) * size])


def main():
    args = parse()
    try:
        return args.do(args)
    except (tools.Failed, texts.Missing, page.pictures.Failed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
