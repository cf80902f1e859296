"""Processes that start while what they read is out: loaders' workers, processes, pools."""

import functools
import os

import pytest
import torch
import torch.multiprocessing
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, StackDataset, Subset, TensorDataset

from tidelog.escapes import _forks
from tidetest import device
from tidetest.bits import bits
from tidetest.world import World

pytestmark = pytest.mark.host_memory(device.FORK)
SECONDS = 300
FORK = torch.multiprocessing.get_context("fork")
ROWS = torch.zeros(0)  # of a dataset that is written with the names of its module


class Holder(Dataset):
    """The tensors are in dicts and lists, and in what a function closes over."""

    def __init__(self, rows):
        self.parts = {"left": [rows[:16].clone()], "right": (rows[16:].clone(),)}
        scale = rows[0].clone()
        self.change = lambda row: row * scale

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.change(self.parts["left"][0][index] if index < 16 else self.parts["right"][0][index - 16])


class OfTheModule(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index] + 1


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        yield from self.rows.unbind() if torch.utils.data.get_worker_info().id == 0 else ()


def added(batch, offset):
    return torch.stack([each for each, *_ in batch]) + offset


LOADERS = {
    "tensors": lambda x, n: DataLoader(TensorDataset(x, n), 8, num_workers=2, multiprocessing_context=FORK),
    "stacked": lambda x, n: DataLoader(StackDataset(x, n), 8, num_workers=2, multiprocessing_context=FORK),
    "subset": lambda x, n: DataLoader(
        Subset(TensorDataset(x, n), range(0, 32, 2)), 4, num_workers=1, multiprocessing_context=FORK
    ),
    "concatenated": lambda x, n: DataLoader(
        ConcatDataset([TensorDataset(x), TensorDataset(x.flip(0))]), 8, num_workers=2, multiprocessing_context=FORK
    ),
    "holder": lambda x, n: DataLoader(Holder(x), 8, num_workers=2, multiprocessing_context=FORK),
    "collated": lambda x, n: DataLoader(
        TensorDataset(x, n),
        8,
        num_workers=2,
        collate_fn=functools.partial(added, offset=x[3].clone()),
        multiprocessing_context=FORK,
    ),
    "stream": lambda x, n: DataLoader(Stream(x), 8, num_workers=2, multiprocessing_context=FORK),
    "persistent": lambda x, n: DataLoader(
        TensorDataset(x, n), 8, num_workers=2, persistent_workers=True, multiprocessing_context=FORK
    ),
    "of the module": lambda x, n: DataLoader(OfTheModule(), 8, num_workers=2, multiprocessing_context=FORK),
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("updates", ["own", "lazy", "early"])
def test_workers_of_a_loader_read_what_is_out(compare, monkeypatch, name, updates):
    """Checks workers that start in each epoch, when the data that nothing else uses is out."""
    if updates != "own" and name not in ("tensors", "holder"):
        pytest.skip("the same with one or two kinds of datasets")

    def scenario(world):
        x, n = torch.randn(32, 64), torch.randint(0, 10, (32,))
        monkeypatch.setattr("test_forks.ROWS", x)
        loader = LOADERS[name](x, n)
        for epoch in range(2):
            world.push_out(*_forks.tensors_in(loader.dataset))
            for number, batch in enumerate(loader):
                batch = batch if isinstance(batch, torch.Tensor) else batch[0]
                world.note(f"batch {epoch} {number}", batch)
                with world.boundary():
                    world.x = batch.repeat(8, 1)[:32].clone()
                    world.first_half()
                    world.second_half()
            world.push_out(x)
        world.note("last", [bits(value) for value in world.model.state_dict().values()])

    compare(scenario, updates=updates, finish=False)


def total(tensors, box, index):
    box[index] = sum(float(each.double().sum()) for each in tensors)


def test_a_process_reads_what_it_is_given(compare):
    def scenario(world):
        box = torch.zeros(2, dtype=torch.float64).share_memory_()
        tensors = [world.loose, world.subject("parameter").detach()]
        for index in range(2):
            world.push_out(*tensors)
            process = FORK.Process(target=total, args=(tensors, box, index))
            process.start()
            process.join(SECONDS)
            assert process.exitcode == 0
        world.note("totals", box)
        world.push_out(*tensors)  # nothing holds them any more

    compare(scenario)


kept = []


def test_a_pool_reads_what_its_initializer_is_given(compare):
    def scenario(world):
        world.push_out(world.loose)
        with FORK.Pool(2, initializer=kept.append, initargs=(world.loose,)) as pool:
            world.note("sums", pool.map_async(row_of_kept, range(4)).get(SECONDS))

    compare(scenario)


def row_of_kept(index):
    return float(kept[-1][index].double().sum())


def test_what_is_kept_elsewhere_is_refused_with_what_to_do(pool):
    """The child of a bare fork: nobody knows what it will read."""
    world = World()
    with world.block(pool, "reactive") as tide:
        world.steps(2)
        for pins in (False, True):
            world.push_out(world.loose)
            expected = bits(world.loose * 2) if pins else None
            if pins:
                world.push_out(world.loose)
            with tide.pinned(*([world.loose] if pins else [])):
                code = in_a_child(lambda: bits(world.loose * 2) == expected)
            assert code == (0 if pins else 3)


def in_a_child(reads):
    """3: refused by a text that names `tide.pinned`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if reads() else 2
        except RuntimeError as error:
            code = 3 if "tide.pinned" in str(error) else 4
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_tensors_are_found():
    a, b, c, d, e = (torch.zeros(1) for _ in range(5))

    class Slotted:
        __slots__ = ("kept",)

    slotted = Slotted()
    slotted.kept = [b]

    def function(_, default=c):
        return d

    me = [a, {"slotted": slotted}, function, functools.partial(max, e)]
    me.append(me)
    assert {id(each) for each in _forks.tensors_in(me)} == {id(each) for each in (a, b, c, d, e)}
