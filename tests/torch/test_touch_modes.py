"""Tests of other modes of torch around and inside the block: no_grad, inference_mode, autocast, dispatch modes, fake
tensors.
"""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tidetest import device
from tidetest.bits import assert_same, bits
from tidetest.world import World


def evaluate(world):
    return world.model(world.x).sum(1)


CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "enable_grad": torch.enable_grad,
    "autocast": lambda: torch.autocast(device.kind(), dtype=torch.bfloat16),
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "default_dtype": lambda: contextlib.nullcontext(),
    "deterministic": lambda: torch.random.fork_rng(devices=[]),
    "anomaly": torch.autograd.detect_anomaly,
    "multithreading off": lambda: torch.autograd.set_multithreading_enabled(False),
}


@pytest.mark.parametrize("name", sorted(CONTEXTS))
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_evaluation_in_nested_contexts(compare, name):
    def scenario(world):
        for outer in (CONTEXTS[name], torch.no_grad):
            for subject in ("parameter", "buffer"):
                world.push_out(world.subject(subject))
                with outer(), CONTEXTS[name]():
                    world.note(f"inside {subject}", evaluate(world).detach().clone())
                    with torch.inference_mode():
                        world.push_out(world.subject(subject))
                        inner = evaluate(world)
                        world.note("nested", inner)
                    with torch.enable_grad():
                        world.note("requires grad", evaluate(world).requires_grad)
            world.steps(1)

    compare(scenario)


def test_inference_tensors_move_too(compare):
    def scenario(world):
        with torch.inference_mode():
            made = torch.randn(64, 64)
            world.push_out(made)
            world.note("inside", made + 1)
            world.push_out(made)
            made.add_(1)
        world.push_out(made)
        world.note("outside", made.sum())
        world.attempt("saved for backward", lambda: (made * world.model[0].linear.weight).sum().backward())
        world.note("in the end", made.clone())

    compare(scenario)


def test_evaluation_between_steps_and_in_the_middle_of_one(compare):
    def scenario(world):
        for _ in range(2):
            world.steps(1)
            world.model.eval()
            with torch.no_grad():
                world.note("validation", evaluate(world))
            world.model.train()
            with world.boundary():
                world.first_half()
                with torch.inference_mode():
                    world.note("in mid-step", evaluate(world))
                world.second_half()

    compare(scenario)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_users_own_dispatch_and_function_modes(compare):
    def scenario(world):
        for _ in range(2):
            with Counting() as counting, Functions():
                world.step()
            world.note("ops", [name for name in counting.names if "detach" not in name])
        with FlopCounterMode(display=False) as flops:
            world.step()
        world.note("flops", flops.get_total_flops())

    compare(scenario)


def test_a_dispatch_mode_around_the_block(pool, mode):
    plain = World()
    plain.steps(6)
    expected = plain.result()
    del plain
    world = World()
    with Counting() as counting:
        with world.block(pool, mode):
            world.steps(6)
            got = world.result()
    for (name, one), (_, other) in zip(expected, got, strict=True):
        assert_same(one, other, name)
    assert counting.names


def test_fake_tensors_inside_the_block(compare):
    """Shape propagation, as exporters and compilers do: there is no memory to move."""

    def scenario(world):
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            made = torch.empty(64, 64)
            world.note("shape", (made @ made).shape)
            converted = fake.from_tensor(world.subject("parameter"))
            world.note("converted", (converted.t() @ converted).shape)
        world.note("parameter", world.subject("parameter").detach())

    compare(scenario)


def test_the_block_inside_no_grad(pool):
    plain = World()
    with torch.no_grad():
        expected = [bits(evaluate(plain)) for _ in range(3)]
    del plain
    world = World()
    with torch.no_grad(), world.block(pool, "reactive"):
        assert [bits(evaluate(world)) for _ in range(3)] == expected


def test_the_profiler_sees_the_run(compare):
    def scenario(world):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True):
            world.steps(2)

    compare(scenario)


def test_a_grad_scaler_and_autocast_inside_steps(compare):
    def scenario(world):
        scaler = torch.amp.GradScaler(device.kind(), init_scale=2.0**8)
        for number in range(3):
            with world.boundary():
                world.optimizer.zero_grad(set_to_none=False)
                with torch.autocast(device.kind(), dtype=torch.bfloat16):
                    loss = ((world.model(world.x) - world.y) ** 2).mean()
                scaled = scaler.scale(loss)
                if number == 1:
                    scaled = scaled * float("inf")  # found_inf: the update is skipped
                scaled.backward()
                scaler.step(world.optimizer)
                scaler.update()
            world.note("scale", scaler.get_scale())
            world.note("loss", loss)
        world.optimizer.zero_grad()

    compare(scenario)


def test_random_numbers_are_the_plain_ones(compare):
    """Moving tensors and learning shapes must not draw from torch's generator."""

    def scenario(world):
        torch.manual_seed(11)
        for _ in range(3):
            with world.boundary():
                world.push_out(world.loose)
                dropped = torch.nn.functional.dropout(world.loose, 0.5)
                world.note("drop", dropped)
                world.note("uniform", torch.rand(16))
                world.note("permutation", torch.randperm(64))
        world.note("state", torch.get_rng_state())

    compare(scenario)
