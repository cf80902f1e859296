"""A write budget: what is written in any time keeps to it, the bits are the plain run's, and a pause can be ended."""

import contextlib
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest

import tidelog
from tidetest import KIB, MIB, process
from tidetest.bits import assert_same
from tidetest.fake_cuda import FakeCuda
from tidetest.world import World

DAY = 86_400
NOTHING_FITS = "1GB/day"  # 12 KB a second: a pause of minutes behind each step


def written(tide):
    """Bytes that went to the devices, as these count them."""
    return sum(device["bytes_written"] for device in tide.stats()["devices"])


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        yield


def assert_plain(world):
    """Checks, behind the block of a world, that it has the bits of as many plain steps."""
    world.tide.restore()
    plain = World()
    plain.steps(len(world.losses))
    assert_same(world.result(), plain.result())


def pace(pool, mode):
    """Bytes a second that are written where nothing pauses."""
    world = World()
    with world.block(pool, mode) as tide:
        world.warm_up(mode)
        before, began = written(tide), time.monotonic()
        world.steps(5)
        assert tide.stats()["write_budget"] is None
        return (written(tide) - before) / (time.monotonic() - began)


def test_fast_steps_write_no_more_than_the_budget_with_the_same_bits(pool, mode, tmp_path):
    per_second = int(pace(pool, mode) / 4)
    began = time.monotonic()
    world = World()
    with world.block(pool, mode, write_budget=per_second * DAY) as tide:
        base, steps, most = written(tide), 0, 0
        while steps < 12 or (mode == "auto" and tide.phase != "planned"):
            before = written(tide)
            world.step()
            steps += 1
            now, elapsed = written(tide), time.monotonic() - began
            most = max(most, now - before)
            # What is on its way as a step ends is counted with the next one.
            assert now - base <= per_second * elapsed + most, f"step {steps}"
            assert steps < 40
        figures = tide.stats()["write_budget"]
        page = Path(tide.report(tmp_path / "step.html")).read_text("utf-8")
        notices = [notice for notice in tide.stats()["notices"] if "pauses follow them" in notice]
    assert figures["bytes_per_day"] == per_second * DAY
    assert "a day were written, with" in page
    assert 0 < figures["pauses"] <= steps and len(notices) == 1, notices
    assert 0 < figures["pause_ns"] / 1e9 < elapsed
    assert 0 < figures["bytes_written"] <= now
    assert_plain(world)


def test_a_budget_that_is_not_reached_pauses_never(pool, mode):
    world = World()
    with world.block(pool, mode, write_budget="900 PB a day") as tide:
        world.warm_up(mode)
        world.steps(2)
        stats = tide.stats()
    assert stats["write_budget"]["bytes_per_day"] == 900 * 10**15
    assert (stats["write_budget"]["pauses"], stats["write_budget"]["pause_ns"]) == (0, 0)
    assert 0 < stats["write_budget"]["bytes_written"]
    assert not [notice for notice in stats["notices"] if "write budget" in notice]
    assert_plain(world)


def test_another_budget_is_planned_for_and_none_is_no_budget(pool):
    world = World()
    with world.block(pool, write_budget="900PB") as tide:
        world.warm_up("auto")
        for budget, said in (("500PB/day", "500000.00 TB a day"), (None, "there is no write budget any more")):
            tide.set_write_budget(budget)
            tide.await_plan()
            world.step()
            assert tide.phase == "planned"
            replanned = [notice for notice in tide.stats()["notices"] if notice.startswith("planned again")]
            assert len(replanned) == 1 and said in replanned[0], replanned
        assert tide.stats()["write_budget"] is None
        tide.set_write_budget("900PB")  # before the plan for it is there, another one
        tide.set_write_budget("800PB")
        world.step()
        assert tide.stats()["write_budget"]["bytes_per_day"] == 800 * 10**15
        with pytest.raises(tidelog.Error, match=r"^write_budget='2': less than 1GB a day"):
            tide.set_write_budget("2")
    with pytest.raises(tidelog.Error, match="not open"):
        tide.set_write_budget(None)
    assert_plain(world)


@contextlib.contextmanager
def in_a_pause(tide, act):
    """Calls a function in another thread when a pause begins meanwhile, however long the step before it takes."""
    throttle, thread = tide.session.throttle, threading.Thread(target=act)

    def noticed(timeout_ms):
        waits = throttle(timeout_ms)
        if waits and thread.ident is None:
            thread.start()
        return waits

    tide.session.throttle = noticed
    try:
        yield
    finally:
        del tide.session.throttle
        if thread.ident is not None:
            thread.join(process.HANGS_SECONDS)


def test_ctrl_c_ends_a_pause_however_long_it_is(pool, mode):
    world = World()
    with world.block(pool, mode, write_budget=NOTHING_FITS) as tide:
        while not tide.stats()["write_budget"]["pauses"]:
            began = time.monotonic()
            with contextlib.suppress(KeyboardInterrupt), in_a_pause(tide, lambda: os.kill(os.getpid(), signal.SIGINT)):
                world.step()
        figures = tide.stats()["write_budget"]
        assert time.monotonic() - began < 60 < figures["bytes_written"] / (1e9 / DAY)
        assert figures["pauses"] == 1
        # The program goes on after it, and what is left is paused for behind its next step.
        tide.set_write_budget(None)
        world.step()
    assert_plain(world)


def test_a_handler_of_the_program_runs_in_a_pause_and_ends_it(pool, mode):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(time.monotonic()))
    try:
        world = World()
        with world.block(pool, mode, write_budget=NOTHING_FITS) as tide:
            while len(heard) < 2:
                with in_a_pause(tide, lambda: os.kill(os.getpid(), signal.SIGUSR1)):
                    world.step()
                assert not heard or time.monotonic() - heard[-1] < 60
            tide.set_write_budget(None)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_use_tensors_in_a_pause(pool, mode):
    world, seen = World(), []

    def look():
        seen.append(sum(parameter.sum().item() for parameter in world.model.parameters()))
        os.kill(os.getpid(), signal.SIGINT)

    with world.block(pool, mode, write_budget=NOTHING_FITS) as tide:
        while not seen:
            with contextlib.suppress(KeyboardInterrupt), in_a_pause(tide, look):
                world.step()
    after = sum(parameter.sum().item() for parameter in world.model.parameters())
    assert seen[-1] == after


def test_the_ranks_of_a_machine_have_equal_parts(pool, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with World().block(pool, write_budget="2TB") as tide:
        assert tide.stats()["write_budget"]["bytes_per_day"] == 500 * 10**9


def test_a_checkpoint_counts(pool):
    world = World()
    with world.block(pool, write_budget="900PB", memory=64 * MIB) as tide:
        world.step()
        tide.checkpoint("one")
        world.step()
        assert tide.stats()["write_budget"]["bytes_written"] > 8 * 64 * 64 * 4 * 3  # parameters and two states


def test_host_memory_comes_first_where_the_budget_is_small(pool, tmp_path_factory):
    """Plans on a fake GPU, with enough host memory, write no more than the budget has for the step, though SSDs beside
    it would be faster: the slower the machine, the more it has."""
    with pytest.MonkeyPatch.context() as patch:
        FakeCuda(patch, tmp_path_factory.getbasetemp(), seed=1, laziness=1)
        world = World()
        options = {"memory": 224 * KIB, "staging": 256 * KIB, "host_memory": 64 * MIB, "device": "cpu"}
        with world.block(pool, write_budget="10GB", **options) as tide:
            world.warm_up("auto")
            world.steps(2)
            planned = tide.stats()["last_step"]
        assert_plain(world)
    assert planned["bytes_written"] < planned["bytes_to_host"] / 4
