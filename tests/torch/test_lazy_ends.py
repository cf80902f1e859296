"""Tests of the end of late updates: by exceptions, Ctrl-C, the end of the block, a device that fails."""

import importlib
import os
import signal
import warnings

import pytest
import torch
from torch._C import _len_torch_dispatch_stack
from torch.optim import optimizer

import tidelog
from tidelog.order._lazy import LazyUpdates
from tidetest import MIB
from tidetest.bits import assert_same, bits
from tidetest.updates import Program, compare


class Boom(Exception):
    pass


def assert_as_after(steps, program):
    plain = Program()
    plain.steps(steps)
    for (name, one), (_, other) in zip(plain.model.named_parameters(), program.model.named_parameters(), strict=True):
        assert_same(bits(one), bits(other), name)
    for one, other in zip(plain.optimizer.state.values(), program.optimizer.state.values(), strict=True):
        for name in one:
            assert_same(bits(one[name]), bits(other[name]), name)


@pytest.mark.parametrize("memory", ["1GiB", None])
def test_the_block_ends_with_updates_pending(pool, memory):
    program = Program()
    with warnings.catch_warnings(), program.block(pool, **({"memory": memory} if memory else {})) as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        program.steps(4)
        program.expect_pending(12)
    tide.restore()
    assert_as_after(4, program)
    program.tide = None
    program.steps(2)
    assert_as_after(6, program)


def test_a_block_that_cannot_begin_leaves_no_hook_behind(pool, monkeypatch):
    def fails(*_):
        raise Boom

    monkeypatch.setattr(LazyUpdates, "begin", fails)  # the last of what a block does to begin
    program, hooks, modes = Program(), dict(optimizer._global_optimizer_post_hooks), _len_torch_dispatch_stack()
    with pytest.raises(Boom), program.block(pool):
        pass
    assert optimizer._global_optimizer_post_hooks == hooks
    assert _len_torch_dispatch_stack() == modes
    monkeypatch.undo()
    with program.block(pool, memory="1GiB"):
        program.steps(3)
    assert_as_after(3, program)


def test_the_block_ends_by_an_exception_with_updates_pending(pool):
    program = Program()
    with warnings.catch_warnings(), pytest.raises(Boom):
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        with program.block(pool) as tide:
            program.steps(4)
            program.expect_pending(12)
            raise Boom
    tide.restore()
    assert_as_after(4, program)


@pytest.mark.parametrize("where", ["forward", "backward", "after"])
def test_an_exception_in_the_step_after(pool, where):
    def scenario(program):
        def fail(*_):
            raise Boom

        program.steps(3)
        program.expect_pending(12)
        layer = program.model[2]
        if where == "forward":
            handle = layer.register_forward_hook(fail)
        elif where == "backward":
            handle = layer.weight.register_hook(fail)
        try:
            program.step()
            fail()
        except Boom:
            program.note_all()
        if where != "after":
            handle.remove()
        program.steps(2)

    compare(scenario, pool)


def test_ctrl_c_never_leaves_a_parameter_half_updated(pool):
    """Interrupts an update, which is done before the exception is on its way."""
    program = Program()
    interrupted = 0
    with warnings.catch_warnings(), program.block(pool) as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        program.steps(3)
        compute = tide.updates._compute

        def interrupt(run):
            half = []

            class Half(torch.utils._python_dispatch.TorchDispatchMode):
                def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                    half.append(func)
                    if len(half) == 5:
                        os.kill(os.getpid(), signal.SIGINT)
                    return func(*args, **(kwargs or {}))

            def computing():
                with Half():
                    run()

            compute(computing)

        tide.updates._compute = interrupt
        while program.pending():
            before = program.pending()
            with pytest.raises(KeyboardInterrupt):
                tide.updates.run_all()
            assert program.pending() == before - 1
            interrupted += 1
        tide.updates._compute = compute
    tide.restore()
    assert interrupted == 12
    assert_as_after(3, program)


def test_an_update_that_cannot_run_is_an_error_at_the_latest_where_the_block_ends(pool):
    """Checks an update whose state lies on a device that has lost it."""
    program = Program()
    with warnings.catch_warnings(record=True) as told, pytest.raises(tidelog.Error, match="planted"):
        warnings.simplefilter("always")
        with program.block(pool) as tide:
            program.steps(3)
            program.expect_pending(12)

            def fail(update):
                raise tidelog.DeviceError("planted")

            tide.updates._compute = fail
            with pytest.raises(tidelog.DeviceError):
                program.weight.sum()
            assert program.pending() == 11  # the others are not given up
    (told,) = [each for each in told if "did not run" in str(each.message)]
    assert "last updates of 10 parameters" in str(told.message)


def test_figures(pool):
    program = Program()
    with program.block(pool, memory=64 * MIB) as tide:
        assert tide.stats()["updates"] == {"pending": 0, "late": 0, "early": 0}
        program.steps(2)
        assert tide.stats()["updates"] == {"pending": 12, "late": 0, "early": 0}
        program.steps(1)
        assert tide.stats()["updates"] == {"pending": 12, "late": 12, "early": 0}
    own = Program()
    with own.block(pool, memory=64 * MIB, updates="own") as tide:
        own.steps(2)
        assert tide.stats()["updates"] is None
        assert "state" in vars(own.optimizer) and "state" not in vars(torch.optim.Optimizer)


def test_a_step_that_follows_the_plan_brings_state_in_while_the_forward_pass_computes(pool):
    """Updates are ops of the next step, where the plan has them: it is followed to its end."""
    program = Program()
    with warnings.catch_warnings(), program.block(pool, mode="auto") as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        for _ in range(10):
            program.optimizer.zero_grad(set_to_none=True)
            ((program.model(program.x) - program.y) ** 2).mean().backward()
            program.optimizer.step()
        assert tide.phase == "planned"
        assert not [each for each in tide.stats()["notices"] if "left the plan" in each]
        assert tide.simulate_step() is not None


def test_ops_that_go_past_python_find_updates(pool):
    def scenario(program):
        program.steps(6)
        if program.tide is not None:
            figures = program.tide.stats()["dispatch"]
            assert figures["ops_past_python"] > 100

    compare(scenario, pool, memory="1GiB")


def test_nothing_of_torch_stays_changed(pool):
    before = vars(torch.optim.Optimizer).copy()
    optimizer = importlib.import_module("torch.optim.optimizer")
    hooks = len(optimizer._global_optimizer_pre_hooks)
    program = Program()
    with program.block(pool):
        program.steps(2)
    assert vars(torch.optim.Optimizer) == before
    assert len(optimizer._global_optimizer_pre_hooks) == hooks


def test_the_option_is_checked(pool):
    with pytest.raises(tidelog.Error, match="updates='never': expected one of 'own', 'lazy', 'early'"):
        tidelog.offload(pool=pool, memory="1GiB", updates="never")
