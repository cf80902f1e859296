"""What the hook costs per op when nothing is due: our step minus the same step under a mode that does nothing.

    python benches/hook.py [--pairs 40] [--output json]

The two run in turn, step by step, in one process; the figure is the median of the differences. What a whole training
step costs under a budget that is never reached: `python demo/demo.py --fraction 1.5`.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "torch-bridge" / "python"))

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tidelog

LIMIT_US = 1.5  # per op, above the bare mode


class Bare(TorchDispatchMode):
    """The least that a dispatch mode can do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs) if kwargs else func(*args)


class Counting(TorchDispatchMode):
    ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops += 1
        return func(*args, **(kwargs or {}))


def make_step():
    """Many small ops, so that what is measured is the hook and not arithmetic."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs = torch.randn(4, 8)

    def step():
        optimizer.zero_grad()
        model(inputs).relu().sum().backward()
        optimizer.step()

    return step


def timed(step):
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="interleaved pairs (default 40)")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    step = make_step()
    step()
    with Counting() as counting:
        step()
    ops = counting.ops
    plain, bare, ours = [], [], []
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        for _ in range(arguments.pairs):
            plain.append(timed(step))
            with Bare():
                step()  # caches are as warm for one as for the other: opening a block empties them
                bare.append(timed(step))
            with tidelog.offload(pool=folder, memory="1GiB", pool_size="64MiB", staging="1MiB") as tide:
                with tide.step():
                    step()
                with tide.step():
                    ours.append(timed(step))

    differences = [(a - b) / ops * 1e6 for a, b in zip(ours, bare, strict=True)]
    figures = {
        "ops": ops,
        "hook_us_per_op_median": statistics.median(differences),
        "hook_us_per_op_quartiles": statistics.quantiles(differences, n=4),
        "limit_us_per_op": LIMIT_US,
        "bare_mode_us_per_op_median": statistics.median((b - p) / ops * 1e6 for b, p in zip(bare, plain, strict=True)),
    }
    if arguments.output == "json":
        print(json.dumps(figures))
    else:
        print(
            f"hook, nothing due: {figures['hook_us_per_op_median']:.2f} us per op above a mode that does nothing "
            f"(median of {arguments.pairs} interleaved pairs, {ops} ops; limit {LIMIT_US}); "
            f"that mode itself: {figures['bare_mode_us_per_op_median']:.2f} us above plain"
        )
    return 0 if figures["hook_us_per_op_median"] <= LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
