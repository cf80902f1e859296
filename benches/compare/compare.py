"""Tidelog against its peers: interleaved pairs on the same kind of devices, medians of ratios, verdicts.

    python3 benches/compare/compare.py [--pairs 15] [--seconds 1] [--only raw-read] [--files DIRECTORY]

Each pair runs the peer and then Tidelog, for the same time on devices of the same kind; a figure is the median of the pairs'
ratios, with a lower bound that holds with 95 % confidence whatever the distribution (an order statistic). Figures
of the issue that are missed make the exit status 1; figures that could not be measured here make it 3.

Loop devices lie over files in memory, so that software is measured and not a disk; they need root. Files on a disk
are shown beside them, without a verdict: there the disk decides.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import statistics
import sys
import tempfile
from dataclasses import dataclass

import peers
from devices import Files, LoopDevices, NoDevices

ROOT = pathlib.Path(__file__).resolve().parents[2]
MISSED, NOT_MEASURED = 1, 3


@dataclass(frozen=True)
class Case:
    """One load, the two that do it, and what the ratio must be."""

    name: str
    load: peers.Load
    ours: peers.Peer
    median_min: float
    lower_min: float | None = None
    cpu_max: float | None = None


def cases(program):
    raw, log = peers.Tidelog(program, "raw"), peers.Tidelog(program, "log")
    sequential = {"bs": "1m", "iodepth": 32}
    random = {"bs": "4k", "iodepth": 64, "cpus": "0"}
    read, write = peers.Load("read", **sequential), peers.Load("write", **sequential)
    # The log keeps two versions of what is written, so it works on a part of its devices.
    part = {"size": "384m", **sequential}
    return [
        Case("raw-read", read, raw, 1.0, 0.97, 1.05),
        Case("raw-write", write, raw, 1.0, 0.97, 1.05),
        Case("raw-randread-4k", peers.Load("randread", **random), raw, 1.0, 0.97, 1.05),
        Case("log-read", peers.Load("read", **part), log, 0.75),
        Case("log-write", peers.Load("write", **part), log, 0.85),
    ]


def median_and_lower(ratios):
    """The median, and the order statistic that it exceeds with 95 % confidence (one-sided, from the sign test)."""
    ordered = sorted(ratios)
    count = len(ordered)
    rank, below = 0, 0.0
    while True:
        below += math.comb(count, rank) / 2**count
        if below > 0.05:
            break
        rank += 1
    lower = ordered[rank - 1] if rank > 0 else float("nan")
    return statistics.median(ordered), lower


def measure(case, peer, theirs, ours, arguments):
    """Runs the pairs; answers the figures of one case."""
    pairs = []
    # The first run of each warms up: it maps the memory behind the devices.
    for turn in range(arguments.pairs + 1):
        sample = (peer.run(case.load, theirs, arguments.seconds), case.ours.run(case.load, ours, arguments.seconds))
        if turn > 0:
            pairs.append(sample)
    ratios = {
        name: [getattr(mine, name) / getattr(other, name) for other, mine in pairs]
        for name in ("bytes_per_second", "cpu_seconds_per_gib", "p99_us")
    }
    figures = {}
    for name, values in ratios.items():
        median, lower = median_and_lower(values)
        figures[name] = {"median": median, "lower": lower, "min": min(values), "max": max(values)}
    return {
        "case": case.name,
        "devices": theirs.kind,
        "peer": peer.name,
        "ratios": figures,
        "peer_median": {name: statistics.median(getattr(other, name) for other, _ in pairs) for name in ratios},
        "our_median": {name: statistics.median(getattr(mine, name) for _, mine in pairs) for name in ratios},
    }


def misses(case, result):
    """What falls short of the case's figures, in words."""
    throughput = result["ratios"]["bytes_per_second"]
    cpu = result["ratios"]["cpu_seconds_per_gib"]["median"]
    if throughput["median"] < case.median_min:
        yield f"median {throughput['median']:.3f} is below {case.median_min}"
    # With few pairs there is no bound.
    if case.lower_min is not None and not throughput["lower"] >= case.lower_min:
        yield f"lower bound {throughput['lower']:.3f} is below {case.lower_min}"
    if case.cpu_max is not None and cpu > case.cpu_max:
        yield f"CPU per byte {cpu:.3f} is above {case.cpu_max}"


def row(result):
    figures, peer, ours = result["ratios"], result["peer_median"], result["our_median"]
    throughput = figures["bytes_per_second"]
    return (
        f"{result['case']:<16} {result['devices']:<12} {throughput['median']:>6.3f} {throughput['lower']:>6.3f} "
        f"{throughput['min']:>6.3f} {throughput['max']:>6.3f} {figures['cpu_seconds_per_gib']['median']:>6.3f} "
        f"{figures['p99_us']['median']:>6.3f}   {peer['bytes_per_second'] / 2**30:>6.2f} "
        f"{ours['bytes_per_second'] / 2**30:>6.2f} {peer['cpu_seconds_per_gib']:>6.3f} {ours['cpu_seconds_per_gib']:>6.3f}"
    )


HEADER = (
    f"{'':<29} {'ratio of throughput':^27} {'CPU':>6} {'p99':>6}   {'GiB/s':^13} {'CPU s per GiB':^13}\n"
    f"{'case':<16} {'devices':<12} {'median':>6} {'lower':>6} {'min':>6} {'max':>6} {'ratio':>6} {'ratio':>6}   "
    f"{'peer':>6} {'ours':>6} {'peer':>6} {'ours':>6}"
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="interleaved pairs of each case (default 15)")
    parser.add_argument("--seconds", type=float, default=1, help="length of each run (default 1)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--files", help="a directory on a disk, for the cases on files (default: target)")
    parser.add_argument("--no-files", action="store_true", help="loop devices only")
    parser.add_argument("--program", default=ROOT / "target/release/tidelog-bench", help="the tidelog-bench to measure")
    parser.add_argument("--against", help="another build of tidelog-bench, to be the peer instead of fio")
    parser.add_argument("--output", default=ROOT / "target/compare.json", help="where the figures go")
    arguments = parser.parse_args()
    if arguments.pairs < 5:
        parser.error("fewer than 5 pairs have no lower bound")
    try:
        fio = None if arguments.against else peers.Fio()
    except peers.NoPeer as error:
        print(f"compare: {error}", file=sys.stderr)
        return NOT_MEASURED
    chosen = [case for case in cases(arguments.program) if arguments.only in case.name]
    results, complaints, unmeasured = [], [], []
    print(f"peer: {arguments.against or fio.name}; load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n{HEADER}", flush=True)
    for kind in [LoopDevices] if arguments.no_files else [LoopDevices, Files]:
        for case in chosen:
            try:
                with tempfile.TemporaryDirectory(dir=arguments.files or ROOT / "target") as disk:
                    peer = fio or peers.Tidelog(arguments.against, case.ours.level)
                    with kind(disk) as theirs:
                        if case.ours.level == "raw":
                            result = measure(case, peer, theirs, theirs, arguments)
                        else:
                            # What a peer writes to the devices would end the log's pool.
                            with kind(disk) as ours:
                                result = measure(case, peer, theirs, ours, arguments)
            except NoDevices as error:
                unmeasured.append(f"{case.name}: {error}")
                continue
            results.append(result)
            print(row(result), flush=True)
            if kind is LoopDevices:
                complaints += [f"{case.name}: {miss}" for miss in misses(case, result)]
    document = {
        "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "pairs": arguments.pairs,
        "seconds": arguments.seconds,
        "results": results,
        "missed": complaints,
        "not_measured": unmeasured,
    }
    pathlib.Path(arguments.output).write_text(json.dumps(document, indent=2) + "\n")
    for what in complaints:
        print(f"falls short: {what}")
    for what in unmeasured:
        print(f"NOT MEASURED: {what}")
    return MISSED if complaints else NOT_MEASURED if unmeasured else 0


if __name__ == "__main__":
    sys.exit(main())
