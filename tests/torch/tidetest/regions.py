"""A small training run with regions under torch.utils.checkpoint, for the tests of `recompute=`."""

import contextlib
import gc
import random
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tidelog
from tidelog.abi import _native
from tidelog.recompute import _recompute
from tidetest import KIB, MIB
from tidetest.bits import frozen
from tidetest.compare import assert_same_notes

WIDTH, BLOCKS, BATCH = 64, 4, 128
STAGING = 256 * KIB
BUDGET = STAGING + 600 * KIB  # of 1.5 MiB: parameters, gradients and two states, and what one block makes
STEPS = 20  # enough for both plans, and for what is measured under each


class Block(nn.Module):
    """Two products and dropout, more of which is needed backward than the block returns."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(torch.tanh(self.up(x))))


class Normed(Block):
    """Block with running statistics, which each run changes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(super().forward(x))


class Drawing(Block):
    """Draws from a generator that checkpoint does not know."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x):
        return super().forward(x) + torch.rand(x.shape, generator=self.generator)


class Rolling(Block):
    """Draws from Python's generator."""

    def forward(self, x):
        return super().forward(x) * random.random()


class Nested(Block):
    """Calls checkpoint itself."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Model(nn.Module):
    """Blocks, each under checkpoint."""

    def __init__(self, block=Block, **options):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))
        self.options = {"use_reentrant": False, **options}

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = self.call(block, x)
        return x

    def call(self, block, x):
        return checkpoint(block, x, **self.options)


class Program:
    """A model, its optimizer, its data. Without a block it is what all else is compared with."""

    def __init__(self, model=Model):
        torch.manual_seed(0)
        self.model = model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.x, self.y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
        self.notes = []
        self.kept = []  # of each step in a block, how many regions ran once
        self.tide = None

    def backward(self):
        loss = ((self.model(self.x) - self.y) ** 2).mean()
        loss.backward()
        self.note("loss", loss)

    def boundary(self):
        return self.tide.step() if self.tide is not None else contextlib.nullcontext()

    def step(self):
        with self.boundary():
            self.optimizer.zero_grad()
            self.backward()
            self.optimizer.step()
        if self.tide is not None:
            self.kept.append(self.tide.stats()["recompute"]["kept"])

    def note(self, label, value):
        self.notes.append((label, frozen(value)))

    def note_all(self):
        self.note("model", self.model.state_dict())
        self.note("optimizer", self.optimizer.state_dict())
        self.note("generator", torch.get_rng_state())


class Twice(Program):
    """Program with two micro-batches a step."""

    def backward(self):
        super().backward()
        super().backward()


class Words(Program):
    """Program of a language model."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.x = torch.randint(256, (4, 64))

    def backward(self):
        loss = self.model(input_ids=self.x, labels=self.x).loss
        loss.backward()
        self.note("loss", loss)


def gpt2():
    """One of three layers."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=3, n_embd=64, n_head=2, vocab_size=256, n_positions=64, resid_pdrop=0.1, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config).train()


def choosing(monkeypatch, once):
    """The planner's choice is `once`, the places of regions, less those that are refused. What is measured decides
    nothing, and takes few steps."""
    chosen = _native.Session.chosen_regions

    def forced(session):
        made = chosen(session)
        if made is None or "once" not in made:
            return made
        refused = {place for place, _ in made["refused"]}
        forced = [place for place in once if place not in refused]
        return {**made, "once": forced, "best": forced, "best_ns": 1, "none_ns": 2}

    monkeypatch.setattr(_native.Session, "chosen_regions", forced)
    monkeypatch.setattr(_recompute, "_SLOWER", 1e9)
    monkeypatch.setattr(_recompute, "_COMPARED", 2)


def compare(pool, scenario=None, *, model=Model, steps=STEPS, blocks=None, **options):
    """`scenario(program)` in a block notes what it notes without one. Returns the block's figures of regions, of
    each step how many ran once, and its notices."""
    scenario = scenario or (lambda program: [program.step() for _ in range(steps)])
    off = Program(model)
    options = {"memory": BUDGET, "staging": STAGING, "pool_size": 64 * MIB, "recompute": "best", **options}
    warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
    blocks = blocks(off.model) if blocks is not None else None
    with tidelog.offload(off.model, off.optimizer, pool=pool, blocks=blocks, **options) as off.tide:
        scenario(off)
        off.note_all()
        stats, peak = off.tide.stats(), off.tide.peak_bytes
    assert peak <= options["memory"], f"{peak} bytes were in memory"
    got, kept = off.notes, off.kept
    del off, blocks
    gc.collect()
    plain = Program(model)
    scenario(plain)
    plain.note_all()
    assert_same_notes(plain.notes, got)
    return stats["recompute"], kept, stats["notices"]
