"""Tests of profiles that see programs unfit for updates in the backward pass: all runs in place, and it is said why."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tidetest.updates import ALL, compare


def clipped(program, _):
    program.backward()
    program.note("norm", nn.utils.clip_grad_norm_(program.model.parameters(), 0.01))
    program.optimizer.step()


def scaled(program, made):
    made.scale(program.model(program.x).square().mean()).backward()
    made.step(program.optimizer)
    made.update()


def scheduled(program, made):
    program.backward()
    made.step()
    program.optimizer.step()


def logged(program, _):
    program.backward()
    program.optimizer.step()
    program.note("gradients", [each.grad.norm() for each in program.model.parameters()])


def added(program, _):
    """Gradients of steps add up."""
    program.backward()
    program.optimizer.step()


def stepped_twice(program, _):
    program.backward()
    program.optimizer.step()
    program.optimizer.step()


def averaged(program, _):
    program.backward()
    program.note("parameters", copy.deepcopy(program.model.state_dict()))
    program.optimizer.step()


def state_read(program, _):
    program.backward()
    program.note("state", len(program.optimizer.state))
    program.optimizer.step()


def printed(program, _):
    program.backward()
    program.note("gradient", repr(program.model[0].bias.grad))
    program.optimizer.step()


def elsewhere(program, _):
    thread = threading.Thread(target=lambda: program.model(program.x).square().mean().backward())
    thread.start()
    thread.join()
    program.optimizer.step()


def used_again(program, _):
    """An op of the backward pass reads a parameter whose gradient is complete."""
    last = program.model[-1].weight

    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient * (last.detach().sum() * 0 + 1)

    out = Reads.apply(program.x.requires_grad_())
    program.model(out).square().mean().backward()
    program.optimizer.step()


def plain(program):
    return None


SEEN = {
    clipped: (plain, "_foreach_norm", 0),
    scaled: (lambda _: torch.amp.GradScaler("cpu", init_scale=4.0), "aten._amp_foreach_non_finite", 0),
    scheduled: (lambda program: LambdaLR(program.optimizer, lambda step: 0.9**step), "lr changes between", 0),
    logged: (plain, "uses gradients after the step", 0),
    added: (plain, "add_", 0),
    stepped_twice: (plain, "uses gradients after the step", 0),
    averaged: (plain, "before the step", 0),
    state_read: (plain, "a look at optimizer.state", 0),
    printed: (plain, "a call that is no op", ALL - 1),
    used_again: (plain, "before the step", ALL - 1),
}


@pytest.mark.parametrize("work", SEEN, ids=lambda work: work.__name__)
def test_a_profile_sees(pool, work):
    before, said, early = SEEN[work]

    def scenario(program):
        made = before(program)
        for _ in range(5):
            if work is not added:
                program.optimizer.zero_grad()
            work(program, made)
        if program.tide is not None:
            assert program.tide.stats()["updates"]["early"] == 3 * early

    notices = compare(scenario, pool, updates="early", expect_moved=False)
    assert any(said in each and "run where they are called" in each for each in notices), notices


def test_a_backward_pass_in_another_thread(pool):
    def scenario(program):
        for _ in range(5):
            program.optimizer.zero_grad()
            elsewhere(program, None)

    notices = compare(scenario, pool, updates="early", expect_moved=False, memory=1 << 30)
    assert any("another thread" in each for each in notices), notices
