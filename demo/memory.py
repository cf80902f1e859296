"""Two independent looks at memory: the live storages that torch holds, and what the kernel says of the process."""

import gc
import threading
import time
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveStorages(TorchDispatchMode):
    """Sums the bytes of live storages as ops bring them into the world, and keeps the highest sum."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._seen = set()
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                self._count(thing)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(value, torch.Tensor):
                self._count(value)
        self.peak = max(self.peak, self.live)
        return result

    def _count(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.live += storage.nbytes()
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, identity, size):
        self._seen.discard(identity)
        self.live -= size


def process_bytes():
    """Anonymous memory and huge pages of this process (proc(5): RssAnon, HugetlbPages)."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "HugetlbPages") if name in fields)


class ProcessPeak:
    """Samples `process_bytes` every two milliseconds and keeps the highest, less the level at the start."""

    def __enter__(self):
        self.base = self.highest = process_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self):
        while not self._stop.is_set():
            self.highest = max(self.highest, process_bytes())
            time.sleep(0.002)

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    @property
    def above_base(self):
        return self.highest - self.base
