"""Runs jobs, several at once. What is finished is a file, so a run that was stopped goes on where it was."""

import dataclasses
import hashlib
import json
import pathlib
import signal
import subprocess
import sys
import time

import key_bias
import plan
import tools as tool_box

FORMAT = {"format": "vecinfer-result", "version": 1}


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def write_json(path, value):
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    part.replace(path)


@dataclasses.dataclass
class Settings:
    out: pathlib.Path
    models: pathlib.Path
    texts: pathlib.Path
    threads: int
    parallel: int
    deadline: float | None  # time.time() after which nothing runs any more
    commit: str
    chunks: int | None = None  # in place of the model's
    calibration_chunks: int | None = None  # an upper limit, for trials


class Task:
    """One program run. `done` is a file whose presence says that it need not run."""

    def __init__(self, kind, name, done, needs):
        self.kind, self.name, self.done, self.needs = kind, name, done, needs
        self.process = self.log = None
        self.begin = 0.0
        self.failed = ""

    def finished(self):
        return self.done.exists()


class Runner:
    def __init__(self, tools, settings):
        self.tools, self.settings = tools, settings
        for folder in ("jobs", "sidecars", "logits", "logs"):
            (settings.out / folder).mkdir(parents=True, exist_ok=True)
        self.hashes = {}
        self.tasks = {}  # name: Task, in the order in which they are wanted
        self.machine = tool_box.machine()
        self.stopping = False

    # What is run, and what its result is called

    def hash_of(self, path):
        if path not in self.hashes:
            self.hashes[path] = tool_box.sha256(path)
        return self.hashes[path]

    def model_path(self, model):
        return self.settings.models / plan.MODELS[model]["file"]

    def text_path(self, text):
        return self.settings.texts / f"{text}.txt"

    def chunks(self, job):
        return self.settings.chunks or plan.MODELS[job.model]["chunks"]

    def calibration_chunks(self, calibration):
        return min(calibration.chunks, self.settings.calibration_chunks or calibration.chunks)

    def base_inputs(self, job):
        return {"model": self.hash_of(self.model_path(job.model)), "text": self.hash_of(self.text_path(job.text)),
                "chunks": self.chunks(job), "context": plan.CONTEXT, "micro_batch": plan.MICRO_BATCH,
                "perplexity": self.hash_of(self.tools.paths["perplexity"])}

    def calibration_inputs(self, job):
        return {"model": self.hash_of(self.model_path(job.model)), "text": self.hash_of(self.text_path(job.calibration.text)),
                "chunks": self.calibration_chunks(job.calibration), "scheme": plan.calibrated_scheme(job.scheme),
                "tools": self.tools.stamp}

    def job_inputs(self, job):
        inputs = {"base": self.base_inputs(job), "cache": job.cache, "scheme": job.scheme}
        if job.scheme:
            inputs["tools"] = self.tools.stamp
        if job.calibration:
            inputs["calibration"] = self.calibration_inputs(job)
        return inputs

    def result_path(self, job):
        return self.settings.out / "jobs" / f"{digest(self.job_inputs(job))}.json"

    def logits_path(self, job):
        return self.settings.out / "logits" / f"{digest(self.base_inputs(job))}.kld"

    def sidecar_path(self, job):
        return self.settings.out / "sidecars" / f"{digest(self.calibration_inputs(job))}.gguf"

    # Tasks

    def plan_jobs(self, jobs):
        """Tasks of all jobs that have no result yet, each behind what it needs."""
        for job in jobs:
            result = self.result_path(job)
            if job.is_base() or result.exists():
                continue
            needs = [self.base_task(job.base())]
            if job.calibration:
                needs.append(self.calibration_task(job))
            name = f"{job.model} {job.scheme or job.cache}"
            if job.calibration:
                name += f" ({job.calibration.text} x {self.calibration_chunks(job.calibration)})"
            if job.text != plan.TEST_TEXT:
                name += f" on {job.text}"
            task = Task("quality", name, result, needs)
            task.job = job
            self.tasks[result] = task

    def base_task(self, base):
        path = self.logits_path(base)
        if path not in self.tasks:
            self.tasks[path] = task = Task("base", f"{base.model} f16 base on {base.text}", path, [])
            task.job = base
        return self.tasks[path]

    def calibration_task(self, job):
        path = self.sidecar_path(job)
        if path not in self.tasks:
            name = f"{job.model} calibrating {plan.calibrated_scheme(job.scheme)} ({job.calibration.text} x " \
                   f"{self.calibration_chunks(job.calibration)})"
            self.tasks[path] = task = Task("calibration", name, path, [])
            task.job = job
        return self.tasks[path]

    def command(self, task):
        job, s = task.job, self.settings
        model = str(self.model_path(job.model))
        if task.kind == "calibration":
            return self.tools.calibration(plan.calibrated_scheme(job.scheme), model, str(self.text_path(job.calibration.text)),
                                          self.calibration_chunks(job.calibration), f"{task.done}.part", s.threads)
        sidecar = str(self.sidecar_path(job)) if job.calibration else ""
        logits = f"{task.done}.part" if task.kind == "base" else str(self.logits_path(job))
        return self.tools.perplexity(job, model, str(self.text_path(job.text)), self.chunks(job), logits, sidecar, s.threads)

    def start(self, task):
        command, environment = self.command(task)
        task.log = self.settings.out / "logs" / f"{task.done.stem}.log"
        task.begin = time.time()
        with open(task.log, "wb") as log:
            task.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT)

    def finish(self, task):
        seconds = time.time() - task.begin
        output = task.log.read_text(errors="replace")
        try:
            if task.process.returncode != 0:
                raise tool_box.Failed(tool_box.reason(output, task.process.returncode))
            if task.kind == "quality":
                self.save(task.job, tool_box.quality(task.job, output), seconds)
            else:
                if task.kind == "base":
                    self.save(task.job, tool_box.quality(task.job, output), seconds)
                part = pathlib.Path(f"{task.done}.part")
                write_json(task.done.with_suffix(".json"), {"seconds": round(seconds, 1), "threads": self.settings.threads})
                part.replace(task.done)
        except (tool_box.Failed, OSError) as error:
            task.failed = str(error)
        self.say(f"{task.name}: {task.failed or f'{seconds:.0f} s'}")

    def save(self, job, figures, seconds):
        result = {**FORMAT, "model": job.model, "model_file": self.model_path(job.model).name, "text": job.text,
                  "cache": job.cache, "scheme": job.scheme, "chunks": self.chunks(job), "quality": figures,
                  "bits": self.tools.costs(job, str(self.model_path(job.model))), "seconds": round(seconds, 1),
                  "inputs": self.job_inputs(job), "machine": self.machine, "threads": self.settings.threads,
                  "parallel": self.settings.parallel, "commit": self.settings.commit,
                  "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "calibration": None}
        if job.calibration:
            times = json.loads(self.sidecar_path(job).with_suffix(".json").read_text())
            result["calibration"] = {"text": job.calibration.text, "chunks": self.calibration_chunks(job.calibration),
                                     "context": plan.CALIBRATION_CONTEXT, **times}
        write_json(self.result_path(job), result)

    # The loop

    def say(self, text):
        done = sum(t.finished() for t in self.tasks.values())
        print(f"[{time.time() - self.began:5.0f}s] {done}/{len(self.tasks)} {text}", file=sys.stderr, flush=True)

    def prepare_models(self, jobs):
        wanted = {job.model for job in jobs}
        bias = self.model_path("smollm2-bias")
        if "smollm2-bias" in wanted and not bias.exists():
            offsets = key_bias.make(self.model_path("smollm2"), bias)
            print(f"made {bias.name}: offsets {offsets}", file=sys.stderr)
        missing = [str(self.model_path(m)) for m in sorted(wanted) if not self.model_path(m).exists()]
        missing += [str(p) for p in sorted({self.text_path(t) for j in jobs for t in
                                            (j.text, j.calibration.text if j.calibration else j.text)}) if not p.exists()]
        if missing:
            raise tool_box.Failed(f"missing: {', '.join(missing)}")

    def usual_seconds(self, kind):
        """Longest of the tasks of this kind so far, to know what still fits before the deadline."""
        return max((t.seconds for t in self.tasks.values() if t.kind == kind and hasattr(t, "seconds")), default=0)

    def startable(self, task):
        return (task.process is None and not task.failed and not task.finished()
                and all(need.finished() for need in task.needs))

    def run(self, jobs):
        """True if every job has its result."""
        self.began = time.time()
        self.prepare_models(jobs)
        self.plan_jobs(jobs)
        self.order_tasks()
        running = []
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, self.on_signal)
        self.say("to do: " + ", ".join(f"{sum(t.kind == k and not t.finished() for t in self.tasks.values())} {k}"
                                       for k in ("base", "calibration", "quality")))
        while True:
            for task in [t for t in running if t.process.poll() is not None]:
                running.remove(task)
                task.seconds = time.time() - task.begin
                self.finish(task)
            late = self.settings.deadline and time.time() > self.settings.deadline
            if late or self.stopping:
                break
            while len(running) < self.settings.parallel:
                task = next((t for t in self.tasks.values() if self.startable(t) and self.fits(t)), None)
                if task is None:
                    break
                self.start(task)
                running.append(task)
            if not running:
                break
            time.sleep(0.05)
        for task in running:
            task.process.kill()
            task.process.wait()
        self.clean()
        return self.report(jobs)

    def fits(self, task):
        deadline = self.settings.deadline
        return not deadline or time.time() + 0.8 * self.usual_seconds(task.kind) < deadline

    def order_tasks(self):
        """Each task behind its needs, which come as late as possible, so that a stop leaves few calibrations unused."""
        ordered = {}
        for path, task in self.tasks.items():
            if task.kind == "quality":
                for need in task.needs:
                    ordered.setdefault(need.done, need)
                ordered[path] = task
        self.tasks = ordered

    def on_signal(self, number, frame):
        self.stopping = True

    def clean(self):
        """Logits nobody waits for take hundreds of megabytes."""
        for task in self.tasks.values():
            if task.kind == "base" and all(t.finished() for t in self.tasks.values() if task in t.needs):
                task.done.unlink(missing_ok=True)
        for part in self.settings.out.glob("*/*.part"):
            part.unlink(missing_ok=True)

    def report(self, jobs):
        failed = [t for t in self.tasks.values() if t.failed]
        for task in failed:
            print(f"failed: {task.name}: {task.failed} (log: {task.log})", file=sys.stderr)
        wanted = [job for job in jobs if not job.is_base()]
        done = sum(self.result_path(job).exists() for job in wanted)
        print(f"{done} of {len(wanted)} results in {self.settings.out / 'jobs'}"
              + ("" if done == len(wanted) else "; the same command goes on"), file=sys.stderr)
        return done == len(wanted)
