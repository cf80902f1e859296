"""What this machine takes for a step's ops, and what its pool carries, without running the step.

Each different op (its name, and the shapes, strides and types of its tensors) runs by itself on
tensors of its own, so that memory for one op is enough. Layers repeat: a model of many has not many
more different ops than one.
"""

import statistics
import time

import torch
from torch import Tensor

from tidelog._offload import offload
from tidelog.recorder import Recorder

# An op is repeated until it has run for this long, at least this often.
_SECONDS_MIN, _RUNS_MIN, _RUNS_MAX = 0.03, 3, 50
_BYTES_MAX = 64 << 20  # of one tensor of a pool's measurement
_TENSORS = 12


class MeasuredRecorder(Recorder):
    """Records a step on meta tensors with the times that its ops take on `device`."""

    attention = "tidelog-processor"

    def __init__(self, gpu, device="cpu", precision="fp32", notice=lambda op: None):
        super().__init__(gpu, precision)
        self._device = torch.device(device)
        self._taken = {}  # what an op is told apart by -> nanoseconds
        self._notice = notice  # is called with each op that is about to be measured

    def _duration(self, func, args, kwargs, result):
        key = _key((func, args, kwargs))
        if key not in self._taken:
            self._notice(func)
            self._taken[key] = self._measure(func, args, kwargs)
        return self._taken[key]

    def _measure(self, func, args, kwargs):
        args, kwargs = self._real(args), self._real(kwargs)
        with torch.no_grad():
            runs = [self._time(func, args, kwargs)]  # the first one sees cold caches
            while sum(runs) < _SECONDS_MIN * 1e9 and len(runs) < _RUNS_MAX or len(runs) < _RUNS_MIN:
                runs.append(self._time(func, args, kwargs))
        return max(self.gpu.launch_ns, round(statistics.median(runs[1:])))

    def _time(self, func, args, kwargs):
        began = time.perf_counter_ns()
        result = func(*args, **kwargs)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        del result
        return time.perf_counter_ns() - began

    def _real(self, value):
        """The same with tensors that have bytes."""
        if isinstance(value, Tensor):
            return _filled(value, self._device)
        if isinstance(value, (list, tuple)):
            return type(value)(self._real(each) for each in value)
        if isinstance(value, dict):
            return {name: self._real(each) for name, each in value.items()}
        if isinstance(value, torch.device) and value.type == "meta":
            return self._device
        return value


def _filled(tensor, device):
    real = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    flat = torch.empty(0, dtype=tensor.dtype, device=device).set_(real.untyped_storage())
    if tensor.dtype.is_floating_point:
        flat.uniform_(0.1, 1)  # neither denormal nor growing: both have another pace
    else:
        flat.zero_()  # an index that every tensor has
    return real


def _key(value):
    if isinstance(value, Tensor):
        return value.size(), value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(each)) for name, each in value.items())
    return value if value.__hash__ is not None else repr(value)


def pool_rates(pool, memory):
    """Bytes per second that tensors leave and come back with, read and written through a block of
    `memory` bytes."""
    size = min(_BYTES_MAX, memory // 8)
    with offload(pool=pool, memory=memory, mode="reactive", device="cpu", pool_size=4 * _TENSORS * size) as tide:
        tensors = [torch.empty(size, dtype=torch.uint8) for _ in range(_TENSORS)]
        for each in tensors:
            each.fill_(1)
        for _ in range(2):
            for each in tensors:
                tide.evict(each)
            for each in tensors:
                each.add_(1)
        ssd = tide.stats()["machine"]["ssd"]
    return {direction: ssd[direction]["bytes_per_second"] for direction in ("read", "write")}
