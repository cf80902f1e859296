"""Measures the gain of `updates=`: steps of the same program in a third of its memory, in its own order, lazily and
early, in turn. With `--option recompute` the same of that option: models with "+checkpointing" as they are, and with
the planner's choice; of others the layers are named (`blocks=`).

    python benches/updates.py [wide gpt2 qwen3] [--memory 0.33] [--threads 1] [--rounds 15] [--pool DIR] [--output json]
    python benches/updates.py --option recompute gpt2+checkpointing [--memory 0.5]

The pool is on a real disk: each order moves as much as it takes. Figures are medians of the steps under the plan, each
with its middle half; `ratio` is an order's step over the program's own. All losses must be the same, bit for bit. Exit
code 1: a loss differs.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile

from overhead import MIB, worker

ORDERS = {"updates": ("own", "lazy", "early"), "recompute": ("own", "best")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["wide"], help="programs of benches/overhead.py (default wide)")
    parser.add_argument("--option", choices=ORDERS, default="updates", help="of offload (default updates)")
    parser.add_argument("--memory", type=float, default=0.33, help="the budget, a part of the peak (default 0.33)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    parser.add_argument("--rounds", type=int, default=15, help="steps of each under the plan (default 15)")
    parser.add_argument("--pool", default="/var/tmp", help="where the pools are made (default /var/tmp)")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rows = [row_of(name, arguments) for name in arguments.models]
    if arguments.output == "json":
        json.dump(rows, sys.stdout, indent=2)
    return 0 if all(row["same_bits"] for row in rows) else 1


def row_of(name, arguments):
    orders = ORDERS[arguments.option]
    with worker(name, arguments.threads) as process:
        needs = process.ask("measure")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-updates-", dir=arguments.pool))
        plain = stack.enter_context(worker(name, arguments.threads))
        processes = {order: stack.enter_context(worker(name, arguments.threads)) for order in orders}
        memory = int(needs["peak"] * arguments.memory)
        for order, process in processes.items():
            options = {"pool": f"{folder}/{order}", arguments.option: order}
            # What runs once takes more, so the pool is larger.
            peak = needs["peak"] * (3 if arguments.option == "recompute" else 1)
            process.ask("block", memory=memory, peak=peak, **options)
        warm = {order: process.ask("warm") for order, process in processes.items()}
        first = {order: answer["steps"] for order, answer in warm.items()}
        timed = {order: [] for order in orders}
        load = os.getloadavg()[0]
        for number in range(arguments.rounds):
            for order in orders if number % 2 else reversed(orders):
                timed[order].append(processes[order].ask("step"))
        losses = {order: [step["loss"] for step in first[order] + timed[order]] for order in orders}
        expected = [plain.ask("step") for _ in range(max(map(len, losses.values())))]
    row = {"model": name, "peak": needs["peak"], "memory": memory, "threads": needs["threads"], "load": load}
    row["plain"] = statistics.median(step["seconds"] for step in expected[2:])
    row["same_bits"] = all(
        loss == step["loss"] for order in orders for loss, step in zip(losses[order], expected, strict=False)
    )
    own = statistics.median(step["seconds"] for step in timed["own"])
    for order in orders:
        row[order] = {key: quartiles(timed[order], key) for key in ("seconds", "stall_seconds")}
        for key in ("bytes_read", "bytes_written"):
            row[order][key] = statistics.median(step[key] for step in timed[order])
        row[order]["ratio"] = row[order]["seconds"][1] / own
        row[order]["recompute"] = warm[order]["recompute"]
    print(text_of(row, orders), file=sys.stderr)
    return row


def quartiles(steps, key):
    return statistics.quantiles([step[key] for step in steps], n=4)


def text_of(row, orders):
    lines = [
        f"{row['model']}: peak {row['peak'] / MIB:.0f} MiB, memory {row['memory'] / MIB:.0f} MiB, "
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
        if figures["recompute"] is not None:
            lines.append(f"        {figures['recompute']['why']}")
    lines += [] if row["same_bits"] else ["  LOSSES DIFFER"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
