"""Tests of programs that do not fit with updates in the backward pass: each is an error where it is done; and how such
updates end.
"""

import copy
import os
import signal
import threading
import warnings

import pytest
import torch
from torch import nn

import tidelog
from tidetest.bits import assert_same, bits
from tidetest.reads import READS
from tidetest.updates import ALL, BUDGET, Program, compare
from tidetest.writes import ALIASES, WRITES

TOUCHES = {**READS, **WRITES, **ALIASES}
QUIET = {"direction_of_dict", "length_and_metadata", "truth_of_many_is_refused"}  # these read no bytes


# -- what comes later -----------------------------------------------------------------------------------


@pytest.fixture
def updated(pool):
    """A program whose parameters have been updated, with a step that has not come."""
    program = Program()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        with program.block(pool, updates="early", memory=1 << 30):
            program.steps(3)
            program.state = program.optimizer.state[program.weight]["exp_avg"]
            program.optimizer.zero_grad()
            program.backward()
            program.expect_pending(ALL)
            yield program


def refused(match="updates='early'"):
    return pytest.raises(RuntimeError, match=match)


@pytest.mark.parametrize(
    "subject, where",
    [("gradient", "gone"), *((subject, where) for subject in ("parameter", "state") for where in ("resident", "out"))],
)
def test_a_touch_before_the_step_is_an_error(updated, subject, where):
    quiet = set()
    subjects = {"parameter": updated.weight, "gradient": updated.weight.grad, "state": updated.state}
    if where == "out":
        updated.tide.evict(subjects[subject])
    with torch.no_grad():
        for name in sorted(TOUCHES):
            try:
                TOUCHES[name](subjects[subject])
                quiet.add(name)
            except RuntimeError as error:
                if "updates='early'" not in str(error):
                    quiet.add(name)
    assert quiet == QUIET
    updated.optimizer.step()


USES = {
    "one more micro-batch": (lambda program: program.backward(), "one more micro-batch"),
    "a step that is left out": (lambda program: (program.optimizer.zero_grad(), program.step()), "step may not be left out"),
    "an evaluation": (lambda program: program.model(program.x), "has not stepped"),
    "a checkpoint": (lambda program: program.tide.checkpoint("early"), "has not stepped"),
    "optimizer.state": (lambda program: program.optimizer.state, "has not stepped"),
    "the optimizer's state_dict": (lambda program: program.optimizer.state_dict(), "has not stepped"),
    "load_state_dict": (lambda program: program.optimizer.load_state_dict({}), "has not stepped"),
    "a norm of gradients": (lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), 1.0), "is gone"),
    "gradients that are zeroed": (lambda program: program.optimizer.zero_grad(set_to_none=False), "is gone"),
    "deepcopy": (lambda program: copy.deepcopy(program.model), "has not stepped"),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_a_use_before_the_step_is_an_error(updated, name):
    use, said = USES[name]
    with refused(said):
        use(updated)


def test_after_the_error_a_step_makes_it_whole(updated):
    """The parameters are then what they are without a block."""
    with refused():
        updated.model(updated.x)
    updated.optimizer.step()
    updated.steps(2)
    own = Program()
    own.steps(6)
    for one, other in zip(own.model.parameters(), updated.model.parameters(), strict=True):
        assert_same(bits(one), bits(other))


def change_number(program):
    program.optimizer.param_groups[0]["lr"] = 0.5


def scale_by_hand(program):
    program.optimizer.grad_scale = torch.ones(())


def replace_gradient(program):
    program.weight.grad = torch.zeros(program.weight.shape)


def replace_memory(program):
    program.weight.data = torch.zeros(program.weight.shape)


def take_out(program):
    del program.optimizer.param_groups[0]["params"][0]


CHANGES = {
    change_number: "lr=0.01, and its optimizer steps with 0.5",
    scale_by_hand: "a GradScaler",
    replace_gradient: "something has set its gradient",
    replace_memory: "got other memory",
    take_out: "has it no more",
    lambda program: program.optimizer.zero_grad(): "something has set its gradient",
    lambda program: program.optimizer.register_step_pre_hook(lambda *_: None): "step hooks",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_that_would_do_something_else_is_an_error(updated, change):
    change(updated)
    for _ in range(2):
        with refused(CHANGES[change]):
            updated.optimizer.step()
        with refused("has not stepped"):
            updated.model(updated.x)


def test_gradients_that_are_zeroed_before_and_after_their_step(pool):
    """Checks gradients one of which may not be zeroed yet, and leaves the others zero."""
    program = Program()
    with warnings.catch_warnings(), program.block(pool, updates="early", memory=1 << 30):
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        parameters = list(program.model.parameters())
        first, second = torch.optim.SGD(parameters[:6], 0.1), torch.optim.SGD(parameters[6:], 0.1)
        for number in range(4):
            program.model.zero_grad()
            program.backward()
            if number < 3:
                second.step()
            first.step()
        with refused("is gone"):
            torch._foreach_zero_([each.grad for each in parameters])
        assert all(not each.grad.any() for each in parameters[:6])


def test_a_second_step_with_the_same_gradients_is_an_error(updated):
    updated.optimizer.step()
    with refused("is gone"):
        updated.optimizer.step()


def test_gradients_that_add_up_later_are_an_error(updated):
    updated.optimizer.step()
    with refused("is gone"):
        updated.backward()


def test_a_second_backward_pass_that_does_not_touch_the_parameter_is_an_error(pool):
    """Checks a bias, of which nothing is read in the second pass."""
    program = Program()
    with program.block(pool, updates="early", memory=1 << 30):
        program.steps(3)
        program.optimizer.zero_grad()
        loss = program.model[-1](program.x).sum()
        loss.backward(retain_graph=True, inputs=[program.model[-1].bias])
        program.expect_pending(1)
        program.model[-1].bias.grad = None
        with refused("one more micro-batch"):
            loss.backward(inputs=[program.model[-1].bias])


def test_another_thread_meets_the_guard(updated):
    found = []

    def read(tensor):
        try:
            tensor.sum()
        except RuntimeError as error:
            found.append(str(error))

    for tensor in (updated.weight, updated.state, updated.weight.grad):
        thread = threading.Thread(target=read, args=(tensor,))
        thread.start()
        thread.join()
    assert len(found) == 3 and all("updates='early'" in each for each in found)


# -- how it ends ----------------------------------------------------------------------------------------


def test_the_block_ends_before_the_step(pool):
    program = Program()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with program.block(pool, updates="early", memory=1 << 30):
            program.steps(3)
            program.optimizer.zero_grad()
            program.backward()
    (told,) = [each for each in told if "one step ahead" in str(each.message)]
    assert str(told.message).startswith("12 parameters have been updated")
    with refused("is gone"):
        program.weight.grad.sum()
    program.optimizer.zero_grad()
    program.tide = None
    program.steps(1)


def test_ctrl_c_never_leaves_a_parameter_half_updated(pool):
    """Interrupts an update, which is done before the exception is on its way."""
    program, own = Program(), Program()
    with program.block(pool, updates="early", memory=1 << 30) as tide:
        program.steps(3)
        compute = tide.updates._compute

        def interrupt(update):
            os.kill(os.getpid(), signal.SIGINT)
            compute(update)

        tide.updates._compute = interrupt
        program.optimizer.zero_grad()
        with pytest.raises(KeyboardInterrupt):
            program.backward()
        assert program.pending() == 1
        tide.updates._compute = compute
        program.optimizer.step()  # what has no gradient yet stays, as ever
        program.note_all()
    own.steps(3)
    own.optimizer.zero_grad()
    own.model[-1].bias.register_post_accumulate_grad_hook(raising)
    with pytest.raises(KeyboardInterrupt):
        own.backward()
    own.optimizer.step()
    own.note_all()
    for (label, one), (_, other) in zip(own.notes[-2:], program.notes[-2:], strict=True):
        assert_same(one, other, label)


def raising(_):
    raise KeyboardInterrupt


def test_an_update_that_fails_is_an_error_from_then_on(pool):
    program = Program()
    with warnings.catch_warnings(), program.block(pool, updates="early", memory=1 << 30) as tide:
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        program.steps(3)

        def fail(update):
            raise tidelog.DeviceError("planted")

        tide.updates._compute = fail
        program.optimizer.zero_grad()
        with pytest.raises(tidelog.DeviceError, match="planted"):
            program.backward()
        assert program.pending() == 1
        for use in (program.optimizer.step, lambda: program.model(program.x)):
            with refused("planted"):
                use()


def test_nothing_of_torch_stays_changed(pool):
    before = vars(torch.optim.Optimizer).copy()
    program = Program()
    with program.block(pool, updates="early"):
        program.steps(4)
        assert all(each._post_accumulate_grad_hooks for each in program.model.parameters())
    assert vars(torch.optim.Optimizer) == before
    assert not any(each._post_accumulate_grad_hooks for each in program.model.parameters())


def test_a_model_that_ddp_wraps_steps_in_place(pool):
    def scenario(program):
        program.steps(4)
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            program.model = nn.parallel.DistributedDataParallel(program.model)
            program.steps(2)
        finally:
            torch.distributed.destroy_process_group()

    notices = compare(scenario, pool, updates="early", memory=4 * BUDGET)
    assert any("DistributedDataParallel keeps all gradients" in each for each in notices)


def test_a_compiled_step_runs_in_place(pool, compiled_once):
    def scenario(program):
        torch._dynamo.reset()
        step = torch.compile(program.optimizer.step, backend="aot_eager")
        for _ in range(4):
            program.optimizer.zero_grad()
            program.backward()
            step()

    notices = compare(scenario, pool, updates="early", expect_moved=False, memory=2 * BUDGET)
    assert any("torch.compile has them" in each for each in notices)


def test_gradients_with_a_graph_stay(pool):
    def scenario(program):
        program.steps(3)
        program.optimizer.zero_grad()
        program.model(program.x).square().mean().backward(create_graph=True)
        assert not program.pending()
        sum(each.grad.square().sum() for each in program.model.parameters()).backward()
        program.optimizer.step()
        program.optimizer.zero_grad()

    compare(scenario, pool, updates="early", memory=1 << 30)
