"""Tensors that stay while they are copied out, on a fake CUDA whose kernels and copies lag: ops read them meanwhile, and
one that writes them waits for the copy.

The session's callbacks are called as the library calls them, with a copy that the test holds in its place.
"""

import contextlib
import ctypes
import threading
import time

import pytest
import torch

import tidelog
from tidelog.abi._native import PartsState, Session
from tidetest import MIB
from tidetest.bits import assert_same, bits
from tidetest.device import STAGING
from tidetest.fake_cuda import FakeCuda, Stream, _call
from tidetest.lagging import Lagging

NUMBERS = 64 << 10


class _Bytes(ctypes.Structure):
    """`tide_bytes`."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("begin", "length")),
        *((name, ctypes.c_uint32) for name in ("storage", "is_part")),
    ]


class _Memory(ctypes.Structure):
    """`tide_memory`."""

    _fields_ = [("address", ctypes.c_uint64), *((name, ctypes.c_void_p) for name in ("after", "landed", "last_use"))]


# With Python's lock held, as where the session calls them.
_EVICT = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_Bytes), ctypes.POINTER(_Memory))
_SETTLE = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_Bytes), ctypes.c_uint64)


class _Callbacks(ctypes.Structure):
    """`tide_session_callbacks`, as far as it is used."""

    _fields_ = [
        *(("size", ctypes.c_uint64), ("context", ctypes.c_void_p), ("evict", _EVICT), ("release", ctypes.c_void_p)),
        *(("allocate", ctypes.c_void_p), ("settle", _SETTLE)),
    ]


_SET = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.POINTER(_Callbacks))


class Copier:
    """Library's part in a copy of a tensor that stays."""

    def __init__(self, gpu, patch):
        self._gpu, self.callbacks = gpu, None
        self.stream, self._keeps = Stream(), []
        calls = Session.calls

        def caught(session):
            known = calls(session)
            library = _SET(known[9])

            def set_callbacks(handle, callbacks):
                self.callbacks = _Callbacks.from_buffer_copy(callbacks.contents)
                return library(handle, callbacks)

            self._keeps.append(_SET(set_callbacks))
            return (*known[:9], ctypes.cast(self._keeps[-1], ctypes.c_void_p).value, *known[10:])

        patch.setattr(Session, "calls", caught)

    def cleans(self, tide, tensor, copy):
        """Puts a copy of a tensor into a stream, and tells the block that it is there."""
        tide.ledger.flush()
        which = _Bytes(0, tensor.nbytes, tensor.untyped_storage()._tide.id, 0)
        memory, callbacks = _Memory(), self.callbacks
        assert callbacks.evict(callbacks.context, which, memory) == 0 and memory.address and memory.landed
        _call("cuStreamWaitEvent", self.stream.handle, ctypes.c_void_p(memory.after), 0)
        self._gpu.copy_late(self.stream, copy, tensor)
        _call("cuEventRecord", ctypes.c_void_p(memory.landed), self.stream.handle)
        assert callbacks.settle(callbacks.context, which, PartsState.COPIED) == 0


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    """The fake, and what copies."""
    with contextlib.ExitStack() as modes:
        made = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), 3, 20)
        made.lagging = modes.enter_context(Lagging(made, monkeypatch))
        yield made, Copier(made, monkeypatch)
        torch.cuda.synchronize()
    made.assert_lawful()


@contextlib.contextmanager
def held(gpu, stream):
    """Holds what is put into a stream from here on."""
    late = torch.cuda.Event()
    late.record(stream)
    gpu.library.fake_hold_event(ctypes.c_void_p(late.cuda_event))
    try:
        yield
    finally:
        gpu.library.fake_hold_event(None)


def happens(event, seconds=20):
    end = time.monotonic() + seconds
    while not event.query() and time.monotonic() < end:
        time.sleep(0.001)
    return event.query()


def full(number):
    return bits(torch.full((NUMBERS,), float(number)))


@contextlib.contextmanager
def cleaned(gpu, copier, pool):
    """A block, a tensor that is being copied out and stays, and its copy, which is held."""
    options = {"memory": 8 * MIB, "staging": STAGING, "mode": "reactive", "pool_size": 64 * MIB}
    with tidelog.offload(pool=pool, device=gpu.device, host_memory=8 * MIB, **options) as tide:
        tensors = [torch.zeros(NUMBERS), torch.full((NUMBERS,), 7.0)]  # nobody else has them
        copy = tensors[0]
        torch.cuda.synchronize()
        with contextlib.ExitStack() as holds:
            holds.callback(torch.cuda.synchronize)
            holds.enter_context(held(gpu, copier.stream))
            copier.cleans(tide, tensors[1], copy)
            yield tide, tensors.pop(), copy, holds


def test_what_stays_is_read_meanwhile_and_a_writer_waits(gpu, pool):
    gpu, copier = gpu
    with cleaned(gpu, copier, pool) as (tide, stays, copy, holds):
        record = stays.untyped_storage()._tide
        assert record.in_flight, "it is read still"
        twice = stays * 2
        assert happens(gpu.stream.record_event()), "a reader waits"
        stays.add_(1)
        assert not happens(gpu.stream.record_event(), seconds=0.2), "a writer does not wait"
        holds.close()
        assert_same(bits(twice), full(14), "what was read meanwhile")
        assert_same(bits(copy), full(7), "the copy")
        assert_same(bits(stays), full(8), "what was written later")
        tide.ledger.make_room(0)
        assert not record.in_flight


def test_memory_of_what_dies_while_it_is_copied_is_the_next_ones_behind_the_copy(gpu, pool):
    gpu, copier = gpu
    with cleaned(gpu, copier, pool) as (tide, stays, copy, holds):
        ones = torch.ones(NUMBERS)
        del stays
        others = [ones * number for number in range(4)]
        assert tide.ledger.departing == copy.nbytes, "its memory goes behind the copy"
        holds.close()
        assert_same(bits(copy), full(7), "the copy")
        for number, other in enumerate(others):
            assert_same(bits(other), full(number), "what came later")


def test_who_has_the_address_waits_for_the_copy(gpu, pool):
    gpu, copier = gpu
    with cleaned(gpu, copier, pool) as (_, stays, copy, holds):
        ender = threading.Timer(0.2, holds.close)
        ender.start()
        stays.data_ptr()
        assert not ender.is_alive(), "it was read still"
        ender.join()
        assert_same(bits(copy), full(7), "the copy")


def test_a_tensor_that_is_copied_may_leave_at_once(gpu, pool):
    gpu, copier = gpu
    with cleaned(gpu, copier, pool) as (tide, stays, copy, holds):
        tide.evict(stays)
        assert not tide.is_resident(stays)
        holds.close()
        assert_same(bits(copy), full(7), "the copy")
        assert_same(bits(stays), full(7), "what came back")


def test_a_block_ends_while_what_stays_is_copied(gpu, pool):
    gpu, copier = gpu
    with cleaned(gpu, copier, pool) as (_, stays, copy, holds):
        holds.close()
    assert_same(bits(copy), full(7), "the copy")
    assert_same(bits(stays), full(7), "what stayed")
