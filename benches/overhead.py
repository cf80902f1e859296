"""Measures the cost of a block: steps plain, under a mode that does nothing, with a budget above the peak, at 50 % and
at 35 %.

    python benches/overhead.py [qwen3 gpt2 mamba rwkv gpt2-124m] [--threads 1] [--rounds 7] [--runs 1] [--pool DIR]
                               [--compiled] [--bound]

Each of the five is a process of its own with the same program; they take their steps in turn, one at a time. Figures
are medians of the steps under the plan; `worst` is the worst step since the second. Where memory lies makes a process
faster or slower than its twin for all of its life, on some machines by a fifth: `--runs` takes that many of each, and
the figures are medians of theirs (`worst`: the worst). All losses must be the same, bit for bit. Exit code 1: a loss
differs. For what the devices cannot be blamed for, take a pool in memory (/dev/shm).
`bound` is what no plan can beat, certified for the trace that the plan was made for and the rates that were measured
by then, as a multiple of that trace's ops alone: with `--bound`, which runs `tidelog-plan compare`.
A compiled model has two of the five: under a mode that does nothing torch runs it eagerly, and budgets are parts of
what the eager one needs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from worker_process import Process

HERE = pathlib.Path(__file__).resolve().parent
PLANNER = HERE.parent / "target" / "release" / "tidelog-plan"
MODELS = ("qwen3", "gpt2", "mamba", "rwkv")
KINDS = {"plain": None, "bare": None, "above": 2.0, "half": 0.5, "tight": 0.35}  # budget: a part of the peak
MIB = 1 << 20


def main():
    arguments = parse_arguments()
    rows = [row for name in arguments.models for row in rows_of(name, arguments)]
    if arguments.output == "json":
        json.dump(rows, sys.stdout, indent=2)
    return 0 if all(row["same_bits"] for row in rows) else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join((*MODELS, 'gpt2-124m'))}")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of the five; plain is always among them")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="steps of each kind under the plan (default 7)")
    parser.add_argument("--runs", type=int, default=1, help="how often all of it runs, in new processes (default 1)")
    parser.add_argument("--pool", default="/dev/shm", help="where the pools are made (default: memory)")
    parser.add_argument("--compiled", action="store_true", help="torch.compile the model; plain and above the peak")
    parser.add_argument("--bound", action="store_true", help="compare with the planner's certified bound, too")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error(f"--runs {arguments.runs}: at least one run is needed")
    if arguments.compiled:
        arguments.kinds = "above"
    return arguments


def rows_of(name, arguments):
    """The rows of one program: a kind of step each."""
    runs = [run(name, arguments) for _ in range(arguments.runs)]
    if len(runs) == 1:
        return runs[0]
    rows = [merged(each) for each in zip(*runs, strict=True)]
    print(f"{name}: medians of {len(runs)} runs", file=sys.stderr)
    for row in rows:
        print(text_of(row), file=sys.stderr)
    return rows


def run(name, arguments):
    """The rows of one program, of processes that end with it."""
    with worker(name, arguments.threads) as process:
        needs = process.ask("measure")
    print(
        f"{name}: {needs['ops']} ops, peak {needs['peak'] / MIB:.0f} MiB, {needs['threads']} torch threads, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
    )
    os.makedirs(arguments.pool, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-overhead-", dir=arguments.pool))
        processes = {}
        for kind, fraction in KINDS.items():
            if kind in ("plain", *arguments.kinds.split(",")):
                processes[kind] = process = stack.enter_context(worker(name, arguments.threads, arguments.compiled))
                if kind == "bare":
                    process.ask("bare")
                elif fraction:
                    process.ask(
                        "block", memory=int(needs["peak"] * fraction), peak=needs["peak"], pool=f"{folder}/{kind}"
                    )
        early = {kind: process.ask("warm")["steps"] for kind, process in processes.items()}
        timed = {kind: [] for kind in processes}
        for _ in range(arguments.rounds):
            for kind, process in processes.items():
                timed[kind].append(process.ask("step"))
        bounds = {kind: bound_of(process, f"{folder}/{kind}") for kind, process in processes.items() if arguments.bound}
        calls = {kind: process.ask("calls")["calls"] for kind, process in processes.items()}
    expected = [step["loss"] for step in early["plain"] + timed["plain"]]
    plain = median_of(timed["plain"], "seconds")
    rows = []
    for kind, steps in timed.items():
        same = all(a == b["loss"] for a, b in zip(expected, early[kind] + steps, strict=False))
        seconds = median_of(steps, "seconds")
        row = {
            "model": name, "kind": kind, **needs, "seconds": seconds, "ratio": seconds / plain, "same_bits": same,
            "worst": max(step["seconds"] for step in early[kind][1:] + steps) / plain,
            "us_per_op": (seconds - plain) / needs["ops"] * 1e6,
            "early": [step["seconds"] / plain for step in early[kind]],
            "calls": calls[kind], "bound": bounds.get(kind),
        }  # fmt: skip
        row["over_bound"] = row["ratio"] / row["bound"] if row["bound"] else None
        for key in ("thread_seconds", "cpu_seconds", "faults", "moves", "stall_seconds", "handling_seconds"):
            row[key] = median_of(steps, key) if key in steps[0] else 0
        rows.append(row)
        print(text_of(row), file=sys.stderr)
    return rows


def merged(rows):
    """One row of those of several runs."""
    row = {
        key: statistics.median(each[key] for each in rows) if is_number(value) else value
        for key, value in rows[0].items()
    }
    return row | {
        "same_bits": all(each["same_bits"] for each in rows),
        "worst": max(each["worst"] for each in rows),
        "ratios": sorted(each["ratio"] for each in rows),
    }


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def bound_of(process, name):
    """The bound of a block's step, as a multiple of its ops alone; None where there is no plan."""
    trace, machine = f"{name}.trace.json", f"{name}.machine.json"
    inputs = process.ask("plan_inputs", trace=trace)
    if inputs["machine"] is None:
        return None
    pathlib.Path(machine).write_text(json.dumps(inputs["machine"]))
    # Plans are not what is asked for here: one is enough.
    command = [PLANNER, "compare", trace, machine, "--within", "1ms", "--output", "json"]
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return next(100 / row["percent_of_ideal"] for row in rows if row["policy"] == "lower bound")


def text_of(row):
    early = " ".join(f"{ratio:.2f}" for ratio in row["early"])
    spread = " ({:.2f} to {:.2f})".format(*(row["ratios"][at] for at in (0, -1))) if "ratios" in row else ""
    line = (
        f"  {row['kind']:6} {row['seconds']:.3f} s  {row['ratio']:.2f} x{spread}  {row['us_per_op']:5.1f} us an op  "
        f"worst {row['worst']:.2f}  first {early}  cpu {row['thread_seconds']:.3f} s, "
        f"of all threads {row['cpu_seconds']:.3f} s  faults {row['faults']:.0f}"
    )
    if row["bound"]:
        line += f"\n         bound {row['bound']:.3f} x, the step is {row['over_bound']:.2f} times it"
    if row["calls"]:
        calls = ", ".join(f"{name} {count:.0f}" for name, count in list(row["calls"].items())[:6])
        line += (
            f"\n         moves {row['moves']:.0f}, stalls {row['stall_seconds']:.3f} s, handling "
            f"{row['handling_seconds']:.3f} s, calls a step: {calls}"
        )
    return line if row["same_bits"] else line + "\n         LOSSES DIFFER"


def median_of(steps, key):
    return statistics.median(step[key] for step in steps)


def worker(name, threads, compiled=False):
    """A process with one of the programs."""
    return Process(HERE / "overhead_worker.py", name, str(threads), *["compiled"] * compiled, threads=threads)


if __name__ == "__main__":
    sys.exit(main())
