"""Exceptions and Ctrl-C at any point: every tensor keeps its bytes, and training goes on as if plain."""

import _thread
import os
import signal
from operator import methodcaller

import pytest
import torch

import tidelog
from tidelog.memory import _record
from tidelog.native._built import native
from tidetest import device, process
from tidetest.world import World


class Boom(Exception):
    pass


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer", "between", "packing"])
def test_an_exception_in_the_middle_of_a_step(compare, where):
    if where == "optimizer" and device.updates == "host":
        pytest.skip("a step with hooks is refused there")

    def scenario(world):
        def fail(*_):
            raise Boom(where)

        layer = world.model[4]
        for _ in range(3):
            handles = []
            try:
                with world.boundary():
                    if where == "forward":
                        handles.append(layer.register_forward_hook(fail))
                    if where == "backward":
                        handles.append(layer.linear.weight.register_hook(fail))
                    if where == "optimizer":
                        handles.append(world.optimizer.register_step_pre_hook(fail))
                    if where == "packing":
                        with torch.autograd.graph.saved_tensors_hooks(fail, lambda tensor: tensor):
                            world.first_half()
                    world.first_half()
                    if where == "between":
                        fail()
                    world.second_half()
            except Boom as error:
                world.note("raised", str(error))
            for handle in handles:
                handle.remove()
            world.note("parameters", [parameter.detach() for parameter in world.model.parameters()])
            world.note("gradients", [parameter.grad for parameter in world.model.parameters()])
            world.steps(2)

    compare(scenario)


def test_an_op_that_fails_leaves_its_arguments_right(compare):
    def scenario(world):
        world.push_out(world.loose)
        world.attempt("shapes", lambda: world.loose @ torch.ones(3, 3))
        world.note("loose", world.loose)
        world.push_out(world.loose)
        if device.kind() == "cpu":  # on a GPU it ends all of CUDA in this process
            world.attempt("index", lambda: world.loose[torch.tensor([0, 999])])
        world.attempt("bounds", lambda: world.loose.narrow(0, 60, 10))
        world.attempt("solve", lambda: torch.linalg.cholesky(-torch.eye(64)))
        world.attempt("in place", lambda: world.loose.add_(torch.ones(5, 5)))
        world.note("unharmed", world.loose)

    compare(scenario)


def test_an_exception_leaves_the_block_by_its_own_name(pool, mode):
    world = World()
    with pytest.raises(Boom, match="through the block"):
        with world.block(pool, mode):
            world.warm_up(mode)
            with world.boundary():
                world.first_half()
                raise Boom("through the block")
    plain = World()
    assert len(world.losses) >= 2
    plain.steps(len(world.losses))
    assert plain.losses == world.losses


@pytest.mark.parametrize("how", ["raise_signal", "interrupt_main"])
def test_ctrl_c_at_a_known_place(compare, how):
    """A signal in a module hook: Python raises KeyboardInterrupt at the next bytecode, under our hook."""

    def scenario(world):
        def interrupt(*_):
            if how == "raise_signal":
                signal.raise_signal(signal.SIGINT)
            else:
                _thread.interrupt_main()

        for layer in (1, 5):
            handle = world.model[layer].register_forward_pre_hook(interrupt)
            try:
                with world.boundary():
                    world.first_half()
                    world.second_half()
            except KeyboardInterrupt:
                world.note("interrupted", layer)
            handle.remove()
            world.note("parameters", [parameter.detach() for parameter in world.model.parameters()])
            world.steps(1)

    compare(scenario)


class Watched:
    """An object of C++, whose methods a test may replace."""

    def __init__(self, watched):
        self._watched = watched

    def __getattr__(self, name):
        return getattr(self._watched, name)


@pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", ["await_loans", "take", "give"])
def test_ctrl_c_while_memory_goes_or_comes(pool, mode, place, when, monkeypatch):
    """Interrupts a call within the handling of a request: the request comes again, and nothing is counted twice or not
    at all.
    """
    world = World()
    with world.block(pool, mode) as tide:
        calls = 0

        def interrupting(call):
            def interrupted(*arguments):
                nonlocal calls
                calls += 1
                if calls % 7 == 0 and when == "before":
                    raise KeyboardInterrupt
                answer = call(*arguments)
                if calls % 7 == 0:
                    raise KeyboardInterrupt
                return answer

            return interrupted

        world.warm_up(mode)
        losses = len(world.losses)
        interrupts = 0
        tide.ledger.maps_memory = True  # memory is had by such calls then
        requests = tide.performer.requests
        owner = {"await_loans": requests, "take": Watched(tide.ledger), "give": native()}[place]
        if place == "take":
            monkeypatch.setattr(requests, "_ledger", owner)
        for _ in range(40):
            with monkeypatch.context() as patch:
                patch.setattr(owner, place, interrupting(getattr(owner, place)), raising=True)
                try:
                    with world.boundary(), torch.no_grad():
                        world.model(world.x)
                except KeyboardInterrupt:
                    interrupts += 1
            with world.boundary():
                pass  # what was cut short is done again
            _assert_counted(tide)
        assert interrupts >= 5, (interrupts, calls, tide.stats()["totals"], tide.live_bytes, tide.budget)
        world.steps(2)
    plain = World()
    plain.steps(losses + 2)
    assert world.losses == plain.losses


def test_ctrl_c_is_heard_where_a_tensor_dies(pool, mode):
    """Python drops an interrupt that it delivers in a callback of a weak reference."""
    with tidelog.offload(pool=pool, memory="8MiB", mode=mode) as tide:
        holder = {"tensor": torch.zeros(1024)}
        with pytest.raises(KeyboardInterrupt):
            list(map(methodcaller("__call__"), [_thread.interrupt_main, holder.clear]))
        _assert_counted(tide)


def _assert_counted(tide):
    ledger = tide.ledger
    alive = [record for record in ledger.all() if record() is not None]
    marked = [record for record in alive if record.state]
    assert ledger.live == sum(record.size for record in alive if not record.state & _record.OUT)
    assert ledger.marked == len(marked)


RANDOM_INTERRUPTS = """
import gc, random
pool, mode, first_seed = sys.argv[1:]
plain = World()
plain.steps(4)
params = {name: bits(value) for name, value in plain.tensors().items() if not name.startswith("grad of")}
plain.steps(3)
expected = plain.result()
del plain
gc.collect()

# Python's own handler raises its error at once. Others wait until an op has returned.
signal.signal(signal.SIGALRM, signal.default_int_handler)

def interrupted(delay_s, body):
    try:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        body()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False

def half_a_step():
    with world.boundary():
        world.first_half()
        ((world.activation - world.y) ** 2).mean().backward()

world = World()
hits = 0
with world.block(pool, mode) as tide:
    world.steps(4)
    for seed in range(int(first_seed), int(first_seed) + 80):
        chance = random.Random(seed)
        hits += interrupted(chance.uniform(0.0001, 0.02), half_a_step)
        if chance.random() < 0.3:
            tensor = world.subject(chance.choice(["parameter", "state", "buffer", "loose"]))
            hits += interrupted(chance.uniform(0.0001, 0.003), lambda: tide.evict(tensor))
        if chance.random() < 0.3:
            hits += interrupted(chance.uniform(0.0001, 0.01), lambda: [torch.save(world.model.state_dict(), os.devnull)])
        if seed % 5 == 0:
            for name, value in world.tensors().items():
                if not name.startswith("grad of"):
                    assert_same(params[name], bits(value), f"seed {seed}: {name}")
    world.steps(3)
    got = world.result()
for (name, one), (_, other) in zip(expected, got, strict=True):
    assert_same(one, other, name)
assert hits >= 10, hits
print("done", hits)
"""


def test_ctrl_c_at_random_times(pool, mode):
    """Eighty interrupted half steps, with evictions and checkpoints. None may tear a tensor."""
    seed = 500 * ("reactive", "auto").index(mode)
    process.assert_done(process.run(RANDOM_INTERRUPTS, pool, mode, seed))


INTERRUPTED_UPDATES = """
import copy, random
pool, mode = sys.argv[1:]
world = World()
with world.block(pool, mode) as tide:
    world.steps(4)
    for seed in range(12):
        saved = copy.deepcopy((world.model.state_dict(), world.optimizer.state_dict()))
        losses = len(world.losses)
        try:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, random.Random(seed).uniform(0.001, 0.02))
            try:
                world.steps(20)
                time.sleep(0.05)
            finally:
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
        except KeyboardInterrupt:
            pass
        del world.losses[losses:]
        world.model.load_state_dict(saved[0])
        world.optimizer.load_state_dict(saved[1])
        del saved
        world.step()
    got = world.result()
plain = World()
plain.steps(16)
for (name, one), (_, other) in zip(plain.result(), got, strict=True):
    assert_same(one, other, name)
print("done")
"""


def test_ctrl_c_during_updates_and_recovery_from_a_copy(pool, mode):
    """An interrupted update is half done, in plain too; loading a copy taken before gives the plain bits again."""
    process.assert_done(process.run(INTERRUPTED_UPDATES, pool, mode))


REAL_CTRL_C = """
pool, mode = sys.argv[1:]
world = World()
with world.block(pool, mode):
    world.steps(4)
    print("training", flush=True)
    world.steps(1_000_000)
"""


def test_a_real_sigint_ends_training_as_in_plain_python(pool, mode):
    running = process.start(REAL_CTRL_C, pool, mode)
    running.await_line("training")
    os.kill(running.pid, signal.SIGINT)
    ended = running.finish()
    assert ended.code in (-signal.SIGINT, 128 + signal.SIGINT, 1), ended
    assert "KeyboardInterrupt" in ended.err
    for word in ("Segmentation", "panicked", "Fatal Python error"):
        assert word not in ended.err
