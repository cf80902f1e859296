#!/usr/bin/env python3
"""Compares a GPU's memory in an arena with that of torch's allocator: the same training under the same limit, in turn,
in one process. Says what a step takes, why the GPU idled, what the allocators did, and whether the bits are the same.

    python tests/hardware/allocators.py --pool FOLDER

With FAKE in the environment the GPU is gds/fake, and the tensors of a small model are the host's: what is measured then
says nothing of a GPU.
"""

import argparse
import gc
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("torch-bridge/python", "demo", "tests/torch", "tests/hardware")]

import torch  # noqa: E402

import tidelog  # noqa: E402
from training import GIB, runs  # noqa: E402

# Of the second of these steps under a plan, and of the 18th, the GPU's clock is known.
_STEPS, _ROUNDS, _WARM_UP_STEPS_MAX = 20, 3, 8
_FRACTION = 0.4
_SIZE = {"layers": 8, "width": 2048, "context": 512, "batch": [8]}
_TINY = {"layers": 2, "width": 128, "context": 32, "batch": [2]}


class Real:
    """A GPU, for a model of 0.4 billion parameters."""

    device, size = "cuda", _SIZE

    @staticmethod
    def await_all():
        torch.cuda.synchronize()

    @staticmethod
    def forget():
        gc.collect()
        torch.cuda.empty_cache()


class Fake:
    """The fake GPU: kernels are computed when they are launched, and copies are late."""

    size = _TINY

    def __init__(self, folder):
        import pytest
        from tidetest.fake_cuda import FakeCuda

        self._gpu = FakeCuda(pytest.MonkeyPatch(), folder, seed=1, laziness=1)
        self._gpu.hear_of_memory()
        self.device = self._gpu.device

    def await_all(self):
        torch.cuda.synchronize()

    def forget(self):
        gc.collect()
        self._gpu.assert_lawful()


def train(gpu, arguments, count, tide=None):
    """Returns the losses of so many steps, and the seconds of those that follow a plan, or of all."""
    import gpt

    step, losses, seconds = runs.own_step(runs.make(arguments)), [], []
    for inputs, targets in gpt.batches(gpt.corpus(), count, seed=99):
        is_timed = tide is None or tide.phase == "planned"
        begun = time.perf_counter()
        if tide is None:
            loss = step(inputs.to(gpu.device), targets.to(gpu.device))
        else:
            with tide.step():
                loss = step(inputs.to(gpu.device), targets.to(gpu.device))
        losses.append(loss.item().hex())
        gpu.await_all()
        if is_timed:
            seconds.append(time.perf_counter() - begun)
        elif len(losses) < _WARM_UP_STEPS_MAX:
            tide.await_plan()
    return losses, seconds


def limited(gpu, arguments, limit, allocator):
    """Returns the losses and seconds of a run, and its figures."""
    options = {"memory": limit, "host_memory": 4 * arguments.peak, "pool_size": 2 * arguments.peak + (64 << 20)}
    options |= {"device": gpu.device, "buffered": not runs.is_direct(arguments.pool), "allocator": allocator}
    with tidelog.offload(pool=arguments.pool_files, **options) as tide:
        losses, seconds = train(gpu, arguments, arguments.steps + _WARM_UP_STEPS_MAX, tide)
        stats = tide.stats()
        if not stats["plan"]:
            sys.exit(f"allocators.py: no plan was made: {'; '.join(stats['held_back'] + stats['notices'])}")
    gpu.forget()
    return losses, seconds, stats


def told(stats):
    """Returns what a run's figures say in words."""
    memory, time_of = stats["gpu_memory"], stats["step_time"]
    words = [f"{memory['trims']} trims, {memory['device_allocations']} allocations and {memory['device_frees']} frees"]
    words += [f"{memory['out_of_memory']} times without memory"]
    if arena := memory["arena"]:
        words += [f"in the arena {arena['allocations']} allocations, {arena['declined']} declined"]
        words += [f"{arena['remapped'] / GIB:.3f} GiB mapped anew, {arena['stream_waits']} waits of streams"]
        words += [f"{arena['host_waits']} of the host, error {arena['error']}"]
    if time_of:
        causes = sorted(time_of["causes_ns"].items(), key=lambda each: -each[1])
        parts = ", ".join(f"{cause} {100 * part / time_of['time_ns']:.0f} %" for cause, part in causes if part)
        words += [
            f"step {time_of['step']} of {time_of['time_ns'] / 1e6:.1f} ms by the {time_of['clock']}'s clock: {parts}"
        ]
    return "; ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--steps", type=int, default=_STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gpu = Fake(arguments.pool) if os.environ.get("FAKE") else Real()
    vars(arguments).update(gpu.size, device=gpu.device)
    arguments.pool_files = os.path.join(arguments.pool, "allocators")
    with runs.PeakOf(gpu.device) as peak:
        plain, plain_seconds = train(gpu, arguments, arguments.steps + _WARM_UP_STEPS_MAX)
    gpu.forget()
    arguments.peak = peak.bytes
    limit, seconds, last = int(peak.bytes * _FRACTION), {}, {}
    for _ in range(arguments.rounds):
        for allocator in ("torch", "arena"):
            losses, took, last[allocator] = limited(gpu, arguments, limit, allocator)
            seconds.setdefault(allocator, []).append(statistics.median(took))
            if losses != plain:
                sys.exit(f"allocators.py: with allocator={allocator!r} a loss differs from the run without a limit")
    by_torch, by_arena = (statistics.median(seconds[each]) for each in ("torch", "arena"))
    print(
        f"FACT arena: a step takes {by_arena:.4f} s, {by_torch:.4f} s with torch's allocator: {by_arena / by_torch:.2f}; "
        f"{statistics.median(plain_seconds):.4f} s without a limit ({_FRACTION:.0%} of {peak.bytes / GIB:.2f} GiB in "
        f"host memory, {arguments.rounds} rounds in turn, same bits)"
    )
    for allocator in ("torch", "arena"):
        print(f"FACT {allocator}: {told(last[allocator])}")


if __name__ == "__main__":
    main()
