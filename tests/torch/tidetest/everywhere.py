"""Each feature in each place: small programs of one process or of two ranks, in the host's memory or in that of a GPU,
whose bits must be those of the same program without a block. `make everywhere` runs all of them.
"""

import contextlib
import gc
import json
import os
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest import KIB, MIB, device, plans, regions
from tidetest.bits import difference, frozen

WIDTH, LAYERS, ROWS, MICRO_BATCHES = 96, 4, 192, 3
STEPS, STEPS_OF_CHOICES = 8, 20  # regions are chosen after two plans, and what is measured under each
STEPS_OF_SEARCH = 100  # beside which a busy machine finds a plan with parts, most often within the first
LARGE = 2048  # of layers that have parts
STAGING, PLENTY = 256 * KIB, 1024 * MIB
NO_USE = "no plan has a use for it"


class Inner(nn.Module):
    """Module of which more is needed backward than it returns."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.down(torch.tanh(self.up(x))))


class Layer(nn.Module):
    def __init__(self, runs_again=False):
        super().__init__()
        self.inner = Inner()
        self.runs_again = runs_again

    def forward(self, x):
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.runs_again else self.inner(x))


def usual():
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def checkpointed():
    return nn.Sequential(*(Layer(runs_again=True) for _ in range(LAYERS)))


def large():
    return nn.Sequential(*(nn.Linear(LARGE, LARGE, bias=False) for _ in range(2)))


def noticed(stats):
    """Returns the reason why a block does not do what it was asked for, in its own words."""
    return "; ".join(stats["notices"]) or NO_USE


def refused(stats):
    """Returns the refusal of regions: the last one's reason, where they were looked at."""
    if stats["recompute"]["own_seconds"] is None and not stats["recompute"]["settled"]:
        return "too few steps follow their plan to its end for regions to be compared"
    return [stats["recompute"]["why"], *stats["recompute"]["refused"]][-1]


class Feature(NamedTuple):
    """Feature that is tried in a place."""

    options: dict  # of the block
    did: object  # of the block's figures: whether it was done
    why: object = noticed  # of them: why it was not
    model: object = usual
    compiles: bool = False
    accumulates: bool = False
    saves: bool = False
    pauses: bool = False
    steps: int = STEPS
    steps_max: int = 0  # more are taken until it was done, but no more than this
    part: float = 0.5  # of the peak is the budget
    lacks: int = 0  # bytes of the peak that the budget is without, in place of a part
    rows: int = ROWS // MICRO_BATCHES  # of a batch


FEATURES = {
    "plans of whole tensors": Feature({}, lambda stats: stats["plan"]),
    "ops and requests past Python": Feature({}, lambda stats: stats["dispatch"]["ops_past_python"] > 1000),
    'updates="lazy"': Feature({"updates": "lazy"}, lambda stats: stats["updates"]["late"]),
    'updates="early"': Feature({"updates": "early"}, lambda stats: stats["updates"]["early"]),
    'updates="host"': Feature({"updates": "host", "host_memory": 16 * MIB}, lambda stats: stats["updates"]["late"]),
    'recompute="best"': Feature(
        {"recompute": "best"},
        lambda stats: stats["recompute"]["kept"],
        refused,
        checkpointed,
        steps=STEPS_OF_CHOICES,
    ),
    'recompute="best" with blocks': Feature(
        {"recompute": "best", "blocks": "Inner"},
        lambda stats: stats["recompute"]["again"],
        refused,
        steps=STEPS_OF_CHOICES,
    ),
    "accumulate": Feature({}, lambda stats: stats["plan"], accumulates=True),
    'parts="best"': Feature(
        {"parts": "best"},
        lambda stats: stats["totals"]["evictions_of_parts"],
        lambda _: NO_USE,
        model=large,
        steps_max=STEPS_OF_SEARCH,
        lacks=20 * MIB,  # a multiple of no storage's size, so that a plan of whole ones moves more
    ),
    "compile": Feature({}, lambda stats: stats["plan"], compiles=True, rows=16),
    "checkpoints": Feature({}, lambda stats: stats["plan"], saves=True),
    'what="activations"': Feature(
        {"what": "activations"},
        lambda stats: stats["plan"] and not stats["bytes_written"]["optimizer state"],
        rows=8 * ROWS // MICRO_BATCHES,
        part=0.8,
    ),
    "pauses": Feature({}, lambda stats: stats["plan"] and stats["pauses"]["count"] == STEPS, pauses=True),
}


class Run:
    """One run of a program by one rank."""

    def __init__(self, feature, program, rank):
        torch.manual_seed(0)
        self.feature, self.program, self.tide, self.steps = feature, program, None, 0
        self.model = wrapped(feature.model(), program, feature.compiles)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        torch.manual_seed(1 + rank)

    def batch(self):
        return torch.randn(self.feature.rows, LARGE if self.feature.model is large else WIDTH)

    def backward(self):
        """Forward and backward; returns the losses."""
        if self.feature.accumulates:
            batches = [self.batch() for _ in range(MICRO_BATCHES)]
            if self.tide is not None:
                return tidelog.accumulate(self.model, batches, loss_of)
            return [self.plain(batch, is_last=number == MICRO_BATCHES - 1) for number, batch in enumerate(batches)]
        return [self.plain(self.batch())]

    def plain(self, batch, is_last=True):
        if self.program == "fsdp2":
            self.model.set_requires_gradient_sync(is_last)
        with self.model.no_sync() if self.program == "ddp" and not is_last else contextlib.nullcontext():
            loss = loss_of(self.model, batch)
            loss.backward()
            return loss.detach()

    def train(self, steps, steps_max=0):
        """Trains, with a block until the feature was done, but for at most `steps_max`. Returns all that a wrong byte
        would show in.
        """
        losses = []
        while self.steps < steps or (self.steps < steps_max and not self.all_did()):
            self.steps += 1
            with self.tide.step() if self.tide is not None else contextlib.nullcontext():
                self.optimizer.zero_grad()
                if self.feature.pauses and self.tide is not None:
                    with self.tide.paused():
                        assert self.tide.live_bytes <= STAGING, self.tide.stats()["unmovable"]
                losses += [loss.item() for loss in self.backward()]
                self.optimizer.step()
        return frozen(losses), self.state(), frozen(torch.get_rng_state())

    def all_did(self):
        """Returns whether the feature was done on all ranks."""
        did = torch.tensor(bool(self.feature.did(self.tide.stats())), dtype=torch.int64, device="cpu")
        if self.program:
            dist.all_reduce(did, dist.ReduceOp.MIN)
        return bool(did)

    def state(self):
        """Returns this rank's part of parameters and their optimizer's state."""
        states = self.optimizer.state.values()
        found = [*self.model.parameters(), *(value for state in states for value in state.values())]
        return tuple(frozen(getattr(each, "_local_tensor", each)) for each in found)


def loss_of(model, batch):
    return model(batch).square().mean()


def wrapped(model, program, compiles):
    if program == "fsdp2":
        for layer in model:
            if compiles:
                layer.compile()
            fully_shard(layer)
        return fully_shard(model)
    model = torch.compile(model) if compiles else model
    return DistributedDataParallel(model, bucket_cap_mb=1) if program == "ddp" else model


class Place:
    """One process of a place."""

    def __init__(self, program, rank, folder, patch):
        self.program, self.rank, self._patch = program, rank, patch
        self.pool = str(made(folder, "pool"))
        self._peaks = {}

    def tried(self, feature):
        """Returns the reason why the feature does nothing here, or gives other bits; None: it is right."""
        # What runs once, of regions that the program runs twice, and of blocks that it runs once.
        regions.choosing(self._patch, () if "blocks" in feature.options else range(LAYERS))
        peak = self.peak(feature)
        budget = peak - feature.lacks if feature.lacks else int(feature.part * peak)
        try:
            tide, stats, got, steps = self.in_block(feature, budget, feature.steps, feature.steps_max)
        except tidelog.Error as error:
            return f"{type(error).__name__}: {error}"
        for wrong in (
            difference(Run(feature, self.program, self.rank).train(steps), got),
            f"{tide.peak_bytes} bytes of {budget}" if tide.peak_bytes > budget else None,
            None if stats["totals"]["evictions"] else "nothing moved",
        ):
            assert not wrong, wrong
        return None if feature.did(stats) else feature.why(stats)

    def peak(self, feature):
        """Returns the peak of the feature's program, as a block counts it that has nothing to do."""
        known = feature.model, feature.accumulates, feature.compiles, feature.rows
        if known not in self._peaks:
            usual = feature._replace(options={}, saves=False, pauses=False)
            try:
                self._peaks[known] = self.in_block(usual, PLENTY, 2)[0].peak_bytes
            except tidelog.OrderError:  # it is refused anyway
                self._peaks[known] = PLENTY
        return self._peaks[known]

    def in_block(self, feature, memory, steps, steps_max=0):
        gc.collect()
        run = Run(feature, self.program, self.rank)
        options = {"pool": self.pool, "pool_size": 256 * MIB, "memory": memory, "staging": STAGING, **feature.options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
            with tidelog.offload(run.model, run.optimizer, **options) as tide:
                run.tide = tide
                got, steps = run.train(steps, steps_max), run.steps
                if feature.saves:
                    self.save(run.model, tide)
                stats = tide.stats()
                saved = got[1] if feature.saves else None
                run.tide = None
                del run
                gc.collect()
        if saved is not None:
            tide.restore()  # what did not fit, and with that the pool is closed
            self.compare_saved(feature, saved)
        return tide, stats, got, steps

    def save(self, model, tide):
        from torch.distributed import checkpoint as dcp

        import tidelog.dcp

        writer = tidelog.dcp.StorageWriter(tide, "kept")
        dcp.save(model.state_dict(), storage_writer=writer, no_dist=not self.program)

    def compare_saved(self, feature, saved):
        from torch.distributed import checkpoint as dcp

        import tidelog.dcp

        if self.program:
            dist.barrier()  # the blocks of all ranks have ended
        fresh = Run(feature, self.program, self.rank)
        state = fresh.model.state_dict()
        for value in state.values():
            value.detach().zero_()
        dcp.load(state, storage_reader=tidelog.dcp.StorageReader(self.pool, "kept"), no_dist=not self.program)
        loaded = [frozen(getattr(each, "_local_tensor", each)) for each in fresh.model.parameters()]
        wrong = difference(saved[: len(loaded)], tuple(loaded))
        assert not wrong, f"what was saved is not what is loaded: {wrong}"


def main(memory, program, rank, count, folder, *names):
    """Runs one process of a place: prints for each feature what `Place.tried` says."""
    rank, count, patch = int(rank), int(count), pytest.MonkeyPatch()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")
    torch.set_num_threads(1)
    device.name = memory
    end = device.begin(made(folder, f"fake of {rank}")) if not device.is_host() else gc.collect
    patch.setattr(tidelog.Tide, "_end_step", plans.awaited(tidelog.Tide._end_step))
    if program:
        os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count))
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    place = Place(program, rank, folder, patch)
    for name in names or FEATURES:
        print(json.dumps([name, place.tried(FEATURES[name])]), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    end()


def made(folder, name):
    path = Path(folder, name)
    path.mkdir(exist_ok=True)
    return path
