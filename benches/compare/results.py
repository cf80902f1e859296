"""Results: a line each, the verdict of all, and the file with every figure."""

import json
import os
import platform

import figures
import picture

MISSED, NOT_MEASURED = 1, 3

HEADER = (
    f"{'':<43} {'ratio of throughput':^27} {'ratio of CPU time':^20} {'ratio of p99':^20} {'GiB/s':^13} {'CPU s per GiB':^13}\n"
    f"{'case':<30} {'devices':<12} {'median':>6} {'lower':>6} {'min':>6} {'max':>6} "
    f"{'median':>6} {'min':>6} {'max':>6} {'median':>6} {'min':>6} {'max':>6} {'peer':>6} {'ours':>6} {'peer':>6} {'ours':>6} verdict"
)


def key(result):
    return result["case"], result["devices"]


def misses(result):
    """Describes the figures of a result that fall short."""
    limits = result["limits"]
    if "alone" in result:
        return list(figures.misses_alone(limits, result["alone"]))
    return list(figures.misses(figures.Limits(**limits), result["ratios"]))


def is_cut_short(result):
    return result.get("pairs_wanted", 0) > result.get("pairs", 0) and figures.Limits(**result["limits"]).is_any()


def pairs_in_time(result):
    return f"{result['pairs']} of {result['pairs_wanted']} pairs in time"


def verdict_of(result):
    if found := misses(result):
        return f"MISSED: {'; '.join(found)}"
    if is_cut_short(result):
        return pairs_in_time(result)
    return "met" if any(limit is not None for limit in result["limits"].values()) else "no limit"


def row(result):
    """A line of the table."""
    cells = [f"{result['case']:<30} {result['devices']:<12}"]
    if "alone" in result:
        told = [f"{name} {value:.4f}" for name, value in result["alone"].items()]
        return " ".join([*cells, *told, verdict_of(result)])
    for name, columns in zip(
        figures.COMPARED, (("median", "lower", "min", "max"), *[("median", "min", "max")] * 2), strict=True
    ):
        found = result["ratios"][name]
        cells += [number(found and found[column]) for column in columns]
    for name, scale in (("bytes_per_second", 2**30), ("cpu_seconds_per_gib", 1)):
        for side in ("peer_median", "our_median"):
            value = result[side][name]
            cells.append(number(value and value / scale))
    return " ".join([*cells, verdict_of(result)])


def number(value):
    return f"{'-' if value is None else f'{value:.3f}':>6}"


class Results:
    """Figures, and what could not be measured; written whenever something comes, so that a run may be resumed."""

    def __init__(self, output, before=None):
        self.output = output
        before = before or {}
        self.measured = {key(result): result for result in before.get("results", [])}
        self.missing = {text.partition(": ")[0]: text for text in before.get("not_measured", [])}

    @classmethod
    def kept(cls, output):
        """Makes the results, with those of an earlier run in the file."""
        return cls(output, json.loads(output.read_text()) if output.exists() else None)

    def has(self, name, kind):
        return (name, kind) in self.measured and not is_cut_short(self.measured[name, kind])

    def add(self, result):
        self.measured[key(result)] = result
        self.missing.pop(place(*key(result)), None)
        self.save()

    def add_missing(self, name, kind, why):
        self.missing[place(name, kind)] = f"{place(name, kind)}: {why}"
        self.measured.pop((name, kind), None)
        self.save()

    def complaints(self):
        return [f"{result['case']}: {miss}" for result in self.measured.values() for miss in misses(result)]

    def not_measured(self):
        short = [result for result in self.measured.values() if is_cut_short(result)]
        return [*self.missing.values(), *(f"{place(*key(result))}: {pairs_in_time(result)}" for result in short)]

    def status(self):
        return MISSED if self.complaints() else NOT_MEASURED if self.not_measured() else 0

    def save(self):
        """Writes the figures, and the picture beside them."""
        machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()}
        results = list(self.measured.values())
        document = {
            "machine": machine,
            "results": results,
            "missed": self.complaints(),
            "not_measured": self.not_measured(),
        }
        # Whole or not at all: a run that is ended in the middle is resumed from it.
        fresh = self.output.with_suffix(".new")
        fresh.write_text(json.dumps(document, indent=2) + "\n")
        fresh.replace(self.output)
        title = f"Tidelog and its peers, Linux {machine['kernel']}, {machine['cpus']} CPUs"
        compared = [result for result in results if "ratios" in result]
        self.output.with_suffix(".svg").write_text(picture.draw(compared, title))


def place(name, kind):
    return f"{name} ({kind})"
