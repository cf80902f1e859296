"""A small training run whose parameters are updated late or early, for the tests of `updates=`."""

import contextlib
import gc

import pytest
import torch
from torch import nn

import tidelog
from tidetest import KIB, MIB, device
from tidetest.bits import frozen, outcome
from tidetest.compare import assert_same_notes

WIDTH, LAYERS = 64, 6
LAZY_ALONE = pytest.mark.skipif(device.updates == "host", reason="other with updates on the host: test_host_updates.py")
ALL = 2 * LAYERS  # weights and biases
STAGING = 256 * KIB
BUDGET = STAGING + 160 * KIB  # a third of parameters, gradients and two states


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def tied():
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Linear(WIDTH, WIDTH))


class Halves(nn.Module):
    """Two parameters in one storage."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(2, WIDTH, WIDTH)
        self.first, self.second = nn.Parameter(whole[0]), nn.Parameter(whole[1])
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.other(torch.tanh(x @ self.first) @ self.second)


class Program:
    """A model, its optimizer, its data. Without a block it is what all else is compared with."""

    def __init__(self, optimizer=adamw, model=None):
        torch.manual_seed(0)
        self.model = model() if model else nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        self.x, self.y = torch.randn(16, WIDTH), torch.randn(16, WIDTH)
        self.optimizer = optimizer(self.model.parameters())
        self.tide = None
        self.notes = []

    @contextlib.contextmanager
    def block(self, pool, *, presses=True, **options):
        """`presses`: the budget is taken to have been reached, where it is not. Where all fits, steps run in place."""
        options = {"memory": BUDGET, "staging": STAGING, "pool_size": 64 * MIB, "updates": "lazy", **options}
        if device.updates == "host" and options["updates"] == "lazy":  # the same scenarios, by `pytest --updates host`
            options |= {"updates": "host", "host_memory": 4 * MIB}
        with tidelog.offload(self.model, self.optimizer, pool=pool, **options) as self.tide:
            if presses:
                self.tide.steps.budget_reached()
            yield self.tide
        self.tide = None

    def backward(self):
        out = self.model(self.x)
        loss = ((torch.tanh(out) - self.y) ** 2).mean()
        loss.backward()
        self.note("loss", loss)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.backward()
        self.optimizer.step()

    def steps(self, count):
        for _ in range(count):
            self.step()

    @property
    def weight(self):
        return next(each for each in self.model.parameters() if each.dim() == 2)

    def pending(self):
        """Returns the number of updates that have not run; None in the plain run."""
        return self.tide.stats()["updates"]["pending"] if self.tide is not None else None

    def expect_pending(self, least=1):
        assert self.tide is None or self.pending() >= least, "no update is pending here: the test tests nothing"

    def push_out(self, *tensors):
        if self.tide is not None:
            for tensor in tensors:
                with contextlib.suppress(tidelog.PinnedError, tidelog.UnmovableError):
                    self.tide.evict(tensor)

    def note(self, label, value):
        self.notes.append((label, frozen(value)))

    def attempt(self, label, function, *arguments):
        self.notes.append((label, outcome(function, *arguments)))

    def note_all(self):
        self.note("parameters", list(self.model.parameters()))
        self.note("state", self.optimizer.state_dict())


def compare(scenario, pool, *, optimizer=adamw, model=None, expect_moved=True, **options):
    """`scenario(program)` in a block with updates at other times notes what it notes without one. Returns the
    notices of the block."""
    off = Program(optimizer, model)
    with off.block(pool, **options) as tide:
        scenario(off)
        off.note_all()
        stats = tide.stats()
    figures = stats["updates"]
    assert not expect_moved or figures["late"] + figures["early"], f"all updates ran in place: {stats['notices']}"
    got = off.notes
    del off, tide
    gc.collect()
    plain = Program(optimizer, model)
    scenario(plain)
    plain.note_all()
    assert_same_notes(plain.notes, got)
    return stats["notices"]


def early(scenario, pool, **options):
    """Runs a scenario with updates in the backward pass."""
    return compare(scenario, pool, updates="early", **options)


def trains(
    backward=lambda program: program.backward(),
    least=ALL,
    steps=6,
    zero=lambda program, _: program.optimizer.zero_grad(),
):
    """A scenario: `backward` once a step. From the third on, at least so many updates run in it."""

    def scenario(program):
        for number in range(steps):
            zero(program, number)
            backward(program)
            program.expect_pending(least if number >= 2 else 0)
            program.optimizer.step()
            assert not program.pending()

    return scenario
