"""Kernels that lag, on the fake GPU: torch's processor computes an op when it is launched, and what it has written is
taken away again until its turn comes in its stream (gds/fake/kernels.c). Who looks before sees older bytes.

An op is computed once all has happened that its stream waits for, and whatever there uses the same memory: bytes that
it should have waited for, and did not, are missing from its result.
"""

import ctypes
from collections import deque

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tidelog.dispatch._performer import Performer
from tidelog.memory import _moves
from tidelog.memory._record import data_ptr, nbytes
from tidelog.storages._ops import storages_in, storages_of
from tidetest.fake_cuda import Gpu

_SPANS_MAX = 32
_KERNELS_MAX = 8  # that lag at once


class _Span(ctypes.Structure):
    _fields_ = [("at", ctypes.c_uint64), ("length", ctypes.c_size_t), ("before", ctypes.c_char_p)]


def _spans(spans):
    return len(spans), (_Span * max(len(spans), 1))(*spans)


def _place(storage):
    return data_ptr(storage), nbytes(storage)


class Lagging(TorchDispatchMode):
    """While it is on, ops are kernels that lag on the current stream of `fake`. It is entered before a block is."""

    def __init__(self, fake, monkeypatch, duration_ns=0):
        super().__init__()
        self._fake, self._library = fake, fake.library
        self._library.fake_kernel.restype = self._library.fake_oldest_kernel.restype = ctypes.c_uint64
        self._library.fake_kernel.argtypes = [ctypes.c_void_p, ctypes.c_uint64] + 2 * [ctypes.c_uint, ctypes.c_void_p]
        self._duration_ns = duration_ns
        self._waiting = deque()  # the kernels that have not had their turn, with the memory that they use
        self._coming = []  # the events of fetches that have ended, with the memory that they write
        self.launched = 0
        monkeypatch.setattr(Gpu, "computes_at_launch", False)
        for name in ("take", "swap"):
            monkeypatch.setattr(_moves, name, self._moving(getattr(_moves, name)))
        monkeypatch.setattr(_moves, "give", self._giving(_moves.give))
        monkeypatch.setattr(Performer, "_order_streams", self._keeping(Performer._order_streams))
        cpu = torch.Tensor.cpu

        def waited_for(tensor, *args, **kwargs):
            torch.cuda.synchronize()
            return cpu(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, "cpu", waited_for)

    def _moving(self, move):
        def wrapper(storage, *args):
            _moves.open_to_reads(storage)  # what is on its way and not wanted any more is guarded
            at, length = _place(storage)
            self._library.fake_let_go(ctypes.c_uint64(at), ctypes.c_size_t(length))
            return move(storage, *args)

        return wrapper

    def _giving(self, give):
        def wrapper(storage, size, message):
            at = give(storage, size, message)
            # An allocator may give back the memory that the storage had, with the right bytes in it.
            ctypes.memset(at, 0xA5, size if at else 0)
            return at

        return wrapper

    def _keeping(self, order_streams):
        def wrapper(performer, record):
            event = performer._events.get(record.id)
            order_streams(performer, record)
            if event is not None:
                self._coming.append((record(), event))

        return wrapper

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)  # it launches nothing
        used = {storage._cdata: storage for storage in storages_of(args, kwargs) if self._is_ours(storage)}
        places = {key: _place(storage) for key, storage in used.items()}
        stream = self._fake.stream.handle
        self._library.fake_reach(stream, *_spans([(*place, None) for place in places.values()]))
        before = {key: ctypes.string_at(*place) for key, place in places.items()}
        result = func(*args, **kwargs)
        made = []
        storages_in(result, made)
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
        self._coming = [(storage, event) for storage, event in self._coming if not event.query()]
        oldest = self._library.fake_oldest_kernel()
        while self._waiting and (not oldest or self._waiting[0][0] < oldest):
            self._waiting.popleft()
        return result

    @staticmethod
    def _is_ours(storage):
        return storage.device.type == "cpu" and nbytes(storage) > 0
