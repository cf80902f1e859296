"""Kernels that lag behind their launch, and fetches that complete by events: on a fake CUDA, whose kernels and copies
happen when their streams get there.
"""

import concurrent.futures
import contextlib
import ctypes
import os
import threading
import time
import warnings
from functools import partial

import pytest
import torch

import tidelog
from tidelog.order import _element_wise, _updates
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits
from tidetest.compare import compare
from tidetest.device import STAGING
from tidetest.fake_cuda import Event, FakeCuda, Stream
from tidetest.lagging import Lagging
from tidetest.requests import until_it_waits, when_done
from tidetest.world import TENSORS


@pytest.fixture
def fake(monkeypatch, tmp_path_factory):
    """`fake(seed, laziness)`: the fake takes torch.cuda's place, and kernels lag. Whatever a test does must have been
    lawful."""
    with contextlib.ExitStack() as modes:
        made = []

        def start(seed=1, laziness=20):
            made.append(FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed, laziness))
            made[-1].lagging = modes.enter_context(Lagging(made[-1], monkeypatch))
            return made[-1]

        yield start
        torch.cuda.synchronize()
    for each in made:
        each.assert_lawful()


OPTIONS = {"staging": {}, "gds": {"data_path": "gds"}, "host memory": {"host_memory": TENSORS // 2}}


@pytest.mark.parametrize("where", OPTIONS)
def test_training_gives_the_same_bits_where_kernels_lag(fake, pool, mode, where):
    gpu = fake(seed=5)

    def train(world):
        world.steps(2)
        if world.tide is not None:
            totals = world.tide.stats()["totals"]
            assert totals["evictions"] and totals["fetches"], "everything fitted"
            assert world.tide.device.early, "no fetch has completed by an event"

    memory = TENSORS + (STAGING if where == "gds" else 0)
    compare(train, pool, mode, device=gpu.device, memory=memory, staging=STAGING, **OPTIONS[where])
    assert gpu.lagging.launched > 1000


@pytest.fixture
def lagging_updates(monkeypatch):
    """Makes updates lag, by a mode that would keep steps in their place. It sees the ops of updates as others."""
    monkeypatch.setattr(_element_wise, "_count_modes", lambda: 0)
    monkeypatch.setattr(_updates, "_disable_current_modes", contextlib.nullcontext)


@pytest.mark.usefixtures("lagging_updates")
@pytest.mark.parametrize("updates", ["lazy", "early"])
def test_updates_at_other_times_give_the_same_bits_where_kernels_lag(fake, pool, mode, updates):
    """The forward pass is on a stream of its own."""
    gpu, beside = fake(seed=7), Stream()

    def train(world):
        for _ in range(4):
            world.optimizer.zero_grad(set_to_none=True)
            beside.wait_event(gpu.stream.record_event())
            with gpu.on(beside):
                loss = (world.model(world.x) - world.y).square().mean()
            gpu.stream.wait_event(beside.record_event())
            loss.backward()
            world.optimizer.step()
            torch.cuda.synchronize()
            world.note("loss", loss)
        if world.tide is not None:
            figures = world.tide.stats()["updates"]
            assert figures["late"] + figures["early"] > 32, (figures, world.tide.stats()["notices"])

        world.optimizer.zero_grad(set_to_none=True)
        for name, value in world.result():
            world.note(name, value)

    # Two tensors more than elsewhere: what is computed in two streams is in memory together.
    memory = TENSORS + 64 * KIB
    compare(train, pool, mode, finish=False, device=gpu.device, memory=memory, staging=STAGING, updates=updates)


@pytest.mark.usefixtures("lagging_updates")
def test_a_late_update_is_launched_on_the_stream_of_its_step(fake, pool):
    """Checks an update of a parameter that another stream touches, after which nothing on the step's own waits for that
    one.
    """

    def train():
        parameter = torch.nn.Parameter(torch.ones(NUMBERS))
        optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
        for _ in range(3):
            parameter.grad = torch.ones(NUMBERS)
            optimizer.step()
        return parameter

    expected = bits(train() + 1), bits(train() * 2)
    gpu, beside = fake(), Stream()
    options = {"memory": 8 * MIB, "staging": STAGING, "mode": "reactive", "updates": "lazy"}
    with tidelog.offload(pool=pool, device=gpu.device, **options) as tide:
        tide.steps.budget_reached()
        parameter = train()
        assert tide.stats()["updates"]["pending"] == 1
        beside.wait_event(gpu.stream.record_event())
        with later_ops_lag(gpu, beside):
            with gpu.on(beside):
                there = parameter * 2
            here = parameter + 1
        torch.cuda.synchronize()
        assert_same(expected, (bits(here), bits(there)))


NUMBERS = 16 * KIB  # of each tensor, which is less than staging holds
WHERE = {"staging": {}, "host memory": {"host_memory": 4 * MIB}}


@contextlib.contextmanager
def spilled(gpu, pool, **options):
    """A block with tensors that are out, each full of its number. Time stands still on the GPU: no copy ends, but for
    who waits for a stream as a whole.
    """
    options = {"memory": 8 * MIB, "staging": STAGING, "device": gpu.device, "mode": "reactive", **options}
    with tidelog.offload(pool=pool, **options) as tide:
        tensors = [torch.full((NUMBERS,), float(number)) for number in range(4)]
        for tensor in tensors:
            tide.evict(tensor)
        torch.cuda.synchronize()
        gpu.library.fake_hold(True)
        try:
            yield tide, tensors
        finally:
            gpu.library.fake_hold(False)


def full(number):
    return bits(torch.full((NUMBERS,), float(number)))


@pytest.mark.parametrize("stream", ["the same", "one that appears later"])
def test_an_op_is_launched_while_the_bytes_of_its_fetch_are_on_their_way(fake, pool, stream):
    gpu = fake()
    with spilled(gpu, pool) as (tide, tensors):
        first = tensors[3] * 2  # it waits for the host as little as for the GPU
        assert tide.device.early == 1
        beside = Stream()
        with gpu.on(gpu.stream if stream == "the same" else beside):
            second = tensors[3] * 3
        assert tide.device.early == 1 and all(map(tide.is_resident, tensors[3:]))
    assert_same(bits(first), full(6), "twice what was fetched")
    assert_same(bits(second), full(9), "three times what was fetched")


@pytest.mark.parametrize("what", ["stream that is known", "stream that appears later"])
def test_a_stream_that_does_not_wait_is_found(fake, pool, what):
    """Counter-test: the fake shows older bytes to who has not waited."""
    gpu = fake()
    beside = Stream()
    gpu.deafen(gpu.stream if what == "stream that is known" else beside)
    with spilled(gpu, pool) as (_, tensors):
        found = tensors[3] * 2
        if what == "stream that appears later":
            part = tensors[2][:]
            with gpu.on(beside):
                found = part * 2
    assert bits(found) != full(6 if what == "stream that is known" else 4)
    gpu.library.fake_reset(1, 20)  # what it did was not lawful


@pytest.mark.parametrize("read", ["data_ptr", "tolist"])
def test_what_is_no_op_waits_until_the_bytes_are_there(fake, pool, read):
    gpu = fake()
    with spilled(gpu, pool) as (tide, tensors):
        tensors[3][1:]
        assert tide.device.streams.copies
        ender = threading.Timer(0.2, gpu.library.fake_hold, [False])
        ender.start()
        getattr(tensors[3], read)()
        ender.join()
        assert not tide.device.streams.copies


@pytest.mark.parametrize("seed", range(4))
def test_what_leaves_before_its_bytes_are_there_leaves_with_them(fake, pool, seed):
    gpu = fake(seed)
    with spilled(gpu, pool) as (tide, tensors):
        parts = [tensors[0][:]]
        assert tide.device.streams.copies == 1
        gpu.library.fake_hold(False)
        tide.evict(tensors[0])
        parts += [tensor[:] for tensor in tensors[1:]]
        tide.evict(tensors[2])
        results = [part * 2 for part in parts]
        for part in parts:
            part.add_(1)
        for tensor in (*tensors, *results):
            tide.evict(tensor)
        for number, (tensor, result) in enumerate(zip(tensors, results)):
            assert_same(bits(tensor), full(number + 1), "what left")
            assert_same(bits(result), full(2 * number), "what was made of it")


def out(tide, tensor):
    """Has a tensor leave, up to where the block would wait for that."""
    record = tensor.untyped_storage()._tide
    until_it_waits(tide, partial(tide.session.evict, record.id))
    return record


def awaited(happens, seconds=20):
    end = time.monotonic() + seconds
    while not happens() and time.monotonic() < end:
        time.sleep(0.001)
    return happens()


@contextlib.contextmanager
def later_ops_lag(gpu, stream=None):
    """Holds all later ops of a stream, that of ops unless another one is named, beyond what is there now."""
    late = Event()
    late.record(stream or gpu.stream)
    gpu.library.fake_hold_event(ctypes.c_void_p(late.cuda_event))
    try:
        yield
    finally:
        gpu.library.fake_hold_event(None)


@pytest.mark.parametrize("where", WHERE)
def test_a_copy_out_waits_for_the_last_use_and_for_no_later_op(fake, pool, where):
    """Checks that a copy does not wait for later ops, which lag."""
    gpu = fake()
    with spilled(gpu, pool, **WHERE[where]) as (tide, _):
        gpu.library.fake_hold(False)
        leaves, other = (torch.full((NUMBERS,), float(number)) for number in range(2))
        for _ in range(2):
            leaves.add_(1)
        for _ in range(20):
            other.add_(1)
        with later_ops_lag(gpu):
            other.add_(1)
            before = gpu.host_bytes()
            record = out(tide, leaves)
            copied = awaited(lambda: gpu.host_bytes() == before + leaves.nbytes)
            assert copied, "it has waited for what it does not need"
            tide.ledger.make_room(0)
            is_kept = tide.ledger.departing if where == "host memory" else record.in_flight
            assert is_kept, "it has gone before it was compared with all that might have been launched"
        tide.session.settle()
        tide.performer.await_leaving([record])
        assert not tide.is_resident(leaves)
        assert_same(bits(leaves), full(2), "what left")
        assert_same(bits(other), full(22), "what was written later")


@pytest.mark.parametrize("where", WHERE)
def test_a_copy_out_waits_for_the_stream_of_the_last_use(fake, pool, where):
    gpu, beside = fake(), Stream()
    with spilled(gpu, pool, **WHERE[where]) as (tide, _):
        gpu.library.fake_hold(False)
        leaves = torch.full((NUMBERS,), 1.0)
        for _ in range(20):
            leaves.add_(1)
        beside.wait_event(gpu.stream.record_event())
        with gpu.on(beside), later_ops_lag(gpu):
            leaves.add_(1)
            before = gpu.host_bytes()
            record = out(tide, leaves)
            assert not awaited(lambda: gpu.host_bytes() != before, seconds=0.5), "it was copied before that op"
        tide.session.settle()
        tide.performer.await_leaving([record])
        assert_same(bits(leaves), full(22), "what left")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_what_leaves_is_copied_once_whatever_stream_has_used_it_last(fake, pool, where, streams, seed):
    """A copy that was made too early would be made again, as it is compared with the memory before that goes."""
    gpu = fake(seed, laziness=40)
    beside = [gpu.stream, *(Stream() for _ in range(streams - 1))]
    with spilled(gpu, pool, **WHERE[where]) as (tide, _):
        gpu.library.fake_hold(False)
        tensors = [torch.full((NUMBERS,), float(number)) for number in range(4)]
        for number in range(40):
            with gpu.on(beside[number % streams]):
                # Each stream waits for the others: it is the program that orders its own ops.
                for stream in beside:
                    gpu.stream.wait_event(stream.record_event())
                tensors[number % 3].add_(1)
        copied = tide.stats()["totals"]
        for tensor in tensors:
            tide.evict(tensor)
        totals = tide.stats()["totals"]
        written = sum(totals[key] - copied[key] for key in ("bytes_written", "bytes_to_host"))
        assert written == sum(tensor.nbytes for tensor in tensors)
        for tensor, number in zip(tensors, (14, 14, 15, 3)):
            assert_same(bits(tensor), full(number), "what left")


def test_an_eviction_to_host_memory_waits_for_nothing(fake, pool):
    """Time stands still on the GPU."""
    gpu = fake()
    with spilled(gpu, pool, **WHERE["host memory"]) as (tide, _):
        leaves = [torch.full((NUMBERS,), float(number)) for number in range(5, 8)]
        for tensor in leaves:
            tide.evict(tensor)
        assert not any(map(tide.is_resident, leaves))
        assert tide.ledger.departing == sum(tensor.nbytes for tensor in leaves)
        gpu.library.fake_hold(False)
        for number, tensor in enumerate(leaves, 5):
            assert_same(bits(tensor), full(number), "what left")


@pytest.mark.parametrize("mode", ["reactive", "auto"])
def test_what_is_read_still_counts_against_the_budget(fake, pool, mode):
    gpu = fake(laziness=40)
    options = {"memory": 16 * 4 * NUMBERS, "staging": STAGING, "device": gpu.device, "host_memory": 8 * MIB}
    with tidelog.offload(pool=pool, mode=mode, pool_size=64 * MIB, **options) as tide:
        ledger, most = tide.ledger, 0
        for _ in range(4):
            with tide.step():
                tensors = [torch.full((NUMBERS,), float(number)) for number in range(32)]
                for number, tensor in enumerate(tensors):
                    result = tensor * 2
                    most = max(most, ledger.departing)
                    assert ledger.counted + ledger.departing <= ledger.limit
                    assert_same(bits(result), full(2 * number), "twice what left")
        assert most, "nothing was read still"


@pytest.mark.parametrize("seed", range(6))
def test_memory_that_is_read_still_is_the_next_fetchs(fake, pool, seed):
    """Checks that the copy waits for that memory alone, and the op for the copy."""
    gpu = fake(seed, laziness=40)
    with spilled(gpu, pool, **WHERE["host memory"]) as (tide, tensors):
        leaves = torch.full((NUMBERS,), 9.0)
        tide.evict(leaves)
        gpu.library.fake_hold(False)
        assert tide.ledger.departing
        found = tensors[1] * 2
        assert not tide.ledger.departing
        assert_same(bits(found), full(2), "twice what came")
        assert_same(bits(leaves), full(9), "what left")


def test_memory_that_another_thread_has_borrowed_goes_behind_its_op(fake, pool):
    """Checks memory that was borrowed after its copy was put into a stream, and before it was given up."""
    gpu = fake()
    with spilled(gpu, pool, **WHERE["host memory"]) as (tide, tensors), contextlib.ExitStack() as lag:
        gpu.library.fake_hold(False)
        leaves, copied = torch.full((NUMBERS,), 9.0), torch.zeros(NUMBERS)
        record = leaves.untyped_storage()._tide

        def used(_address):
            record.borrow(1)
            lag.enter_context(later_ops_lag(gpu))
            gpu.copy_late(gpu.stream, copied, leaves)
            record.borrow(-1)

        before = gpu.host_bytes()
        with when_done(tide, used):
            tide.evict(leaves)
        assert not tide.is_resident(leaves)
        assert awaited(lambda: gpu.host_bytes() == before + leaves.nbytes)
        until_it_waits(tide, partial(torch.add, tensors[1], 1))
        assert not awaited(lambda: gpu.host_bytes() > before + leaves.nbytes, seconds=0.5), "it was written in use"
        lag.close()
        assert_same(bits(tensors[1]), full(1), "what came back")
        assert_same(bits(copied), full(9), "what the thread's op has read")


def test_what_was_written_past_the_dispatcher_while_it_left_is_an_error_by_name(fake, pool):
    gpu = fake()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        with spilled(gpu, pool, **WHERE["host memory"]) as (tide, _):
            gpu.library.fake_hold(False)
            leaves, other, source = (torch.full((NUMBERS,), number) for number in (7.0, 8.0, -1.0))
            for _ in range(2):
                leaves.add_(1)
            for _ in range(20):
                other.add_(1)
            with later_ops_lag(gpu):
                gpu.copy_late(gpu.stream, leaves, source)
                before = gpu.host_bytes()
                tide.evict(leaves)
                assert awaited(lambda: gpu.host_bytes() == before + leaves.nbytes)
            with pytest.raises(tidelog.DeviceError, match="were written while they were copied to host memory"):
                for _ in range(1000):
                    other.add_(1)
                    time.sleep(0.01)
            with pytest.raises(tidelog.DeviceError, match="were written while they were copied to host memory"):
                leaves.sum()
            assert not tide.is_resident(leaves)


def test_a_storage_that_dies_while_it_leaves_keeps_its_memory_until_it_is_out(fake, pool):
    gpu = fake()
    with spilled(gpu, pool) as (tide, _):
        tensor = torch.full((NUMBERS,), 9.0)
        gpu.lagging.forget()
        record = out(tide, tensor)
        assert record.in_flight
        before = tide.live_bytes
        del tensor
        assert record() is None, "a reference to it is left, which autograd would see"
        assert record.in_flight and tide.live_bytes == before, "its memory went while it was read"
        gpu.library.fake_hold(False)
        tide.session.settle()
        tide.performer.await_leaving([record])
        assert not record.in_flight and tide.live_bytes == before - record.size


def test_an_op_of_a_thread_that_is_older_than_the_block_waits_in_its_stream(fake, pool):
    gpu = fake()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()  # it has its thread now

        def tripled(tensor):
            with gpu.on(Stream()):
                return tensor * 3

        with spilled(gpu, pool) as (tide, tensors):
            first = tensors[3] * 2
            second = executor.submit(tripled, tensors[3]).result()
            assert tide.device.early == 1 and tide.device.streams.copies
    assert_same(bits(first), full(6), "twice what was fetched")
    assert_same(bits(second), full(9), "three times what was fetched")


def test_a_forked_child_waits_for_no_copy_of_its_parents(fake, pool):
    gpu = fake()
    with spilled(gpu, pool) as (tide, tensors):
        tensors[3][1:]
        assert tide.device.streams.copies
        child = os.fork()
        if child == 0:
            tide.device.streams.await_copies()  # would not return
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0 and tide.device.streams.copies
