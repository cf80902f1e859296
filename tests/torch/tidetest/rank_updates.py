"""Distributed programs whose parameters are updated late or early, for the tests of `updates=` on ranks."""

import contextlib
import functools

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tidetest import ranks
from tidetest.ranks import WIDTH, Layer, layers, sharded


def updated(when, name, expect):
    """A program of `ranks` in a block with these updates. `expect`: of its figures."""

    def program_of(train):
        @functools.wraps(train)
        def program(run):
            return train(run)

        program.__name__ = f"{name} with {when} updates"
        program.options, program.expect = {"updates": when}, expect
        return program

    return program_of


def moved(key, least=1):
    def expect(figures):
        assert figures["updates"][key] >= least, (figures["updates"], figures["notices"])

    return expect


def in_place(why):
    """Checks that some parameters are updated in place: of those that share memory one may have nothing in its way."""

    def expect(figures):
        assert any(why in notice for notice in figures["notices"]), figures["notices"]

    return expect


def clips_after(run):
    """Checks that clipping gradients after the step has all updates of this rank run, and then waits for the others."""
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    norms = []
    for _ in range(ranks.STEPS):
        with run.step():
            optimizer.zero_grad()
            model(run.batch()).square().mean().backward()
            optimizer.step()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
    return norms, ranks.whole(model)


def with_a_scaler(run):
    model = sharded()
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for number in range(ranks.STEPS):
        with run.step():
            optimizer.zero_grad()
            loss = model(run.batch()).square().mean() * (float("inf") if number == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return scaler.get_scale(), ranks.whole(model)


class Odd(Layer):
    """Layer of sizes that no number of ranks divides, and with a parameter that only one rank has a part of."""

    def __init__(self):
        super().__init__()
        self.odd = nn.Linear(WIDTH, 5)
        self.one = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.one + self.odd(x).mean(1, keepdim=True)


def uneven(run):
    torch.manual_seed(1)
    model = nn.Sequential(*(Odd() for _ in range(ranks.LAYERS)))
    for layer in model:
        fully_shard(layer)
    return run.train(fully_shard(model))


def momentum_that_comes_later(run):
    """An update that makes state makes it for this rank's part."""
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(ranks.STEPS):
        with run.step():
            optimizer.param_groups[0]["momentum"] = 0.9 if number >= 3 else 0.0
            optimizer.zero_grad()
            model(run.batch()).square().mean().backward()
            optimizer.step()
    states = optimizer.state_dict()["state"].values()
    return ranks.whole(model), [ranks.frozen(each["momentum_buffer"].full_tensor()) for each in states]


def on_a_mesh(run):
    """Tensor parallel: parameters on a mesh of one process each, and their gradients."""
    return ranks.tensor_parallel(run)


def unused(run):
    """DDP that looks for parameters which some rank has not used."""
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.2, find_unused_parameters=True)
    part = model.module[2]
    own, part.forward = part.forward, lambda x: own(x) if skips[0] else x
    skips = [True]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for number in range(ranks.STEPS):
        with run.step():
            skips[0] = (number + run.rank) % 3 != 0
            optimizer.zero_grad()
            loss = model(run.batch()).square().mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
    return losses, ranks.whole(model)


def of_ranks_that_decide_differently(run):
    """Trains with ranks that decide differently: on rank 0 all fits, and its steps run where the program has them."""
    if run.tide is not None and run.rank == 1:
        run.tide.steps.budget_reached()
    return ranks.fsdp(run)


def accumulated_in_place(run):
    """Each micro-batch is reduced, and added to the sum."""
    return run.train(sharded(), micro_batches=2, between=lambda _: contextlib.nullcontext())


LATE, EARLY = moved("late", 8), moved("early", 8)
BY_DDP = in_place("DistributedDataParallel keeps all gradients in its buckets")
PROGRAMS = [
    updated("lazy", "ddp", LATE)(ranks.ddp),
    updated("lazy", "ddp with buckets as gradients", LATE)(ranks.ddp_with_buckets_as_gradients),
    updated("lazy", "ddp with a static graph", LATE)(ranks.ddp_with_a_static_graph),
    updated("lazy", "ddp with accumulation", LATE)(ranks.ddp_with_accumulation),
    updated("lazy", "ddp with unused parameters", LATE)(unused),
    updated("early", "ddp", BY_DDP)(ranks.ddp),
    updated("early", "ddp with buckets as gradients", BY_DDP)(ranks.ddp_with_buckets_as_gradients),
    updated("lazy", "fsdp", LATE)(ranks.fsdp),
    updated("lazy", "fsdp in mixed precision, clipped", LATE)(ranks.fsdp_in_mixed_precision),
    updated("lazy", "fsdp, clipped after the step", LATE)(clips_after),
    updated("lazy", "fsdp with a scaler", LATE)(with_a_scaler),
    updated("lazy", "fsdp of odd sizes", LATE)(uneven),
    updated("lazy", "fsdp with momentum that comes later", LATE)(momentum_that_comes_later),
    updated("lazy", "fsdp saved and loaded", LATE)(ranks.fsdp_saved_and_loaded),
    updated("lazy", "tensor parallel", LATE)(on_a_mesh),
    updated("lazy", "fsdp on ranks that decide differently", LATE)(of_ranks_that_decide_differently),
    updated("early", "fsdp", EARLY)(ranks.fsdp),
    updated("early", "fsdp without resharding", EARLY)(ranks.fsdp_without_resharding),
    updated("lazy", "fsdp that reshards all", LATE)(ranks.fsdp_that_reshards_all),
    updated("early", "fsdp that reshards all", EARLY)(ranks.fsdp_that_reshards_all),
    updated("early", "fsdp with accumulation", EARLY)(ranks.fsdp_with_accumulation),
    updated("early", "fsdp of odd sizes", EARLY)(uneven),
    updated("early", "tensor parallel", EARLY)(on_a_mesh),
    updated("early", "fsdp on ranks that decide differently", EARLY)(of_ranks_that_decide_differently),
    updated("early", "fsdp that is clipped", in_place("before the step"))(ranks.fsdp_in_mixed_precision),
    updated("early", "fsdp with sums in place", in_place("before the step"))(accumulated_in_place),
]


OF_FOUR = [
    updated("lazy", "fsdp that reshards to pairs", LATE)(ranks.fsdp_that_reshards_to_pairs),
    updated("early", "fsdp that reshards to pairs", EARLY)(ranks.fsdp_that_reshards_to_pairs),
]


def main(rank, size, folder, mode, part, parts):
    """Runs one rank's process: one of `parts` parts of the programs."""
    programs = [*PROGRAMS, *(OF_FOUR if int(size) == 4 else [])]
    ranks.run_all(rank, size, folder, mode, programs[int(part) :: int(parts)])
