"""Programs whose parameters are updated in the backward pass: the same bits, whatever makes up a step."""

import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest.updates import ALL, BUDGET, WIDTH, Halves, Program, early, tied, trains


@pytest.mark.parametrize("mode", ["reactive", "auto"])
def test_a_loop(pool, mode):
    assert not [each for each in early(trains(), pool, mode=mode) if "where they are called" in each]


def test_steps_follow_a_plan(pool):
    """Updates are ops of the backward pass, where the plan has them."""
    program = Program()
    with warnings.catch_warnings(), program.block(pool, mode="auto", updates="early") as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        for _ in range(10):
            program.optimizer.zero_grad()
            ((program.model(program.x) - program.y) ** 2).mean().backward()
            program.optimizer.step()
        assert tide.phase == "planned"
        assert not [each for each in tide.stats()["notices"] if "left the plan" in each]
        assert tide.stats()["updates"] == {"pending": 0, "late": 0, "early": 8 * ALL}


def micro_batches(count):
    def backward(program):
        for place in range(count):
            out = program.model(program.x[place::count])
            ((torch.tanh(out) - program.y[place::count]) ** 2).mean().div(count).backward()
            if place < count - 1:
                assert not program.pending()

    return backward


@pytest.mark.parametrize("zero", [None, True, False])
def test_micro_batches(pool, zero):
    """`zero`: what `set_to_none` is; None: gradients are zeroed after the step."""

    def zeroed(program, number):
        if zero is not None:
            program.optimizer.zero_grad(set_to_none=zero)
        elif number:
            program.model.zero_grad()

    early(trains(micro_batches(3), zero=zeroed), pool)


def test_fewer_micro_batches_at_the_end_of_an_epoch(pool):
    def scenario(program):
        for number in range(8):
            program.optimizer.zero_grad()
            micro_batches(2 if number in (3, 6) else 3)(program)
            program.expect_pending(ALL if number in (2, 4, 5, 7) else 0)
            program.optimizer.step()

    early(scenario, pool)


def test_experts_that_only_some_micro_batches_use(pool):
    """Checks an expert whose gradient is not known to be complete, unless all micro-batches have used it."""

    def scenario(program):
        first, *experts = program.model
        for number in range(9):
            program.optimizer.zero_grad()
            for place in range(3):
                expert = experts[(number + place * place) % 5]
                torch.tanh(expert(torch.tanh(first(program.x)))).square().mean().backward()
            program.expect_pending(2 if number > 1 else 0)
            program.optimizer.step()
            assert program.tide is None or program.tide.stats()["updates"]["early"] == 2 * max(number - 1, 0)

    early(scenario, pool)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: LambdaLR(optimizer, lambda step: 0.5**step),
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=8),
    ],
)
def test_a_scheduler_after_the_step(pool, schedule):
    def scenario(program):
        scheduler = schedule(program.optimizer)
        for number in range(6):
            program.optimizer.zero_grad()
            program.backward()
            program.expect_pending(ALL if number >= 2 else 0)
            program.optimizer.step()
            scheduler.step()

    def two_groups(parameters):
        first, *others = parameters
        return torch.optim.AdamW([{"params": [first], "lr": 0.1}, {"params": others, "betas": (0.5, 0.7)}], lr=1e-2)

    early(scenario, pool, optimizer=two_groups)


def test_tied_parameters(pool):
    early(trains(least=5), pool, model=tied)


def test_parameters_in_one_storage_stay_in_place(pool):
    notices = early(trains(least=2), pool, model=Halves)
    assert any("something else is updated in the same memory" in each for each in notices)


class Checkpointed(nn.Module):
    """Blocks that are computed again in the backward pass; one of them is used twice."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(lambda x: torch.tanh(self.second(x)), x, use_reentrant=self.use_reentrant)
        return x


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(pool, use_reentrant):
    """Checks checkpointing: with use_reentrant=True each use is a backward pass of its own, in the midst of another."""
    early(trains(micro_batches(2), least=2 if use_reentrant else 4), pool, model=lambda: Checkpointed(use_reentrant))


def test_a_closure(pool):
    def scenario(program):
        for _ in range(5):

            def closure():
                program.optimizer.zero_grad()
                program.backward()
                program.expect_pending(ALL if _ >= 3 else 0)

            program.optimizer.step(closure)

    early(scenario, pool)


def test_two_optimizers_that_take_turns(pool):
    """Trains two networks that train against each other. The first one's backward pass adds to gradients of the second
    one, which are zeroed before they are used.
    """

    def scenario(program):
        half = len(program.model) // 2
        makes, judges = program.model[:half], program.model[half:]
        first = torch.optim.AdamW(makes.parameters(), 0.01)
        second = torch.optim.SGD(judges.parameters(), 0.1, momentum=0.9)
        for number in range(6):
            first.zero_grad()
            judges(makes(program.x)).square().mean().backward()
            program.expect_pending(ALL // 2 if number > 1 else 0)
            first.step()
            second.zero_grad()
            judges(makes(program.x).detach()).square().mean().backward()
            assert not program.pending()
            second.step()
            program.note("parameters", list(program.model.parameters()))

    notices = early(scenario, pool)
    assert any("add_.Tensor uses gradients after the step" in each for each in notices)


def test_two_optimizers_of_the_same_parameters_step_in_place(pool):
    def scenario(program):
        other = torch.optim.SGD(program.model.parameters(), 0.1, momentum=0.9)
        for _ in range(5):
            program.optimizer.zero_grad()
            program.backward()
            program.optimizer.step()
            other.step()

    early(scenario, pool, expect_moved=False)


def test_layers_that_are_not_used_in_some_steps(pool):
    def scenario(program):
        for number in range(9):
            program.optimizer.zero_grad()
            out = program.x
            for place, layer in enumerate(program.model):
                if (place + number) % 3:
                    out = torch.tanh(layer(out))
            out.square().mean().backward()
            program.expect_pending(6 if number > 4 else 0)
            program.optimizer.step()

    early(scenario, pool)


def test_bfloat16_under_autocast(pool):
    def backward(program):
        with torch.autocast("cpu", torch.bfloat16):
            out = program.model(program.x)
        (out.float() - program.y).square().mean().backward()

    early(trains(backward), pool)


def test_a_backward_pass_under_autocast(pool):
    """Checks a backward pass under autocast, which the update must not see."""

    def backward(program):
        loss = (program.model(program.x) - program.y).square().mean()
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()

    early(trains(backward), pool)


def test_an_optimizer_that_is_loaded(pool):
    def scenario(program):
        program.steps(4)
        state = program.optimizer.state_dict()
        state["param_groups"][0]["lr"] = 0.5
        program.optimizer.load_state_dict(state)
        trains(least=0)(program)
        program.optimizer.zero_grad()
        program.backward()
        program.expect_pending(ALL)
        program.optimizer.step()

    early(scenario, pool)


def test_parameters_that_come_later(pool):
    def scenario(program):
        last = program.model[-1]
        program.optimizer = torch.optim.AdamW(program.model[:-1].parameters(), 0.01)
        program.steps(3)
        program.optimizer.add_param_group({"params": list(last.parameters()), "lr": 0.1})
        trains(least=10, steps=5)(program)
        program.optimizer.zero_grad()
        program.backward()
        program.expect_pending(ALL)
        program.optimizer.step()

    early(scenario, pool)


def test_an_exception_in_the_backward_pass_and_then_a_step(pool):
    """The step does what it does without a block: it uses the gradients that there are."""

    def scenario(program):
        def fail(_):
            raise ValueError

        program.steps(3)
        handle = program.model[2].weight.register_hook(fail)
        program.optimizer.zero_grad()
        with pytest.raises(ValueError):
            program.backward()
        program.expect_pending(6)
        handle.remove()
        program.optimizer.step()
        program.note_all()
        trains(steps=4, least=0)(program)

    early(scenario, pool)


def test_a_fork_between_two_steps(pool):
    def scenario(program):
        program.steps(4)
        loader = torch.utils.data.DataLoader(torch.arange(4.0), num_workers=1)
        program.note("loaded", list(loader))
        program.steps(2)

    early(scenario, pool, memory=4 * BUDGET)


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_compiled_model(pool, backend):
    def scenario(program):
        torch._dynamo.reset()
        forward = torch.compile(program.model, backend=backend)

        def backward(program):
            (torch.tanh(forward(program.x)) - program.y).square().mean().backward()

        trains(backward)(program)

    early(scenario, pool, memory=2 * BUDGET)
