"""Process of `make models`: it trains a program, step by step, as it is told.

A process is started by fork from one that has imported all libraries, and has a connection to it. For "step" it
sends what the step gave, for "end" a digest of all that the program holds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import os
import re
import signal
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import tidelog
from catalog import PROGRAMS, Training
from verdict import FIGURES

MIB = 1 << 20
PLENTY = 4 << 30  # more than any program needs, and less than machines have
POOL_SIZE = 256 * MIB
PEAK_STEPS = 3
_LEAST = re.compile(r"smallest budget that would do is (\d+) bytes")


class Run:
    """A program that trains."""

    def __init__(self, name: str, compiled: bool) -> None:
        torch.manual_seed(1)
        self.training: Training = PROGRAMS[name].make()
        self.forward, self.update = self.training.model, self.training.optimizer.step
        if compiled:
            self.forward = torch.compile(self.forward)
            if self.training.compiles_update:
                self.update = torch.compile(self.update)
        self.losses: list[str] = []

    def step(self) -> None:
        training = self.training
        batch = next(training.batches)

        def backward() -> Any:
            training.optimizer.zero_grad()
            loss = training.loss(self.forward, batch)
            loss.backward()
            return loss

        if training.by_closures:
            loss = self.update(backward)
        else:
            loss = backward()
            self.update()
        self.losses.append(float(loss).hex())

    def digests(self) -> list[tuple[str, str]]:
        """Returns the digests of all that the program holds, tensor by tensor."""
        training = self.training
        found = [("losses", " ".join(self.losses)), ("random numbers", digest(torch.get_rng_state()))]
        names = {}
        for name, each in training.model.named_parameters():
            names[each] = name
            found.append((f"parameter {name}", digest(each)))
            if each.grad is not None and not each.grad.is_sparse:
                found.append((f"gradient of {name}", digest(each.grad)))
        found += [(f"buffer {name}", digest(each)) for name, each in training.model.named_buffers()]
        for parameter, state in training.optimizer.state.items():
            for key, value in sorted(state.items()):
                label = f"{key} of {names.get(parameter, 'a parameter')}"
                found.append((label, digest(value) if isinstance(value, torch.Tensor) else repr(value)[:80]))
        return found


def digest(tensor: torch.Tensor) -> str:
    """Returns the digest of a copy: NumPy's alias is not of the tensor."""
    with torch.no_grad():
        copy = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        return hashlib.sha256(copy.view(torch.uint8).numpy().data if copy.numel() else b"").hexdigest()


# -- processes ------------------------------------------------------------------------------------


def main(role: str, name: str, compiled: bool, connection: Connection, settings: dict[str, Any]) -> None:
    """Runs the process. What it says goes to a file."""
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    # Before autograd has threads: the pool of threads that a fork leaves is made anew at first use, and not safely so
    # by several of them at once.
    torch.set_num_threads(settings["threads"])
    try:
        connection.send(
            {"peak": of_peak, "plain": plain, "block": in_block}[role](name, compiled, connection, settings)
        )
    except tidelog.BudgetError as error:
        least = _LEAST.search(str(error))
        connection.send({"refused": str(error), "least": int(least[1]) if least else None})
    except BaseException as error:
        traceback.print_exc()
        connection.send({"failed": f"{type(error).__name__}: {error}"})


def plain(name: str, compiled: bool, connection: Connection, _settings: dict[str, Any]) -> dict[str, Any]:
    run = Run(name, compiled)
    take_steps(run, connection, contextlib.nullcontext, dict)
    return {"digests": run.digests(), **compilation()}


def in_block(name: str, compiled: bool, connection: Connection, settings: dict[str, Any]) -> dict[str, Any]:
    run = Run(name, compiled)
    gc.collect()
    with offloaded(run, settings["budget"], settings["pool"], settings["mode"]) as tide:

        def told() -> dict[str, Any]:
            tide.await_plan()
            last = tide.last_step()
            return {"phase": tide.phase, **{key: last[key] for key in FIGURES}}

        take_steps(run, connection, tide.step, told)
        answer = {
            "digests": run.digests(),
            "peak_bytes": tide.peak_bytes,
            "evictions": tide.stats()["evictions"],
            "notices": tide.stats()["notices"],
            **compilation(),
        }
    return answer


def of_peak(name: str, compiled: bool, _connection: Connection, settings: dict[str, Any]) -> dict[str, Any]:
    """The bytes of tensors that a budget must have for the program to need no offloading, and what a step launches."""
    from tidelog.dispatch._hook import Hook

    launch, launched = Hook.launch, []

    def counting(hook: Hook, func: Any, *arguments: Any) -> Any:
        launched.append(func.name)
        return launch(hook, func, *arguments)

    Hook.launch = counting  # type: ignore[method-assign]
    run = Run(name, compiled)
    gc.collect()
    with offloaded(run, PLENTY, settings["pool"], "reactive") as tide:
        for _ in range(PEAK_STEPS):
            launched.clear()
            with tide.step():
                run.step()
        assert tide.stats()["evictions"] == 0
        kernels = sum(each.startswith("kernel ") for each in launched)
        return {"peak_bytes": tide.ledger.peak, "kernels_launched": kernels, **compilation()}


def take_steps(run: Run, connection: Connection, boundary: Any, told: Any) -> None:
    """Does steps until it is told to end."""
    connection.send("ready")
    while connection.recv() == "step":
        began = time.perf_counter()
        with boundary():
            run.step()
        seconds = time.perf_counter() - began
        connection.send({"seconds": seconds, "loss": run.losses[-1], **told()})


def offloaded(run: Run, budget: int, pool: str, mode: str) -> Any:
    Path(pool).mkdir(parents=True, exist_ok=True)
    return tidelog.offload(
        run.training.model, run.training.optimizer, pool=pool, memory=budget, pool_size=POOL_SIZE, mode=mode
    )


def compilation() -> dict[str, Any]:
    """Returns the counters of the compiler."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    return {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "kernels": metrics.generated_kernel_count,
    }
