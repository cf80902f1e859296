"""Tests of BudgetError: a budget that is enough, what cannot move and why; and who takes it for torch's own error."""

import gc
import re
import warnings

import numpy
import pytest
import torch
from torch import nn

import tidelog
from tidetest import KIB, MIB, device
from tidetest.bits import bits

POOL_SIZE = 64 * MIB
NO_ADDRESS = pytest.mark.host_memory(device.NO_ADDRESS)

held = {}  # by a name that errors find


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        yield
    held.clear()


def enough(error):
    """The budget that an error names."""
    return int(re.search(r"smallest budget that would do is (\d+) bytes", str(error))[1])


def refused(run, memory):
    """Returns the text of the error. It itself holds what the run held."""
    try:
        run(memory)
    except tidelog.BudgetError as error:
        text, arguments = str(error), error.args
    else:
        raise AssertionError("it fits")
    assert arguments == (text,) and " out of memory. " in text
    gc.collect()
    return text


# -- what cannot move before the block ----------------------------------------------------------------


def arrays():
    held["tensors"] = [torch.randn(64 * KIB // 4) for _ in range(40)]
    held["arrays"] = [tensor.numpy() for tensor in held["tensors"]]


def of_numpy():
    held["arrays"] = [numpy.ones(64 * KIB // 4, "float32") for _ in range(40)]
    held["tensors"] = [torch.from_numpy(array) for array in held["arrays"]]


def shared():
    held["tensors"] = [torch.randn(64 * KIB // 4).share_memory_() for _ in range(40)]


def mixed():
    held["tensors"] = [torch.randn(64 * KIB // 4) for _ in range(60)]
    held["arrays"] = [tensor.numpy() for tensor in held["tensors"][:20]]
    held["arrays"] += [numpy.ones(64 * KIB // 4, "float32") for _ in range(10)]
    held["tensors"] += [torch.from_numpy(array) for array in held["arrays"][20:]]
    held["tensors"] += [torch.randn(64 * KIB // 4).share_memory_() for _ in range(10)]


def views():
    held["array"] = numpy.ones(40 * 64 * KIB // 4, "float32")
    held["tensors"] = list(torch.from_numpy(held["array"]).view(40, -1))


@NO_ADDRESS
@pytest.mark.parametrize("staging", [None, 256 * KIB], ids=["staging by itself", "staging said"])
@pytest.mark.parametrize("memory", [320 * KIB, MIB, 2 * MIB])
@pytest.mark.parametrize("make", [arrays, of_numpy, shared, mixed, views])
def test_all_that_cannot_move_is_counted_before_a_budget_is_named(pool, make, memory, staging):
    make()

    def run(memory):
        with tidelog.offload(pool=pool, memory=memory, staging=staging, pool_size=POOL_SIZE, mode="reactive") as tide:
            assert ((torch.ones(1000) + 1).sum() == 2000).item()
            assert tide.live_bytes <= memory

    error = refused(run, memory)
    run(enough(error))
    assert str(error).startswith("What cannot move does not fit the budget"), error


@NO_ADDRESS
@pytest.mark.parametrize("width", [64, 256])
def test_the_largest_tensor_that_moves_has_room_in_that_budget(pool, width):
    held["array"] = (array := torch.randn(MIB // 4)).numpy()
    weight = torch.randn(width, width)

    def run(memory):
        with tidelog.offload(pool=pool, memory=memory, pool_size=POOL_SIZE, mode="reactive"):
            weight.add_(1)

    run(enough(refused(run, MIB)))
    assert array.numel()


@NO_ADDRESS
def test_the_three_largest_are_named_each_with_its_reason(pool):
    model = nn.Linear(256, 256)
    held["weight"] = model.weight.detach().numpy()
    held["table"] = torch.ones(160 * KIB // 4).share_memory_()
    held["arrays"] = [numpy.ones(size // 4, "float32") for size in (128 * KIB, 4 * KIB)]
    held["rows"], held["small"] = map(torch.from_numpy, held["arrays"])

    def run(memory):
        with tidelog.offload(model, pool=pool, memory=memory, staging=256 * KIB, pool_size=POOL_SIZE):
            pass

    text = str(refused(run, 320 * KIB))
    assert (
        "Of what cannot move the largest are: weight (256.0 KiB: its memory is a NumPy array's or a file's, which "
        "something else may use, too), " in text
    )
    assert "held['table'] (160.0 KiB: it is shared with other processes), " in text
    assert "held['rows'] (128.0 KiB: its memory is a NumPy array's or a file's, which something else" in text
    assert "use, too) and 1 more" in text


@NO_ADDRESS
def test_what_is_as_large_as_the_state_of_random_numbers_stays_for_that(pool):
    for number in range(80):
        held[f"state {number}"] = torch.get_rng_state()

    def run(memory):
        with tidelog.offload(pool=pool, memory=memory, staging=256 * KIB, pool_size=POOL_SIZE):
            pass

    text = str(refused(run, 320 * KIB))
    assert "(4.9 KiB: torch reads as much for the state of random numbers, unseen)" in text


# -- an op ----------------------------------------------------------------------------------------------


def cat(tensors):
    return torch.cat(tensors).sum()


def stack(tensors):
    return torch.stack(tensors).mean()


def product(tensors):
    return (tensors[0] @ tensors[1].T).sum()


@pytest.mark.parametrize("staging", [None, 256 * KIB], ids=["staging by itself", "staging said"])
@pytest.mark.parametrize("op", [cat, stack, product])
def test_the_budget_that_an_op_is_refused_with_is_enough_for_it(pool, op, staging):
    tensors = [torch.full((256, 256), float(number)) for number in range(6)]
    expected = bits(op(tensors))

    def run(memory):
        with tidelog.offload(pool=pool, memory=memory, staging=staging, pool_size=POOL_SIZE, mode="reactive") as tide:
            assert bits(op(tensors)) == expected
            tide.restore()

    error = refused(run, device.budget(500 * KIB))
    run(enough(error))
    assert re.match(r"aten\.\w+\.?\w* does not fit the budget", str(error)), error
    assert ("of staging" in str(error)) == device.is_host()


def hold_by_numpy(tide, tensors):
    return [tensor.numpy() for tensor in tensors]


def hold_by_pointer(tide, tensors):
    return [tensor.data_ptr() for tensor in tensors]


def hold_by_dlpack(tide, tensors):
    return [torch.utils.dlpack.to_dlpack(tensor) for tensor in tensors]


def hold_by_pinned(tide, tensors):
    scope = tide.pinned(*tensors)
    scope.__enter__()
    return scope


@NO_ADDRESS
@pytest.mark.parametrize(
    ("hold", "why"),
    [
        (hold_by_numpy, "NumPy"),
        (hold_by_pointer, "data_ptr()"),
        (hold_by_dlpack, "DLPack"),
        (hold_by_pinned, "tide.pinned()"),
    ],
)
def test_what_is_held_inside_the_block_is_counted(pool, hold, why):
    tensors = [torch.full((64 * KIB // 4,), float(number)) for number in range(16)]

    def run(memory):
        with tidelog.offload(pool=pool, memory=memory, pool_size=POOL_SIZE, mode="reactive") as tide:
            holds = hold(tide, tensors)
            assert torch.cat([torch.ones(64 * KIB // 4)] * 4).sum() == 4 * 64 * KIB // 4
            assert bits(tensors[3]) == bits(torch.full((64 * KIB // 4,), 3.0))
            del holds

    error = refused(run, 16 * 64 * KIB + 512 * KIB)
    tensors[:] = [torch.full((64 * KIB // 4,), float(number)) for number in range(16)]
    run(enough(error))
    assert why in str(error), error


@NO_ADDRESS
def test_what_no_op_has_met_yet_is_counted(pool):
    def run(memory):
        with tidelog.offload(pool=pool, memory=memory, pool_size=POOL_SIZE, mode="reactive"):
            rows = [torch.frombuffer(bytearray(numpy.ones(64 * KIB // 4, "float32")), dtype=torch.float32)]
            rows += [torch.frombuffer(bytearray(rows[0].numpy()), dtype=torch.float32) for _ in range(15)]
            torch.ones(64 * KIB)
            torch.cat([torch.ones(64 * KIB // 4)] * 4)
            assert sum(row.sum().item() for row in rows) == 16 * 64 * KIB // 4

    error = refused(run, 512 * KIB)
    run(enough(error))
    assert "that cannot move and was not met before" in error, error


# -- who looks for a batch size that fits --------------------------------------------------------------


def test_it_is_an_error_like_torchs_own():
    assert issubclass(tidelog.BudgetError, (torch.OutOfMemoryError, RuntimeError))
    assert issubclass(tidelog.BudgetError, tidelog.Error)


class Trained:
    """A model that is trained with a batch size, from the start."""

    def __init__(self, batch):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        for _ in range(4):
            self.optimizer.zero_grad()
            self.model(torch.randn(batch, 64)).pow(2).mean().backward()
            self.optimizer.step()

    def result(self):
        return [bits(parameter) for parameter in self.model.parameters()]


def finder_of_accelerate():
    utils = pytest.importorskip("accelerate.utils")
    return utils.find_executable_batch_size(starting_batch_size=1024)


def finder_of_transformers():
    pytest.importorskip("accelerate")
    utils = pytest.importorskip("transformers.trainer_utils")
    return lambda function: utils.find_executable_batch_size(
        function, starting_batch_size=1024, auto_find_batch_size=True
    )


@pytest.mark.parametrize("updates", ["own", "lazy", "early"])
@pytest.mark.parametrize("block", ["around the finder", "in each try"])
@pytest.mark.parametrize("finder", [finder_of_accelerate, finder_of_transformers])
def test_finders_of_batch_sizes_go_on_to_one_that_fits(pool, finder, block, updates):
    sizes, options = [], dict(pool=pool, memory=device.budget(MIB), pool_size=POOL_SIZE, updates=updates)
    if device.is_host():
        options["staging"] = device.STAGING

    def train(batch_size):
        sizes.append(batch_size)
        if block == "around the finder":
            return Trained(batch_size).result()
        with tidelog.offload(**options):
            return Trained(batch_size).result()

    find = finder()(train)
    if block == "around the finder":
        with tidelog.offload(**options):
            found = find()
    else:
        found = find()
    assert len(sizes) > 1 and sizes == sorted(sizes, reverse=True)
    assert found == Trained(sizes[-1]).result()


def test_an_error_of_the_budget_is_not_tried_again_as_one_of_cuda(pool):
    """An op inside of a custom op is refused once."""
    tries = []

    @torch.library.custom_op("tidelog_test::much", mutates_args=())
    def much(x: torch.Tensor) -> torch.Tensor:
        tries.append(1)
        return torch.ops.aten.cat([x] * 64)

    with tidelog.offload(pool=pool, memory=device.budget(512 * KIB), pool_size=POOL_SIZE, mode="reactive") as tide:
        torch.empty(MIB)  # from here on ops are looked at
        x, count = torch.ones(KIB), 0
        for _ in range(2):
            try:
                much(x)
            except tidelog.BudgetError:
                count += 1
        assert len(tries) == 2, (tries, count)
        assert tide.stats()["notices"] == []
