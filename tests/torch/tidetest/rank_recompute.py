"""Distributed programs with regions that run once, for the tests of `recompute=` on ranks."""

import functools

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest import plans, ranks, regions

STEPS = 20


class Layer(ranks.Layer):
    """Layer of which a part is under checkpoint, inside what `fully_shard` wraps."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.dropout, self.use_reentrant = nn.Dropout(0.1), use_reentrant

    def inner(self, x):
        return self.dropout(super().forward(x))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


def layers(use_reentrant=False):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(ranks.WIDTH, ranks.WIDTH), *(Layer(use_reentrant) for _ in range(ranks.LAYERS)))


def train(run, model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2 + run.rank)
    losses = []
    for _ in range(STEPS):
        with run.step():
            optimizer.zero_grad()
            loss = model(run.batch(4 * ranks.ROWS)).square().mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
    return losses, ranks.whole(model), torch.get_rng_state()


def ddp(run, use_reentrant):
    return train(run, DistributedDataParallel(layers(use_reentrant), bucket_cap_mb=0.2))


def ddp_of_regions(run):
    return ddp(run, use_reentrant=False)


def ddp_of_reentrant_regions(run):
    return ddp(run, use_reentrant=True)


def fsdp_without_resharding(run):
    model = layers()
    for layer in model:
        fully_shard(layer, reshard_after_forward=False)
    return train(run, fully_shard(model, reshard_after_forward=False))


def expect(kept, figures):
    assert figures["recompute"]["kept"] == kept, (figures["recompute"], figures["notices"])


def main(rank, size, folder):
    """Runs one rank's process. On rank 0 all regions run once, on rank 1 every other one."""
    patch = pytest.MonkeyPatch()
    patch.setattr(tidelog.Tide, "_end_step", plans.awaited(tidelog.Tide._end_step))
    chosen = range(0, ranks.LAYERS, 1 + int(rank))
    regions.choosing(patch, chosen)
    programs = [ddp_of_regions, ddp_of_reentrant_regions, fsdp_without_resharding]
    for program in programs:
        program.options, program.part = {"recompute": "best"}, 0.6
        program.expect = functools.partial(expect, len(chosen))
    ranks.run_all(rank, size, folder, "auto", programs)
