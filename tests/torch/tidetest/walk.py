"""Walks a recorded step (planner/traces) through the real bridge, executor and tier, on the fake GPU in virtual time
(gds/fake/virtual.c): kernels compute nothing and take the times of the trace; copies, checksums, ops, requests and
wake-ups take what planner/gpu-costs.json says. So what comes out does not depend on the machine that it runs on.

    walked("gpt-8", 50, folder)

No byte is written or moved, so that steps of any size fit anywhere.

The walk is a process of its own, whose monotonic clock is the virtual one: `python -m tidetest.walk` with the fake loaded
first.
"""

import argparse
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import tidelog
from tidelog.abi._native import Session
from tidelog.dispatch import _steps
from tidelog.memory import _limits
from tidetest import fake_cuda

ROOT = Path(__file__).resolve().parents[3]
_GRANULE = 2 << 20
_SECONDS_MAX, _SECONDS_A_STEP = 240, 20


class _Rates(ctypes.Structure):
    """`Rates` of gds/fake/virtual.c."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("out", "back", "out_beside", "back_beside", "sums", "copy", "launch", "wake_up", "remap")
    ]


def walked(name, percent, folder, *words, steps=3):
    """Returns the figures of a walk of planner/traces/`name`, with this percentage of the step's peak as memory."""
    folder = Path(folder)
    built, guard = _built(folder)
    if not built.exists():
        fake_cuda.build(folder)
    if not guard.exists():
        fake_cuda.build_guard(folder)
    paths = [str(ROOT / "torch-bridge" / "python"), str(ROOT / "tests" / "torch")]
    environment = os.environ | {"LD_PRELOAD": str(built), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tidetest.walk", name, str(percent), str(folder), "--steps", str(steps)]
    command += map(str, words)
    seconds = _SECONDS_MAX + _SECONDS_A_STEP * steps
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _built(folder):
    return folder / "libcuda.so", folder / "fake_guard.so"


class Costs:
    """The constants of planner/gpu-costs.json, all at one end of their ranges; times in ns, rates in bytes a second."""

    def __init__(self, end="value"):
        table = json.loads((ROOT / "planner" / "gpu-costs.json").read_text())
        self._figures = {one["name"]: one[end] for one in table}

    def nanoseconds(self, name):
        return round(self._figures[name] * 1e3)

    def __getitem__(self, name):
        return self._figures[name]

    def rates(self):
        rate = {name: self._figures[name] * 1e9 for name in ("link_out", "link_back", "checksum")}
        out, back = rate["link_out"], rate["link_back"]
        return _Rates(
            round(out),
            round(back),
            round(out * self._figures["both_ways_out"]),
            round(back * self._figures["both_ways_back"]),
            round(rate["checksum"]),
            *map(self.nanoseconds, ("copy", "launch", "wake_up", "remap")),
        )


class Trace:
    """A recorded step."""

    def __init__(self, name, kernels):
        recorded = json.loads((ROOT / "planner" / "traces" / f"{name}.json").read_text())
        self.sizes = [storage["size"] for storage in recorded["storages"]]
        self.ops = recorded["ops"]
        for op in self.ops:
            op["duration_ns"] = round(op["duration_ns"] * kernels)
        self.globals = {place for place, one in enumerate(recorded["storages"]) if "name" in one["identity"]}

    def peak(self):
        """Returns the most bytes that live at an op in the steady state."""
        live = sum(self.sizes[place] for place in self.globals)
        live += sum(
            self.sizes[each["storage"]] for op in self.ops for each in op.get("deaths", []) if each.get("previous")
        )
        most = live
        for op in self.ops:
            live += sum(self.sizes[each["storage"]] for each in op.get("births", []))
            most = max(most, live)
            live -= sum(self.sizes[each["storage"]] for each in op.get("deaths", []))
        return most


class Walk:
    """The program: ops that are kernels of the fake."""

    def __init__(self, gpu, trace, costs):
        self._gpu, self._trace, self._costs = gpu, trace, costs
        self._dispatch = costs.nanoseconds("dispatch_native")
        self._library = gpu.library
        self._library.fake_spend.argtypes = [ctypes.c_uint64]
        self._library.fake_now.restype = ctypes.c_uint64
        self._ahead = int(costs["launches_ahead"])
        self._kernels, self._duration = {}, 0
        self._ops = torch.library.Library("tidetest_walk", "DEF")
        self._anchor = torch.empty(1, dtype=torch.uint8)
        self._storages = {}

    def _kernel(self, sizes):
        """Returns an op that makes storages of these sizes."""
        if sizes not in self._kernels:
            name = f"kernel_{len(self._kernels)}"
            self._ops.define(f"{name}(Tensor anchor, Tensor[] reads, Tensor(a!)[] writes) -> Tensor[]")

            def run(anchor, reads, writes):
                results = [torch.empty(size, dtype=torch.uint8) for size in sizes]
                self._launch()
                return results

            def shaped(anchor, reads, writes):
                return [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]

            self._ops.impl(name, run, "CPU")
            self._ops.impl(name, shaped, "Meta")
            self._kernels[sizes] = getattr(torch.ops.tidetest_walk, name)
        return self._kernels[sizes]

    def _launch(self):
        self._library.fake_spend(self._dispatch)
        if self._duration:
            self._gpu.launch(self._duration)
            self._library.fake_launch_ahead(self._gpu.stream.handle, ctypes.c_uint(self._ahead))

    def make_globals(self):
        for place in self._trace.globals:
            self._storages[place] = torch.empty(self._trace.sizes[place], dtype=torch.uint8)

    def step(self):
        """Returns the virtual time of a step, at whose end the program has read its loss."""
        began = self._library.fake_now()
        storages, sizes = self._storages, self._trace.sizes
        previous = {place: storage for place, storage in storages.items() if place not in self._trace.globals}
        for op in self._trace.ops:
            births = [each["storage"] for each in op.get("births", [])]
            uses = {each["storage"]: each["access"] for each in op["uses"]}
            reads = [storages[place] for place, access in uses.items() if access == "read"]
            writes = [storages[place] for place, access in uses.items() if access != "read"]
            self._duration = op["duration_ns"]
            kernel = self._kernel(tuple(sizes[place] for place in births))
            results = kernel(self._anchor, reads, writes)
            for place, storage in zip(births, results, strict=True):
                storages[place] = storage
            del reads, writes, results
            for each in op.get("deaths", []):
                (previous if each.get("previous") else storages).pop(each["storage"], None)
        self._wait()
        return self._library.fake_now() - began

    def _wait(self):
        fake_cuda._call("cuStreamSynchronize", self._gpu.stream.handle)


def requests_take(gpu, costs, patch):
    """Requests of sessions take their time."""
    calls, guard = Session.calls, gpu.guard
    guard.guard_requests_take.restype = ctypes.c_void_p
    guard.guard_requests_take.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    guard.guard_requests.restype = guard.guard_waits.restype = ctypes.c_uint64
    times = [costs.nanoseconds(name) for name in ("request_native", "wake_up")]

    def slower(session):
        known = calls(session)
        return (*known[:9], guard.guard_requests_take(known[9], *times), *known[10:])

    patch.setattr(Session, "calls", slower)


COUNTS = {
    "kernels_ns": lambda gpu: gpu.library.fake_count(b"busy_ns"),
    "idle_ns": lambda gpu: gpu.library.fake_count(b"idle_ns"),
    "drains": lambda gpu: gpu.library.fake_count(b"waits"),
    "host_bytes": lambda gpu: gpu.library.fake_count(b"host_bytes"),
    "requests": lambda gpu: gpu.guard.guard_requests(),
    "host_waits": lambda gpu: gpu.guard.guard_waits(),
}
ARENA = ("stream_waits", "host_waits", "declined", "made")
MEMORY = ("out_of_memory", "trims")


def counts(gpu, tide):
    memory = tide.stats()["gpu_memory"]
    arena = memory["arena"]
    counted = {name: count(gpu) for name, count in COUNTS.items()}
    counted |= {name: memory[name] for name in MEMORY}
    counted |= {f"arena_{name}": arena[name] for name in ARENA}
    return counted | {"remapped": arena["remapped"] // _GRANULE}


def figures_of(tide, took):
    """Returns the figures of the last step."""
    stats = tide.stats()
    time = stats["step_time"]
    return {
        "took_ns": took,
        "told_ns": time and time["time_ns"],
        "causes_ns": time and time["causes_ns"],
        "phase": tide.phase,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("percent", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--end", default="value")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--mode", default="auto")
    asked = parser.parse_args()
    costs = Costs(asked.end)
    trace = Trace(asked.name, costs["kernels"])
    peak = trace.peak()
    pool = tempfile.mkdtemp(dir=asked.folder)
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        gpu = fake_cuda.FakeCuda(patch, asked.folder, 1, 0, _built(asked.folder))
        gpu.guard.guard_computes_at_launch(False)
        patch.setattr(fake_cuda, "ARENA_GRANULE", _GRANULE)
        patch.setattr(_steps, "TIMED_EVERY", 1)
        patch.setattr(_limits, "refuse_more_than_there_is", lambda *_: None)  # no byte of it is written
        gpu.library.fake_virtual(ctypes.byref(costs.rates()))
        stack.callback(gpu.library.fake_virtual, None)
        stack.enter_context(torch.no_grad())
        requests_take(gpu, costs, patch)
        walk = Walk(gpu, trace, costs)
        options = {"mode": asked.mode, "staging": 256 << 10, "pool_size": 64 << 20, "buffered": True}
        memory, host = peak * asked.percent // 100, 2 * peak
        with tidelog.offload(
            pool=pool, memory=memory, host_memory=host, device=gpu.device, allocator="arena", **options
        ) as tide:
            walk.make_globals()
            steps = []
            for _ in range(asked.steps):
                before = counts(gpu, tide)
                with tide.step():
                    took = walk.step()
                figures = figures_of(tide, took)
                figures |= {name: count - before[name] for name, count in counts(gpu, tide).items()}
                steps.append(figures)
                tide.await_plan()
            plan = tide.stats()["plan"]
            walk._storages.clear()
    print(json.dumps({"memory": memory, "peak": peak, "plan": plan, "steps": steps}))


if __name__ == "__main__":
    main()
