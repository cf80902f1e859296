"""Training beside training: the same model, budget and pool, with ZeRO-Infinity, FSDP2, torch's hooks, and Tidelog.

    python3 benches/training/training.py                       # everything: about 40 minutes on two quiet cores
    python3 benches/training/training.py --only tidelog --rounds 2
    python3 benches/training/training.py --resume --minutes 5  # goes on where it was; begins nothing after 5 minutes

A round runs each contender once, in a process of its own, on devices of one kind: loop devices over memory (needs
root), and a folder on a disk. First DeepSpeed's settings are tried, each once; the fastest takes part, and the
fastest that does with little memory, whose peak is the budget of Tidelog's processes. A peak is what the kernel counts
of the process (VmHWM, without pages of files), above what it held with everything imported. Steps are timed once all
of them are warm. Every loss is compared with the plain run's. Ends with 1 where Tidelog differs in a bit, takes more
memory, or is less than twice as fast; with 3 where something could not be measured.
"""

import argparse
import contextlib
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))

import conclusions
from compare import alone_here, end_on_sigterm
from contenders import CONTENDERS
from devices import KINDS
from peers import Failed, NoPeer
from progress import Progress
from python_peers import Environment
from runs import Lacking, Runner
from store import Store

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    arguments = parsed()
    end_on_sigterm()
    with contextlib.ExitStack() as stack:
        stack.enter_context(alone_here(arguments.output.parent))
        environment = stack.enter_context(Environment(arguments.environment, ROOT / ".venv"))
        job = {"steps": arguments.steps, "threads": arguments.threads}
        store = Store(arguments.output, arguments.resume, job)
        runner = stack.enter_context(Runner(arguments, environment, store))
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", flush=True)
        try:
            run_all(arguments, runner, store)
        finally:
            store.save()
    return report(arguments, store)


def run_all(arguments, runner, store):
    """Round after round, each way round in turn, so that what drifts is nobody's."""
    ends_at = time.monotonic() + 60 * arguments.minutes
    due = [each for each in plan(arguments) if not store.has(*each)]
    progress = Progress([1] * len(due))
    for contender, micro_batches, kind, number in due:
        if time.monotonic() > ends_at:
            print(f"{len(due) - progress.done} runs are still due: --resume goes on", flush=True)
            return
        progress.begins(f"{contender.name}, {micro_batches} micro-batches, {kind}, round {number}")
        try:
            store.add(runner.run(contender, micro_batches, kind, number))
        except (Failed, NoPeer, Lacking) as why:
            store.add_missing(contender.name, micro_batches, kind, str(why))
        progress.ran(1, 1)
        progress.ends()


def plan(arguments):
    """(contender, micro-batches, kind of pool, round), in the order of the runs."""
    chosen = [each for each in CONTENDERS if arguments.only in each.name]
    for number in range(arguments.rounds):
        for micro_batches in arguments.micro_batches:
            turn = [each for each in chosen if micro_batches >= each.micro_batches_min]
            for contender in turn if number % 2 == 0 else reversed(turn):
                for kind in arguments.kinds if contender.has_pool else [None]:
                    yield contender, micro_batches, kind, number


def report(arguments, store):
    missed = []
    for (micro_batches, pool), rows in conclusions.tables(store.runs).items():
        print(
            f"\n{micro_batches} micro-batches, pool on {pool}: seconds a step, peak, bytes a step, times ZeRO-Infinity"
        )
        for row in rows:
            print(conclusions.text(row))
            missed += [f"{row['words']}, {pool}: {miss}" for miss in conclusions.misses(row)]
    for miss in missed:
        print(f"falls short: {miss}")
    for why in store.missing.values():
        print(f"NOT MEASURED: {why}")
    print(f"{arguments.output} and {arguments.output.with_suffix('.svg')}")
    return 1 if missed else 3 if store.missing else 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--steps", type=int, default=12, help="steps of each run (default 12)")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1], help="micro-batches of a step (default 1)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads, and OpenMP's (default 1)")
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--devices", choices=[*KINDS, "all"], default="all", help="what the pools are on")
    parser.add_argument("--files", default=ROOT / "target", help="a folder on a disk (default: target)")
    parser.add_argument("--resume", action="store_true", help="keep what the output holds, and run what is missing")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so many minutes")
    parser.add_argument("--environment", type=pathlib.Path, default=ROOT / "target" / "compare-peers")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "target" / "training.json")
    arguments = parser.parse_args()
    if arguments.steps <= conclusions.WARM_STEPS:
        parser.error(f"the first {conclusions.WARM_STEPS} steps are not timed")
    arguments.kinds = list(KINDS) if arguments.devices == "all" else [arguments.devices]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
