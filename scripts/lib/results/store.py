"""Finished results: reading them, and the data files of docs/results."""

import json

import plan


def read_jobs(folder):
    """Every result of a run's folder."""
    results = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if result.get("format") == "vecinfer-result":
            results.append(result)
    return results


def identity(result):
    """What makes a result belong to a row: all but how long and by which build it was measured."""
    calibration = result["calibration"]
    return (result["model"], result["text"], result["cache"], result["scheme"],
            (calibration["text"], calibration["chunks"]) if calibration else None)


def job_identity(job):
    return (job.model, job.text, job.cache, job.scheme,
            (job.calibration.text, job.calibration.chunks) if job.calibration else None)


class Store:
    """Results by row. Of several for one row the longest measurement counts, then the latest; of bases every build's is kept."""

    def __init__(self, results):
        self.by_identity = {}
        self.bases = {}
        for result in sorted(results, key=lambda r: (r["chunks"], r["date"])):
            self.by_identity[identity(result)] = result
            if result["cache"] == "f16" and not result["scheme"]:
                self.bases[result["model"], result["text"], result["chunks"], result["commit"]] = result

    def find(self, job):
        return self.by_identity.get(job_identity(job))

    def rows(self, group, model):
        """[(labels, result)] of the rows that have been measured; none if not even half are: groups share rows."""
        all_rows = plan.GROUPS[group](model)
        found = [(row.labels, self.find(row.job)) for row in all_rows]
        found = [(labels, result) for labels, result in found if result]
        return found if 2 * len(found) >= len(all_rows) else []

    def base(self, result):
        """That of the same build, which the result was compared with; None if it is not there."""
        return self.bases.get((result["model"], result["text"], result["chunks"], result["commit"]))


def data_file(group):
    return f"schemes_{group}.json"


def write_data(store, folder):
    """One file per group with every measured row; groups without any are left as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for group in plan.GROUPS:
        rows, bases = [], {}
        for model in plan.models_of(group):
            for labels, result in store.rows(group, model):
                rows.append({"labels": list(labels), **result})
                base = store.base(result)
                if base:
                    bases[identity(base), base["commit"]] = base
        if rows:
            path = folder / data_file(group)
            path.write_text(json.dumps({"format": "vecinfer-results", "version": 1, "group": group, "bases": list(bases.values()),
                                        "rows": rows}, indent=1, sort_keys=True) + "\n")
            written.append(path)
    return written


def read_data(folder):
    """Results of all data files."""
    results = []
    for group in plan.GROUPS:
        path = folder / data_file(group)
        if path.exists():
            data = json.loads(path.read_text())
            results += data["bases"] + data["rows"]
    return results
