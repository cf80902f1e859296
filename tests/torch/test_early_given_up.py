"""Steps that a program gives up, and steps where all fits: the same bits, whenever parameters are updated."""

import contextlib
import functools

import pytest
import torch

from tidetest import MIB
from tidetest.updates import ALL, Program, compare

GIVEN_UP = 5  # the step, of nine
MICRO_BATCHES = 2


class Corrupt(Exception):
    """A sample that cannot be read."""


def by_optimizer(program):
    program.optimizer.zero_grad()


def to_zero(program):
    program.optimizer.zero_grad(set_to_none=False)


def by_model(program):
    program.model.zero_grad()


def by_hand(program):
    for parameter in program.model.parameters():
        parameter.grad = None


def to_zero_by_hand(program):
    for parameter in program.model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def after_a_look(program):
    """Gradients are read before they are given up."""
    if program.model[0].weight.grad is not None and program.given_up:
        program.note("norm", torch.nn.utils.get_total_norm([each.grad for each in program.model.parameters()]))
        program.given_up = False
    program.optimizer.zero_grad()


ZEROES = [by_optimizer, to_zero, by_model, by_hand, to_zero_by_hand, after_a_look]


def trains_with_gaps(zero, where, given_up=(GIVEN_UP,), micro_batches=MICRO_BATCHES, marked=True):
    """A loop that skips batches which raise an error. `where`: before which micro-batch."""

    def scenario(program):
        program.given_up = False
        for number in range(9):
            step = program.tide.step() if program.tide is not None and marked else contextlib.nullcontext()
            with contextlib.suppress(Corrupt), step:
                zero(program)
                for part in range(micro_batches):
                    if number in given_up and part == where:
                        program.given_up = True
                        raise Corrupt
                    program.backward()
                program.optimizer.step()

    return scenario


@pytest.mark.parametrize("updates", ["own", "lazy", "early"])
@pytest.mark.parametrize("zero", ZEROES)
def test_a_step_that_was_given_up_leaves_no_count_behind(pool, zero, updates):
    compare(trains_with_gaps(zero, 1), pool, updates=updates, expect_moved=updates != "own")


@pytest.mark.parametrize("where", [0, 1, 2, 3])
@pytest.mark.parametrize("zero", [by_optimizer, to_zero, by_hand])
def test_wherever_it_is_given_up(pool, zero, where):
    compare(trains_with_gaps(zero, where, micro_batches=4), pool, updates="early")


@pytest.mark.parametrize("given_up", [(0,), (1,), (2,), (3,), (1, 2), (4, 5), (3, 5, 7)])
@pytest.mark.parametrize("zero", [by_optimizer, by_hand])
def test_whenever_it_is_given_up(pool, zero, given_up):
    compare(trains_with_gaps(zero, 1, given_up), pool, updates="early")


def test_in_a_loop_that_does_not_mark_steps(pool):
    compare(trains_with_gaps(by_optimizer, 1, marked=False), pool, updates="early")


# -- where all fits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("updates", ["lazy", "early"])
def test_where_all_fits_steps_run_in_place(pool, updates):
    program = Program()
    with program.block(pool, presses=False, memory=64 * MIB, updates=updates) as tide:
        for _ in range(4):
            program.optimizer.zero_grad()
            program.backward()
            program.note("gradients", [each.grad for each in program.model.parameters()])  # nobody minds
            program.optimizer.step()
        assert tide.stats()["updates"] == {"pending": 0, "late": 0, "early": 0}
        assert not tide.stats()["notices"]


@pytest.mark.parametrize("updates", ["lazy", "early"])
@pytest.mark.parametrize("reached", [1, 3])
def test_from_the_step_on_that_reaches_the_budget_they_do_not(pool, updates, reached):
    def scenario(program, ballast):
        for number in range(8):
            if program.tide is not None and number == reached:
                ballast.append(torch.ones(4 * MIB))
            program.step()

    compare(
        functools.partial(scenario, ballast=[]), pool, presses=False, memory=17 * MIB, staging=MIB // 4, updates=updates
    )


def test_a_checkpoint_where_all_fits(pool):
    """Checks ops after a checkpoint: clean tensors have to be seen, so ops are looked at, and updates have their own
    time.
    """

    def scenario(program):
        program.steps(3)
        if program.tide is not None:
            program.tide.checkpoint("kept")
        program.steps(4)

    for updates in "lazy", "early":
        compare(scenario, pool, presses=False, memory=64 * MIB, updates=updates, expect_moved=False)


def test_all_are_updated_early_again_after_a_step_that_was_given_up(pool):
    program = Program()
    with program.block(pool, updates="early"):
        for number in range(9):
            program.optimizer.zero_grad()
            program.backward()
            if number == GIVEN_UP - 1:
                continue  # its second half does not come
            program.backward()
            program.expect_pending(ALL if number in (4, 7, 8) else 0)
            program.optimizer.step()
