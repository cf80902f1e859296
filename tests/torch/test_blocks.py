"""Blocks that are named to `offload`, with nothing under torch.utils.checkpoint: what runs again, and the same bits."""

import functools
import random

import pytest
import torch
from torch import nn

import tidelog
from tidelog.abi import _native
from tidelog.recompute import _recompute
from tidetest import KIB, MIB
from tidetest.regions import (
    BLOCKS,
    STAGING,
    STEPS,
    WIDTH,
    Block,
    Drawing,
    Model,
    Nested,
    Normed,
    Rolling,
    Twice,
    Words,
    choosing,
    compare,
    gpt2,
)

ALL, NONE, OTHERS = range(BLOCKS), (), range(0, BLOCKS, 2)
BLOCKS_STEPS = STEPS + 4  # what runs twice is learnt in between


class Plain(Model):
    """The blocks run once."""

    def call(self, block, x):
        return block(x)


def blocks_of(model):
    return model.blocks


def compared(pool, scenario=None, *, model=Plain, steps=BLOCKS_STEPS, **options):
    return compare(pool, scenario, model=model, steps=steps, blocks=blocks_of, **options)


@pytest.mark.parametrize("once", [NONE, OTHERS], ids=["all", "others"])
def test_blocks_run_again(pool, monkeypatch, once):
    choosing(monkeypatch, once)
    figures, kept, notices = compared(pool)
    assert figures["again"] == BLOCKS - len(once) and figures["kept"] == len(once), figures
    assert kept[1] == BLOCKS and 0 in kept[1:] and figures["settled"], kept
    assert not any("left the plan" in notice for notice in notices), notices
    assert figures["own_seconds"] and figures["kept_seconds"]


def test_where_all_run_once_is_best_they_do(pool, monkeypatch):
    choosing(monkeypatch, ALL)
    figures, kept, notices = compared(pool)
    assert kept[-1] == BLOCKS and "to run all once, as the program has it, is best" in figures["why"], figures
    assert not any("left the plan" in notice for notice in notices), notices


def refused(pool, monkeypatch, why, model=Plain, scenario=None):
    """No block ever runs again, for that reason."""
    choosing(monkeypatch, NONE)
    figures, kept, notices = compared(pool, scenario, model=model, steps=10)
    assert all(why in each for each in figures["refused"]) and len(figures["refused"]) == BLOCKS, figures
    assert figures["why"] == "no block can run again" and figures["again"] == 0, figures
    assert any("blocks run once whatever the planner says" in notice for notice in notices), notices


class Listening(Block):
    def __init__(self):
        super().__init__()
        self.calls = []
        self.up.register_forward_hook(lambda *_: self.calls.append(1))


class Taking(Block):
    def forward(self, x, past=None):
        past.append(x)
        return super().forward(x)


class Calling(Plain):
    def call(self, block, x):
        return block(x, past=[])


class Changing(Plain):
    """Module that changes a tensor before its second run would read it."""

    def call(self, block, x):
        factor = torch.ones(WIDTH)
        result = block((x, factor))
        factor.data.add_(1)
        return result


class Unused(Plain):
    def call(self, block, x):
        block(x)
        return torch.tanh(x)


class Detached(Block):
    def forward(self, x):
        return super().forward(x).detach()


class Beside(Plain):
    def call(self, block, x):
        return torch.tanh(x) + block(x)


class Factor(Block):
    def forward(self, x):
        x, factor = x
        return super().forward(x * factor.data)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (functools.partial(Plain, Normed), "it changes blocks"),
        (functools.partial(Plain, Drawing), "a generator that no second run finds as it was"),
        (functools.partial(Plain, Listening), "has hooks"),
        (functools.partial(Calling, Taking), "an argument of it is a list"),
        (functools.partial(Changing, Factor), "changes before its backward pass"),
        (functools.partial(Unused, Block), "it has no backward pass in its step"),
        (functools.partial(Beside, Detached), "it makes nothing that has a gradient"),
        (functools.partial(Model, use_reentrant=True), "it is called in a backward pass"),
        (functools.partial(Plain, Nested), "it calls torch.utils.checkpoint itself"),
    ],
    ids=[
        "batch norm",
        "generator",
        "hooks",
        "a list",
        "inputs",
        "unused",
        "detached",
        "in a backward pass",
        "checkpoint",
    ],
)
def test_what_may_not_run_again(pool, monkeypatch, model, why):
    refused(pool, monkeypatch, why, model)


def test_what_the_planner_refuses(pool, monkeypatch):
    """Layers that save nothing of what they make."""
    choosing(monkeypatch, NONE)
    model = functools.partial(Plain, lambda: nn.Linear(WIDTH, WIDTH))
    figures, kept, _ = compared(pool, model=model, memory=STAGING + 250 * KIB)
    assert kept[-1] == BLOCKS and figures["why"] == "no block can run again", figures
    assert all("nothing that its second run makes is needed" in each for each in figures["refused"]), figures


def test_the_generator_of_python(pool, monkeypatch):
    def scenario(program):
        random.seed(5)
        for _ in range(10):
            program.step()

    refused(pool, monkeypatch, "Python's or NumPy's", functools.partial(Plain, Rolling), scenario)


@pytest.mark.parametrize("seconds", [(99, 100), (1, None)], ids=["hardly", "unknown"])
def test_what_is_not_worth_it_changes_nothing(pool, monkeypatch, seconds):
    choosing(monkeypatch, NONE)
    forced, (best, none) = _native.Session.chosen_regions, seconds

    def little(session):
        made = forced(session)
        return made and {**made, "best_ns": best, "none_ns": none}

    monkeypatch.setattr(_native.Session, "chosen_regions", little)
    figures, kept, _ = compared(pool, steps=14)
    assert kept[-1] == BLOCKS and "to run all once, as the program has it, is best" in figures["why"], figures


def test_the_planner_chooses(pool):
    figures, kept, _ = compared(pool)
    assert figures["own_seconds"] and not figures["refused"] and 0 in kept[1:], figures
    assert "by the planner" in figures["why"] or "all blocks run once" in figures["why"], figures


class Gates(nn.Module):
    """Quickly computes far more than it returns, and saves all of it."""

    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(1 + 0.01 * torch.randn(6, WIDTH))

    def forward(self, x):
        y = x.repeat(16, 1)
        for scale in self.scales:
            y = torch.relu(y * scale)
        return x + y.view(16, *x.shape).mean(0)


def test_what_the_planner_chooses_is_done(pool, monkeypatch):
    """Checks the planner's own choice. What it chooses depends on the disk: where that is slow, all that is cheap runs
    again.
    """
    made, chosen = {}, _native.Session.chosen_regions

    def seen(session):
        choice = chosen(session)
        made.update(choice or {})
        return choice

    monkeypatch.setattr(_native.Session, "chosen_regions", seen)
    monkeypatch.setattr(_recompute, "_SLOWER", 1e9)
    monkeypatch.setattr(_recompute, "_COMPARED", 2)
    figures, _, _ = compared(pool, model=functools.partial(Plain, Gates), memory=STAGING + 4 * MIB)
    assert made["best_ns"] <= made["none_ns"] and not made["refused"], made
    is_worth = made["best_ns"] * 100 <= made["none_ns"] * 98
    again = BLOCKS - len(made["best"]) if is_worth else 0
    assert (figures["kept"], figures["again"]) == (BLOCKS - again, again), (figures, made)


def test_what_is_refused_at_once(pool):
    block = nn.Linear(1, 1)
    options = {"pool": pool, "memory": 1 << 20, "blocks": [block]}
    with pytest.raises(tidelog.Error, match='blocks= is for recompute="best"'):
        tidelog.offload(block, **options)
    with pytest.raises(tidelog.Error, match="blocks= needs the model"):
        tidelog.offload(recompute="best", **options)
    with pytest.raises(tidelog.Error, match="blocks='model.layers': expected names of classes"):
        tidelog.offload(recompute="best", **{**options, "blocks": "model.layers"})
    with pytest.raises(tidelog.Error, match="compiled as a whole"):
        tidelog.offload(torch.compile(nn.Sequential(block)), recompute="best", **options)


def test_slower_steps_go_back(pool, monkeypatch):
    choosing(monkeypatch, NONE)
    monkeypatch.setattr(_recompute, "_SLOWER", 0)
    figures, kept, notices = compared(pool)
    assert 0 in kept[1:] and kept[-1] == BLOCKS, kept
    assert "all blocks run once, as the program has it: steps took" in figures["why"] and figures["why"] in notices
    assert not any("left the plan" in notice for notice in notices), notices


def test_another_block_at_its_place_runs_as_the_program_has_it(pool, monkeypatch):
    choosing(monkeypatch, NONE)

    def scenario(program):
        for number in range(28):
            if number == 24:
                program.model.blocks[1].eval()
            program.step()

    figures, kept, _ = compared(pool, scenario)
    assert kept[23] == 0 and figures["kept"] == 1, kept


def test_what_a_block_reads_may_not_change_before_it_runs_again(pool, monkeypatch):
    choosing(monkeypatch, NONE)

    def scenario(program):
        for _ in range(24):
            program.step()
        assert program.tide is None or program.kept[-1] == 0
        with program.boundary():
            loss = program.model(program.x).sum()
            with torch.no_grad():
                program.model.blocks[1].down.bias.add_(1)  # autograd does not keep it: without a block nothing raises
            loss.backward()

    with pytest.raises(tidelog.OrderError, match="a Block of blocks= was to run again .* has changed since it ran"):
        compared(pool, scenario)


def test_blocks_by_the_name_of_their_class(pool, monkeypatch):
    call = nn.Module.__call__
    choosing(monkeypatch, OTHERS)
    figures, kept, _ = compare(pool, model=Plain, steps=BLOCKS_STEPS, blocks=lambda model: "Other, Block")
    again = BLOCKS - len(OTHERS)
    assert (figures["kept"], figures["again"], kept[1]) == (len(OTHERS), again, BLOCKS) and figures["settled"], figures
    assert nn.Module.__call__ is call


def test_classes_are_as_they_were(pool, monkeypatch):
    call = Block.__call__
    choosing(monkeypatch, NONE)
    compared(pool, steps=2)
    assert Block.__call__ is call and "__call__" not in vars(Block)


@pytest.mark.slow
def test_micro_batches(pool, monkeypatch):
    choosing(monkeypatch, range(1, 2 * BLOCKS, 2))
    monkeypatch.setattr("tidetest.regions.Program", Twice)
    figures, _, _ = compared(pool)
    assert (figures["kept"], figures["again"]) == (BLOCKS, BLOCKS), figures


@pytest.mark.slow
def test_transformers(pool, monkeypatch):
    choosing(monkeypatch, (1,))
    pytest.importorskip("transformers")
    monkeypatch.setattr("tidetest.regions.Program", Words)
    figures, _, _ = compare(
        pool, model=gpt2, steps=BLOCKS_STEPS, memory=2 << 20, blocks=lambda model: model.transformer.h
    )
    assert (figures["kept"], figures["again"]) == (1, 2), figures
