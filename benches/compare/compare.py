"""Tidelog against its peers: interleaved pairs on the same kind of devices, medians of ratios, verdicts.

    python3 benches/compare/compare.py                                  # everything: about an hour
    python3 benches/compare/compare.py --list
    python3 benches/compare/compare.py --only fio-io_uring:raw --devices loop
    python3 benches/compare/compare.py --only deepspeed --add           # beside what was measured before

Each pair runs the peer and then Tidelog, for the same time on devices of the same kind; a figure is the median of the pairs'
ratios, with a lower bound that holds with 95 % confidence whatever the distribution (an order statistic). A limit
that is missed makes the exit status 1; one that could not be measured here makes it 3.

Loop devices lie over files in memory, so that software is measured and not a disk; they need root. Files on a disk
are shown beside them, without a verdict: there the disk decides. DeepSpeed, safetensors and torch.save take files,
so they have one on an ext4 of their own on each device; Tidelog has the devices.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import sys
import tempfile

import cases
import figures
import picture
from devices import KINDS, LoopDevices, NoDevices
from peers import NoPeer
from python_peers import Environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
MISSED, NOT_MEASURED = 1, 3


def measure(case, theirs, ours, arguments):
    """Runs the pairs; answers the figures of one case."""
    pairs = []
    try:
        case.peer.prepare(case.load, theirs, arguments.seconds)
        # The first run of each warms up: it maps the memory behind the devices.
        for turn in range(arguments.pairs + 1):
            pair = tuple(who.run(case.load, where, arguments.seconds) for who, where in ((case.peer, theirs), (case.ours, ours)))
            if turn > 0:
                pairs.append(pair)
    finally:
        case.peer.finish()
    return {
        "case": case.name,
        "devices": theirs.kind,
        "peer": case.peer.name,
        "ours": case.ours.name,
        "pairs": arguments.pairs,
        "seconds": arguments.seconds,
        "load": os.getloadavg()[0],
        "threads": getattr(case.peer, "threads", None),
        "ratios": figures.ratios(pairs),
        "limits": dataclasses.asdict(case.limits) if theirs.kind == LoopDevices.kind else {},
        "peer_median": figures.medians([peer for peer, _ in pairs]),
        "our_median": figures.medians([mine for _, mine in pairs]),
        "samples": [[dataclasses.asdict(sample) for sample in pair] for pair in pairs],
    }


def on_devices(case, kind, arguments):
    """Makes the devices of a case, and measures it on them."""
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.files or ROOT / "target"))
        theirs = stack.enter_context(kind(disk, case.devices))
        # What a peer writes to the devices would end the log's pool.
        ours = theirs if case.share_devices else stack.enter_context(kind(disk, case.devices))
        return measure(case, theirs, ours, arguments)


def row(result):
    """A line of the table."""
    cells = [f"{result['case']:<30} {result['devices']:<12}"]
    throughput, cpu, p99 = (result["ratios"][name] for name in figures.COMPARED)
    cells += [number(throughput[what], 6) for what in ("median", "lower", "min", "max")]
    cells += [number(each and each["median"], 6) for each in (cpu, p99)]
    for name, scale in (("bytes_per_second", 2**30), ("cpu_seconds_per_gib", 1)):
        for side in ("peer_median", "our_median"):
            value = result[side][name]
            cells.append(number(value and value / scale, 6))
    return " ".join(cells)


def number(value, width):
    return f"{'-' if value is None else f'{value:.3f}':>{width}}"


HEADER = (
    f"{'':<43} {'ratio of throughput':^27} {'CPU':>6} {'p99':>6} {'GiB/s':^13} {'CPU s per GiB':^13}\n"
    f"{'case':<30} {'devices':<12} {'median':>6} {'lower':>6} {'min':>6} {'max':>6} {'ratio':>6} {'ratio':>6} "
    f"{'peer':>6} {'ours':>6} {'peer':>6} {'ours':>6}"
)


def measured(chosen, kinds, arguments):
    """Results as they come; what could not be measured is a text instead."""
    for kind in kinds:
        for case in chosen:
            try:
                case.peer.check()
                yield on_devices(case, kind, arguments)
            except (NoDevices, NoPeer) as error:
                yield f"{case.name} ({kind.kind}): {error}"


def verdict(results, unmeasured):
    """What falls short, and the exit status."""
    complaints = [
        f"{result['case']}: {miss}"
        for result in results
        for miss in figures.misses(figures.Limits(**result["limits"]), result["ratios"])
    ]
    return complaints, MISSED if complaints else NOT_MEASURED if unmeasured else 0


def merged(before, results, unmeasured):
    """Results, in the place of earlier ones of the same case on the same devices."""
    by_case = {(result["case"], result["devices"]): result for result in [*before.get("results", []), *results]}
    now = {f"{case} ({devices})" for case, devices in by_case}
    missing = {text.partition(": ")[0]: text for text in [*before.get("not_measured", []), *unmeasured]}
    return list(by_case.values()), [text for name, text in missing.items() if name not in now]


def save(output, results, complaints, unmeasured):
    """Writes the figures, and the picture beside them."""
    machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()}
    document = {"machine": machine, "results": results, "missed": complaints, "not_measured": unmeasured}
    output.write_text(json.dumps(document, indent=2) + "\n")
    title = f"Tidelog and its peers, Linux {machine['kernel']}, {machine['cpus']} CPUs"
    output.with_suffix(".svg").write_text(picture.draw(results, title))


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="interleaved pairs of each case (default 15)")
    parser.add_argument("--seconds", type=float, default=1, help="length of each run (default 1)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--devices", choices=[*KINDS, "all"], default="all", help="loop devices over memory, files, or both")
    parser.add_argument("--files", help="a directory on a disk, for the cases on files (default: target)")
    parser.add_argument("--list", action="store_true", help="show the cases, and do nothing")
    parser.add_argument("--add", action="store_true", help="keep what the output holds of other cases; the verdict is of all")
    parser.add_argument("--program", default=ROOT / "target/release/tidelog-bench", help="the tidelog-bench to measure")
    parser.add_argument("--against", help="another build of tidelog-bench, to be the peer instead of all others")
    parser.add_argument("--environment", type=pathlib.Path, default=ROOT / "target/compare-peers", help="the Python peers' environment")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "target/compare.json", help="where the figures go; the picture lies beside them")
    arguments = parser.parse_args()
    if figures.lower_rank(arguments.pairs) is None:
        parser.error("fewer than 5 pairs have no lower bound")
    return arguments


def main():
    arguments = parsed()
    if arguments.against:
        known = cases.against_build(arguments.program, arguments.against)
    else:
        known = cases.cases(arguments.program, Environment(arguments.environment, ROOT / ".venv"))
    chosen = [case for case in known if arguments.only in case.name]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    kinds = list(KINDS.values()) if arguments.devices == "all" else [KINDS[arguments.devices]]
    before = json.loads(arguments.output.read_text()) if arguments.add and arguments.output.exists() else {}
    results, unmeasured = [], []
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n{HEADER}", flush=True)
    for found in measured(chosen, kinds, arguments):
        if isinstance(found, str):
            unmeasured.append(found)
            print(f"NOT MEASURED: {found}", flush=True)
        else:
            results.append(found)
            print(row(found), flush=True)
    results, unmeasured = merged(before, results, unmeasured)
    complaints, status = verdict(results, unmeasured)
    save(arguments.output, results, complaints, unmeasured)
    for what in complaints:
        print(f"falls short: {what}")
    for what in unmeasured:
        print(f"NOT MEASURED: {what}")
    print(f"{arguments.output} and {arguments.output.with_suffix('.svg')}")
    return status


if __name__ == "__main__":
    sys.exit(main())
