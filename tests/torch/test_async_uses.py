"""Ops that go on after they have returned: what they use stays where it is until their Work is complete."""

import ctypes
import random
import threading
import time

import pytest
import torch

import tidelog
from tidetest import KIB, device
from tidetest.bits import assert_same, bits

pytestmark = [
    pytest.mark.host_memory(device.RANKS),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]

COUNT, ELEMENTS = 24, 8 * 1024  # of tensors, and in each: 32 KiB
BUDGET = 256 * KIB + 10 * 32 * KIB  # staging, and room for ten of them

_address = torch._C.StorageBase.data_ptr


class Adversary:
    """Keeps raw addresses of what ops hand to it, and works on them late, out of order, from another thread, as the
    backend of a process group may: garbage first, then what is right. It compares what it finds at an address with
    what it left there: memory that was freed, moved or copied back meanwhile does not agree."""

    def __init__(self, seed):
        self.faults = []
        self._random = random.Random(seed)
        self._jobs, self._ended = [], False
        self._changed = threading.Condition()
        # Older than the block, so that nothing in it is a dispatched op.
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def launch(self, written, read):
        """`written` += `read`, some time. Returns a Work."""
        done = torch.futures.Future()
        addresses = [_address(each.untyped_storage()) for each in (written, read)]
        with self._changed:
            self._jobs.append([done, addresses, self._random.randrange(4), None])
            self._changed.notify()
        return torch._C._distributed_c10d._create_work_from_future(done)

    def end(self):
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _run(self):
        while True:
            with self._changed:
                while not self._jobs and not self._ended:
                    self._changed.wait()
                if not self._jobs:
                    return
                job = self._random.choice(self._jobs)  # completions come in any order
            self._go_on(job)
            time.sleep(self._random.random() * 0.0005)

    def _go_on(self, job):
        done, (written, read), left, seen = job
        mine, theirs = (
            (ctypes.c_float * ELEMENTS).from_address(address) if address else None for address in (written, read)
        )
        if seen is None:
            seen = job[3] = list(mine[:8]), list(mine), list(theirs)
        elif list(mine[:8]) != seen[0] or list(theirs[:8]) != seen[2][:8]:
            self.faults.append(f"memory at {written:#x} or {read:#x} was another's")
        if left > 0:
            for place in range(8):
                mine[place] = -1e9 * left
            job[2], job[3] = left - 1, (list(mine[:8]), *seen[1:])
            return
        result = torch.tensor(seen[1]) + torch.tensor(seen[2])
        ctypes.memmove(written, result.numpy().ctypes.data, 4 * ELEMENTS)
        with self._changed:
            self._jobs.remove(job)
        done.set_result(None)


@pytest.fixture
def adversary(request):
    """An op `adversary.add(written, input) -> Work`, as c10d's are."""
    opponent = Adversary(request.node.name)
    library = torch.library.Library("adversary", "DEF")
    work = "__torch__.torch.classes.c10d.Work"
    library.define(f"add(Tensor tensors, Tensor input_tensor) -> {work}")
    library.impl("add", lambda written, read: opponent.launch(written, read).boxed(), "CPU")
    yield opponent
    opponent.end()
    library._destroy()


@pytest.mark.parametrize("number", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_raw_addresses_stay_good(pool, mover, mode, adversary, number):
    choose = random.Random(f"{mover} {mode} {number}")
    launch = torch.ops.adversary.add
    unbox = torch.distributed.distributed_c10d.Work.unbox
    model = [torch.randn(ELEMENTS) for _ in range(COUNT)]
    expected = [each.numpy().copy() for each in model]
    model = None
    with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mover=mover, mode=mode) as tide:
        tensors = [torch.from_numpy(each).clone() for each in expected]
        in_use = {}  # number of a tensor -> the Work that uses it; two may read one

        def finish(place):
            if (pair := in_use.get(place)) is None:
                return
            work, places, is_dropped = pair
            while is_dropped and not work.is_completed():
                time.sleep(0.0002)
            work.wait()
            for each in places:
                in_use.pop(each, None)

        for _ in range(number):
            one, other = choose.sample(range(COUNT), 2)
            finish(one)
            finish(other)
            if choose.random() < 0.6 and len(in_use) < 8:
                work = unbox(launch(tensors[one], tensors[other]))
                expected[one] += expected[other]
                in_use[one] = in_use[other] = (work, (one, other), choose.random() < 0.3)
            else:
                tensors[one].mul_(0.5)
                expected[one] *= 0.5
                assert_same(bits(torch.from_numpy(expected[other])), bits(tensors[other]), f"tensor {other}")
        for place in range(COUNT):
            finish(place)
            assert_same(bits(torch.from_numpy(expected[place])), bits(tensors[place]), f"tensor {place}")
        assert tide.stats()["totals"]["evictions"] > number // 10
        assert tide.peak_bytes <= tide.budget
    assert not adversary.faults, adversary.faults[:3]


def test_an_op_waits_for_room_that_a_collective_holds(pool, mover, mode, adversary):
    with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mover=mover, mode=mode) as tide:
        tensors = [torch.zeros(ELEMENTS) for _ in range(COUNT)]
        for place in range(0, 8, 2):
            torch.ops.adversary.add(tensors[place], tensors[place + 1])  # each Work is dropped
        assert sum(torch.stack(tensors[8:12]).sum(0)) == 0  # 8 tensors, where 8 of the 10 that fit are in use
        assert tide.peak_bytes <= tide.budget


def test_one_that_may_wait_for_its_peer_is_not_waited_for(pool, mover, mode):
    """The other side may wait for what this rank would do next: waiting could take for ever."""
    future = torch.futures.Future()
    library = torch.library.Library("adversary", "DEF")
    library.define("send(Tensor tensors) -> __torch__.torch.classes.c10d.Work")
    create = torch._C._distributed_c10d._create_work_from_future
    library.impl("send", lambda tensor: create(future).boxed(), "CPU")
    try:
        with tidelog.offload(pool=pool, memory=BUDGET, staging=256 * KIB, mover=mover, mode=mode) as tide:
            tensors = [torch.zeros(ELEMENTS) for _ in range(COUNT)]
            for tensor in tensors[:8]:
                torch.ops.adversary.send(tensor)
            with pytest.raises(tidelog.BudgetError, match="in use by communication that may wait"):
                torch.stack(tensors[8:12])
            assert tensors[9].sum() == 0
            with pytest.raises(tidelog.Error, match="not complete"):
                tide.evict(tensors[0])
            future.set_result(None)
            assert torch.stack(tensors[8:12]).sum() == 0
    finally:
        library._destroy()
