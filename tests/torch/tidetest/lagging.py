"""Kernels that lag, on the fake GPU: torch's processor computes an op when it is launched, and what it has written is
taken away again until its turn comes in its stream (gds/fake/kernels.c). Who looks before sees older bytes.

An op is computed once all has happened that its stream waits for, and whatever there uses the same memory: bytes that
it should have waited for, and did not, are missing from its result.
"""

import ctypes
from collections import deque

import torch

from tidelog.memory._record import data_ptr, nbytes
from tidelog.storages._ops import storages_of
from tidetest.beneath import Beneath

_SPANS_MAX = 32
_KERNELS_MAX = 8  # that lag at once


class _Span(ctypes.Structure):
    _fields_ = [("at", ctypes.c_uint64), ("length", ctypes.c_size_t), ("before", ctypes.c_char_p)]


def _spans(spans):
    return len(spans), (_Span * max(len(spans), 1))(*spans)


def _place(storage):
    return data_ptr(storage), nbytes(storage)


class Lagging(Beneath):
    """Mode in which ops are kernels that lag on the current stream of `fake`. It is entered before a block is."""

    def __init__(self, fake, monkeypatch, duration_ns=0):
        super().__init__()
        self._fake, self._library = fake, fake.library
        self._library.fake_kernel.restype = self._library.fake_oldest_kernel.restype = ctypes.c_uint64
        self._library.fake_kernel.argtypes = [ctypes.c_void_p, ctypes.c_uint64] + 2 * [ctypes.c_uint, ctypes.c_void_p]
        self._duration_ns = duration_ns
        self._waiting = deque()  # the kernels that have not had their turn, with the memory that they use
        self.launched = 0
        fake.guard.guard_computes_at_launch(False)
        cpu = torch.Tensor.cpu

        def waited_for(tensor, *args, **kwargs):
            torch.cuda.synchronize()
            return cpu(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, "cpu", waited_for)

    def __enter__(self):
        self._fake.hear_of_memory()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._fake.guard.memory_end()

    def handle(self, func, args, kwargs, run):
        if func.is_view:
            return run()  # it launches nothing
        used = {storage._cdata: storage for storage in storages_of(args, kwargs) if self._is_ours(storage)}
        places = {key: _place(storage) for key, storage in used.items()}
        stream = ctypes.c_void_p(self._fake.guard.guard_current())  # which the block may have changed
        self._library.fake_reach(stream, *_spans([(*place, None) for place in places.values()]))
        before = {key: ctypes.string_at(*place) for key, place in places.items()}
        result = run()
        made = storages_of((result,), {})
        fresh = {each._cdata: each for each in made if each._cdata not in used and self._is_ours(each)}
        # What was resized has other memory.
        fresh |= {key: storage for key, storage in used.items() if _place(storage) != places[key] and nbytes(storage)}
        kept = [key for key in used if key not in fresh and nbytes(used[key])]
        changed = [key for key in kept if ctypes.string_at(*places[key]) != before[key]]
        reads = [(*places[key], None) for key in kept]
        writes = [(*places[key], before[key]) for key in changed] + [(*_place(each), None) for each in fresh.values()]
        if writes and max(len(reads), len(writes)) <= _SPANS_MAX:
            number = self._library.fake_kernel(stream, self._duration_ns, *_spans(reads), *_spans(writes))
            self._waiting.append((number, [*used.values(), *fresh.values()]))
            self.launched += 1
        if len(self._waiting) > _KERNELS_MAX:
            torch.cuda.synchronize()
        oldest = self._library.fake_oldest_kernel()
        while self._waiting and (not oldest or self._waiting[0][0] < oldest):
            self._waiting.popleft()
        return result

    def let_go(self):
        """Kernels hold their memory no longer, whether they have had their turn or not: torch's do not."""
        self._waiting.clear()

    def forget(self):
        """Every kernel has its turn, and holds no memory any more."""
        torch.cuda.synchronize()
        self._waiting.clear()

    @staticmethod
    def _is_ours(storage):
        return storage.device.type == "cpu" and nbytes(storage) > 0
