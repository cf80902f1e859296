"""Programs whose optimizer's steps are put off: schedulers, groups, scalers, accumulation; and what stays in place."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from tidelog.order import _element_wise
from tidetest.updates import BUDGET, LAZY_ALONE, WIDTH, Halves, compare, tied


def two_groups(parameters):
    first, *others = parameters
    return torch.optim.AdamW(
        [{"params": [first], "lr": 0.1, "weight_decay": 0.5}, {"params": others, "betas": (0.5, 0.7)}], lr=1e-2
    )


def in_steps(work, before=lambda program: None):
    """A scenario: `work(program, number, made)` after each of some steps; `made` is what `before` made."""

    def scenario(program):
        program.step()  # in its place: it makes the state
        made = before(program)
        for number in range(6):
            program.optimizer.zero_grad(set_to_none=True)
            program.backward()
            work(program, number, made)
        program.expect_pending()

    return scenario


def stepping(then):
    """Makes a look that steps first."""

    def work(program, number, made):
        program.optimizer.step()
        then(program, number, made)

    return work


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: LambdaLR(optimizer, lambda number: 0.5**number),
        lambda optimizer: CosineAnnealingLR(optimizer, 4),
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=8),  # momentum changes, too
    ],
)
def test_a_scheduler_changes_the_rate_after_the_step(pool, make):
    compare(
        in_steps(stepping(lambda _program, _number, made: made.step()), lambda program: make(program.optimizer)),
        pool,
        optimizer=two_groups,
    )


def test_numbers_are_those_of_the_step(pool):
    def then(program, number, _):
        for group in program.optimizer.param_groups:
            group["lr"], group["weight_decay"] = 0.3 * (number + 1), 0.2
            group["betas"] = (0.1, 0.2)
            group["maximize"] = number % 2 == 0

    compare(in_steps(stepping(then)), pool, optimizer=two_groups)


def test_gradients_that_add_up(pool):
    def work(program, number, _):
        program.backward()
        torch.nn.utils.clip_grad_norm_(program.model.parameters(), 0.01)
        program.optimizer.step()

    compare(in_steps(work), pool)


@LAZY_ALONE
def test_gradients_that_are_zeroed_in_place(pool):
    def work(program, _number, _):
        program.optimizer.step()
        program.expect_pending(12)
        program.optimizer.zero_grad(set_to_none=False)
        assert not program.pending()
        program.backward()
        program.optimizer.step()

    compare(in_steps(work), pool)


def test_gradients_that_are_kept_and_added_to(pool):
    def work(program, number, _):
        program.optimizer.step()
        program.backward()  # into the gradients that updates wait to read
        program.note("gradients", [each.grad for each in program.model.parameters()])
        program.optimizer.step()

    compare(in_steps(work), pool)


def test_gradients_that_are_replaced(pool):
    def work(program, number, _):
        program.optimizer.step()
        for each in program.model.parameters():
            each.grad = torch.full(each.shape, 7.0) if number % 2 else None

    compare(in_steps(work), pool)


def test_parameters_that_have_no_gradient_in_some_steps(pool):
    def work(program, number, _):
        for place, each in enumerate(program.model.parameters()):
            if (place + number) % 3 == 0:
                each.grad = None
        program.optimizer.step()

    compare(in_steps(work), pool)


def test_layers_that_are_not_used_in_some_steps(pool):
    def scenario(program):
        layers = list(program.model)
        for number in range(7):
            program.optimizer.zero_grad()
            out = program.x
            for place, layer in enumerate(layers):
                if (place + number) % 3:
                    out = torch.tanh(layer(out))
            out.square().mean().backward()
            program.optimizer.step()
        program.expect_pending()

    compare(scenario, pool)


def test_a_closure_that_is_none_is_none(pool):
    """Checks that a closure that is none steps as accelerate does, and the Trainer."""

    def work(program, number, _):
        program.optimizer.step(*(None,) * (number % 2))
        program.expect_pending(12)
        program.optimizer.step(closure=None)
        program.expect_pending(12)

    compare(in_steps(work), pool)


@pytest.mark.parametrize("fails", [False, True])
def test_a_closure(pool, fails):
    """Steps as Lightning does: forward and backward pass are called by the step."""

    def scenario(program):
        for number in range(5):

            def closure():
                program.optimizer.zero_grad()
                program.expect_pending(12 if number in (2, 3) else 0)
                program.backward()
                if fails and number == 3:
                    raise ValueError("in the closure")
                return torch.tensor(float(number))

            step = program.optimizer.step
            program.attempt("loss", (lambda: step(closure)) if number % 2 else lambda: step(closure=closure))
        program.expect_pending(12)

    compare(scenario, pool)


def test_two_steps_one_after_the_other(pool):
    def work(program, _number, _):
        for _ in range(3):
            program.optimizer.step()

    compare(in_steps(work), pool)


def test_two_optimizers_of_the_same_parameters(pool):
    def work(program, _number, other):
        program.optimizer.step()
        other.step()

    compare(in_steps(work, lambda program: torch.optim.SGD(program.model.parameters(), 0.1, momentum=0.9)), pool)


@pytest.mark.parametrize("model", [tied, Halves])
def test_parameters_that_share_memory(pool, model):
    compare(in_steps(stepping(lambda *_: None)), pool, model=model)


def test_complex_parameters(pool):
    def scenario(program):
        parameter = nn.Parameter(torch.randn(64, 64, dtype=torch.complex64))
        optimizer = torch.optim.Adam([parameter], 0.1)
        for number in range(4):
            parameter.grad = torch.full_like(parameter, 0.5 + number * 1j)
            optimizer.step()
        program.expect_pending()
        program.note("parameter", torch.view_as_real(parameter))

    compare(scenario, pool)


def test_bfloat16_under_autocast(pool):
    """The next forward pass is under autocast, which must not be seen by the updates that run in it."""

    def scenario(program):
        for _ in range(5):
            program.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = program.model(program.x)
            (out.float() - program.y).square().mean().backward()
            program.optimizer.step()
        program.expect_pending()

    compare(scenario, pool)


@pytest.mark.parametrize("fails", [False, True])
def test_a_grad_scaler(pool, fails):
    def scenario(program):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        for number in range(6):
            program.optimizer.zero_grad()
            loss = program.model(program.x).square().mean()
            if fails and number % 3 == 1:
                loss = loss * float("inf")  # this step is left out
            scaler.scale(loss).backward()
            scaler.unscale_(program.optimizer)
            torch.nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
            scaler.step(program.optimizer)
            scaler.update()
            program.note("scale", scaler.get_scale())
        program.expect_pending()

    compare(scenario, pool)


def test_a_moving_average_of_parameters(pool):
    def then(program, _number, average):
        average.update_parameters(program.model)
        assert not program.pending()
        program.optimizer.step()

    def note(program):
        return torch.optim.swa_utils.AveragedModel(
            program.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )

    compare(in_steps(stepping(then), note), pool)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_an_evaluation_after_the_step(pool, mode):
    """Updates that run in inference mode make and change no tensors of inference mode."""

    def then(program, _number, _):
        program.expect_pending(12)
        with mode():
            program.note("evaluation", program.model(program.x) + 0)
        assert not program.pending()
        program.optimizer.step()

    compare(in_steps(stepping(then)), pool)


def test_state_that_an_update_makes_in_inference_mode_is_usual(pool):
    """A tensor of inference mode could not be updated outside of it."""

    def then(program, number, _):
        if number == 3:
            with torch.inference_mode():
                program.note("evaluation", program.model(program.x) + 0)
        program.optimizer.param_groups[0]["momentum"] = 0.9 if number >= 2 else 0.0

    compare(in_steps(stepping(then)), pool, optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1))


def test_a_parameter_that_an_op_saves_before_its_update_runs(pool):
    """Autograd notes the version of what it saves before the op comes to the block."""

    def model():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Unflatten(1, (4, 16)), nn.Conv1d(4, 4, 3))

    def scenario(program):
        for _ in range(5):
            program.optimizer.zero_grad()
            program.model(program.x).square().mean().backward()
            program.optimizer.step()

    compare(scenario, pool, model=model)


def test_a_graph_from_before_the_step_is_refused_as_ever(pool):
    def scenario(program):
        program.steps(3)
        out = program.model(program.x).square().mean()
        program.backward()
        program.optimizer.step()
        program.expect_pending()
        program.attempt("backward through old parameters", out.backward)

    compare(scenario, pool)


def test_a_parameter_that_gets_other_memory(pool):
    def then(program, number, _):
        before = program.weight.data
        program.weight.data = torch.full((WIDTH, WIDTH), float(number))
        program.note("what it was", before)
        program.note("what it is", program.weight)

    compare(in_steps(stepping(then)), pool)


def test_a_model_that_is_deleted_is_not_kept(pool):
    def scenario(program):
        parameter = nn.Parameter(torch.ones(64, 64))
        optimizer = torch.optim.AdamW([parameter])
        for _ in range(3):
            parameter.grad = torch.ones(64, 64)
            optimizer.step()
        before = program.pending()
        del parameter, optimizer
        program.steps(2)
        if program.tide is not None:
            assert before == 1
            assert all(update.step.optimizer() is program.optimizer for update in program.tide.updates.pending.values())

    compare(scenario, pool)


# -- what stays in place ------------------------------------------------------------------------------


class Own(torch.optim.SGD):
    def step(self, closure=None):
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each.mul_(0.999)
        return super().step(closure)


def hooked(kind):
    def make(parameters):
        optimizer = torch.optim.SGD(parameters, 0.1)
        getattr(optimizer, kind)(lambda *_: None)
        return optimizer

    return make


IN_PLACE = {
    "no subclasses": lambda parameters: Own(parameters, 0.1),
    "lr is a tensor": lambda parameters: torch.optim.Adam(parameters, torch.tensor(0.01)),
    "step hooks": hooked("register_step_post_hook"),
    "has step hooks": hooked("register_step_pre_hook"),
}


@LAZY_ALONE
@pytest.mark.parametrize("why", IN_PLACE)
def test_what_may_not_wait_runs_in_place(pool, why):
    def scenario(program):
        program.optimizer = IN_PLACE[why](program.model.parameters())
        for _ in range(3):
            program.optimizer.zero_grad()
            program.backward()
            with torch.no_grad():
                program.optimizer.step()
            assert not program.pending()

    (notice,) = [each for each in compare(scenario, pool, expect_moved=False) if "run where they are called" in each]
    assert why in notice


@pytest.mark.parametrize("word", ["capturable", "differentiable"])
def test_what_is_for_graphs_runs_in_place(word):
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    optimizer.param_groups[0][word] = True
    assert word in _element_wise.why_not(optimizer, (optimizer,), {}, lambda _: True)


@LAZY_ALONE
def test_a_step_under_autocast_runs_in_place(pool):
    def scenario(program):
        program.steps(2)
        for _ in range(2):
            program.backward()
            with torch.autocast("cpu", torch.bfloat16):
                program.optimizer.step()
            assert not program.pending()

    compare(scenario, pool)


def test_a_program_that_becomes_distributed(pool):
    def scenario(program):
        program.steps(3)
        program.expect_pending(12)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            program.model = nn.parallel.DistributedDataParallel(program.model)
            program.steps(3)
            program.expect_pending(12)
        finally:
            torch.distributed.destroy_process_group()

    compare(scenario, pool, memory=4 * BUDGET)


def test_a_parameter_with_an_alias_is_updated_in_place(pool):
    """Checks a parameter with an alias, whose readers nothing reports."""

    def scenario(program):
        program.steps(2)
        seen = program.weight.detach().numpy()
        program.steps(1)
        program.expect_pending(11)
        program.note("by its alias", copy.deepcopy(seen))

    compare(scenario, pool)
