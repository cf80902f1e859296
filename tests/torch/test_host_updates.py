"""Updates on the host, beside the GPU: on a fake CUDA, whose copies are late. The scenarios of late updates run there,
too (`pytest --device fake --updates host tests/torch/test_lazy_*.py`)."""

import contextlib
import gc
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import tidelog
from tidelog.native._built import native
from tidelog.order._host import HostUpdates, _Copy, _HostUpdate
from tidetest import KIB, MIB
from tidetest.bits import assert_same, bits
from tidetest.compare import assert_same_notes
from tidetest.fake_cuda import FakeCuda
from tidetest.updates import ALL, Halves, Program, adamw, tied

PARAMETERS = 6 * (64 * 64 + 64) * 4
HALF, THIRD = 2 * PARAMETERS, 4 * PARAMETERS // 3  # of parameters, gradients and two states
HOST_MEMORY = 4 * MIB

pytestmark = pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning")


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    card = FakeCuda(monkeypatch, tmp_path_factory.getbasetemp(), seed=5, laziness=3)
    yield card
    gc.collect()
    card.assert_lawful()


def on_the_host(**options):
    return {"presses": False, "updates": "host", "host_memory": HOST_MEMORY, "memory": HALF, **options}


def in_block(scenario, pool, *, optimizer=adamw, model=None, memory=HALF, **options):
    """Returns what the scenario notes in a block, and the block's figures."""
    program = Program(optimizer, model)
    with program.block(pool, **on_the_host(memory=memory, **options)) as tide:
        scenario(program)
        program.note_all()
        stats = tide.stats()
        assert tide.peak_bytes <= memory
    assert stats["updates"]["late"], stats["notices"]
    return program.notes, stats


def compare(scenario, pool, *, optimizer=adamw, model=None, **options):
    """`scenario(program)` notes on a GPU what it notes where torch's optimizer has the host's parameters."""
    got, stats = in_block(scenario, pool, optimizer=optimizer, model=model, **options)
    gc.collect()
    plain = Program(optimizer, model)
    scenario(plain)
    plain.note_all()
    assert_same_notes(plain.notes, got)
    return stats


def steps(work=lambda program, number: None, count=6):
    """A scenario: `work` after each step, whose updates are pending."""

    def scenario(program):
        for number in range(count):
            program.step()
            program.expect_pending(ALL)
            work(program, number)

    return scenario


def beside(tensor):
    return native().record_for(tensor.untyped_storage()).is_beside


# -- bits -------------------------------------------------------------------------------------------


class ByHand(Program):
    """A program that has torch's optimizer update copies of the parameters in the host's memory."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.copies = [nn.Parameter(each.detach().clone()) for each in self.model.parameters()]
        self.optimizer = optimizer(self.copies)

    def step(self):
        self.model.zero_grad()
        self.backward()
        for copy, parameter in zip(self.copies, self.model.parameters(), strict=True):
            copy.grad = parameter.grad.cpu()
        self.optimizer.step()
        with torch.no_grad():
            for copy, parameter in zip(self.copies, self.model.parameters(), strict=True):
                parameter.copy_(copy)


@pytest.mark.parametrize("memory", [HALF, THIRD])
def test_bits_are_those_of_torchs_optimizer_with_copies_on_the_host(gpu, pool, mode, memory):
    def scenario(program):
        program.steps(8)
        assert mode == "reactive" or program.tide is None or program.tide.phase == "planned"

    got, stats = in_block(scenario, pool, mode=mode, memory=memory)
    assert stats["totals"]["evictions"], "everything fitted"
    gc.collect()
    by_hand = ByHand(adamw)
    by_hand.steps(8)
    by_hand.note_all()
    assert_same_notes(by_hand.notes, got)


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "Adam, foreach": lambda parameters: torch.optim.Adam(parameters, foreach=True, amsgrad=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_optimizers(gpu, pool, name):
    compare(steps(), pool, optimizer=OPTIMIZERS[name])


def test_only_gradients_leave_and_parameters_return(gpu, pool, monkeypatch):
    """A copy of a parameter is made once, not each step."""
    program = Program()
    with program.block(pool, **on_the_host(memory=8 * PARAMETERS)) as tide:
        program.steps(3)
        copied = []
        like = tide.updates._like
        tide.updates._like = lambda tensor: copied.append(tensor.nbytes) or like(tensor)
        took = []
        is_of = _Copy.is_of
        monkeypatch.setattr(_Copy, "is_of", lambda *given: took.append(is_of(*given)) or took[-1])
        program.steps(2)
        assert sum(copied) == 2 * PARAMETERS, "other than gradients had host memory"
        assert len(took) == 2 * ALL and all(took), "a parameter was copied to the host again"
        assert not tide.stats()["totals"]["evictions"]
        with torch.no_grad():
            program.weight.data.mul_(2)
        took.clear()
        program.steps(1)
        assert took.count(False) == 1, "one was written"


# -- where state is -----------------------------------------------------------------------------------


def test_state_is_on_the_host_and_counts_there(gpu, pool):
    program = Program()
    with program.block(pool, **on_the_host(memory=8 * PARAMETERS)) as tide:
        program.steps(2)
        states = [each for entry in program.optimizer.state.values() for each in entry.values()]
        assert len(states) == 3 * ALL and all(map(beside, states))
        assert tide.stats()["updates"]["host_bytes"] == 3 * PARAMETERS
        kept = sum(record.size for record in tide.ledger.all())
        assert kept <= 2.5 * PARAMETERS, "state counts against the GPU's memory"
        assert tide.restore() is None
    entries = program.optimizer.state.values()
    assert not any(beside(each) for entry in entries for each in entry.values() if each.dim()), "there was room for it"
    program.tide = None
    program.steps(1)  # by torch alone


def test_state_that_finds_no_room_stays_on_the_host_with_a_warning(gpu, pool):
    program = Program()
    with pytest.warns(tidelog.LeftBehindWarning, match=r"state of 12 parameters \(.*stays in host memory"):
        with program.block(pool, **on_the_host()) as tide:
            program.steps(3)
    tide.restore()
    state = bits(program.optimizer.state[program.weight]["exp_avg"])
    plain = Program()
    plain.steps(3)
    assert_same(bits(plain.optimizer.state[plain.weight]["exp_avg"]), state, "state")


def test_state_that_was_made_before_the_block_comes_to_the_host(gpu, pool):
    program = Program()
    program.steps(2)
    with program.block(pool, **on_the_host()) as tide:
        program.steps(2)
        assert beside(program.optimizer.state[program.weight]["exp_avg"])
        tide.updates.run_all()
        got = [bits(each.detach()) for each in program.model.parameters()]
    plain = Program()
    plain.steps(4)
    for one, other in zip(plain.model.parameters(), got, strict=True):
        assert_same(bits(one), other, "a parameter")


@pytest.fixture
def slow_host(monkeypatch):
    """Has each update on the host take a while, and no step wait for one."""
    run = _HostUpdate.run
    monkeypatch.setattr(HostUpdates, "_make_room_for", lambda *_: None)
    monkeypatch.setattr(_HostUpdate, "run", lambda update: time.sleep(0.01) or run(update))


@pytest.mark.parametrize("kind", ["itself", "a view"])
def test_state_that_the_program_holds(gpu, pool, slow_host, kind):
    """Checks state that is held: it is what the last step has left, whenever it is looked at."""

    def scenario(program):
        program.steps(2)
        held = program.optimizer.state[program.weight]["exp_avg"]
        held = held.view(-1) if kind == "a view" else held
        for _ in range(3):
            program.step()
            program.note("held", held)
        held.mul_(0.5)
        program.steps(2)

    compare(scenario, pool)


def test_a_parameter_with_an_alias_is_there_when_the_step_returns(gpu, pool, slow_host):
    def scenario(program):
        program.steps(2)
        alias = program.weight.detach().numpy()
        for _ in range(2):
            program.step()
            program.note("by its alias", alias.copy())

    compare(scenario, pool)


def test_state_is_not_held_by_the_block_itself(gpu, pool, monkeypatch):
    """Checks what each step would wait for otherwise."""
    program = Program()
    with program.block(pool, **on_the_host()) as tide:
        program.steps(3)
        held = []
        look = tide.updates._state_is_held
        monkeypatch.setattr(tide.updates, "_state_is_held", lambda *given: held.append(look(*given)) or held[-1])
        program.steps(3)
        assert len(held) == 3 * ALL and not any(held)


# -- what else a program does -------------------------------------------------------------------------


def written_by_data(program, _):
    program.weight.data.mul_(0.9)


def written_in_place(program, _):
    with torch.no_grad():
        program.weight.add_(0.01)


def written_before_the_update(program, _):
    program.model.zero_grad()
    program.backward()
    program.weight.data.clamp_(-0.05, 0.05)  # after its gradient was made
    program.optimizer.step()


def other_memory(program, _):
    program.weight.data = program.weight.data * 1.25


def transposed(program, _):
    program.weight.data = program.weight.data.t()


def by_numpy(program, _):
    program.weight.detach().numpy()[:] *= 0.75


def by_another_thread(program, _):
    def write():
        program.weight.data.mul_(0.8)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def loaded(program, number):
    if number == 3:
        program.model.load_state_dict({name: value * 0.5 for name, value in program.model.state_dict().items()})
        program.optimizer.load_state_dict(program.optimizer.state_dict())


def scheduled(program, _):
    program.optimizer.param_groups[0]["lr"] *= 0.5


def evaluated(program, _):
    with torch.no_grad():
        program.note("evaluation", program.model(program.x))


def averaged(program, _):
    program.note("norm", torch.nn.utils.get_total_norm([each.detach() for each in program.model.parameters()]))


WORK = [
    written_by_data, written_in_place, written_before_the_update, other_memory, transposed, by_numpy,
    by_another_thread, loaded, scheduled, evaluated, averaged,
]  # fmt: skip


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_what_a_program_does_between_steps(gpu, pool, work):
    def scenario(program):
        for number in range(6):
            program.step()
            work(program, number)

    compare(scenario, pool)


def test_a_norm_is_clipped_and_a_scaler_skips_steps(gpu, pool):
    def scenario(program):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        for number in range(6):
            program.optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss = program.model(program.x).square().mean()
            if number == 3:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.unscale_(program.optimizer)
            program.note("norm", torch.nn.utils.clip_grad_norm_(program.model.parameters(), 0.1))
            scaler.step(program.optimizer)
            scaler.update()

    compare(scenario, pool)


@pytest.mark.parametrize("model", [tied, Halves])
def test_parameters_that_share_memory(gpu, pool, model):
    def scenario(program):
        program.steps(5)

    compare(scenario, pool, model=model, memory=3 * PARAMETERS)


def test_a_step_that_was_given_up(gpu, pool):
    def scenario(program):
        for number in range(5):
            program.optimizer.zero_grad()
            with contextlib.suppress(ZeroDivisionError):
                program.backward()
                if number == 2:
                    raise ZeroDivisionError
                program.optimizer.step()

    compare(scenario, pool)


def test_pauses_and_checkpoints(gpu, pool):
    def scenario(program):
        for number in range(6):
            program.step()
            if program.tide is not None and number == 2:
                with program.tide.paused():
                    assert program.tide.live_bytes == 0 and not program.pending()
            if program.tide is not None and number == 3:
                program.tide.checkpoint("three")

    compare(scenario, pool)
    resumed = Program()
    with resumed.block(pool, **on_the_host(resume="three")):
        resumed.steps(2)
        got = [bits(each.detach()) for each in resumed.model.parameters()]
        assert beside(resumed.optimizer.state[resumed.weight]["exp_avg"])
    plain = Program()
    plain.steps(6)
    for one, other in zip(plain.model.parameters(), got, strict=True):
        assert_same(bits(one), other, "a parameter")


def test_an_update_that_fails_is_an_error_at_each_touch(gpu, pool, monkeypatch):
    program = Program()
    with warnings.catch_warnings(record=True) as told, pytest.raises(tidelog.DeviceError, match="planted"):
        warnings.simplefilter("always")
        with program.block(pool, **on_the_host()) as tide:
            program.steps(3)
            tide.updates.run_all()
            tide.updates._beside = HOST_MEMORY  # so that the step itself waits for none
            monkeypatch.setattr(_HostUpdate, "run", lambda _: (_ for _ in ()).throw(tidelog.DeviceError("planted")))
            program.step()
            for _ in range(2):
                with pytest.raises(tidelog.DeviceError, match="planted"):
                    program.weight.sum()
            assert program.pending() == ALL
    assert [str(each.message) for each in told if "last updates of 12 parameters" in str(each.message)], [
        *map(str, told)
    ]


def test_a_parameter_that_finds_no_memory_returns_later(gpu, pool, monkeypatch):
    program = Program()
    with program.block(pool, **on_the_host()):
        program.steps(3)
        compute, left = _HostUpdate.compute, [1]

        def fails_once(update):
            update.wait()
            if left:
                left.clear()
                raise tidelog.BudgetError("planted")
            compute(update)

        monkeypatch.setattr(_HostUpdate, "compute", fails_once)
        with pytest.raises(tidelog.BudgetError, match="planted"):
            program.weight.sum()
        got = bits(program.weight.detach())
    plain = Program()
    plain.steps(3)
    assert_same(bits(plain.weight), got, "the parameter")


# -- what is refused ------------------------------------------------------------------------------------


class Own(torch.optim.AdamW):
    pass


REFUSED = {
    "element-wise": lambda parameters: torch.optim.Adafactor(parameters),
    "no subclasses": lambda parameters: Own(parameters),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("is_given", [True, False])
def test_an_optimizer_that_is_not_element_wise_is_refused_by_name(gpu, pool, why, is_given):
    program = Program()
    program.optimizer = REFUSED[why](program.model.parameters())
    options = {"pool": pool, "pool_size": 64 * MIB, "memory": HALF, "host_memory": HOST_MEMORY, "updates": "host"}
    with pytest.raises(tidelog.OrderError, match=rf"updates='host': the steps of \w+ cannot.*{why}"):
        with tidelog.offload(program.model, program.optimizer if is_given else None, **options):
            program.steps(1)


def test_a_step_that_cannot_be_taken_there_is_refused_by_name(gpu, pool):
    program = Program()
    with program.block(pool, **on_the_host()):
        program.steps(1)
        program.backward()
        with pytest.raises(tidelog.OrderError, match="it steps under autocast"), torch.autocast("cpu", torch.bfloat16):
            program.optimizer.step()
        program.optimizer.step()


@pytest.mark.host_memory("it is about tensors in the host's memory")
def test_the_hosts_memory_is_refused(pool):
    program = Program()
    options = on_the_host(memory=2 * HALF + 256 * KIB, host_memory=None)
    with pytest.raises(tidelog.Error, match="for tensors of a GPU.*Take 'lazy'"), program.block(pool, **options):
        pass


@pytest.mark.parametrize(
    "host_memory, reason",
    [(None, "needs host_memory="), (2 * PARAMETERS, r"host_memory=\d+ is too small for updates='host'")],
)
def test_host_memory_that_is_too_small_is_refused_by_name(gpu, pool, host_memory, reason):
    program = Program()
    with pytest.raises(tidelog.Error, match=reason), program.block(pool, **on_the_host(host_memory=host_memory)):
        pass


def test_host_memory_that_a_later_optimizer_exceeds_is_refused_by_name(gpu, pool):
    program = Program()
    options = {"pool": pool, "pool_size": 64 * MIB, "memory": HALF, "host_memory": 2 * PARAMETERS, "updates": "host"}
    with tidelog.offload(program.model, **options):
        program.backward()
        with pytest.raises(tidelog.BudgetError, match=r"too small for updates='host': with \d\.\w+ the copies"):
            program.optimizer.step()


def test_gradients_wait_where_host_memory_is_short(gpu, pool):
    """Leaves an eighth of what gradients have, beside copies and state."""
    needed = 3 * PARAMETERS + max(PARAMETERS // 8, 64 * 64 * 4)
    stats = compare(steps(), pool, host_memory=needed + 128 * KIB)
    assert stats["updates"]["host_bytes"] <= needed
