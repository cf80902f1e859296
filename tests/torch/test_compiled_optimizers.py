"""Optimizers whose step is compiled, inside a block: what they make counts, and what does not fit is refused."""

import re

import pytest
import torch
from torch import nn

import tidelog
from tidetest import MIB, device
from tidetest.bits import assert_same, bits

pytestmark = [
    pytest.mark.host_memory("inductor's kernels in C++ are of the host"),
    pytest.mark.usefixtures("compiled_once"),
]

WIDTH, COUNT, STEPS = 64, 10, 4
MATRIX = WIDTH * WIDTH * 4
STATIC = 4 * COUNT * MATRIX  # parameters, gradients, and two states of AdamW


class Program:
    """Parameters with gradients, and a compiled optimizer."""

    def __init__(self, backend="inductor", kind=torch.optim.AdamW, **options):
        torch._dynamo.reset()
        torch.manual_seed(1)
        self.parameters = [nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(COUNT)]
        self.optimizer = kind(self.parameters, lr=1e-2, **options)
        self.update = torch.compile(self.optimizer.step, backend=backend)

    def step(self, number):
        for place, each in enumerate(self.parameters):
            each.grad = torch.full((WIDTH, WIDTH), 0.01 * (place + 1) * (number + 1))
        self.update()

    def result(self):
        state = self.optimizer.state
        return [
            *(bits(each) for each in self.parameters),
            *(bits(state[each][key]) for each in self.parameters for key in sorted(state[each])),
        ]


def block(pool, memory, **options):
    return tidelog.offload(pool=pool, memory=memory, staging=device.STAGING, pool_size=64 * MIB, **options)


def plain(*arguments, **options):
    program = Program(*arguments, **options)
    for number in range(STEPS):
        program.step(number)
    return program.result()


def compare(expected, got):
    for place, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert_same(one, other, f"tensor {place}")


@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "aot_eager"])
def test_states_that_are_made_while_dynamo_traces_count(pool, backend):
    expected = plain(backend)
    program = Program(backend)
    with block(pool, device.budget(16 * MIB), mode="reactive") as tide:
        for number in range(STEPS):
            program.step(number)
        assert STATIC <= tide.ledger.peak <= 2 * STATIC
        assert tide.ledger.live >= STATIC
    compare(expected, program.result())


def test_the_budget_holds_where_such_states_exceed_it(pool):
    """The first step is compiled while all is quiet: parameters and gradients fit."""
    expected = plain("aot_eager")
    program = Program("aot_eager")
    with block(pool, device.budget(STATIC * 3 // 4), mode="reactive") as tide:
        for number in range(STEPS):
            program.step(number)
            assert tide.live_bytes <= tide.budget
        assert tide.peak_bytes <= tide.budget and tide.stats()["evictions"] > COUNT
        got = program.result()
    compare(expected, got)


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_in_one_kernel_is_refused_with_the_budget_that_it_needs(pool, foreach):
    expected = plain(foreach=foreach)
    memory, refusals = device.budget(STATIC // 2), []
    while len(refusals) < 4:
        program = Program(foreach=foreach)
        before = [bits(each) for each in program.parameters]
        with block(pool, memory, mode="reactive") as tide:
            try:
                for number in range(STEPS):
                    program.step(number)
                got = program.result()
                break
            except tidelog.BudgetError as error:
                refusals.append(str(error))
                compare(before, [bits(each) for each in program.parameters])
            finally:
                assert tide.peak_bytes <= tide.budget
                tide.restore()
        least = int(re.search(r"smallest budget that would do is (\d+) bytes", refusals[-1])[1])
        assert memory < least < device.budget(2 * STATIC), refusals
        memory = least
    assert "kernel cpp_fused" in refusals[0]
    compare(expected, got)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad])
def test_eager_foreach_steps_are_done_in_pieces_where_the_compiled_step_is_refused(pool, kind):
    """Checks the advice of the refusal."""

    def eager():
        program = Program(kind=kind, foreach=True)
        program.update = program.optimizer.step
        return program

    program = eager()
    for number in range(STEPS):
        program.step(number)
    expected, program = program.result(), eager()
    with block(pool, device.budget(12 * MATRIX), mode="reactive") as tide:
        for number in range(STEPS):
            program.step(number)
        got = program.result()
        assert tide.peak_bytes <= tide.budget and tide.stats()["evictions"] > 0
        tide.restore()
    compare(expected, got)
