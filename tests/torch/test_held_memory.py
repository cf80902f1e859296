"""Memory that is more to a program than bytes: page-locked, or in a pool of its own. It stays where it is."""

import ctypes
import gc
import types

import numpy
import pytest
import torch

import tidelog
from tidetest import KIB, MIB, fake_cuda
from tidetest.bits import assert_same, bits
from tidetest.device import STAGING

COUNT, SIDE = 24, 64  # of tensors; each is 16 KiB
TENSORS = 10 * 16 * KIB  # what the budget leaves for them


def press(tensors):
    """Uses all, so that those that can move do."""
    for each in tensors:
        each.add_(1)


def address_of(tensor):
    return torch._C.StorageBase.data_ptr(tensor.untyped_storage())


def assert_held(tide, held, addresses, tensors):
    assert tide.stats()["totals"]["evictions"] > COUNT // 2
    assert tide.peak_bytes <= tide.budget
    for each, address in zip(held, addresses, strict=True):
        assert tide.is_resident(each) and address_of(each) == address
        with pytest.raises(tidelog.UnmovableError):
            tide.evict(each)
    assert len(tide.stats()["unmovable"]) == len(held)
    tide.evict(tensors[-1])


def test_page_locked_memory_stays_once_cuda_is_initialised(monkeypatch, pool, mode):
    """A copy from a GPU writes into it when the op that asked for that has long returned."""
    locked = fake_cuda.lock_pages(monkeypatch)
    options = dict(memory=STAGING + TENSORS, staging=STAGING, pool_size=64 * MIB)
    with tidelog.offload(pool=pool, mode=mode, device="cpu", **options) as tide:
        held = [torch.zeros(SIDE, SIDE) for _ in range(4)]
        addresses = [address_of(each) for each in held]
        locked.update(addresses)
        tensors = [torch.zeros(SIDE, SIDE) for _ in range(COUNT)]
        late = numpy.arange(SIDE * SIDE, dtype=numpy.float32)
        for _ in range(6):
            with tide.step():
                press([*held, *tensors])
        for address in addresses:
            ctypes.memmove(address, late.ctypes.data, late.nbytes)  # as a GPU does
        press(tensors)
        assert_held(tide, held, addresses, tensors)
        for each in held:
            assert_same(late.tobytes(), each.numpy().tobytes(), "what the GPU wrote")
        for each in tensors:
            assert_same(bits(torch.full((SIDE, SIDE), 7.0)), bits(each), "another tensor")
        del held, tensors, each


def test_where_cuda_is_not_initialised_no_memory_is_taken_for_page_locked(pool):
    with tidelog.offload(pool=pool, memory=STAGING + TENSORS, staging=STAGING) as tide:
        tensors = [torch.zeros(SIDE, SIDE) for _ in range(COUNT)]
        assert not torch.cuda.is_initialized() and tide.stats()["unmovable"] == []
        del tensors


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    made = fake_cuda.FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=1, laziness=3)
    yield made
    gc.collect()
    made.assert_lawful()


def test_what_is_born_in_a_pool_of_the_program_stays(gpu, pool, mode):
    """Managed memory comes from such a pool, and so does memory that a network card knows."""
    with tidelog.offload(pool=pool, memory=TENSORS, staging=STAGING, mode=mode, device="cpu") as tide:
        mine = types.SimpleNamespace(id=(0, 1))
        with torch.cuda.memory.use_mem_pool(mine, device=0):
            held = [torch.zeros(SIDE, SIDE) for _ in range(2)]
            with torch.cuda.memory.use_mem_pool(mine, device=0):
                held.append(torch.zeros(SIDE, SIDE))
            held.append(torch.zeros(SIDE, SIDE))
        addresses = [address_of(each) for each in held]
        tensors = [torch.zeros(SIDE, SIDE) for _ in range(COUNT)]
        for _ in range(6):
            with tide.step():
                press([*held, *tensors])
        assert_held(tide, held, addresses, tensors)
        for each in (*held, *tensors):
            assert_same(bits(torch.full((SIDE, SIDE), 6.0)), bits(each), "a tensor")
        del held, tensors, each


def test_what_lay_in_a_pool_before_the_block_stays(gpu, pool):
    held = [torch.zeros(SIDE, SIDE) for _ in range(2)]
    tensors = [torch.zeros(SIDE, SIDE) for _ in range(COUNT)]
    addresses = [address_of(each) for each in held]
    gpu.segments = [
        {"device": 0, "segment_pool_id": (0, 1), "address": address, "total_size": 16 * KIB} for address in addresses
    ]
    gpu.segments += [
        {"device": device, "segment_pool_id": number, "address": address_of(tensors[-1]), "total_size": 16 * KIB}
        for device, number in ((0, (0, 0)), (1, (0, 1)))  # torch's usual pool, and another GPU's
    ]
    with tidelog.offload(pool=pool, memory=TENSORS, staging=STAGING, device="cpu") as tide:
        press([*held, *tensors])
        assert_held(tide, held, addresses, tensors)
        del held, tensors


def test_an_allocator_of_the_programs_own_for_all_memory_is_refused(monkeypatch, pool):
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_allocator_backend": lambda: "pluggable",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    with pytest.raises(tidelog.Error, match="change_current_allocator.*torch.cuda.MemPool"):
        tidelog.offload(pool=pool, memory=TENSORS, staging=STAGING, device="cuda")
