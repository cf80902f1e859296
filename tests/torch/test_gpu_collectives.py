"""Collectives as NCCL has them, on a fake CUDA: on a stream of their own, behind what was launched before them. Whoever
waits for a `Work` has a stream wait, and no thread. What a collective uses stays where it is until that.
"""

import contextlib
import ctypes
import random
from functools import partial

import numpy
import pytest
import torch

import tidelog
from tidetest import MIB
from tidetest.bits import assert_same, bits
from tidetest.device import STAGING
from tidetest.fake_cuda import Event, FakeCuda, Stream
from tidetest.lagging import Lagging
from tidetest.requests import until_it_waits

pytestmark = [
    pytest.mark.host_memory("it brings a GPU of its own"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]

COUNT, NUMBERS = 12, 8 * 1024  # tensors, and in each: 32 KiB
BUDGET = 8 * 4 * NUMBERS
WHERE = {"SSDs": {}, "host memory": {"host_memory": 2 * MIB}}


class Work(torch.distributed.Work if torch.distributed.is_available() else object):
    """Work of a kernel that a communicator has launched. It is waited for by the method of torch's class, which is the
    one that is watched, and calls this one."""

    def __init__(self, gpu, event):
        super().__init__()
        self.gpu, self.event = gpu, event

    def wait(self, timeout=None):
        self.gpu.stream.wait_event(self.event)
        return True

    def is_completed(self):
        return self.event.query()


class Communicator:
    """Launches kernels on a stream of its own."""

    def __init__(self, gpu):
        self.gpu, self.stream, self.works = gpu, Stream(), []

    def receive(self, written, read):
        """Launches a copy of `read` to `written`."""
        self.stream.wait_event(self.gpu.stream.record_event())
        self.gpu.copy_late(self.stream, written, read)
        self.works.append(Work(self.gpu, self.stream.record_event()))
        return self.works[-1].boxed()

    @contextlib.contextmanager
    def lags(self):
        """Holds what is launched on the stream meanwhile."""
        late = Event()
        late.record(self.stream)
        self.gpu.library.fake_hold_event(ctypes.c_void_p(late.cuda_event))
        try:
            yield
        finally:
            self.gpu.library.fake_hold_event(None)


class BesideCollectives(Lagging):
    """Mode in which ops lag but those of a communicator, which launches its own kernels."""

    def handle(self, func, args, kwargs, run):
        return run() if func.namespace == "fake_nccl" else super().handle(func, args, kwargs, run)


@pytest.fixture
def communicator(monkeypatch, tmp_path_factory):
    """One behind the op `fake_nccl.receive(written, read) -> Work`."""
    gpu = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=3, laziness=20)
    library = torch.library.Library("fake_nccl", "DEF")
    library.define("receive(Tensor(a!) tensors, Tensor input_tensor) -> __torch__.torch.classes.c10d.Work")
    with BesideCollectives(gpu, monkeypatch) as gpu.lagging:
        made = Communicator(gpu)
        library.impl("receive", made.receive, "CPU")
        yield made
        torch.cuda.synchronize()
    library._destroy()
    gpu.assert_lawful()


def received(communicator, written, read):
    torch.ops.fake_nccl.receive(written, read)
    return communicator.works[-1]


def offload(pool, **options):
    return tidelog.offload(pool=pool, device="cpu", memory=BUDGET, staging=STAGING, mode="reactive", **options)


@pytest.mark.parametrize("where", WHERE)
def test_bits_are_the_same_whatever_leaves_meanwhile(communicator, pool, where):
    choose = random.Random(where)
    expected = [numpy.full(NUMBERS, number, numpy.float32) for number in range(COUNT)]
    with offload(pool, **WHERE[where]) as tide:
        tensors = [torch.full((NUMBERS,), float(number)) for number in range(COUNT)]
        for _ in range(60):
            one, other, third = choose.sample(range(COUNT), 3)
            work = received(communicator, tensors[one], tensors[other])
            tensors[third].add_(1)
            torch.distributed.Work.wait(work)
            if choose.random() < 0.5:
                tide.evict(tensors[one])
            tensors[one].mul_(0.5)
            expected[one] = expected[other] * 0.5
            expected[third] += 1
        assert tide.stats()["totals"]["evictions"] > 20
        torch.cuda.synchronize()
        for number, tensor in enumerate(tensors):
            assert_same(bits(torch.from_numpy(expected[number])), bits(tensor), f"tensor {number}")


def test_what_a_collective_uses_stays_until_its_event(communicator, pool):
    with offload(pool) as tide:
        tensors = [torch.full((NUMBERS,), float(number)) for number in range(COUNT)]
        with communicator.lags():
            work = received(communicator, tensors[0], tensors[1])
            for tensor in tensors[:2]:
                with pytest.raises(tidelog.Error, match="not complete"):
                    tide.evict(tensor)
            for tensor in tensors[2:]:
                tensor.add_(1)  # others leave for them
            assert tide.is_resident(tensors[0]) and tide.is_resident(tensors[1])
            assert not work.is_completed()
        torch.cuda.synchronize()
        for tensor in tensors[:2]:
            tide.evict(tensor)
            assert_same(bits(tensor), bits(torch.full((NUMBERS,), 1.0)), "what was received, and from whom")


@pytest.mark.parametrize("where", WHERE)
def test_what_was_waited_for_leaves_behind_the_collective(communicator, pool, where):
    """Checks that it is copied once: not before the collective has written it, though the last op that is known to have
    used it was launched before that."""
    gpu = communicator.gpu
    with offload(pool, **WHERE[where]) as tide:
        tide.steps.budget_reached()
        tensors = [torch.full((NUMBERS,), float(number)) for number in range(4)]
        for _ in range(20):
            tensors[2].add_(1)
        with communicator.lags():
            work = received(communicator, tensors[0], tensors[1])
            for _ in range(20):
                tensors[2].add_(1)  # marks of other ops are behind the one that launched the collective
            torch.distributed.Work.wait(work)
            tensors[3].add_(1)
            before = gpu.host_bytes()
            record = tensors[0].untyped_storage()._tide
            until_it_waits(tide, partial(tide.session.evict, record.id))
            assert gpu.host_bytes() == before, "it was copied before the collective has run"
        torch.cuda.synchronize()
        tide.session.settle()
        tide.performer.await_leaving([record])
        assert gpu.host_bytes() == before + tensors[0].nbytes, "it was copied more than once"
        assert_same(bits(tensors[0]), bits(torch.full((NUMBERS,), 1.0)), "what was received")
