"""torch.profiler with each of its flags, where tensors move and where all fits: the plain run's bits, and no assertion."""

import contextlib

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from tidetest import MIB
from tidetest.bits import assert_same
from tidetest.world import World

pytestmark = pytest.mark.host_memory("the fake GPU has no profiler")

READS = ("record_shapes", "with_flops", "with_stack")
FLAGS = [
    {}, {"record_shapes": True}, {"profile_memory": True}, {"with_modules": True}, {"with_flops": True},
    {"with_stack": True}, dict.fromkeys((*READS, "profile_memory", "with_modules"), True),
]  # fmt: skip


def whole(world, flags, steps):
    """Started and stopped by hand, around steps."""
    profiler = profile(activities=[ProfilerActivity.CPU], **flags)
    profiler.start()
    world.steps(steps)
    profiler.stop()
    return profiler


def scheduled(world, flags, steps):
    """Some steps of several, as its `schedule` says."""
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=steps - 1, repeat=1), **flags
    ) as profiler:
        for _ in range(steps):
            world.steps(1)
            profiler.step()
    return profiler


def older(world, flags, steps):
    """The class that torch.profiler is made of."""
    with torch.autograd.profiler.profile(use_kineto=True, **flags) as profiler:
        world.steps(steps)
    return profiler


@pytest.mark.parametrize("updates", ["own", "lazy", "early"])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(flags) or "none")
def test_each_flag_where_tensors_move(pool, capfd, flags, updates):
    compared(pool, capfd, whole, flags, updates=updates)


@pytest.mark.parametrize("how", [scheduled, older])
@pytest.mark.parametrize("flags", FLAGS[-2:], ids=lambda flags: "-".join(flags))
def test_each_way_to_profile(pool, capfd, flags, how):
    compared(pool, capfd, how, flags)


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(flags) or "none")
def test_where_all_fits_nothing_is_left_out(pool, capfd, flags):
    profiler, notices = compared(pool, capfd, whole, flags, memory=64 * MIB)
    assert not notices
    events = profiler.events()
    if "record_shapes" in flags:
        assert any(event.input_shapes for event in events)
    if "with_stack" in flags:
        assert any("torch/nn/modules" in event.name for event in events)


def compared(pool, capfd, how, flags, steps=4, **options):
    world = World()
    with contextlib.ExitStack() as stack:
        tide = stack.enter_context(world.block(pool, mode="auto", **options))
        before = world.warm_up("auto") if "memory" not in options else 0
        profiler = how(world, flags, steps)
        world.steps(1)
        notices = [notice for notice in tide.stats()["notices"] if "torch.profiler" in notice]
        world.optimizer.zero_grad()  # with early updates gradients are gone
        got = world.result()
    plain = World()
    plain.steps(before + steps + 1)
    plain.optimizer.zero_grad()
    for (name, one), (_, other) in zip(plain.result(), got, strict=True):
        assert_same(one, other, name)
    assert any(event.key == "aten::addmm" for event in profiler.key_averages())
    left_out = [name for name in READS if name in flags] if "memory" not in options else []
    assert len(notices) == bool(left_out)
    assert all(name in notices[0] for name in left_out)
    err = capfd.readouterr().err
    assert "INTERNAL ASSERT" not in err and "exhausted" not in err, err
    return profiler, notices
