"""Tests that other threads see the right bytes; forked children, too, or an error that names the tensor. Never old
bytes.
"""

import contextlib
import os
import threading

import pytest
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tidelog
from tidetest import device, halfway, process
from tidetest.bits import assert_same, bits
from tidetest.world import World


def in_a_thread(function):
    """Runs a function in another thread; returns what it returned or raised."""
    found = []

    def target():
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the other thread hangs"
    return found[0]


TOUCHES = {
    "sum": lambda t: t.sum(),
    "clone": lambda t: t.clone(),
    "row": lambda t: t[3] + 1,
    "view then add": lambda t: t.t()[1:3] + 1,
    "tolist": lambda t: torch.tensor(t.tolist()),
    "numpy": lambda t: torch.from_numpy(t.detach().cpu().numpy().copy()),
    "item": lambda t: torch.tensor(t[0, 0].item()),
    "matmul": lambda t: t @ t,
    "write": lambda t: t.detach().add_(1),
    "storage": lambda t: torch.tensor(list(t.untyped_storage()[:16])),
    "repr": lambda t: torch.tensor(list(repr(t).encode())),
}


@pytest.mark.parametrize("touch", sorted(TOUCHES))
@pytest.mark.parametrize("subject", ["parameter", "loose"])
def test_another_thread_sees_the_bytes(pool, mode, touch, subject):
    """Checks that another thread waits until the bytes are back."""
    plain = World()
    plain.steps(4)
    with torch.no_grad():
        untouched = bits(plain.subject(subject))
        expected = bits(TOUCHES[touch](plain.subject(subject)))
    del plain

    world = World()
    with world.block(pool, mode):
        world.steps(4)
        tensor = world.subject(subject)
        world.push_out(tensor)

        def work():
            with torch.no_grad():
                return bits(TOUCHES[touch](tensor))

        assert_same(expected, in_a_thread(work), touch)
        if touch != "write":
            assert_same(untouched, bits(tensor), "the tensor after it")
        world.steps(2)


WRITES = {
    "add_": lambda t: t.detach().add_(1),
    "numpy": lambda t: t.detach().numpy().fill(7),
    "storage": lambda t: t.untyped_storage().fill_(7),
    "resize_": lambda t: t.untyped_storage().resize_(2 * t.untyped_storage().nbytes()),
    "share_memory_": lambda t: t.share_memory_(),
}


@pytest.mark.parametrize("write", device.params(WRITES, {"numpy", "share_memory_"}, device.NO_ADDRESS))
def test_no_copy_misses_what_another_thread_writes_meanwhile(pool, write):
    """The copy that is being written would be old, and old bytes would come back later: it is given up first."""
    plain = World()
    plain.steps(2)
    WRITES[write](plain.loose)
    expected = bits(plain.loose)
    del plain

    world = World()
    with world.block(pool, "reactive"):
        world.steps(2)
        tensor = world.loose
        halfway.begin_eviction(world.tide, tensor)
        found = in_a_thread(lambda: WRITES[write](tensor))
        assert not isinstance(found, Exception), repr(found)
        world.steps(1)
        with contextlib.suppress(tidelog.UnmovableError, tidelog.PinnedError):
            world.push_out(tensor)
        assert_same(expected, bits(tensor))
        world.steps(1)


def test_a_resident_tensor_is_free_to_other_threads(pool):
    """Data loading and logging threads work on their own tensors as they do without Tidelog."""
    world = World()
    with world.block(pool, "reactive"):
        world.steps(2)
        expected = bits(torch.arange(4096.0).view(64, 64) @ torch.ones(64, 64))

        def work():
            made = torch.arange(4096.0).view(64, 64)
            return [bits(made @ torch.ones(64, 64)) for _ in range(20)]

        for found in in_a_thread(work):
            assert_same(expected, found)
        world.steps(2)


def test_backward_called_from_another_thread(pool):
    """The block's own mode does not cover that thread: each step is right all the same."""
    plain = World()
    plain.steps(2)
    plain.first_half()
    plain.second_half()
    expected = plain.result()
    del plain

    world = World()
    with world.block(pool, "reactive"):
        world.steps(2)
        world.first_half()
        found = in_a_thread(world.second_half)
        assert not isinstance(found, Exception), repr(found)
        for (name, one), (_, other) in zip(expected, world.result(), strict=True):
            assert_same(one, other, name)


def test_threads_that_race_with_training(pool, mode):
    """A logging thread reads parameters all the time: its values are never garbage, and training stays right."""
    plain = World()
    # Frozen parameters, so that the only right bytes are known whenever the thread looks.
    plain.model.requires_grad_(False)
    expected = {name: bits(value) for name, value in plain.model.named_parameters()}
    del plain
    world = World()
    world.model.requires_grad_(False)
    parameters = dict(world.model.named_parameters())
    stop, wrong, looks = threading.Event(), [], [0]

    def look():
        while not stop.is_set():
            for name, value in parameters.items():
                try:
                    if bits(value) != expected[name]:
                        wrong.append(f"{name}: other bytes")
                except RuntimeError as error:
                    wrong.append(f"{name}: {error}")
                looks[0] += 1

    with world.block(pool, mode):
        thread = threading.Thread(target=look)
        thread.start()
        try:
            for _ in range(15):
                with world.boundary():
                    world.model(world.x)
        finally:
            stop.set()
            thread.join(60)
        assert looks[0] > 0
        assert wrong == []


# -- fork -----------------------------------------------------------------------------------------------

IN_A_CHILD = pytest.mark.host_memory(device.FORK)


class Rows(Dataset):
    """Hands out rows of a tensor that may be out when the worker looks."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index] * 2


def right(loader, batches):
    for number, batch in enumerate(loader):
        assert_same(batches[number], bits(batch), f"batch {number}")


@IN_A_CHILD
def test_data_loader_workers(pool, mode):
    """Workers are forked: what they read is there when they start, and training goes on."""
    plain = World()
    data = torch.randn(64, 64)
    batches = [bits(batch) for batch in DataLoader(Rows(data), batch_size=16)]
    plain.steps(5)
    expected = plain.result()
    del plain

    world = World()
    with world.block(pool, mode):
        world.steps(3)
        world.tide.restore(data)
        loader = DataLoader(Rows(data), batch_size=16, num_workers=2, multiprocessing_context="fork", timeout=600)
        right(loader, batches)
        for _ in range(3):
            world.push_out(data)
            right(loader, batches)
        world.steps(2)
        got = world.result()
    for (name, one), (_, other) in zip(expected[:-2], got[:-2], strict=True):
        assert_same(one, other, name)


@IN_A_CHILD
def test_loaders_that_make_their_data_work_at_any_time(pool, mode):
    """The usual loader: workers read files and make tensors; those come through shared memory."""
    world = World()
    with world.block(pool, mode):
        world.steps(3)
        loader = DataLoader(Made(), batch_size=8, num_workers=2, multiprocessing_context="fork", timeout=600)
        for number, batch in enumerate(loader):
            with world.boundary():
                world.x = batch
                world.first_half()
                assert bits(batch) == bits(torch.stack([Made()[number * 8 + place] for place in range(8)]))
        list(DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8))


class Made(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((64,), float(index)).sin()


FORK = """
(pool,) = sys.argv[1:]
world = World()
with world.block(pool, "reactive") as tide:
    world.steps(3)
    tensor = world.subject("parameter")
    before = bits(tensor)
    world.push_out(tensor)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            made = torch.ones(8) + 1
            assert made.sum() == 16
            for touch in (lambda: tensor.sum(), lambda: tensor.tolist(), lambda: tensor.numpy(force=True), lambda: repr(tensor),
                          lambda: torch.save(tensor, os.devnull), lambda: tensor[1:3].clone()):
                try:
                    with torch.no_grad():
                        touch()
                except RuntimeError as error:
                    assert "3.linear.weight" in str(error), str(error)
                else:
                    raise AssertionError("a child read a tensor that is out")
            for method in (lambda: tide.evict(world.loose), lambda: tide.restore(tensor)):
                try:
                    method()
                except tidelog.Error:
                    pass
                else:
                    raise AssertionError("a child moved a tensor")
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code) if HARD else sys.exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert bits(tensor) == before
    world.steps(2)
print("done")
"""


@IN_A_CHILD
@pytest.mark.parametrize("ending", ["os._exit", "sys.exit"])
def test_a_forked_child_is_told_and_the_parent_goes_on(pool, ending):
    process.assert_done(process.run(f"HARD = {ending == 'os._exit'}\n" + FORK, pool, whole_end=True))


@pytest.mark.host_memory(device.SHARED)
def test_tensors_sent_to_another_process(compare):
    """A queue moves a tensor into shared memory, where it stays."""

    def scenario(world):
        queue = multiprocessing.get_context("fork").SimpleQueue()
        world.push_out(world.loose)
        queue.put(world.loose)
        received = queue.get()
        world.note("received", received)
        world.note("shared", world.loose.is_shared())
        received[0] = 5
        world.note("one memory", world.loose)

    if os.environ.get("TIDELOG_TEST_NO_SHARED_MEMORY"):
        pytest.skip("no /dev/shm here")
    compare(scenario)
