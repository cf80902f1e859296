"""Memory that torch does not see any more (an array, a capsule, a raw address) stays the tensor's memory.

Such an alias pins the tensor for its life: it is never moved, and writes show both ways.
"""

import ctypes
import gc
import warnings

import numpy
import pytest
import torch

import tidelog
from tidetest import KIB, device
from tidetest.bits import assert_same, bits
from tidetest.world import World
from tidetest.writes import ALIASES

ON_HOST = pytest.mark.host_memory(device.NO_ADDRESS)
ON_A_GPU = {"torch_from_dlpack", "torch_from_a_dlpack_capsule", "torch_from_dlpack_method"}
SUBJECTS = ("parameter", "gradient", "state", "buffer", "loose", "view", "transposed")


def check_pinned(world, *tensors):
    """An alias exists: Tidelog must refuse to move the tensor, by name, and leave it as it is."""
    for tensor in tensors if world.tide is not None else ():
        with pytest.raises((tidelog.PinnedError, tidelog.UnmovableError)) as refusal:
            world.tide.evict(tensor)
        assert str(refusal.value)
        assert world.tide.is_resident(tensor)


@pytest.mark.parametrize("touch", device.params(ALIASES, ALIASES.keys() - ON_A_GPU, device.NO_ADDRESS))
def test_an_alias_made_from_a_tensor_that_is_out_stays_one(compare, touch):
    kept = []  # dangling memory would be reused, and written to, by what follows

    def scenario(world):
        for subject in SUBJECTS:
            tensor = world.subject(subject)
            if subject not in ("view", "transposed"):  # whose base is pinned by now
                world.push_out(tensor)
            alias = ALIASES[touch](tensor)
            kept.append(alias)
            world.note(f"{subject} seen through the alias", alias)
            check_pinned(world, tensor)
            with torch.no_grad():
                tensor[2].mul_(3)
                world.note("the tensor's write, through the alias", alias)
                alias[3 if alias.ndim == 2 else slice(4)] = 0.75
                world.note("the alias's write, through the tensor", tensor)
            world.steps(1)
            check_pinned(world, tensor)
            world.note("the alias after training", alias)
            alias[1 if alias.ndim == 2 else slice(2)] = 0.25
            world.note("the tensor at last", tensor)

    compare(scenario)


@ON_HOST
@pytest.mark.parametrize(
    "touch", ["numpy_array", "numpy_of_a_row", "numpy_asarray", "numpy_forced", "torch_from_its_numpy"]
)
def test_an_array_made_before_the_block_is_still_an_alias_inside(pool, mode, touch):
    """torch itself marks a storage that numpy knows; such a storage never moves."""
    world = World()
    tensor = torch.randn(64, 64)
    expected = bits(tensor * 2)
    alias = ALIASES[touch](tensor)
    with world.block(pool, mode):
        world.warm_up(mode)
        check_pinned(world, tensor)
        with torch.no_grad():
            tensor.mul_(2)
        assert_same(expected, bits(tensor), "tensor")
        world.steps(1)
        alias[1 if alias.ndim == 2 else slice(0, 64)] = 5
        assert (tensor[1] == 5).all()
    assert (tensor[1] == 5).all()


@ON_HOST
def test_tensors_on_foreign_memory_stay_and_are_listed(pool, tmp_path):
    """Checks arrays that live, frombuffer, DLPack imports, files and shared memory: found, left alone, and named in
    stats().
    """
    world = World()
    raw = tmp_path / "raw.bin"
    raw.write_bytes(bytes(16 * KIB))
    array = numpy.arange(4096, dtype=numpy.float32)
    tensors = {
        "from_numpy": torch.from_numpy(array),
        "frombuffer": torch.frombuffer(bytearray(16 * KIB), dtype=torch.float32),
        "from_dlpack": torch.from_dlpack(numpy.arange(4096, dtype=numpy.float32)),
        "from_file": torch.from_file(str(raw), shared=True, size=4096, dtype=torch.float32),
        "shared": torch.arange(4096.0).share_memory_(),
    }
    expected = {name: bits(tensor) for name, tensor in tensors.items()}
    with world.block(pool, "reactive"):
        world.steps(2)
        for name, tensor in tensors.items():
            with pytest.raises(tidelog.UnmovableError):
                world.tide.evict(tensor)
            assert world.tide.is_resident(tensor), name
            assert_same(expected[name], bits(tensor), name)
        world.steps(2)
        assert len(world.tide.stats()["unmovable"]) >= len(tensors)
        for name, tensor in tensors.items():
            assert_same(expected[name], bits(tensor), name)
            with torch.no_grad():
                assert (tensor.add_(1)[0] == expected_first(expected[name]) + 1).all()


def expected_first(frozen):
    return numpy.frombuffer(frozen[3][:4], dtype=numpy.float32)[0]


@pytest.mark.host_memory(device.SHARED)
def test_share_memory_moves_a_tensor_to_shared_memory_and_it_stays_there(compare):
    def scenario(world):
        tensor = world.loose
        world.push_out(tensor)
        tensor.share_memory_()
        world.note("shared", tensor.is_shared())
        world.note("after sharing", tensor)
        if world.tide is not None:
            with pytest.raises((tidelog.UnmovableError, tidelog.PinnedError)):
                world.tide.evict(tensor)
        world.steps(2)
        tensor.add_(1)
        world.note("written", tensor)

    compare(scenario)


@ON_HOST
def test_an_alias_outlives_its_tensor(compare):
    """The array keeps the memory alive after the last tensor on it died."""

    def scenario(world):
        tensor = torch.arange(4096.0)
        world.push_out(tensor)
        array = tensor.numpy()
        del tensor
        gc.collect()
        world.steps(2)
        world.note("array", array)
        array += 1
        world.steps(1)
        world.note("array written", array)

    compare(scenario)


@ON_HOST
def test_a_dlpack_import_may_move_only_when_nobody_else_holds_it(compare):
    """A tensor imported from another library is foreign memory; the exporter's writes show in it for good."""

    def scenario(world):
        array = numpy.arange(4096, dtype=numpy.float32)
        tensor = torch.from_dlpack(array)
        world.steps(2)
        array[7] = 99
        world.note("import", tensor)
        tensor.mul_(2)
        world.note("export", array)

    compare(scenario)


@ON_HOST
def test_raw_writes_behind_a_pinned_tensor_are_never_undone(compare):
    """memmove to data_ptr(): no version counter moves. The old copy in the pool must never come back."""

    def scenario(world):
        tensor = world.loose
        world.push_out(tensor)
        world.note("fetched", tensor.sum())
        address = tensor.data_ptr()
        ctypes.memset(address, 0, 64)
        world.steps(2)
        world.note("after memset", tensor)
        ctypes.memmove(address, (ctypes.c_float * 4)(1, 2, 3, 4), 16)
        world.steps(2)
        world.note("after memmove", tensor)

    compare(scenario)


@ON_HOST
def test_numpy_writes_with_out_arguments_land_in_the_tensor(compare):
    def scenario(world):
        world.push_out(world.loose)
        numpy.add(world.loose.numpy(), 1, out=world.loose.numpy())
        numpy.multiply(world.loose.numpy()[3], 2, out=world.loose[4].numpy())
        world.steps(1)
        world.note("written", world.loose)
        world.note("hash of the buffer", bytes(memoryview(world.loose.numpy()).cast("B")))

    compare(scenario)


def test_a_slice_of_a_storage_keeps_its_memory_and_gives_it_back(pool, mode):
    """A slice lies in the same memory without being a tensor of it: freed under the slice, it would
    read others' bytes.
    """
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        with world.block(pool, mode):
            world.warm_up(mode)
            whole = world.loose.untyped_storage()
            expected = [whole[index] for index in range(4, 72)]
            world.push_out(world.loose)
            part = whole[4:72]
            within = part[1:]
            del part
            with pytest.raises(tidelog.PinnedError):
                world.tide.evict(world.loose)
            world.steps(2)
            assert list(within) == expected[1:]
            del within
            world.push_out(world.loose)
            assert [whole[index] for index in range(4, 72)] == expected
