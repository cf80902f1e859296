"""Parts of tensors in a GPU's memory: on a fake CUDA, whose memory has no pages where none is mapped."""

import gc

import pytest
import torch

from tidelog.abi._native import PartsState
from tidelog.memory import _record
from tidetest import KIB, MIB
from tidetest.fake_cuda import FakeCuda, Stream
from tidetest.parting import BUDGET, SIZE, STAGING, Program, expected, offload, step, step_until_parts_move

pytestmark = [
    pytest.mark.host_memory("it brings a GPU of its own"),
    pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning"),  # some of it does not fit at the end
]

MEMORY = BUDGET - STAGING  # which is the host's
PART = 2 * MIB
NUMBERS = SIZE // 4


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    fake = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=5, laziness=3)
    yield fake
    gc.collect()
    fake.assert_lawful()


@pytest.fixture
def tide(gpu, pool):
    """A block in which parts may move, and all fits."""
    with offload(Program(), pool, device="cpu", memory=256 * MIB) as tide:
        yield tide


def numbers(count=NUMBERS):
    return torch.arange(count, dtype=torch.int32)


def divisible(tide):
    """A tensor in memory of which parts can be given back: one that has been out."""
    tensor = numbers()
    tide.evict(tensor)
    tide.restore(tensor)
    assert tide.device.is_divisible(tensor.untyped_storage())
    return tensor


def gives_back(tide, tensor, begin):
    """A part is given back, as where the session asks for that. What it held is lost."""
    storage = tensor.untyped_storage()
    parts, record = tide.performer.parts, storage._tide
    assert parts.evict(record, storage, PART, begin)
    parts.release(record, storage, PART, begin)


def gets_again(tide, tensor, begin):
    """Returns the address of the tensor once it is back, as where the session has fetched it, if there is memory for
    it: its address.
    """
    storage = tensor.untyped_storage()
    parts, record = tide.performer.parts, storage._tide
    address = parts.allocate(record, storage, PART, begin)
    if address:
        out = [each for each in record.parted._out if each != begin]
        parts.settle(record, storage, PartsState.AWAY if out else PartsState.RESIDENT, begin)
    return address


def has_gone(tide):
    """Tells whether released memory is freed, as far as it may be."""
    tide.device.reclaim()  # from here on an event is behind what uses it
    torch.cuda.synchronize()
    tide.device.reclaim()


def test_a_part_has_no_memory_while_it_is_out_and_the_rest_stays_where_it_was(gpu, tide):
    tensor = divisible(tide)
    has_gone(tide)
    address = _record.data_ptr(tensor.untyped_storage())
    assert gpu.mapped_bytes() == SIZE
    for begin in (PART, 3 * PART):
        gives_back(tide, tensor, begin)
    has_gone(tide)
    record = tensor.untyped_storage()._tide
    assert gpu.mapped_bytes() == record.present == SIZE - 2 * PART
    with pytest.raises(RuntimeError, match="is on NVMe"):
        _record.data_ptr(tensor.untyped_storage())
    assert gets_again(tide, tensor, 3 * PART) == address + 3 * PART
    assert record.state & _record.OUT and gpu.mapped_bytes() == SIZE - PART
    assert gets_again(tide, tensor, PART) == address + PART
    assert record.parted is None and gpu.mapped_bytes() == SIZE
    assert _record.data_ptr(tensor.untyped_storage()) == address
    kept = torch.cat([tensor[: PART // 4], tensor[PART // 2 : 3 * PART // 4]])
    assert torch.equal(kept, torch.cat([numbers()[: PART // 4], numbers()[PART // 2 : 3 * PART // 4]]))


def test_a_part_goes_only_after_what_was_launched_and_uses_it(gpu, tide):
    tensor, copy = divisible(tide), torch.zeros(KIB)
    has_gone(tide)
    gpu.library.fake_hold(True)  # time stands still
    gpu.copy_late(gpu.stream, copy, tensor)
    gives_back(tide, tensor, 0)
    assert gpu.mapped_bytes() == SIZE
    gpu.library.fake_hold(False)
    has_gone(tide)
    assert gpu.mapped_bytes() == SIZE - PART
    gpu.library.fake_hold(True)
    gpu.library.fake_hold(False)
    assert gets_again(tide, tensor, 0)


def test_a_part_that_comes_before_it_has_gone_is_there(gpu, tide):
    tensor, copy = divisible(tide), torch.zeros(KIB)
    has_gone(tide)
    gpu.library.fake_hold(True)
    gpu.copy_late(gpu.stream, copy, tensor)
    gives_back(tide, tensor, 0)
    assert gpu.mapped_bytes() == SIZE, "what was launched uses it"
    gpu.library.fake_hold(False)
    assert gets_again(tide, tensor, 0)
    has_gone(tide)
    assert gpu.mapped_bytes() == SIZE
    assert tensor.fill_(1).sum() == NUMBERS


def test_what_a_tensor_lets_go_of_goes_after_what_was_launched_and_uses_it(gpu, tide):
    tensor, copy = divisible(tide), torch.zeros(KIB)
    gpu.library.fake_hold(True)
    gpu.copy_late(gpu.stream, copy, tensor)
    del tensor
    tide.device.reclaim()
    assert gpu.mapped_bytes() == SIZE
    gpu.library.fake_hold(False)
    has_gone(tide)
    assert gpu.mapped_bytes() == 0


def test_what_dies_with_a_part_out_is_gone(gpu, tide):
    tensor = divisible(tide)
    gives_back(tide, tensor, PART)
    del tensor
    tide.session.settle()  # the session hears of it
    has_gone(tide)
    assert gpu.mapped_bytes() == 0


def test_where_the_gpu_has_no_memory_for_a_part_what_is_kept_makes_way(gpu, tide):
    tensor = divisible(tide)
    gives_back(tide, tensor, PART)
    has_gone(tide)
    for missing, comes in ((2, False), (1, True)):
        emptied = gpu.emptied
        gpu.library.fake_plan(b"create", 0, 2, missing)  # there is none, as often
        assert bool(gets_again(tide, tensor, PART)) is comes
        assert gpu.emptied == emptied + 1


def by_its_storage(tensor):
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(SIZE)


def by_an_op(tensor):
    tensor.detach().resize_(NUMBERS + KIB)  # which its memory has no room for
    assert torch.equal(tensor, numbers())


@pytest.mark.parametrize("resizes", [by_its_storage, by_an_op])
def test_what_a_program_resizes_has_memory_of_torch_s_and_moves_whole(gpu, tide, resizes):
    tensor = divisible(tide)
    resizes(tensor)
    storage = tensor.untyped_storage()
    assert not tide.device.is_divisible(storage)
    assert tide.performer.parts.evict(storage._tide, storage, PART, 0) == 0
    assert storage._tide.parted is None
    assert tensor.fill_(1).sum() == NUMBERS


def test_what_somebody_has_the_address_of_stays_there(gpu, pool):
    with offload(Program(), pool, device="cpu", memory=256 * MIB) as tide:
        tensor = divisible(tide)
        address = tensor.data_ptr()
        with pytest.raises(RuntimeError, match="not resizable"):
            tensor.detach().resize_(2 * NUMBERS)
    assert tensor.data_ptr() == address
    assert gpu.mapped_bytes() == SIZE
    assert torch.equal(tensor, numbers())
    del tensor
    gc.collect()
    assert gpu.mapped_bytes() == 0


def test_what_another_stream_still_writes_is_there_after_the_block(gpu, pool):
    with offload(Program(), pool, device="cpu", memory=256 * MIB) as tide:
        tensor, source = divisible(tide), torch.full((NUMBERS,), 7, dtype=torch.int32)
        gpu.write_late(Stream(), tensor, source)
    assert tensor.untyped_storage().resizable()
    torch.cuda.synchronize()
    assert torch.equal(tensor, source)


def test_only_what_is_large_enough_has_such_memory(tide):
    tensor = numbers(NUMBERS - 1)
    tide.evict(tensor)
    tide.restore(tensor)
    assert not tide.device.is_divisible(tensor.untyped_storage())
    assert torch.equal(tensor, numbers(NUMBERS - 1))


def test_after_a_block_in_which_parts_moved_tensors_have_memory_of_torch_s(gpu, pool):
    program = Program()
    with offload(program, pool, device="cpu", memory=MEMORY) as tide:
        step_until_parts_move(tide, program)
        assert gpu.mapped_bytes() <= MEMORY
    tide.restore()
    assert gpu.mapped_bytes() == 0
    assert all(tensor.untyped_storage().resizable() for tensor in program.tensors)
    assert program.sums() == expected(program)


def test_whole_is_the_default_and_takes_no_such_memory(gpu, pool):
    program = Program()
    with offload(program, pool, device="cpu", memory=MEMORY, parts="whole") as tide:
        for _ in range(4):
            step(tide, program)
        assert tide.stats()["totals"]["fetches"] and gpu.mapped_bytes() == 0


def test_where_the_driver_maps_no_memory_it_is_said(gpu, pool):
    program = Program()
    gpu.library.fake_plan(b"granularity", 0, 801, 1)
    with offload(program, pool, device="cpu", memory=MEMORY) as tide:
        for _ in range(4):
            step(tide, program)
        (notice,) = [notice for notice in tide.stats()["notices"] if "storages move whole" in notice]
        assert "in which pieces it maps memory" in notice
        assert tide.stats()["parts"] is None and gpu.mapped_bytes() == 0
        assert program.sums() == expected(program)
