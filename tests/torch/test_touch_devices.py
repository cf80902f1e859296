"""Devices that fail: the error names device and tensor, and what has a good copy is not lost. Never wrong bytes."""

import os
from pathlib import Path

import pytest
import torch

import tidelog
from tidetest import KIB, MIB, process
from tidetest.bits import assert_same, bits
from tidetest.world import World


def files_of(pool):
    """The files that Tidelog made in the pool's directories."""
    return [file for directory in pool.split(",") for file in Path(directory).iterdir() if file.stat().st_size > MIB]


def check_names(error, pool, *tensor_names):
    text = str(error)
    assert any(directory in text for directory in pool.split(",")), f"names no device: {text}"
    assert any(name in text for name in tensor_names), f"names no tensor of {tensor_names}: {text}"


@pytest.fixture
def quiet():
    """Silences the warning at a block's end about tensors that are lost for good."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_a_device_that_lost_its_bytes(pool, quiet):
    """The files are cut short while a tensor is out: its touch fails, what is in memory goes on."""
    world = World()
    with world.block(pool, "reactive", memory=64 * MIB):
        world.steps(2)
        tensor = world.model[3].linear.weight
        safe = {name: bits(value) for name, value in world.tensors().items() if value is not tensor}
        world.push_out(tensor)
        sizes = {file: file.stat().st_size for file in files_of(pool)}
        assert sizes
        for file in sizes:
            os.truncate(file, 0)
        for touch in (lambda: tensor.sum(), lambda: tensor.tolist(), lambda: torch.save(tensor, os.devnull)):
            with pytest.raises(tidelog.DeviceError) as failure:
                touch()
            check_names(failure.value, pool, "3.linear.weight")
        for name, value in world.tensors().items():
            if value is not tensor:
                assert_same(safe[name], bits(value), name)
        for file, size in sizes.items():
            os.truncate(file, size)  # zeros now: checksums must tell
        with pytest.raises(tidelog.DeviceError):
            tensor.sum()
        tensor.data = torch.zeros(64, 64)  # what is lost can be given new memory, and training goes on
        world.steps(1)


def test_a_device_whose_bytes_changed(pool, quiet):
    """Every byte of the files is overwritten: no tensor may come back with them."""
    world = World()
    with world.block(pool, "reactive", memory=64 * MIB):
        world.steps(2)
        out = [world.model[3].linear.weight, world.loose]
        world.push_out(*out)
        for file in files_of(pool):
            with open(file, "r+b") as handle:
                for offset in range(0, file.stat().st_size, MIB):
                    handle.seek(offset)
                    handle.write(b"\xa5" * MIB)
                os.fsync(handle.fileno())
        for tensor, names in zip(out, (["3.linear.weight"], ["op", "tensor"])):
            with pytest.raises(tidelog.DeviceError) as failure:
                bits(tensor)
            check_names(failure.value, pool, *names)
        out[0].data, world.loose, world.views = torch.zeros(64, 64), torch.zeros(64, 64), {}
        del out, tensor
        world.steps(1)


FAILED_WRITES = """
import resource
pool, mode = sys.argv[1:]
plain = World()
plain.steps(2)
tensors = {name: bits(value) for name, value in plain.tensors().items()}
plain.steps(4)
expected = plain.result()
del plain
import gc
gc.collect()

world = World()
with world.block(pool, "reactive", memory=64 * MIB) as tide:
    world.steps(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # from here on writes fail with EFBIG
    failures = []
    for name in ("3.linear.weight", "4.linear.weight", "exp_avg of 3.linear.weight"):
        tensor = world.tensors()[name]
        try:
            tide.evict(tensor)
        except tidelog.Error as error:
            failures.append((name, error))
        else:
            assert tide.is_resident(tensor), "out, although nothing could be written"
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failures, "failed writes went unsaid"
    for name, error in failures:
        assert isinstance(error, tidelog.DeviceError), repr(error)
        assert any(part in str(error) for part in pool.split(",")), str(error)
    assert any(name in str(error) for name, error in failures), failures
    for name, value in world.tensors().items():
        for attempt in range(5):  # an error surfaces once, at the next touch; the bytes are still there
            try:
                found = bits(value)
            except tidelog.DeviceError:
                continue
            break
        assert_same(tensors[name], found, name)
    for attempt in range(8):
        try:
            world.steps(4 - (len(world.losses) - 2))
        except tidelog.DeviceError:
            continue
        break
    assert len(world.losses) >= 2
print("done")
"""


def test_a_failed_write_loses_nothing(pool):
    """The memory is the last good copy: it must not be let go before the write has succeeded."""
    process.assert_done(process.run(FAILED_WRITES, pool, "reactive"))


def test_a_full_pool_says_so_with_figures_and_stays_usable(pool):
    world = World()
    hoard = [torch.full((256 * KIB,), float(number)) for number in range(40)]  # 40 MiB for a pool of 16
    expected = [bits(tensor) for tensor in hoard]
    with world.block(pool, "reactive", memory=128 * MIB, pool_size=16 * MIB):
        out = []
        with pytest.raises(tidelog.PoolError) as refusal:
            for tensor in hoard:
                world.tide.evict(tensor)
                out.append(tensor)
        assert any(character.isdigit() for character in str(refusal.value)), refusal.value
        assert out
        for number, tensor in enumerate(hoard):
            assert_same(expected[number], bits(tensor), f"tensor {number}")
        del out, hoard[:30], tensor
        for _ in range(3):
            for tensor in hoard[:4]:  # space that died is used again
                tensor.add_(0)
                world.push_out(tensor)
        for number, tensor in enumerate(hoard):
            assert_same(expected[30 + number], bits(tensor), f"tensor {30 + number}")
        world.steps(2)


def test_space_of_dead_and_rewritten_tensors_is_used_again(pool, mode):
    """Many times the pool's size goes through it."""
    world = World()
    with world.block(pool, mode, memory=16 * MIB, pool_size=16 * MIB):
        tensor = torch.zeros(256 * KIB)
        for number in range(60):
            with world.boundary():
                tensor.add_(1)
                world.push_out(tensor)
                other = torch.full((128 * KIB,), float(number))
                world.push_out(other)
                assert other[number].item() == number
        assert_same(bits(torch.full((256 * KIB,), 60.0)), bits(tensor))
