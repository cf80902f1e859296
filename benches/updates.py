"""Measures the gain of `updates=`: steps of the same program in a third of its memory, in its own order, lazily and
early, in turn. With `--option recompute` the same of that option: models with "+checkpointing" as they are, and with
the planner's choice; of others the layers are named (`blocks=`).

    python benches/updates.py [wide gpt2 qwen3] [--memory 0.33] [--threads 1] [--rounds 15] [--pool DIR] [--output json]
    python benches/updates.py --option recompute gpt2+checkpointing [--memory 0.5]
    python benches/updates.py short --ranks 2 [--program ddp] --disk 20 --pool /dev/shm [--rounds 7]

The pool is on a real disk: each order moves as much as it takes. With `--disk` each pool is on a disk of its own that
carries so many MB/s each way, whatever else the machine does (tidetest/slow_disk.py); such pools are best in memory. With
`--ranks` the program is FSDP2's or DDP's, of so many ranks on gloo, each with its batch, its budget and its pool.
Figures are medians of the steps under the plan, each with its middle half; `ratio` is an order's step over the
program's own, the median over the rounds. Of ranks the slowest is timed, and bytes are a rank's. All losses must be the
same, bit for bit, and so must parameters and optimizer state be after the last step. Exit code 1: one differs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile

from overhead import MIB
from worker_process import Process

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "torch"))

from tidetest import slow_disk  # noqa: E402

ORDERS = {"updates": ("own", "lazy", "early"), "recompute": ("own", "best")}


def main():
    arguments = parse_arguments()
    rows = [row_of(name, arguments) for name in arguments.models]
    if arguments.output == "json":
        json.dump(rows, sys.stdout, indent=2)
    return 0 if all(row["same_bits"] for row in rows) else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["wide"], help="programs of benches/overhead.py (default wide)")
    parser.add_argument("--option", choices=ORDERS, default="updates", help="of offload (default updates)")
    parser.add_argument("--memory", type=float, default=0.33, help="the budget, a part of the peak (default 0.33)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    parser.add_argument("--rounds", type=int, default=15, help="steps of each under the plan (default 15)")
    parser.add_argument("--pool", default="/var/tmp", help="where the pools are made (default /var/tmp)")
    parser.add_argument("--disk", type=float, metavar="MB/s", help="of a disk that each pool has (default: real ones)")
    parser.add_argument("--ranks", type=int, help="of a distributed program (default: one process, which is none)")
    parser.add_argument("--program", choices=("fsdp2", "ddp"), default="fsdp2", help="of the ranks (default fsdp2)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser.parse_args()


class Team:
    """The processes of one program: one, or its ranks."""

    def __init__(self, name, arguments, folder, what):
        self._pools = f"{folder}/{what} "
        self._is_slow = bool(arguments.disk)
        options = {"threads": arguments.threads, "more_environment": disk_of(arguments, folder)}
        words = name, str(arguments.threads)
        if not arguments.ranks:
            self._processes = [Process(HERE / "overhead_worker.py", *words, **options)]
        else:
            script, meeting = HERE / "rank_worker.py", f"{folder}/meeting of {what}"
            self._processes = [
                Process(script, *words, arguments.program, str(rank), str(arguments.ranks), meeting, **options)
                for rank in range(arguments.ranks)
            ]

    def ask(self, command, **arguments):
        """Returns what all of them return: they work at the same time."""
        for process in self._processes:
            process.send(command, arguments)
        return [process.answer() for process in self._processes]

    def block(self, needs, part, room, **options):
        """Begins a block of each, in a part of what each needs. `room`: how much more its pool has."""
        for number, (process, need) in enumerate(zip(self._processes, needs, strict=True)):
            memory, peak = int(need["peak"] * part), need["peak"] * room
            pool = f"{self._pools}{number}"
            options |= {"pool": slow_disk.pool(pool), **slow_disk.OPTIONS} if self._is_slow else {"pool": pool}
            process.send("block", {"memory": memory, "peak": peak, **options})
        for process in self._processes:
            process.answer()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.ExitStack() as stack:
            for process in self._processes:
                process.process.stdin.close()  # first of all: ranks end together
                stack.enter_context(process)


def disk_of(arguments, folder):
    return slow_disk.variables(folder, arguments.disk * 1e6) if arguments.disk else {}


def row_of(name, arguments):
    orders = ORDERS[arguments.option]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-updates-", dir=arguments.pool))
        with Team(name, arguments, folder, "needs") as team:
            needs = team.ask("measure")
        plain = stack.enter_context(Team(name, arguments, folder, "plain"))
        teams = {order: stack.enter_context(Team(name, arguments, folder, order)) for order in orders}
        for order, team in teams.items():
            # What runs once takes more, so the pool is larger.
            room = 3 if arguments.option == "recompute" else 1
            team.block(needs, arguments.memory, room, **{arguments.option: order})
        warm = {order: team.ask("warm") for order, team in teams.items()}
        steps = {order: [list(step) for step in zip(*(answer["steps"] for answer in warm[order]), strict=True)]
                 for order in orders}  # fmt: skip
        timed = {order: [] for order in orders}
        load = os.getloadavg()[0]
        for number in range(arguments.rounds):
            for order in orders if number % 2 else reversed(orders):
                timed[order].append(teams[order].ask("step"))
        steps = {order: steps[order] + timed[order] for order in orders}
        plans = {order: teams[order].ask("figures")[0] for order in orders}
        row = {"model": name, "peak": needs[0]["peak"], "memory": int(needs[0]["peak"] * arguments.memory)}
        row |= {"threads": needs[0]["threads"], "load": load, "ranks": arguments.ranks, "program": arguments.program}
        row |= {"disk": arguments.disk} | compared(plain, teams, steps)
    for order in orders:
        row[order] = {key: quartiles(slowest(step, key) for step in timed[order]) for key in TIMES}
        for key in ("bytes_read", "bytes_written"):
            row[order][key] = statistics.median(statistics.mean(one[key] for one in step) for step in timed[order])
        row[order]["ratio"] = statistics.median(
            slowest(step, "seconds") / slowest(own, "seconds")
            for step, own in zip(timed[order], timed["own"], strict=True)
        )
        row[order] |= plans[order] | {"recompute": warm[order][0]["recompute"]}
    print(text_of(row, orders), file=sys.stderr)
    return row


TIMES = ("seconds", "stall_seconds")


def compared(plain, teams, steps):
    """Returns the time of a plain step, and whether losses and states are those of the plain program."""
    expected, same = [], True
    # The plain program takes as many steps as each order, and is looked at there.
    for order, team in sorted(teams.items(), key=lambda each: len(steps[each[0]])):
        expected += [plain.ask("step") for _ in range(len(steps[order]) - len(expected))]
        same &= losses_of(expected) == losses_of(steps[order])
        same &= plain.ask("digest") == team.ask("digest")
    return {"plain": statistics.median(slowest(step, "seconds") for step in expected[2:]), "same_bits": same}


def losses_of(steps):
    return [[one["loss"] for one in step] for step in steps]


def slowest(step, key):
    return max(one[key] for one in step)


def quartiles(figures):
    return statistics.quantiles(figures, n=4)


def text_of(row, orders):
    ranks = f"{row['ranks']} ranks, {row['program']}, " if row["ranks"] else ""
    disk = f"disks of {row['disk']:g} MB/s, " if row["disk"] else ""
    lines = [
        f"{row['model']}: {ranks}{disk}peak {row['peak'] / MIB:.0f} MiB, memory {row['memory'] / MIB:.0f} MiB, "
        f"{row['threads']} torch threads, {os.cpu_count()} cores, load {row['load']:.1f}, plain {row['plain']:.3f} s"
    ]
    for order in orders:
        figures = row[order]
        low, middle, high = figures["seconds"]
        lines.append(
            f"  {order:5} {middle:.3f} s ({low:.3f} to {high:.3f}), waits {figures['stall_seconds'][1]:.3f} s, "
            f"in {figures['bytes_read'] / MIB:.0f} MiB, out {figures['bytes_written'] / MIB:.0f} MiB, "
            f"{figures['ratio']:.2f} of own"
        )
        if figures["plan"] is not None:
            read, write, expected = (figures["plan"][key] for key in PLAN)
            lines.append(
                f"        planned with {read / 1e6:.1f} MB/s in, {write / 1e6:.1f} MB/s out, "
                f"{'no' if expected is None else f'{expected / 1e9:.3f}'} s expected; updates: {figures['updates']}"
            )
        if figures["recompute"] is not None:
            lines.append(f"        {figures['recompute']['why']}")
    lines += [] if row["same_bits"] else ["  BITS DIFFER"]
    return "\n".join(lines)


PLAN = ("read_bytes_per_second", "write_bytes_per_second", "simulated_ns")


if __name__ == "__main__":
    sys.exit(main())
