"""Distributed programs of several micro-batches a step, for the tests of tidelog.accumulate on ranks: plain a loop that
reduces gradients behind the last one, and in a block layer by layer.
"""

import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tidelog
from tidetest import plans, ranks
from tidetest.bits import frozen
from tidetest.micro_batches import square
from tidetest.rank_updates import moved
from tidetest.ranks import WIDTH

LAYERS, STEPS, MICRO_BATCHES = 4, 6, 3


class Layer(ranks.Layer):
    def __init__(self, checkpointing):
        super().__init__()
        self.dropout, self.checkpointing = nn.Dropout(0.1), checkpointing

    def inner(self, x):
        return self.dropout(super().forward(x))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.checkpointing else self.inner(x)


class Model(nn.Module):
    """Model with layers that are blocks, and parameters before, behind, and beside them."""

    def __init__(self, checkpointing=False, norm=None, unused=0):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(checkpointing) for _ in range(LAYERS))
        self.norm = norm(WIDTH) if norm is not None else nn.Identity()
        self.unused = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(unused))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = torch.tanh(self.norm(self.first(x)))
        for layer in self.layers:
            x = layer(x)
        return self.last(x) * self.scale


def train(run, model, synced, shape=lambda step, number: ranks.ROWS, set_to_none=True, looks=True):
    """Trains. `synced(is_last)`: says to the model whether the next backward pass reduces gradients. `looks`: at
    gradients, before the step uses them.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2 + run.rank)
    losses, gradients = [], []
    for step in range(STEPS):
        with run.step():
            optimizer.zero_grad(set_to_none=set_to_none)
            batches = [run.batch(shape(step, number)) for number in range(MICRO_BATCHES)]
            if run.tide is not None:
                losses += tidelog.accumulate(model, batches, square)
            else:
                for number, batch in enumerate(batches):
                    synced(number + 1 == MICRO_BATCHES)
                    loss = square(model, batch)
                    loss.backward()
                    losses.append(loss.detach())
            if looks:
                gradients = [frozen(_part(each.grad)) for each in model.parameters() if each.grad is not None]
            optimizer.step()
    return frozen(losses), gradients, ranks.whole(model), frozen(torch.get_rng_state())


def _part(tensor):
    return getattr(tensor, "_local_tensor", tensor)


# -- DDP --------------------------------------------------------------------------------------------------------------


def ddp(run, hook=None, set_to_none=True, model=Model, **options):
    module = DistributedDataParallel(model(), bucket_cap_mb=0.2, **options)
    reductions = []
    hook = hook or default_hooks.allreduce_hook

    def counting(state, bucket):
        reductions.append(bucket.index())
        return hook(state, bucket)

    module.register_comm_hook(None, counting)

    def synced(is_last):
        module.require_backward_grad_sync = is_last  # as no_sync() does

    return train(run, module, synced, set_to_none=set_to_none), reductions


def ddp_with_dropout(run):
    return ddp(run)


def ddp_without_a_hook(run):
    module = DistributedDataParallel(Model(), bucket_cap_mb=0.2)

    def synced(is_last):
        module.require_backward_grad_sync = is_last

    return train(run, module, synced), weakref.ref(module)


def ddp_that_is_let_go(run):
    """Checks that nothing holds a module when its passes are over."""
    result, module = ddp_without_a_hook(run)
    gc.collect()
    assert module() is None
    return result


def ddp_with_buckets_as_gradients(run):
    return [ddp(run, gradient_as_bucket_view=True, set_to_none=each) for each in (True, False)]


ddp_with_buckets_as_gradients.part = ranks.WHOLE


def ddp_in_half_precision(run):
    return ddp(run, default_hooks.bf16_compress_hook)


def ddp_with_unused_parameters(run):
    return ddp(run, model=functools.partial(Model, unused=2), find_unused_parameters=True)


def ddp_with_buffers_of_rank_0(run):
    return ddp(run, model=functools.partial(Model, norm=nn.BatchNorm1d))


def ddp_with_late_updates(run):
    return ddp(run)


ddp_with_late_updates.options, ddp_with_late_updates.expect = {"updates": "lazy"}, moved("late", 8)


# -- FSDP2 ------------------------------------------------------------------------------------------------------------


def fsdp(run, shape=lambda step, number: ranks.ROWS, checkpointing=False, outside=True, looks=True, **options):
    model = Model(checkpointing)
    for layer in [*model.layers, *([model.first, model.last] if outside else [])]:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    counts = {}
    with counted(counts):
        result = train(run, model, model.set_requires_gradient_sync, shape, looks=looks)
    gathers = counts.pop("foreach_all_gather")
    if run.tide is not None:
        assert gathers < run.gathers_of_loop, f"{gathers} gathers, of {run.gathers_of_loop} in the loop"
    else:
        run.gathers_of_loop = gathers
    return result, counts


class counted:
    """Counts of FSDP2's collectives."""

    def __init__(self, counts):
        self.counts, self.own = counts, {}

    def __enter__(self):
        for name in ("foreach_all_gather", "foreach_reduce"):
            self.counts[name], self.own[name] = 0, getattr(_fsdp_param_group, name)
            setattr(_fsdp_param_group, name, functools.partial(self.count, name))

    def count(self, name, *args, **kwargs):
        self.counts[name] += 1
        return self.own[name](*args, **kwargs)

    def __exit__(self, *_):
        for name, own in self.own.items():
            setattr(_fsdp_param_group, name, own)


def fsdp_with_dropout(run):
    return fsdp(run)


def fsdp_of_one_group_beside_layers(run):
    return fsdp(run, outside=False)


def fsdp_without_resharding(run):
    return fsdp(run, reshard_after_forward=False)


def fsdp_that_reshards_all(run):
    return fsdp(run, reshard_after_forward=True)


def fsdp_with_checkpoints(run):
    return fsdp(run, checkpointing=True)


def fsdp_in_mixed_precision(run):
    return fsdp(run, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def fsdp_with_late_updates(run):
    return fsdp(run)


def fsdp_with_early_updates(run):
    return fsdp(run, looks=False)


fsdp_with_late_updates.options, fsdp_with_late_updates.expect = {"updates": "lazy"}, moved("late", 8)
fsdp_with_early_updates.options, fsdp_with_early_updates.expect = {"updates": "early"}, moved("early", 8)


def fsdp_of_shapes_that_one_rank_has_not_seen(run):
    """Checks that all ranks run in the program's order where one of them has to count what is drawn."""
    return fsdp(run, shape=lambda step, number: ranks.ROWS + (step >= 3) * (run.rank == 1) * (1 + number))


def refused_with_a_static_graph(run):
    """DDP takes the hooks of its first backward pass for those of each."""
    return refused(run, DistributedDataParallel(Model(), static_graph=True), "with static_graph")


def refused_sums_in_another_type(run):
    """A gradient of two places, which FSDP2 reduces in another type than it has."""
    model = Model()
    model.last.weight = model.first.weight
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return refused(run, fully_shard(model, mp_policy=policy), "is used at several places")


refused_sums_in_another_type.part = 0.8  # all of it is gathered at once


def refused(run, model, words):
    """All ranks are refused, and the program's own order gives its bits afterwards."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [run.batch() for _ in range(MICRO_BATCHES)]
    if run.tide is not None:
        with pytest.raises(tidelog.OrderError, match=words):
            tidelog.accumulate(model.eval(), batches, square)
        model.train()
    torch.manual_seed(2 + run.rank)
    losses = []
    for _ in range(3):
        with run.step():
            for batch in batches:
                loss = square(model, batch)
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return losses, ranks.whole(model)


# Those that are tried always, and those that are tried where slow tests are.
USUAL = [
    ddp_that_is_let_go,
    ddp_with_unused_parameters,
    refused_with_a_static_graph,
    fsdp_that_reshards_all,
    fsdp_in_mixed_precision,
    fsdp_of_shapes_that_one_rank_has_not_seen,
]
MORE = [
    ddp_with_dropout,
    ddp_with_buckets_as_gradients,
    ddp_in_half_precision,
    ddp_with_buffers_of_rank_0,
    ddp_with_late_updates,
    fsdp_with_dropout,
    fsdp_of_one_group_beside_layers,
    fsdp_without_resharding,
    fsdp_with_checkpoints,
    fsdp_with_late_updates,
    fsdp_with_early_updates,
    refused_sums_in_another_type,
]


def main(rank, size, folder, which):
    """Runs one rank's process."""
    patch = pytest.MonkeyPatch()
    patch.setattr(tidelog.Tide, "_end_step", plans.awaited(tidelog.Tide._end_step))
    ranks.run_all(rank, size, folder, "auto", USUAL if which == "usual" else MORE)
