"""Blocks whose memory is a GPU's, on the fake CUDA: late copies, events, streams. `tests/hardware/gpu.sh` has the real one."""

import gc

import pytest
import torch

import tidelog
from tidelog import _movers
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits
from tidetest.compare import compare
from tidetest.fake_cuda import Event, FakeCuda, Stream
from tidetest.world import BUDGET, World

STAGING = 256 * KIB


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    """`gpu(seed, laziness)`: the fake takes torch.cuda's place. Whatever a test does must have been lawful."""
    made = []

    def start(seed=1, laziness=3):
        made.append(FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed, laziness))
        return made[-1]

    yield start
    gc.collect()
    for fake in made:
        fake.assert_lawful()


@pytest.mark.parametrize("mode", ["reactive", "auto"])
@pytest.mark.parametrize("mover", ["resize", "swap"])
def test_training_gives_the_same_bits(gpu, pool, mover, mode):
    """Staging is host memory, so the whole budget is the tensors'."""
    fake = gpu(seed=7)

    def train(world):
        world.steps(2)
        if world.tide is not None:
            stats = world.tide.stats()
            assert stats["gpu"] == "GPU 0 (Fake GPU) at 0000:3b:00.0"
            assert stats["totals"]["evictions"] and stats["totals"]["fetches"], "everything fitted"
            assert world.tide.peak_bytes <= BUDGET - STAGING
            assert world.tide.live_bytes == world.tide.live

    compare(train, pool, mover, mode, memory=BUDGET - STAGING, staging=STAGING)
    assert fake.copies() > 0, "the bytes went another way"


def address(tensor):
    return _movers.data_pointer(tensor.untyped_storage())  # data_ptr() would pin it


def test_an_eviction_waits_for_every_stream(gpu, pool):
    """Kernels that have not run yet write the tensor, on a stream or on two: the bytes that leave are those after them."""
    for seed in range(6):
        fake = gpu(seed, laziness=40)
        world = World()
        made = torch.arange(128.0 * 128).reshape(128, 128)
        lates = [torch.zeros(128, 128) for _ in range(3)]
        second = Stream()
        with world.block(pool, mode="reactive", memory=64 * MIB) as tide:
            launched_on = [fake.stream, fake.stream, second]
            for late, stream in zip(lates, launched_on):
                with fake.on(stream):
                    late.add_(0)  # an op by which the stream is noticed, where one is out already
                    stream.copy(address(made), address(late), late.nbytes)
                tide.evict(late)
            assert tide.device.streams.keys() == {fake.stream.handle.value, second.handle.value}
            assert tide.device.shared > 0, "memory that another stream uses was not kept from the allocator"
            for late in lates:
                assert not tide.is_resident(late)
                assert_same(bits(made), bits(late), f"a late kernel's bytes, seed {seed}")


def test_what_an_op_takes_is_told_by_events(gpu, pool):
    gpu()
    world = World()
    with world.block(pool, mode="auto", memory=BUDGET - STAGING, staging=STAGING) as tide:
        world.warm_up("auto")
        plan = tide.stats()["plan"]
        assert plan["compute_ns"] == plan["ops"] * Event.OP_MILLISECONDS * 1e6


def test_cached_blocks_go_back_when_they_would_break_the_budget(gpu, pool):
    fake = gpu()
    world = World()
    with world.block(pool, mode="reactive", memory=BUDGET - STAGING, staging=STAGING):
        world.steps(1)
        fake.cached, before = 1 << 40, fake.emptied
        world.steps(4)
        assert fake.emptied > before


def test_a_device_that_is_not_there_is_refused_by_name(pool):
    for device, reason in [("cuda", "no CUDA GPU"), ("meta", "not of this"), ("gpu", "device='gpu'")]:
        if device == "cuda" and torch.cuda.is_available():
            continue
        with pytest.raises(tidelog.Error, match=reason):
            tidelog.offload(pool=pool, memory="1GiB", device=device)
