#!/usr/bin/env python3
"""Measures the GPU's idle time of a fetch: where fetches complete by events, and where the host waits for each, in
turn.

    python tests/hardware/fetches.py --pool FOLDER

With FAKE in the environment the GPU is gds/fake with a clock, and the tensors are the host's.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tidelog

_MIB = 1 << 20
_TENSORS, _IN_MEMORY, _BYTES = 24, 14, _MIB // 4
_STEPS, _ROUNDS, _WARM_UP_STEPS_MAX = 4, 5, 12
_KERNEL_NS = 3_000_000  # long enough for the host to be ahead of the GPU
_CYCLES = 5_000_000  # about as long on an H100


class Clocked(TorchDispatchMode):
    """Each op is a kernel on the fake GPU's current stream."""

    def __init__(self, fake):
        super().__init__()
        self._fake = fake

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self._fake.launch(_KERNEL_NS)
        return func(*args, **(kwargs or {}))


class Fake:
    """The fake GPU, by whose clock kernels and copies take time."""

    def __init__(self, folder):
        import pytest
        from tidetest.fake_cuda import FakeCuda

        self._gpu = FakeCuda(pytest.MonkeyPatch(), folder, seed=1, laziness=0)
        self._gpu.guard.guard_computes_at_launch(False)  # only times are looked at here
        self._gpu.library.fake_clock(True, 0, 0)
        self.device, self.mode = self._gpu.device, Clocked(self._gpu)

    def use(self, tensor):
        return tensor.sum()

    def idle_ns(self, body, _steps):
        torch.cuda.synchronize()
        self._gpu.library.fake_clock(True, 0, 0)
        body()
        torch.cuda.synchronize()
        return self._gpu.library.fake_count(b"idle_ns")


class Real:
    """A GPU. What its kernels take is measured where nothing moves."""

    device = "cuda"

    def __init__(self):
        import contextlib

        self.mode = contextlib.nullcontext()
        kept = torch.ones(_BYTES // 4, device="cuda")
        self._span_ns(lambda: self.use(kept))
        self._kernel_ns = self._span_ns(lambda: [self.use(kept) for _ in range(100)]) / 100

    def use(self, tensor):
        torch.cuda._sleep(_CYCLES)
        return tensor.sum()

    def _span_ns(self, body):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        body()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e6

    def idle_ns(self, body, steps):
        torch.cuda.synchronize()
        return self._span_ns(body) - steps * _TENSORS * self._kernel_ns


def measure(gpu, folder, mode, by_events):
    """Nanoseconds of idle time for each fetch, and how many were fetched. "room": nothing has to leave for a fetch."""
    memory, has_room = _IN_MEMORY * _BYTES, mode == "room"
    if has_room:
        memory, mode = 2 * _TENSORS * _BYTES, "reactive"
    with tempfile.TemporaryDirectory(dir=folder) as pool, gpu.mode:
        options = {"staging": 4 * _MIB, "pool_size": 64 * _MIB, "device": gpu.device, "buffered": True}
        with tidelog.offload(pool=pool, memory=memory, mode=mode, **options) as tide:
            tensors = [torch.full((_BYTES // 4,), float(number), device=gpu.device) for number in range(_TENSORS)]

            def use(tensor):
                if not by_events:  # the host waits until the bytes are there
                    tide.access.bring_back(tensor.untyped_storage())
                    tide.device.streams.await_copies()
                gpu.use(tensor)

            def steps(count):
                for _ in range(count):
                    with tide.step():
                        for tensor in tensors:
                            use(tensor)

            if has_room:
                idle = 0
                for _ in range(_STEPS):
                    for tensor in tensors:
                        tide.evict(tensor)
                    idle += gpu.idle_ns(lambda: steps(1), 1)
                tensors.clear()
                return idle / (_STEPS * _TENSORS), _STEPS * _TENSORS

            for _ in range(_WARM_UP_STEPS_MAX):
                steps(1)
                tide.await_plan()
                if tide.phase == mode or tide.phase == "planned":
                    break
            steps(1)
            before = tide.stats()["totals"]["fetches"]
            idle = gpu.idle_ns(lambda: steps(_STEPS), _STEPS)
            fetches = tide.stats()["totals"]["fetches"] - before
            assert fetches, "everything fitted"
            tensors.clear()
            return idle / fetches, fetches


def ratio(idle, base):
    """A plan may leave no idle time at all."""
    return f"{idle / base:.2f}" if base else "no ratio"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gpu = Fake(arguments.pool) if os.environ.get("FAKE") else Real()
    for mode in ("room", "reactive", "auto"):
        idle = {True: [], False: []}
        for _ in range(arguments.rounds):
            for by_events in (False, True):
                nanoseconds, fetches = measure(gpu, arguments.pool, mode, by_events)
                idle[by_events].append(nanoseconds)
                time.sleep(0.01)
        by_host, by_event = (statistics.median(idle[which]) / 1e3 for which in (False, True))
        print(
            f"FACT {mode}: the GPU idles {by_event:.0f} us for a fetch by events, {by_host:.0f} us where the host waits: "
            f"{ratio(by_event, by_host)} ({fetches} fetches, {arguments.rounds} rounds in turn)"
        )


if __name__ == "__main__":
    main()
