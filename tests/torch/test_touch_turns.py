"""Blocks of threads that have ended, and blocks that are entered and left out of turn: the same bits, or one sentence."""

import asyncio
import contextlib
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tidelog
from tidetest import MIB
from tidetest.bits import assert_same
from tidetest.world import World


class Looking(TorchDispatchMode):
    """Passes each op on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        yield


def in_thread(function):
    """Runs a function in a thread that has ended when this returns."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    assert results, "the thread ended with an error"
    return results[0]


def in_executor(function):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def in_asyncio(function):
    async def main():
        return await asyncio.to_thread(function)

    return asyncio.run(main())


def directly(function):
    return function()


THREADS = [in_thread, in_executor, in_asyncio]


def assert_as_plain(world, steps):
    got = world.result()
    plain = World()
    plain.steps(steps)
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)


def trained_in(thread, world, pool, mode):
    """A block in another thread, and how many steps it had."""

    def train():
        with world.block(pool, mode):
            return world.warm_up(mode)

    return thread(train)


# -- threads that have ended ------------------------------------------------------------------------


@pytest.mark.parametrize("restoring", [directly, *THREADS])
@pytest.mark.parametrize("thread", THREADS)
def test_restore_from_any_thread_once_that_of_the_block_has_ended(pool, mode, thread, restoring):
    world = World()
    steps = trained_in(thread, world, pool, mode)
    assert any(not world.tide.is_resident(tensor) for tensor in world.tensors().values()), "meant to stay out"
    restoring(world.tide.restore)
    assert_as_plain(world, steps)
    world.tide = None
    world.steps(2)  # plain training goes on
    assert_as_plain(world, steps + 2)


@pytest.mark.parametrize("restoring", [directly, in_thread])
def test_restore_of_single_tensors_from_any_thread(pool, mode, restoring):
    world = World()
    steps = trained_in(in_thread, world, pool, mode)
    for tensor in (*world.tensors().values(), world.loose):
        restoring(lambda: world.tide.restore(tensor))
        assert world.tide.is_resident(tensor)
    assert_as_plain(world, steps)


def test_restore_from_another_thread_of_a_block_of_the_main_one(pool, mode):
    world = World()
    steps = trained_in(directly, world, pool, mode)
    in_thread(world.tide.restore)
    assert_as_plain(world, steps)


def test_several_threads_restore_at_once(pool, mode):
    world = World()
    steps = trained_in(in_thread, world, pool, mode)
    begin = threading.Barrier(4)

    def restore(share):
        begin.wait()
        world.tide.restore(*share)

    tensors = list(world.tensors().values())
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(restore, [(), tensors[::2], tensors[1::2], tensors]))
    assert_as_plain(world, steps)


def test_the_next_block_takes_over_what_a_thread_has_left(pool, mode):
    world = World()
    steps = trained_in(in_thread, world, pool, mode)
    with world.block(pool, mode):
        world.push_out(world.loose)
        world.steps(2)
        assert_as_plain(world, steps + 2)


def test_a_block_that_is_made_in_one_thread_and_entered_in_another(pool, mode):
    world = World()
    options = {"pool": pool, "mode": mode, "memory": 64 * MIB, "pool_size": 64 * MIB}
    world.tide = tidelog.offload(world.model, world.optimizer, **options)

    def train():
        with world.tide:
            world.push_out(world.loose)
            world.steps(3)
            world.push_out(*world.tensors().values())
        return True

    in_thread(train)
    assert_as_plain(world, 3)


def test_a_block_whose_thread_ended_inside_of_it_is_left_by_another(pool, mode):
    world, stack = World(), contextlib.ExitStack()

    def enter():
        stack.enter_context(world.block(pool, mode))
        return world.warm_up(mode)

    steps = in_thread(enter)
    assert world.tide.is_open
    stack.close()
    assert not world.tide.is_open and not torch._C._len_torch_dispatch_stack()
    world.tide.restore()
    assert_as_plain(world, steps)


def test_another_thread_may_not_leave_nor_restore_a_block_that_runs(pool):
    world = World()

    def refused(function, *arguments):
        with pytest.raises(tidelog.Error) as error:
            function(*arguments)
        return str(error.value)

    with world.block(pool, "reactive") as tide:
        world.steps(1)
        assert "leave the block there" in in_thread(lambda: refused(tide.__exit__, None, None, None))
        assert "call it there" in in_thread(lambda: refused(tide.restore))
        world.steps(2)
        assert tide.peak_bytes <= tide.budget
    tide.restore()
    assert_as_plain(world, 3)


# -- out of turn --------------------------------------------------------------------------------------


def test_a_block_that_is_entered_twice_says_so_and_goes_on(pool):
    world = World()
    with world.block(pool, "reactive") as tide:
        world.steps(1)
        with pytest.raises(tidelog.Error, match="is open already: it was entered before"):
            tide.__enter__()
        world.steps(1)
    with pytest.raises(tidelog.Error, match="left with tensors out"):
        tide.__enter__()
    tide.restore()
    assert_as_plain(world, 2)


def test_a_block_that_is_left_twice_says_so(pool, tmp_path):
    world = World()
    with world.block(pool, "reactive") as first:
        world.steps(1)
    (tmp_path / "other").mkdir()
    with world.block(tmp_path / "other", "reactive") as second:
        world.steps(1)
        with pytest.raises(tidelog.Error, match="left already"):
            first.__exit__(None, None, None)
        assert second.is_open
        world.steps(1)
    second.restore()
    with pytest.raises(tidelog.Error, match="left already"):
        second.__exit__(None, None, None)
    assert_as_plain(world, 3)


def test_modes_that_are_left_after_the_block_stay_entered(pool, mode):
    world, block, modes = World(), contextlib.ExitStack(), [Looking(), Looking()]
    block.enter_context(world.block(pool, mode))
    world.steps(2)
    for each in modes:
        each.__enter__()
    world.steps(2)
    block.close()
    world.tide.restore()
    world.tide = None
    world.steps(1)  # in what is still entered
    for each in reversed(modes):
        each.__exit__(None, None, None)
    assert not torch._C._len_torch_dispatch_stack()
    assert_as_plain(world, 5)


def test_steps_that_are_left_out_of_order_change_nothing(pool, mode):
    world, block = World(), contextlib.ExitStack()
    tide = block.enter_context(world.block(pool, mode))
    first, second, third = tide.step(), tide.step(), tide.step()
    first.__enter__()
    world.steps(1)
    second.__enter__()
    world.steps(1)
    first.__exit__(None, None, None)
    world.steps(1)
    second.__exit__(None, None, None)
    third.__enter__()
    world.steps(1)
    block.close()
    third.__exit__(None, None, None)
    tide.restore()
    assert_as_plain(world, 4)
