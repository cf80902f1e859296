"""Tests of `allocator="arena"`: large tensors of a block come from an arena of ours, whose free memory is ordered by
events alone, on a fake CUDA whose kernels and copies are late.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading

import pytest
import torch

import tidelog
from tidelog.native import _built
from tidelog.abi._native import PartsState
from tidelog.memory._record import data_ptr
from tidetest import MIB, parting
from tidetest.bits import bits
from tidetest.compare import compare
from tidetest.device import STAGING
from tidetest.fake_cuda import ARENA_GRANULE, FakeCuda, Stream
from tidetest.lagging import Lagging
from tidetest.world import TENSORS, World

OPTIONS = {"allocator": "arena", "staging": STAGING}
LIVING = 4 * TENSORS  # what a world has
BLOCK = {"device": "cpu", "pool_size": 64 * MIB, "mode": "reactive", **OPTIONS}
WORDS = 4 * ARENA_GRANULE // 4  # of a tensor of four granules


@pytest.fixture
def fake(monkeypatch, tmp_path_factory):
    """`fake(seed, lags=True)`: the fake takes torch.cuda's place, and kernels lag. Whatever a test does must have been
    lawful, and no memory may be left."""
    with contextlib.ExitStack() as modes:
        made = []

        def start(seed=1, lags=True):
            made.append(FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed, 20 if lags else 1))
            if lags:
                made[-1].lagging = modes.enter_context(Lagging(made[-1], monkeypatch))
            else:
                made[-1].hear_of_memory()
                modes.callback(made[-1].guard.memory_end)
            return made[-1]

        yield start
        torch.cuda.synchronize()
    for each in made:
        each.assert_lawful()


def arena_of(tide):
    return tide.stats()["gpu_memory"]["arena"]


WHERE = {
    "SSDs": {},
    "gds": {"data_path": "gds"},
    "host memory": {"host_memory": 2 * LIVING},
    "both": {"host_memory": TENSORS // 2},
}


@pytest.mark.parametrize(
    ("where", "share"),
    [
        ("SSDs", 33),
        ("host memory", 50),
        ("both", 33),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [("SSDs", 50), ("gds", 50), ("gds", 33), ("host memory", 33), ("both", 50)]
        ),
    ],
)
def test_training_gives_the_same_bits(fake, pool, mode, where, share):
    gpu = fake(seed=share)
    figures = []

    def train(world):
        world.steps(3)
        if world.tide is not None:
            totals = world.tide.stats()["totals"]
            assert totals["evictions"] and totals["fetches"], "everything fitted"
            figures.append(arena_of(world.tide))

    memory = LIVING * share // 100 + (STAGING if where == "gds" else 0)
    compare(train, pool, mode, device=gpu.device, memory=memory, **OPTIONS, **WHERE[where])
    assert figures[0]["allocations"] > 100 and figures[0]["error"] is None, figures
    assert figures[0]["stream_waits"] or where != "host memory", figures
    gpu.lagging.forget()
    assert gpu.mapped_bytes() == 0, "memory of the arena was left"


def test_steps_that_were_seen_ask_the_driver_for_nothing(fake, pool):
    gpu = fake(lags=False)
    world = World(device=gpu.device)
    with world.block(pool, memory=LIVING // 2, host_memory=2 * LIVING, **OPTIONS) as tide:
        world.warm_up("auto")
        world.steps(4)
        tide.await_plan()
        world.steps(4)
        before, emptied, arena = gpu.made_and_unmapped(), gpu.emptied, arena_of(tide)
        world.steps(4)
        (made, unmapped), after = gpu.made_and_unmapped(), arena_of(tide)
        assert tide.last_step()["evictions"], "everything fitted"
        assert made == before[0] and gpu.emptied == emptied
        assert after["remapped"] - arena["remapped"] == (unmapped - before[1]) * ARENA_GRANULE
        assert after["reserved"] <= after["capacity"]


def test_what_is_free_in_pieces_is_enough(fake, pool):
    gpu = fake(lags=False)
    with tidelog.offload(pool=pool, memory=32 * 4 * ARENA_GRANULE, **BLOCK) as tide:
        pieces = [torch.full((WORDS,), float(number)) for number in range(30)]
        del pieces[::2]
        whole = torch.full((15 * WORDS,), 7.0)
        figures = arena_of(tide)
        assert figures["remapped"] >= 10 * 4 * ARENA_GRANULE and figures["declined"] == 0
        assert all(bool((piece == 2 * number + 1).all()) for number, piece in enumerate(pieces))
        assert bool((whole == 7).all())
        del pieces, whole
    assert gpu.mapped_bytes() == 0


@pytest.mark.parametrize(
    "call", ["create", *(pytest.param(each, marks=pytest.mark.slow) for each in ("map", "access")), "unmap"]
)
def test_after_an_error_of_the_driver_training_goes_on_in_torchs_memory(fake, pool, call):
    gpu = fake(seed=3)

    def train(world):
        if world.tide is not None:
            gpu.library.fake_plan(call.encode(), 0, 999, 1)
            pieces = [torch.ones(WORDS) for _ in range(12)]
            del pieces[::2]
            whole = torch.ones(6 * WORDS)
            del pieces, whole
        world.steps(3)
        gpu.library.fake_plan_end(call.encode())

    compare(train, pool, "reactive", device=gpu.device, memory=LIVING // 2, **OPTIONS)
    gpu.lagging.forget()
    assert gpu.mapped_bytes() == 0


def test_tensors_of_the_arena_outlive_the_block(fake, pool):
    gpu = fake()
    before = torch.arange(float(WORDS))
    with tidelog.offload(pool=pool, memory=MIB, **BLOCK):
        inside = before * 2
        gone = before * 3
    assert gpu.mapped_bytes() == 8 * ARENA_GRANULE, "what is free was kept"
    inside += 1
    torch.cuda.synchronize()
    inside.untyped_storage().resize_(8 * WORDS)  # by the allocator that it has
    with tidelog.offload(pool=pool, memory=MIB, **BLOCK) as tide:
        tide.evict(gone)
        assert not tide.is_resident(gone)
        again = gone + inside
    torch.cuda.synchronize()
    assert bits(again) == bits(torch.arange(float(WORDS)) * 5 + 1)
    del inside, gone, again
    torch.cuda.synchronize()
    gpu.lagging.forget()
    assert gpu.mapped_bytes() == 0


def test_an_exception_ends_the_arena(fake, pool):
    gpu = fake()
    allocator = torch.ones(WORDS)
    with pytest.raises(KeyError), tidelog.offload(pool=pool, memory=MIB, **BLOCK):
        kept = allocator * 2
        raise KeyError
    assert gpu.mapped_bytes() == 4 * ARENA_GRANULE
    allocations = gpu.made_and_unmapped()
    more = torch.ones(WORDS)
    assert gpu.made_and_unmapped() == allocations, "the arena is asked still"
    expected = more * 2
    torch.cuda.synchronize()
    assert bits(kept) == bits(expected)
    del kept
    gpu.lagging.forget()
    assert gpu.mapped_bytes() == 0


def test_a_fetch_waits_for_the_kernels_of_what_had_come_there_before(fake, pool):
    """Memory that a fetch took is used by what is launched then, not by the stream of the fetch alone."""
    gpu = fake()
    with tidelog.offload(pool=pool, memory=8 * ARENA_GRANULE, host_memory=MIB, **BLOCK) as tide:
        first, second = torch.full((WORDS,), 1.0), torch.full((WORDS,), 2.0)
        for tensor in (first, second):
            tide.evict(tensor)
        kept = torch.full((WORDS,), 3.0)
        assert float(first.sum()) == WORDS  # it is back, and nothing else is free
        torch.cuda.synchronize()
        late = torch.cuda.Event()
        late.record(gpu.stream)
        gpu.library.fake_hold_event(ctypes.c_void_p(late.cuda_event))
        total = first.sum()  # a kernel that does not run yet
        del first
        gpu.lagging.let_go()
        tide.access.bring_back(second.untyped_storage())
        for _ in range(2000):  # time passes: what may happen does
            late.query()
        gpu.library.fake_hold_event(None)
        torch.cuda.synchronize()
        assert float(total) == WORDS
        assert bool((second == 2).all()) and bool((kept == 3).all())
        gpu.assert_lawful()


def test_threads_and_streams_share_the_arena(fake, pool):
    """Memory that one stream has allocated is used by another one, while other threads allocate and free."""
    gpu, beside = fake(lags=False), Stream()
    errors = []
    with tidelog.offload(pool=pool, memory=64 * 4 * ARENA_GRANULE, **BLOCK) as tide:

        def work(number):
            try:
                for turn in range(20):
                    tensor = torch.full((WORDS,), float(number * 100 + turn))
                    assert bool((tensor == number * 100 + turn).all())
            except BaseException as error:  # noqa: BLE001 - it is raised below
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        source = torch.arange(float(WORDS))
        for turn in range(20):
            made = source + turn
            beside.wait_event(gpu.stream.record_event())
            with gpu.on(beside):
                doubled = made * 2
            gpu.stream.wait_event(beside.record_event())
            del made
            assert bool((doubled == (source + turn) * 2).all())
        for thread in threads:
            thread.join()
        assert arena_of(tide)["allocations"] > 60
    assert not errors, errors
    del source, doubled


def test_a_pause_gives_the_arena_back(fake, pool):
    gpu = fake(lags=False)
    world = World(device=gpu.device)
    with world.block(pool, memory=LIVING, **OPTIONS) as tide:
        world.steps(2)
        assert gpu.mapped_bytes() > 0
        with tide.paused():
            beside = torch.ones(WORDS)
            assert gpu.mapped_bytes() == 0
        assert bool((beside == 1).all())
        world.steps(2)
        assert gpu.mapped_bytes() > 0
    plain = World(device=gpu.device)
    plain.steps(4)
    assert world.losses == plain.losses


def test_a_forked_child_leaves_the_arena_as_it_is(fake, pool):
    fake(lags=False)
    with tidelog.offload(pool=pool, memory=MIB, **BLOCK):
        kept = torch.ones(WORDS)
        child = os.fork()
        if child == 0:
            del kept
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert bool((kept == 1).all())
        del kept


def test_where_there_is_no_arena_it_is_refused(pool, fake):
    memory = {"pool": pool, "memory": "1MiB", "allocator": "arena"}
    with pytest.raises(tidelog.Error, match='allocator="arena" is for a GPU'):
        tidelog.offload(device="cpu", **memory)
    fake(lags=False)
    with pytest.raises(tidelog.Error, match="expected 'torch' or 'arena'"):
        tidelog.offload(pool=pool, memory="1MiB", allocator="ours")


PART = parting.SIZE // 4


def out_and_back(tide, value):
    """A tensor whose memory is the arena's, and whose parts may move."""
    tensor = torch.full((parting.SIZE // 4,), value)
    tide.evict(tensor)
    tide.restore(tensor)
    assert tide.device.is_divisible(tensor.untyped_storage())
    return tensor


def part_leaves(tide, tensor, begin):
    """A part is given back, as where the session asks for that. What it held is lost."""
    storage, parts = tensor.untyped_storage(), tide.performer.parts
    assert parts.evict(storage._tide, storage, PART, begin)
    parts.release(storage._tide, storage, PART, begin)


def part_comes(tide, tensor, begin):
    """Memory for a part, as where the session asks for that. Returns its address, and the event behind which it may be
    written."""
    storage, parts = tensor.untyped_storage(), tide.performer.parts
    address = parts.allocate(storage._tide, storage, PART, begin)
    return address, storage._tide.parted.arrival(begin)


def part_is_back(tide, tensor, begin):
    storage, parts = tensor.untyped_storage(), tide.performer.parts
    parts.settle(storage._tide, storage, PartsState.RESIDENT, begin)


def in_parts(pool, memory):
    return tidelog.offload(pool=pool, memory=memory, device="cpu", pool_size=64 * MIB, parts="best", **OPTIONS)


def test_a_part_that_nobody_has_wanted_comes_back_where_it_was(fake, pool):
    gpu = fake(lags=False)
    with in_parts(pool, 2 * parting.SIZE) as tide:
        tensor = out_and_back(tide, 1.0)
        address, before = data_ptr(tensor.untyped_storage()), arena_of(tide)
        part_leaves(tide, tensor, PART)
        assert before["allocated"] - arena_of(tide)["allocated"] == PART
        assert before["requested"] - arena_of(tide)["requested"] == PART
        assert part_comes(tide, tensor, PART)[0] == address + PART
        after = arena_of(tide)
        assert (after["allocated"], after["remapped"]) == (before["allocated"], before["remapped"])
        part_is_back(tide, tensor, PART)
        assert data_ptr(tensor.untyped_storage()) == address
        assert bool((tensor[: PART // 4] == 1).all()) and bool((tensor[PART // 2 :] == 1).all())
        part_leaves(tide, tensor, 3 * PART)
        del tensor  # with a part out
    assert gpu.mapped_bytes() == 0


def test_a_part_that_comes_at_once_waits_for_what_used_it(fake, pool):
    gpu = fake()
    with in_parts(pool, 2 * parting.SIZE) as tide:
        tensor = out_and_back(tide, 1.0)
        torch.cuda.synchronize()
        late = torch.cuda.Event()
        late.record(gpu.stream)
        gpu.library.fake_hold_event(ctypes.c_void_p(late.cuda_event))
        total = tensor.sum()
        part_leaves(tide, tensor, PART)
        _, event = part_comes(tide, tensor, PART)
        is_early = any(event.query() for _ in range(200))
        gpu.library.fake_hold_event(None)
        assert not is_early
        torch.cuda.synchronize()
        assert event.query()
        part_is_back(tide, tensor, PART)
        assert float(total) == parting.SIZE // 4


def test_a_part_waits_for_who_has_its_memory(fake, pool):
    gpu = fake()
    with in_parts(pool, 2 * parting.SIZE) as tide:
        tensor, kept = out_and_back(tide, 1.0), torch.full((parting.SIZE // 4,), 2.0)
        address = data_ptr(tensor.untyped_storage())
        part_leaves(tide, tensor, PART)
        before = arena_of(tide)
        taker = torch.full((PART // 4,), 3.0)
        spare = 2 * parting.SIZE // 64  # for rounding
        assert arena_of(tide)["remapped"] - before["remapped"] >= PART - spare
        assert arena_of(tide)["declined"] == before["declined"]
        storage, parts = tensor.untyped_storage(), tide.performer.parts
        assert parts.allocate(storage._tide, storage, PART, PART) == 0, "another has the memory"
        torch.cuda.synchronize()
        late = torch.cuda.Event()
        late.record(gpu.stream)
        gpu.library.fake_hold_event(ctypes.c_void_p(late.cuda_event))
        total = taker.sum()
        del taker
        gpu.lagging.let_go()
        releaser = threading.Timer(0.3, gpu.library.fake_hold_event, [None])  # memory is unmapped once nobody uses it
        releaser.start()
        comes, event = part_comes(tide, tensor, PART)
        releaser.join()
        assert comes == address + PART
        event.synchronize()
        part_is_back(tide, tensor, PART)
        torch.cuda.synchronize()
        assert float(total) == 3 * PART // 4
        assert bool((tensor[: PART // 4] == 1).all()) and bool((kept == 2).all())
        gpu.assert_lawful()


FRONT = """
import torch
import tidelog
from tidelog.memory import _arena

name = torch.cuda.get_allocator_backend
assert name() == "native"
_arena.open_for_cuda(0)
assert name() == "native"  # handed on
_arena.in_front_of_cuda().tidelog_cuda_close()
assert name() == "native"
"""


@pytest.mark.slow
def test_what_goes_in_front_of_cudas_allocator_is_built_and_hands_on():
    if torch.version.cuda is None or _built._headers_of_cuda() is None:
        pytest.skip("torch is not for CUDA, or there are no headers")
    run = subprocess.run([sys.executable, "-c", FRONT], capture_output=True, text=True, check=False)
    if "torch's allocator of GPUs is known as" in run.stderr:
        pytest.skip(run.stderr)
    assert run.returncode == 0, run.stderr
