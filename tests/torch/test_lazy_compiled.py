"""torch.compile in a block whose optimizer's steps are put off: kernels find what updates have left."""

import pytest
import torch

from tidetest.updates import BUDGET, compare

pytestmark = [
    pytest.mark.host_memory("updates are not put off on a GPU"),
    pytest.mark.usefixtures("compiled_once"),
]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("mode", ["reactive", "auto"])
def test_a_compiled_model(pool, backend, mode):
    def scenario(program):
        torch._dynamo.reset()
        forward = torch.compile(program.model, backend=backend)
        for _ in range(6):
            program.optimizer.zero_grad()
            program.expect_pending(12 if _ > 1 else 0)
            loss = (torch.tanh(forward(program.x)) - program.y).square().mean()
            loss.backward()
            program.note("loss", loss)
            program.optimizer.step()

    compare(scenario, pool, mode=mode, memory=2 * BUDGET)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_compiled_step_runs_in_place(pool, backend):
    def scenario(program):
        torch._dynamo.reset()
        step = torch.compile(program.optimizer.step, backend=backend)
        for _ in range(4):
            program.optimizer.zero_grad()
            program.backward()
            step()
            program.note("parameters", list(program.model.parameters()))

    notices = compare(scenario, pool, expect_moved=False, memory=2 * BUDGET)
    assert "steps of AdamW run where they are called: torch.compile has them" in notices


def test_a_compiled_function_that_reads_a_parameter(pool):
    def scenario(program):
        torch._dynamo.reset()
        norm = torch.compile(lambda tensor: (tensor * tensor).sum())
        for _ in range(4):
            program.step()
            program.note("norm", norm(program.weight))

    compare(scenario, pool, memory=2 * BUDGET)
