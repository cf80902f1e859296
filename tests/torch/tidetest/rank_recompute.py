"""Distributed programs with regions that run once, for the tests of `recompute=` on ranks."""

import functools
import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest import KIB, MIB, plans, ranks, regions
from tidetest.bits import assert_same, frozen

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


class Inner(nn.Module):
    """Part of a layer that is named to `offload`."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = ranks.Layer(), nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.layer(x))


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)


def named():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(ranks.WIDTH, ranks.WIDTH), *(Outer() for _ in range(ranks.LAYERS)))


def train(run, model, between=lambda step: None):
    """Trains; calls `between` with the number of the step between its forward and its backward pass."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2 + run.rank)
    losses = []
    for step in range(STEPS):
        with run.step():
            optimizer.zero_grad()
            loss = model(run.batch(4 * ranks.ROWS)).square().mean()
            between(step)
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


def sharded(model, **options):
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def fsdp(run, use_reentrant=False, **options):
    return train(run, sharded(layers(use_reentrant), **options))


def fsdp_of_reentrant_regions(run):
    return fsdp(run, use_reentrant=True)


def fsdp_without_resharding(run):
    return fsdp(run, reshard_after_forward=False)


def fsdp_in_mixed_precision(run):
    return fsdp(run, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def fsdp_of_blocks(run):
    return train(run, sharded(named()))


def fsdp_whose_other_rank_changes_its_part(run):
    """Rank 1 changes what it has of the layers between the passes of each step: all ranks gather other bytes then, and
    rank 0 has not seen an op that wrote them."""
    model = sharded(layers())
    return train(run, model, lambda step: change(run, model))


def change(run, model):
    if run.rank == 1:
        with torch.no_grad():
            for layer in list(model)[1:]:
                layer.up.weight.to_local()[0, 0] += 0.01


def expect_refused(figures):
    refused = figures["recompute"]["refused"]
    assert figures["recompute"]["kept"] == 0 and len(refused) == ranks.LAYERS, figures["recompute"]
    assert all("FSDP2 gathers other bytes for its second run" in each for each in refused), refused


def expect(kept, figures):
    assert figures["recompute"]["kept"] == kept, (figures["recompute"], figures["notices"])


def main(rank, size, folder, which):
    """Runs one rank's process. On rank 0 all regions run once, on rank 1 every other one."""
    patch = pytest.MonkeyPatch()
    patch.setattr(tidelog.Tide, "_end_step", plans.awaited(tidelog.Tide._end_step))
    chosen = range(0, ranks.LAYERS, 1 + int(rank))
    regions.choosing(patch, chosen)
    for program in (programs := PROGRAMS[which]):
        program.options, program.part = {"recompute": "best"}, 0.6
        program.expect = functools.partial(expect, len(chosen))
    fsdp_of_blocks.options = {"recompute": "best", "blocks": "Inner"}
    fsdp_whose_other_rank_changes_its_part.expect = expect_refused
    ranks.run_all(rank, size, folder, "auto", programs)


PROGRAMS = {
    "ddp": [ddp_of_regions, ddp_of_reentrant_regions],
    "fsdp": [fsdp, fsdp_of_blocks, fsdp_whose_other_rank_changes_its_part],
    "more": [fsdp_without_resharding, fsdp_of_reentrant_regions, fsdp_in_mixed_precision],
}


def change_late(rank, size, folder):
    """Rank 1 changes its part of the layers in a late step alone, when regions run once: an error on every rank, before
    anything is updated."""
    rank, size = int(rank), int(size)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    patch = pytest.MonkeyPatch()
    patch.setattr(tidelog.Tide, "_end_step", plans.awaited(tidelog.Tide._end_step))
    regions.choosing(patch, range(ranks.LAYERS))
    run, pool, found = ranks.Run(rank, size, folder), os.path.join(folder, "pool"), []
    os.makedirs(pool, exist_ok=True)
    model = sharded(layers())
    shards = list(model.parameters())  # the model has gathered ones where the error comes
    options = {"pool_size": 128 * MIB, "memory": 2 * MIB, "staging": 256 * KIB, "recompute": "best"}

    def between(step):
        found.append([frozen(each.to_local()) for each in shards])
        if step == STEPS - 2:
            assert run.tide.stats()["recompute"]["kept"] == ranks.LAYERS, run.tide.stats()["recompute"]
            change(run, model)
            found.append([frozen(each.to_local()) for each in shards])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        try:
            with tidelog.offload(pool=pool, **options) as run.tide:
                train(run, model, between)
        except (tidelog.OrderError, tidelog.RankError) as error:
            assert "FSDP2 has gathered other bytes than in the forward pass" in str(error), error
        else:
            raise AssertionError("it is no error")
    run.tide.restore()
    assert len(found) == STEPS, len(found)
    assert_same(found[-1], [frozen(each.to_local()) for each in shards], "what was not updated")
    print("done", flush=True)
