"""Tests of gradients whose updates run in the backward pass."""

import numpy as np
import pytest
import torch

from tidetest.updates import ALL, early, trains


def test_a_graph_from_before_the_step_is_refused_as_ever(pool):
    def scenario(program):
        program.steps(3)
        out = program.model(program.x).square().mean()
        program.optimizer.zero_grad()
        program.backward()
        program.expect_pending(ALL)
        program.optimizer.step()
        program.attempt("backward through old parameters", out.backward)
        program.optimizer.zero_grad()

    early(scenario, pool)


def test_gradients_do_not_stay(pool):
    def backward(program):
        program.backward()
        if program.pending():
            assert all(each.grad.untyped_storage()._tide is None for each in program.model.parameters())
            assert all(each.grad.shape == each.shape for each in program.model.parameters())

    early(trains(backward), pool)


@pytest.mark.parametrize("foreach", [False, True])
def test_gradients_that_are_zeroed_one_by_one(pool, foreach):
    def zeroed(program, number):
        gradients = [each.grad for each in program.model.parameters() if number]
        if foreach and number:
            torch._foreach_zero_(gradients)
        for each in gradients if not foreach else ():
            each.zero_()
        program.note("zeroed", gradients)

    early(trains(zero=zeroed), pool)


def test_hooks_of_tensors_see_gradients(pool):
    def scenario(program):
        seen = []
        program.weight.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient / 2)
        trains()(program)
        program.note("seen", seen)

    early(scenario, pool)


def test_a_gradient_that_somebody_keeps_is_whole(pool):
    def scenario(program):
        kept = []
        program.weight.register_post_accumulate_grad_hook(lambda parameter: kept.append(parameter.grad))
        trains()(program)
        program.note("kept", kept)

    early(scenario, pool)


def test_a_parameter_with_an_alias_stays_in_place(pool):
    """Checks a parameter with an alias, whose readers nothing reports."""

    def scenario(program):
        program.steps(3)
        seen = program.weight.detach().numpy()
        for _ in range(2):
            program.optimizer.zero_grad()
            program.backward()
            program.expect_pending(ALL - 1)
            program.note("by its alias", torch.tensor(seen))
            program.optimizer.step()

    early(scenario, pool)


def test_gradients_in_foreign_memory(pool):
    """Checks gradients that cannot move, and are not taken for tensors that can."""
    arrays = []

    def scenario(program):
        for _ in range(5):
            program.optimizer.zero_grad()
            program.backward()
            for each in program.model.parameters():
                arrays.append(np.full(each.shape, 0.5, np.float32))
                each.grad = torch.from_numpy(arrays[-1])
            program.optimizer.step()
            program.note("evaluation", program.model(program.x))
            program.push_out(*(each.grad for each in program.model.parameters()))

    notices = early(scenario, pool, expect_moved=False)
    assert any("something sets gradients" in each for each in notices)
