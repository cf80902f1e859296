"""Ratios of pairs of runs, with a bound, and the check of their limits."""

import math
import statistics
from dataclasses import dataclass

# What is compared, as a ratio of ours to the peer's.
COMPARED = ("bytes_per_second", "cpu_seconds_per_gib", "p99_us")


@dataclass(frozen=True)
class Limits:
    """Limits of a case's ratios. `None` asks for nothing."""

    median_min: float | None = None
    lower_min: float | None = None
    cpu_max: float | None = None

    def is_any(self):
        return self != Limits()


def lower_rank(count):
    """Returns the number of ordered values, of `count`, that lie below a value that the true median exceeds with 95 %
    confidence.

    From the sign test, so it holds whatever the distribution. `None` where there are too few values for a bound.
    """
    below, rank = 0.0, 0
    while True:
        below += math.comb(count, rank) / 2**count
        if below > 0.05:
            return rank - 1 if rank > 0 else None
        rank += 1


def summary(values):
    """Median, extremes, and the one-sided 95 % bounds of the median."""
    ordered = sorted(values)
    rank = lower_rank(len(ordered))
    return {
        "min": ordered[0],
        "lower": None if rank is None else ordered[rank],
        "median": statistics.median(ordered),
        "upper": None if rank is None else ordered[-1 - rank],
        "max": ordered[-1],
    }


def ratios(pairs):
    """Summaries of ours over the peer's, for what both measured in every pair."""
    figures = {}
    for name in COMPARED:
        values = [(getattr(theirs, name), getattr(ours, name)) for theirs, ours in pairs]
        known = all(theirs and ours is not None for theirs, ours in values)
        figures[name] = summary([ours / theirs for theirs, ours in values]) if known else None
    return figures


def medians(samples):
    """The median of each figure of runs, where every run has it."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in COMPARED}
    return {name: None if None in values else statistics.median(values) for name, values in columns.items()}


def misses(limits, figures):
    """Describes the figures that fall short of the limits."""
    throughput, cpu = figures["bytes_per_second"], figures["cpu_seconds_per_gib"]
    if limits.median_min is not None and throughput["median"] < limits.median_min:
        yield f"median {throughput['median']:.3f} is below {limits.median_min}"
    if limits.lower_min is not None:
        if throughput["lower"] is None:
            yield "too few pairs for a lower bound"
        elif throughput["lower"] < limits.lower_min:
            yield f"lower bound {throughput['lower']:.3f} is below {limits.lower_min}"
    if limits.cpu_max is not None:
        if cpu is None:
            yield "the CPU time of a run is not known"
        elif cpu["median"] > limits.cpu_max:
            yield f"CPU per byte {cpu['median']:.3f} is above {limits.cpu_max}"


def misses_alone(limits, figures):
    """Describes the figures that fall short of the limits of a load that runs alone."""
    for name, most in limits.items():
        figure = name.removesuffix("_max")
        if figures[figure] > most:
            yield f"{figure} {figures[figure]:.4f} is above {most}"
