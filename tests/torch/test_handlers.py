"""Handlers of signals and finalizers that compute, save and checkpoint run at any time: with the same bits as without
a block, where an op is one call of C."""

import gc
import signal
import sys
import threading

import pytest
import torch

import tidelog
from tidelog._whole import whole
from tidetest import MIB, interruptions, process
from tidetest.bits import assert_same, bits
from tidetest.interruptions import Act, while_interrupted
from tidetest.world import World

pytestmark = [
    pytest.mark.host_memory("handlers know nothing of devices"),
    pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning"),
]


@pytest.fixture(autouse=True)
def signals_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# -- in every mode ----------------------------------------------------------------------------------


def accumulated(world):
    """A step with micro-batches, layer by layer."""
    with world.boundary():
        world.optimizer.zero_grad(set_to_none=True)
        halves = [(world.x[:16], world.y[:16]), (world.x[16:], world.y[16:])]

        def loss_of(model, half):
            return ((model(half[0]) - half[1]) ** 2).mean() / 2

        losses = tidelog.accumulate(world.model, halves, loss_of, blocks=list(world.model))
        world.optimizer.step()
    world.losses.append(bits(torch.stack(losses)))


KINDS = {
    "own": {},
    "planned": {"mode": "auto"},
    "reactive": {"mode": "reactive"},
    "lazy": {"updates": "lazy"},
    "early": {"updates": "early"},
    "recompute": {"recompute": "best"},
    "parts": {"parts": "best"},
    "accumulate": {},
}


def compare(pool, kind, way, seed, steps=6, most=40):
    """Steps in a block with interruptions, and plain ones."""
    options = {"mode": "auto", **KINDS[kind]}
    step = accumulated if kind == "accumulate" else World.step
    off = World()
    with off.block(pool, options.pop("mode"), **options):
        for _ in range(3):
            step(off)
        # Between its update and the optimizer's step nothing may use a parameter.
        act = Act(off, most, refused=(tidelog.OrderError,) if kind == "early" else ())
        with while_interrupted(act, way, seed):
            for _ in range(steps):
                step(off)
        got = off.result() if kind != "early" else after_early(off)
    act.check(pool)
    del off, act
    gc.collect()
    plain = World()
    for _ in range(3 + steps):
        step(plain)
    expected = plain.result() if kind != "early" else after_early(plain)
    for (name, one), (_, other) in zip(expected, got, strict=True):
        assert_same(one, other, name)


def after_early(world):
    """Gradients are used up there."""
    world.optimizer.zero_grad(set_to_none=True)
    return world.result()


# Each kind and each way is seen by one of these.
USUAL = [
    ("planned", "lines"),
    ("reactive", "times"),
    ("own", "lines"),
    ("planned", "collections"),
    ("lazy", "collections"),
    ("early", "times"),
    ("recompute", "lines"),
    ("parts", "times"),
    ("accumulate", "times"),
]


@pytest.mark.parametrize(("kind", "way"), USUAL)
def test_the_same_bits(pool, kind, way):
    compare(pool, kind, way, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("way", interruptions.WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_in_all_of_them(pool, kind, way, seed):
    compare(pool, kind, way, seed, steps=12, most=200)


# -- as clusters do it --------------------------------------------------------------------------------

PREEMPTED = """
import random, subprocess
from tidetest.interruptions import Act
pool, mode, updates, seed, steps = sys.argv[1:]
steps = int(steps)
plain = World()
plain.steps(steps)
expected = plain.result()
del plain
world = World()
act = Act(world, most=60)  # each takes longer than the next signal takes to come, where the machine is slow
signal.signal(signal.SIGUSR1, act)
send = '''
import os, random, sys, time
chance = random.Random(int(sys.argv[2]))
try:
    while True:
        time.sleep(chance.uniform(0.001, 0.1))
        os.kill(int(sys.argv[1]), 10)
except ProcessLookupError:
    pass
'''
with world.block(pool, mode, updates=updates):
    world.steps(2)
    sender = subprocess.Popen([sys.executable, "-S", "-c", send, str(os.getpid()), seed])
    try:
        world.steps(steps - 2)
    finally:
        sender.kill()
        sender.wait()
    got = world.result()
act.check(pool)
for (name, one), (_, other) in zip(expected, got, strict=True):
    assert_same(one, other, name)
print("done", act.done)
"""


def preempt(pool, mode, updates, seed, steps):
    process.assert_done(process.run(PREEMPTED, pool, mode, updates, seed, steps, timeout_s=300))


@pytest.mark.parametrize(("mode", "updates"), [("auto", "own"), ("reactive", "lazy")])
def test_a_program_that_is_sent_signals_while_it_trains(pool, mode, updates):
    preempt(pool, mode, updates, seed=0, steps=30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("updates", ["own", "lazy"])
@pytest.mark.parametrize("mode", ["auto", "reactive"])
def test_eighty_programs_that_are_sent_signals(pool, mode, updates, seed):
    preempt(pool, mode, updates, seed, steps=40)


NUMBERS = MIB // 4  # of a tensor of which the heap hears when it gets memory


# -- one by one -----------------------------------------------------------------------------------------


@pytest.fixture
def tide(pool):
    options = {"staging": MIB // 2, "pool_size": 64 * MIB, "mode": "reactive"}
    with tidelog.offload(pool=pool, memory=4 * MIB, **options) as tide:
        yield tide


def out(tide, count=3):
    tensors = [torch.full((NUMBERS,), float(number)) for number in range(count)]
    for tensor in tensors:
        tide.evict(tensor)
    return tensors


def in_a_move(tide):
    """A signal comes when memory goes or comes the next time."""
    heap, allocated, came = tide._heap, tide._heap.allocated, []

    def interrupted(size):
        if not came:
            came.append(signal.raise_signal(signal.SIGUSR1))
        return allocated(size)

    heap.allocated = interrupted
    tide.performer.connect()


def test_a_handler_sees_what_it_would_see_and_runs_before_the_next_statement(tide):
    tensors, frames = out(tide), []

    def handler(number, frame):
        frames.append(frame.f_code)
        frames.append([tensor.sum().item() for tensor in tensors])
        weight = torch.ones(3, requires_grad=True)
        (weight * tensors[1][:3]).sum().backward()  # as ever, not as in the middle of an op
        frames.append(weight.grad.tolist())

    signal.signal(signal.SIGUSR1, handler)
    in_a_move(tide)
    total = tensors[2].sum()
    this = test_a_handler_sees_what_it_would_see_and_runs_before_the_next_statement
    assert frames == [this.__code__, [0, NUMBERS, 2 * NUMBERS], [1, 1, 1]]
    assert total == 2 * NUMBERS


def test_an_error_of_a_handler_is_raised_where_the_op_has_ended(tide):
    tensors = out(tide)

    def handler(*_):
        raise SystemExit(3)

    signal.signal(signal.SIGUSR1, handler)
    in_a_move(tide)
    with pytest.raises(SystemExit):
        tensors[1].mul_(2)
        raise AssertionError("the handler has not run")
    assert tensors[1][0] == 2, "the op has run"


def test_programs_find_the_handlers_that_they_have_set(pool):
    def first(*_):
        pass

    def second(*_):
        pass

    signal.signal(signal.SIGUSR1, first)
    with tidelog.offload(pool=pool, memory=4 * MIB, staging=MIB, pool_size=64 * MIB):
        assert signal.getsignal(signal.SIGUSR1) is first
        assert signal.signal(signal.SIGUSR1, second) is first
        assert signal.getsignal(signal.SIGUSR1) is second
        assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is second
        assert signal.signal(signal.SIGUSR1, second) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGUSR1) is second
    assert gc.isenabled()


@torch.library.custom_op("tidetest::looking_back", mutates_args=())
def looking_back(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """An op with a body in Python, in the middle of which the program collects garbage."""
    address = left.data_ptr()
    for _ in range(3):
        gc.collect()
    assert left.data_ptr() == address, "what an op uses has moved while it ran"
    return left * 2 + right


@looking_back.register_fake
def _(left, right):
    return torch.empty_like(left)


class Cycle:
    """The finalizer runs when the collector does."""

    def __init__(self, act):
        self.itself, self.act = self, act

    def __del__(self):
        self.act()


def test_the_collector_is_on_again_when_threads_have_done_what_runs_as_a_whole():
    function, interval = whole(lambda: None), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            threads = [threading.Thread(target=lambda: [function() for _ in range(3000)]) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert gc.isenabled()
    finally:
        sys.setswitchinterval(interval)
        gc.enable()


def test_ops_of_a_finalizer_in_the_middle_of_an_op_are_ops_of_their_own(tide):
    """Runs ops that need more room than there is beside what the op uses: that stays where it is."""
    tensors = [torch.full((MIB // 8,), float(number)) for number in range(12)]  # of 0.5 MiB: 6 fit
    sums = []

    def act():
        sums.append([tensor.sum().item() for tensor in tensors[2:]])

    for _ in range(4):
        Cycle(act)
        result = looking_back(tensors[0], tensors[1])
        assert torch.equal(result, torch.ones(MIB // 8))
    assert sums == [[number * MIB // 8 for number in range(2, 12)]] * 4
    for number, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full_like(tensor, number))
