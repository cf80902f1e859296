"""Tests that touches of a parameter, its gradient or its state find them updated while their update is pending."""

import pytest
import torch

from tidetest.reads import READS
from tidetest.updates import BUDGET, compare
from tidetest.writes import ALIASES, WRITES

SUBJECTS = ("parameter", "gradient", "state")
TOUCHES = {**READS, **WRITES, **ALIASES}


def renew(tensor):
    """Known values: many writes in a row would end in NaN, where every difference drowns."""
    with torch.no_grad():
        tensor.copy_(torch.linspace(-1, 1, tensor.numel()).view(tensor.shape))


@pytest.mark.parametrize("where", ["resident", "out"])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_touch_finds_the_update(pool, subject, where):
    def scenario(program):
        for number, touch in enumerate(sorted(TOUCHES)):
            # An alias pins what it is of: each touch has a parameter of its own.
            parameter = torch.nn.Parameter(torch.linspace(-1, 1, 64 * 64).view(64, 64))
            optimizer = torch.optim.AdamW([parameter], lr=0.1)
            parameter.grad = torch.linspace(1, 3, 64 * 64).view(64, 64)
            optimizer.step()  # makes the state, in its place
            state = optimizer.state[parameter]["exp_avg"]
            optimizer.step()
            subjects = {"parameter": parameter, "gradient": parameter.grad, "state": state}
            if where == "out":
                program.push_out(subjects[subject])
            program.expect_pending()
            with torch.no_grad():
                program.attempt(f"{touch}, {number}", TOUCHES[touch], subjects[subject])
            program.note(f"parameter after {touch}", parameter)
            program.note(f"state after {touch}", optimizer.state_dict())
            program.note(f"gradient after {touch}", parameter.grad)
        program.steps(3)

    compare(scenario, pool, memory=8 * BUDGET if where == "resident" else BUDGET)
