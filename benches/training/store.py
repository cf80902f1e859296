"""The file of runs, written after each, so that what was ended goes on."""

import json
import os
import platform
import statistics

import conclusions
import drawing


class Store:
    """Runs, settings that were tried, and what could not be measured."""

    def __init__(self, output, resume, job):
        before = json.loads(output.read_text()) if resume and output.exists() else {}
        if before.get("job", job) != job:
            raise SystemExit(f"error: {output} holds runs with {before['job']}, not {job}: name another --output")
        self.output, self.job = output, job
        self.runs, self.trials = before.get("runs", []), before.get("trials", [])
        # Tried again each time.
        self.missing = {}

    def has(self, contender, micro_batches, kind, number):
        wanted = contender.name, micro_batches, kind, number
        return any(
            wanted == tuple(run[name] for name in ("contender", "micro_batches", "pool", "round")) for run in self.runs
        )

    def add(self, run):
        self.runs.append(run)
        self.save()

    def add_missing(self, name, micro_batches, kind, why):
        place = f"{name}, {micro_batches} micro-batches, {kind or 'no pool'}"
        if place not in self.missing:
            print(f"NOT MEASURED: {place}: {why}", flush=True)
        self.missing[place] = f"{place}: {why}"

    def tried(self, micro_batches, kind):
        return [each for each in self.trials if (each["micro_batches"], each["pool"]) == (micro_batches, kind)]

    def is_tried(self, name, micro_batches, kind):
        return any(each["name"] == name for each in self.tried(micro_batches, kind))

    def add_trial(self, name, micro_batches, kind, told, warm):
        trial = {
            "name": name,
            "micro_batches": micro_batches,
            "pool": kind,
            "seconds": statistics.median(step["seconds"] for step in warm),
            "peak_bytes": max(step["peak_bytes"] for step in warm),
            "load": told["load"],
        }
        print(
            f"ZeRO-Infinity, {name}, {kind}: {trial['seconds']:.3f} s a step, {trial['peak_bytes'] / 2**20:.0f} MiB",
            flush=True,
        )
        self.trials.append(trial)
        self.save()

    def save(self):
        """Writes everything, and the picture beside it."""
        rows = [
            {"micro_batches": micro_batches, **row}
            for (micro_batches, _), found in conclusions.tables(self.runs).items()
            for row in found
        ]
        machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()}
        document = {
            "machine": machine,
            "job": self.job,
            "results": rows,
            "not_measured": list(self.missing.values()),
            "trials": self.trials,
            "runs": self.runs,
        }
        # Whole or not at all: a run that is ended in the middle is resumed from it.
        fresh = self.output.with_suffix(".new")
        fresh.write_text(json.dumps(document, indent=2) + "\n")
        fresh.replace(self.output)
        self.output.with_suffix(".svg").write_text(drawing.draw(conclusions.tables(self.runs), machine))
