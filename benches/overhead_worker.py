"""One of the processes that benches/overhead.py lets run in turn: one program, plain or in a block.

Each line of its input is a command, each line of its output the answer, as JSON.
"""

import contextlib
import hashlib
import json
import resource
import sys
import time
import warnings
from collections import Counter
from typing import Any

import torch
from hook import Bare, Counting  # first: it finds the package and demo/

import overhead_models
import tidelog
from memory import LiveStorages
from tidelog.abi import _native
from tidelog.order._chains import Chain

WARM_STEPS_MAX = 60  # before there is a plan, and what is computed again is chosen


class Worker:
    """A program with what surrounds its steps: nothing, a mode that does nothing, or a block."""

    def __init__(self, name: str, compiled: bool = False, **options: Any) -> None:
        self.model, self.optimizer, self.train = overhead_models.make(name, **options)
        if compiled:
            self.model.compile()
        self.tide: tidelog.Tide | None = None
        self.around: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        self.open = contextlib.ExitStack()

    def step(self) -> dict[str, object]:
        """One step, and what it took of the process."""
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        cpu = time.thread_time()
        with self.tide.step() if self.tide else self.around:
            loss = self.train()
        seconds, cpu = time.perf_counter() - began, time.thread_time() - cpu
        used = resource.getrusage(resource.RUSAGE_SELF)
        figures: dict[str, object] = {
            "seconds": seconds,
            "thread_seconds": cpu,
            "cpu_seconds": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
            "faults": used.ru_minflt - before.ru_minflt,
            "loss": loss.item().hex(),
        }
        if self.tide:
            last = self.tide.last_step()
            figures |= {"phase": self.tide.phase, "moves": last["evictions"] + last["fetches"]}
            figures |= {"stall_seconds": last["stall_seconds"], "handling_seconds": last["handling_ns"] / 1e9}
            figures |= {"bytes_written": last["bytes_written"], "bytes_read": last["bytes_read"]}
        return figures

    # -- commands -----------------------------------------------------------------------------------

    def measure(self) -> dict[str, object]:
        """Returns the needs of the plain program: its peak, and its ops."""
        self.train()  # gradients and optimizer state come into being
        with LiveStorages() as live:
            self.train()
            self.train()
        with Counting() as counting:
            self.train()
        return {"peak": live.peak, "ops": counting.ops, "threads": torch.get_num_threads()}

    def bare(self) -> dict[str, object]:
        """Begins to run under a mode that does nothing."""
        self.around = Bare()
        return {}

    def block(self, memory: int, peak: int, pool: str, **options: Any) -> dict[str, object]:
        """Begins to run in a block."""
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        if options.get("recompute") == "best" and not getattr(self.model, "is_gradient_checkpointing", False):
            options["blocks"] = Chain(self.model, None).blocks.values()
        block = tidelog.offload(
            self.model,
            self.optimizer,
            pool=pool,
            memory=memory,
            pool_size=max(64 << 20, 2 * (peak - memory)),
            **options,
        )
        self.tide = self.open.enter_context(block)
        return {"stats": self.tide.stats()["data_path"]}

    def warm(self) -> dict[str, object]:
        """Steps until the plan is followed, or nothing is due."""
        steps = []
        for _ in range(WARM_STEPS_MAX if self.tide else 2):
            steps.append(self.step())
            if self.tide:
                self.tide.await_plan()
            if steps[-1].get("phase") == "planned" and len(steps) > 2 and self.is_settled():
                break
        return {"steps": steps, "recompute": self.tide.stats()["recompute"] if self.tide else None}

    def is_settled(self) -> bool:
        """Returns whether what is computed again is chosen, if that is a choice."""
        figures = self.tide.stats()["recompute"] if self.tide else None
        return figures is None or figures["settled"]

    def figures(self) -> dict[str, object]:
        """Returns the plan, and whether updates ran late or early."""
        if self.tide is None:
            return {"plan": None}
        stats = self.tide.stats()
        return {key: stats[key] for key in ("plan", "updates", "notices")}

    def digest(self) -> dict[str, object]:
        """Returns what a wrong byte of parameters or optimizer state would show in."""
        found = hashlib.sha256()
        states = (value for state in self.optimizer.state.values() for value in state.values())
        for each in (*self.model.parameters(), *states):
            tensor = getattr(each, "_local_tensor", each).detach()
            found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return {"digest": found.hexdigest()}

    def plan_inputs(self, trace: str) -> dict[str, object]:
        """Writes the trace that the plan was made for; returns the machine, as `tidelog-plan` reads it."""
        plan = self.tide.stats()["plan"] if self.tide else None
        if self.tide is None or plan is None:
            return {"machine": None}
        self.tide.trace(trace)
        rates = {way: plan[f"{way}_bytes_per_second"] for way in ("read", "write")}
        ssd = {**rates, "latency_ns": 200_000}  # the last two as sessions take them
        return {
            "machine": {"budget": self.tide.budget, "staging": self.tide.staging, "verify": 8_000_000_000, "ssd": ssd}
        }

    def calls(self) -> dict[str, object]:
        """Returns the functions of the library that two steps call, how often a step."""
        counts: Counter[str] = Counter()
        if self.tide is None:
            return {"calls": {}}
        library = self.tide.session._library
        for name in _native.SIGNATURES:
            setattr(library, name, counted(name, getattr(library, name), counts))
        for _ in range(2):
            self.step()
        return {"calls": {name.removeprefix("tide_session_"): count / 2 for name, count in counts.most_common()}}


def counted(name, function, counts):
    def call(*arguments):
        counts[name] += 1
        return function(*arguments)

    return call


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    serve(Worker(sys.argv[1], compiled="compiled" in sys.argv[3:]))


def serve(worker: Worker) -> None:
    with worker.open:
        for line in sys.stdin:
            command, arguments = json.loads(line)
            print(json.dumps(getattr(worker, command)(**arguments)), flush=True)


if __name__ == "__main__":
    main()
