"""Measures the cost of a block per op when nothing is due: a step in one minus the same step without.

    python benches/hook.py [--pairs 40] [--steps 10] [--device fake] [--output json]

The two run in turn, step by step, in one process; the figure is the median of the differences. Then the same for a
whole training step of the demo's GPT under a budget that is never reached, as a ratio to the plain step. For comparison
both are given for a dispatch mode that does nothing. With `--device fake` the budget is of a GPU's memory: the tests'
fake CUDA, whose kernels the processor computes at launch.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "torch-bridge" / "python"), str(ROOT / "demo"), str(ROOT / "tests" / "torch")]

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gpt
import tidelog

LIMIT_US = 0.6  # per op, above the plain step
LIMIT_RATIO = 1.05  # of a training step, to the plain one


class Bare(TorchDispatchMode):
    """The least that a dispatch mode can do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs) if kwargs else func(*args)


class Counting(TorchDispatchMode):
    ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops += 1
        return func(*args, **(kwargs or {}))


def make_small_step():
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


def make_training_step():
    torch.manual_seed(0)
    model = gpt.GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ((inputs, targets),) = gpt.batches(gpt.corpus(), 1, seed=1)
    return lambda: gpt.train_step(model, optimizer, inputs, targets)


def timed(step):
    """Caches are as warm for one kind of step as for the other: the first is not counted."""
    step()
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def block(folder):
    """Makes a block whose budget is never reached."""
    return tidelog.offload(pool=folder, memory="4GiB", pool_size="64MiB", staging="1MiB")


def hook_figures(pairs, folder):
    step = make_small_step()
    step()
    with Counting() as counting:
        step()
    plain, bare, ours = [], [], []
    for _ in range(pairs):
        plain.append(timed(step))
        with Bare():
            bare.append(timed(step))
        with block(folder) as tide, tide.step():
            ours.append(timed(step))
    differences = [(a - b) / counting.ops * 1e6 for a, b in zip(ours, plain, strict=True)]
    return {
        "ops": counting.ops,
        "hook_us_per_op_median": statistics.median(differences),
        "hook_us_per_op_quartiles": statistics.quantiles(differences, n=4),
        "limit_us_per_op": LIMIT_US,
        "bare_mode_us_per_op_median": statistics.median(
            (b - p) / counting.ops * 1e6 for b, p in zip(bare, plain, strict=True)
        ),
    }


def step_figures(pairs, folder):
    step = make_training_step()
    plain, bare, ours = [], [], []
    for _ in range(pairs):
        plain.append(timed(step))
        with Bare():
            bare.append(timed(step))
        with block(folder) as tide:

            def marked(tide=tide):
                with tide.step():
                    step()

            ours.append(timed(marked))
    return {
        "step_ratio_median": statistics.median(a / b for a, b in zip(ours, plain, strict=True)),
        "limit_ratio": LIMIT_RATIO,
        "bare_mode_ratio_median": statistics.median(a / b for a, b in zip(bare, plain, strict=True)),
    }


@contextlib.contextmanager
def on(device, folder):
    """Blocks are of this device's memory."""
    if device == "cpu":
        yield
        return
    from pytest import MonkeyPatch
    from tidetest.fake_cuda import FakeCuda

    with MonkeyPatch.context() as patch:
        fake = FakeCuda(patch, folder, seed=1, laziness=1)
        fake.guard.guard_computes_at_launch(False)  # nothing is copied, and the look for it costs more than the op
        yield


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="interleaved pairs of small steps (default 40)")
    parser.add_argument("--steps", type=int, default=10, help="interleaved pairs of training steps (default 10)")
    parser.add_argument("--device", choices=["cpu", "fake"], default="cpu", help="whose memory the budget is of")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder, on(arguments.device, folder):
        figures = {**hook_figures(arguments.pairs, folder), **step_figures(arguments.steps, folder)}
    if arguments.output == "json":
        print(json.dumps(figures))
    else:
        print(
            f"a block, nothing due: {figures['hook_us_per_op_median']:.2f} us per op above plain "
            f"(median of {arguments.pairs} interleaved pairs, {figures['ops']} ops; limit {LIMIT_US}); "
            f"a mode that does nothing: {figures['bare_mode_us_per_op_median']:.2f}"
        )
        print(
            f"training step, budget above the peak: {figures['step_ratio_median']:.3f} x plain (median of {arguments.steps} "
            f"interleaved pairs; limit {LIMIT_RATIO}); a mode that does nothing: {figures['bare_mode_ratio_median']:.3f} x"
        )
    within = figures["hook_us_per_op_median"] <= LIMIT_US and figures["step_ratio_median"] <= LIMIT_RATIO
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
