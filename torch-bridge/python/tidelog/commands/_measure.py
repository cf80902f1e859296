"""Measurement of a step's ops and of the pool on this machine, without running the step.

Each different op (its name, and the shapes, strides and types of its tensors) runs by itself on
tensors of its own, so that memory for one op is enough. Layers repeat: a model of many has not many
more different ops than one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tidelog._offload import offload
from tidelog.output._figures import StrPath
from tidelog.recorder import Gpu, Recorder
from tidelog.storages._ops import Args, Kwargs, OpOverload

# An op is repeated until it has run for this long, at least this often.
_SECONDS_MIN, _RUNS_MIN, _RUNS_MAX = 0.03, 3, 50

# The small model of a pool's measurement, and the part of what it needs that it gets.
_WORDS, _WIDTH, _HEADS, _LAYERS, _ROWS, _TOKENS, _FRACTION = 8000, 512, 8, 4, 2, 256, 0.4
_STEPS_MAX, _PLANNED_STEPS = 12, 3


class MeasuredRecorder(Recorder):
    """Records a step on meta tensors with the times that its ops take on `device`."""

    attention = "tidelog-processor"

    def __init__(
        self,
        gpu: Gpu,
        device: str | torch.device = "cpu",
        precision: str = "fp32",
        notice: Callable[[OpOverload], object] = lambda op: None,
    ) -> None:
        super().__init__(gpu, precision)
        self._device = torch.device(device)
        self._taken: dict[object, int] = {}  # what an op is told apart by -> nanoseconds
        self._notice = notice  # is called with each op that is about to be measured

    def _duration(self, func: OpOverload, args: Args, kwargs: Kwargs, result: Any) -> int:
        key = _key((func, args, kwargs))
        if key not in self._taken:
            self._notice(func)
            self._taken[key] = self._measure(func, args, kwargs)
        return self._taken[key]

    def _measure(self, func: OpOverload, args: Args, kwargs: Kwargs) -> int:
        args, kwargs = self._real(args), self._real(kwargs)
        with torch.no_grad():
            try:
                runs = [self._time(func, args, kwargs)]  # the first one sees cold caches
            except RuntimeError:
                # Meta tensors have the types that a GPU's kernels give (means in single precision, beside half); a
                # processor's kernel may want one type for all.
                args, kwargs = _of_one_type((args, kwargs), _floating_type(args))
                runs = [self._time(func, args, kwargs)]
            while sum(runs) < _SECONDS_MIN * 1e9 and len(runs) < _RUNS_MAX or len(runs) < _RUNS_MIN:
                runs.append(self._time(func, args, kwargs))
        return max(self.gpu.launch_ns, round(statistics.median(runs[1:])))

    def _time(self, func: OpOverload, args: Args, kwargs: Kwargs) -> int:
        began = time.perf_counter_ns()
        result = func(*args, **kwargs)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        del result
        return time.perf_counter_ns() - began

    def _real(self, value: Any) -> Any:
        """Replaces tensors by such that have bytes."""
        if isinstance(value, Tensor):
            return _filled(value, self._device)
        if isinstance(value, (list, tuple)):
            return type(value)(self._real(each) for each in value)
        if isinstance(value, dict):
            return {name: self._real(each) for name, each in value.items()}
        if isinstance(value, torch.device) and value.type == "meta":
            return self._device
        return value


def _filled(tensor: Tensor, device: torch.device) -> Tensor:
    real = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    flat = torch.empty(0, dtype=tensor.dtype, device=device).set_(real.untyped_storage())
    if tensor.dtype.is_floating_point:
        flat.uniform_(0.1, 1)  # neither denormal nor growing: both have another pace
    else:
        flat.zero_()  # an index that every tensor has
    return real


def _floating_type(args: Args) -> torch.dtype | None:
    """Returns the type of the first tensor that has one."""
    return next((each.dtype for each in args if isinstance(each, Tensor) and each.is_floating_point()), None)


def _of_one_type(value: Any, dtype: torch.dtype | None) -> Any:
    """Converts all floating tensors to this type."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(_of_one_type(each, dtype) for each in value)
    if isinstance(value, dict):
        return {name: _of_one_type(each, dtype) for name, each in value.items()}
    return value


def _key(value: Any) -> object:
    if isinstance(value, Tensor):
        return value.size(), value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    return value if value.__hash__ is not None else repr(value)


@dataclass(frozen=True)
class PoolSpeed:
    """Speed of a pool, and the cost of its transfers to the ops beside them."""

    read: int  # bytes per second
    write: int
    slowdown: float  # of ops in a block under pressure, to the same without one: 1 and above


class _Sample(nn.Module):
    """A small transformer: what it allocates and frees is as mixed as what large ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, _WIDTH)
        layers = (
            nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(_LAYERS)
        )
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        scores = self.head(self.layers(self.embedding(tokens)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def speed_of(pool: StrPath) -> PoolSpeed:
    """Trains a small model within less memory than it needs, and then without a limit."""
    model = _Sample()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(0, _WORDS, (_ROWS, _TOKENS))

    def step() -> float:
        began = time.perf_counter()
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    parameters = sum(parameter.nbytes for parameter in model.parameters())
    activations = 4 * _ROWS * _TOKENS * (16 * _LAYERS * _WIDTH + 3 * _WORDS)
    memory = int(_FRACTION * (4 * parameters + activations))
    with offload(model, optimizer, pool=pool, memory=memory, device="cpu", pool_size=16 * memory) as tide:
        working = []  # seconds of each planned step in which no op waited
        for _ in range(_STEPS_MAX):
            with tide.step():
                step()
            tide.await_plan()
            last = tide.last_step()
            if tide.phase == "planned":
                working.append(last["seconds"] - last["stall_seconds"])
                if len(working) == _PLANNED_STEPS:
                    break
        ssd = tide.stats()["machine"]["ssd"]
        tide.restore()
    plain = statistics.median([step() for _ in range(6)][2:])
    taken = statistics.median(working) if working else plain
    read, write = ssd["read"]["bytes_per_second"], ssd["write"]["bytes_per_second"]
    return PoolSpeed(read, write, slowdown=max(1.0, taken / plain))
