"""Memory that the allocator does not have although the budget has room, because what is free is in pieces."""

import pytest
import torch

import tidelog
from tidelog.dispatch._performer import Performer
from tidelog.memory import _device, _heap
from tidelog.native._built import native
from tidetest import MIB
from tidetest.bits import assert_same, bits
from tidetest.compare import compare
from tidetest.device import STAGING
from tidetest.world import BUDGET, World


class Scarce:
    """Memory that is not to be had: at these calls of `give`, counted from 0, or at all."""

    def __init__(self, lacking):
        self._give, self._lacking, self.calls, self.refused = native().give, lacking, 0, 0

    def give(self, storage, size, message):
        call, self.calls = self.calls, self.calls + 1
        if self._lacking is None or call in self._lacking:
            self.refused += 1
            raise torch.OutOfMemoryError("tried to allocate: what is free is in pieces")
        return self._give(storage, size, message)

    def end(self):
        self._lacking = ()


@pytest.fixture
def scarce(monkeypatch):
    """`scarce(lacking)`: blocks that are opened from here on have memory that is scarce; returns it."""

    def begin(lacking):
        memory = Scarce(lacking)
        monkeypatch.setattr(native(), "give", memory.give)
        opened = Performer.__init__

        def in_python(performer, *arguments):
            opened(performer, *arguments)
            performer._ledger.maps_memory = True

        monkeypatch.setattr(Performer, "__init__", in_python)
        return memory

    return begin


@pytest.fixture
def given_back(monkeypatch):
    """Counts the times that kept memory of the allocator went back."""
    times = []
    plain = _heap.Heap.release
    monkeypatch.setattr(_heap.Heap, "release", lambda heap: (times.append(1), plain(heap)))
    return times


def test_what_the_allocator_keeps_goes_back_and_the_memory_is_there(scarce, pool, given_back):
    memory = scarce([0])
    world = World()
    with world.block(pool, mode="reactive", memory=64 * MIB) as tide:
        parameter = world.subject("parameter")
        before = bits(parameter)
        tide.evict(parameter)
        assert_same(bits(parameter), before, "a parameter that came back at the second try")
        assert (memory.refused, len(given_back)) == (1, 1)
        assert tide.stats()["totals"]["evictions"] == 1, "others had to leave for it"


def test_others_leave_and_the_memory_is_asked_for_again(scarce, pool, given_back):
    memory = scarce([0, 1, 2, 3])  # twice two tries
    world = World()
    with world.block(pool, mode="reactive", memory=64 * MIB) as tide:
        parameter = world.subject("parameter")
        before = bits(parameter)
        tide.evict(parameter)
        assert_same(bits(parameter), before, "a parameter for which others made room")
        assert (memory.refused, len(given_back)) == (4, 2)
        assert tide.stats()["totals"]["evictions"] >= 3, "one left, then more"


def test_memory_that_is_never_there_is_an_error_that_names_the_tensor_and_ends(scarce, pool):
    memory = scarce(None)
    world = World()
    with world.block(pool, mode="reactive", memory=64 * MIB) as tide:
        world.steps(1)
        parameter = world.subject("parameter")
        before = bits(parameter)
        tide.evict(parameter)
        with pytest.raises(
            tidelog.Error, match=r"3\.linear\.weight: there was no memory for its 16\.0 KiB.*expandable_segments"
        ):
            parameter.sum()
        assert not tide.is_resident(parameter)
        assert memory.refused < 40, "each time twice as much leaves"
        memory.end()
        assert_same(bits(parameter), before, "a parameter whose memory came at last")
        world.steps(1)


def test_training_with_memory_that_is_scarce_now_and_then_gives_the_same_bits(scarce, pool, mode):
    def train(world):
        world.steps(3)
        if world.tide is not None:
            assert world.tide.stats()["totals"]["fetches"], "everything fitted"

    memory = scarce({call + two for call in range(0, 4000, 11) for two in (0, 1)})
    compare(train, pool, mode, memory=BUDGET, staging=STAGING)
    assert memory.refused > 10


def test_a_storage_that_got_no_memory_is_still_guarded():
    tensor = torch.arange(4096.0)
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    native().take(storage, "it is out")
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        native().give(storage, 1 << 60, "it is coming")
    with pytest.raises(RuntimeError, match="it is out"):
        tensor.untyped_storage().data_ptr()
    assert storage.nbytes() == size
    assert native().give(storage, size, "it is coming")
    native().open_to_reads(storage)


def test_a_cache_that_is_in_pieces_is_not_emptied_again_and_again(monkeypatch):
    reserved, emptied = [1 << 40], []

    def stats(device):
        return {"reserved_bytes": {"all": {"current": reserved[0]}}, "allocated_bytes": {"all": {"current": 0}}}

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    cache = _heap.Cache("cuda:0", 64 * MIB)
    for _ in range(1024):
        cache.allocated(4 * MIB)
    assert 5 <= len(emptied) <= 12, "4 GiB, in each of which it did not help"
    reserved[0] = 0
    for _ in range(2048):
        cache.allocated(4 * MIB)  # it is well meanwhile, and is looked at often again
    reserved[0], before = 1 << 40, len(emptied)
    cache.allocated(4 * MIB)
    assert len(emptied) == before + 1


@pytest.mark.parametrize(
    "data_path, pool, counted",
    [
        ("auto", "/mnt/nvme", 0),
        ("uring", "/mnt/nvme", 0),
        ("gds", "/mnt/nvme", 1),
        ("gds-compat", "/mnt/nvme", 1),
        ("spdk", "spdk:0000:01:00.0", 1),
        ("auto", "/mnt/spdk:not", 0),
        ("auto", "spdk:0000:01:00.0, spdk:0000:02:00.0", 1),
    ],
)
def test_what_stands_in_the_gpus_memory_counts_against_its_budget(data_path, pool, counted):
    gpu = _device.Gpu(torch.device("cuda", 0))
    assert gpu.staging_in(4096, data_path, pool) == counted * 4096
    assert _device.Host().staging_in(4096, data_path, pool) == 4096
