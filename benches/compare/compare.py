"""Tidelog against its peers: interleaved pairs on the same kind of devices, medians of ratios, verdicts.

    python3 benches/compare/compare.py                                  # everything: under 20 minutes on two quiet cores
    python3 benches/compare/compare.py --list
    python3 benches/compare/compare.py --only fio-io_uring:raw --devices loop
    python3 benches/compare/compare.py --only deepspeed --add           # anew, beside what was measured before
    python3 benches/compare/compare.py --resume                         # what is missing since it was ended in the middle

Each pair runs the peer and then Tidelog, for the same time on devices of the same kind; a figure is the median of the
pairs' ratios, with a lower bound that holds with 95 % confidence whatever the distribution (an order statistic). A
limit that is missed makes the exit status 1; one that could not be measured here, or not often enough in its time,
makes it 3.

Loop devices lie over files in memory, so that software is measured and not a disk; they need root. Files on a disk
are shown beside them, without a verdict: there the disk decides. DeepSpeed, safetensors and torch.save take files,
so they have one on an ext4 of their own on each device; Tidelog has the devices.

    python3 benches/compare/compare.py --devices spdk                   # against SPDK's own spdk_nvme_perf

needs an installed SPDK and a tidelog-bench that was built with its feature spdk; `make compare-spdk` builds that. Both
sides drive the same controllers of SPDK's target program, over TCP on the loopback, from the same core.
"""

import argparse
import contextlib
import fcntl
import os
import pathlib
import signal
import sys

import alone
import cases
import figures
import measure
import results
import spdk
from devices import KINDS, NoDevices
from peers import Failed, NoPeer
from progress import Progress
from python_peers import Environment

ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def alone_here(folder):
    """Two comparisons at once would measure each other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SystemExit(f"error: another comparison writes to {folder}; wait for its end") from None
    finally:
        os.close(descriptor)


def end_on_sigterm():
    """Ends as Ctrl-C does, so that devices and their memory are given back."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def rows(chosen, kinds):
    """Each case on each kind of device that it is for."""
    return [(case, kind) for kind in kinds for case in chosen if case.is_for(kind)]


def run(chosen, found, effort, folder):
    """Measures row after row; prints each, and keeps it."""
    progress = Progress([case.turns(effort, kind) for case, kind in chosen])
    for case, kind in chosen:
        progress.begins(results.place(case.name, kind.kind))
        try:
            case.check()
            measured = case.measured(kind, folder, effort, progress)
        except (NoDevices, NoPeer, Failed) as error:
            found.add_missing(case.name, kind.kind, str(error))
            progress.ends()
            print(f"NOT MEASURED: {results.place(case.name, kind.kind)}: {error}", flush=True)
        else:
            found.add(measured)
            progress.ends()
            print(results.row(measured), flush=True)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, default=15, help="interleaved pairs of each case that has a limit (default 15)"
    )
    parser.add_argument("--pairs-shown", type=int, default=5, help="pairs of each other case (default 5)")
    parser.add_argument("--seconds", type=float, default=1, help="length of each run (default 1)")
    parser.add_argument(
        "--budget", type=float, default=75, help="seconds for a case that has a limit; then no more pairs (default 75)"
    )
    parser.add_argument("--budget-shown", type=float, default=12, help="seconds for each other case (default 12)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--devices",
        choices=[*KINDS, "spdk", "all"],
        default="all",
        help="loop devices over memory, files, both (all), or controllers of SPDK's target",
    )
    parser.add_argument("--files", help="a directory on a disk, for the cases on files (default: target)")
    parser.add_argument("--list", action="store_true", help="show the cases, and do nothing")
    parser.add_argument(
        "--add", action="store_true", help="keep what the output holds of other cases; the verdict is of all"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep all that the output holds, and measure what is missing"
    )
    parser.add_argument("--program", default=ROOT / "target/release/tidelog-bench", help="the tidelog-bench to measure")
    parser.add_argument("--against", help="another build of tidelog-bench, to be the peer instead of all others")
    parser.add_argument(
        "--environment", type=pathlib.Path, default=ROOT / "target/compare-peers", help="the Python peers' environment"
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=ROOT / "target/compare.json",
        help="where the figures go; the picture lies beside them",
    )
    arguments = parser.parse_args()
    if figures.lower_rank(arguments.pairs) is None:
        parser.error("fewer than 5 pairs have no lower bound")
    if arguments.pairs_shown < measure.PAIRS_LEAST:
        parser.error(f"a median needs {measure.PAIRS_LEAST} pairs")
    return arguments


def main():
    arguments = parsed()
    end_on_sigterm()
    with alone_here(arguments.output.parent), Environment(arguments.environment, ROOT / ".venv") as environment:
        if arguments.against:
            known = cases.against_build(arguments.program, arguments.against)
        else:
            known = [*cases.cases(arguments.program, environment), *alone.cases(arguments.program)]
        kinds = (
            list(KINDS.values())
            if arguments.devices == "all"
            else [{**KINDS, "spdk": spdk.Controllers}[arguments.devices]]
        )
        chosen = rows([case for case in known if arguments.only in case.name], kinds)
        if not chosen:
            raise SystemExit(f"error: no case here has {arguments.only!r} in its name; --list shows them")
        if arguments.list:
            print("\n".join(results.place(case.name, kind.kind) for case, kind in chosen))
            return 0
        keeps = arguments.add or arguments.resume
        found = results.Results.kept(arguments.output) if keeps else results.Results(arguments.output)
        if arguments.resume:
            chosen = [(case, kind) for case, kind in chosen if not found.has(case.name, kind.kind)]
        effort = measure.Effort(
            arguments.pairs, arguments.pairs_shown, arguments.seconds, arguments.budget, arguments.budget_shown
        )
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n{results.HEADER}", flush=True)
        run(chosen, found, effort, arguments.files or ROOT / "target")
    for what in found.complaints():
        print(f"falls short: {what}")
    for what in found.not_measured():
        print(f"NOT MEASURED: {what}")
    print(f"{arguments.output} and {arguments.output.with_suffix('.svg')}")
    return found.status()


if __name__ == "__main__":
    sys.exit(main())
