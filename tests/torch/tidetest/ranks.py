"""Distributed programs on several ranks of this machine: each plain, then in a block, bit for bit the same."""

import contextlib
import gc
import io
import os
import random
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives, checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tidelog
from tidelog.block._ranks import Ranks
from tidetest import KIB, MIB
from tidetest.bits import assert_same, frozen

# Older torches have them by names that newer ones warn of.
if hasattr(_functional_collectives, "all_gather_single"):
    from torch.distributed._functional_collectives import all_gather_single, reduce_scatter_single
else:
    from torch.distributed._functional_collectives import (
        all_gather_tensor as all_gather_single,
        reduce_scatter_tensor as reduce_scatter_single,
    )

WIDTH, LAYERS, ROWS, STEPS = 96, 4, 24, 8
PART = 0.4  # of the plain program's peak is the budget
WHOLE = 0.5  # where DDP takes a model whose peak has nothing beside it: its constructor copies all parameters in one op
PLENTY = 1024 * MIB  # more than any program needs


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def layers(count=LAYERS):
    torch.manual_seed(1)
    return nn.Sequential(*[Layer() for _ in range(count)])


class Run:
    """One run of a program by one rank."""

    def __init__(self, rank, size, folder):
        self.rank, self.size, self.folder = rank, size, folder
        self.tide = self.made = None
        self.gathers_of_loop = 0  # of the plain run, where anybody counts them
        self._random = torch.Generator().manual_seed(5 + rank)

    def batch(self, rows=ROWS):
        return torch.randn(rows, WIDTH, generator=self._random)

    def train(self, model, forward=None, micro_batches=1, clip=None, between=None):
        """Trains; returns the losses, and the model's state as it is after it."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(STEPS):
            with self.step():
                for number in range(micro_batches):
                    with between(number) if between is not None else contextlib.nullcontext():
                        loss = (model if forward is None else forward)(self.batch()).square().mean()
                        loss.backward()
                        losses.append(loss.item())
                if clip is not None:
                    losses.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
                optimizer.step()
                optimizer.zero_grad()
        return losses, whole(model)

    def step(self):
        return self.tide.step() if self.tide is not None else contextlib.nullcontext()


def whole(model):
    """The bits of a model's state, sharded or not."""
    return {
        name: frozen(value.full_tensor() if hasattr(value, "full_tensor") else value)
        for name, value in model.state_dict().items()
    }


def pausing(run, model):
    """Each rank pauses at points of its own, between the collectives of a step. A collective in a pause is an error."""
    points, calls = random.Random(run.rank), []

    def forward(batch):
        loss = model(batch)
        calls.append(None)
        if run.tide is not None and (len(calls) == 1 or points.random() < 0.6):
            with run.tide.paused(at_once=points.random() < 0.5):
                if len(calls) == 1:  # all ranks: one that waits for others would wait for good
                    refused(lambda: dist.all_reduce(local(next(model.parameters()))))
                refused(lambda: local(next(model.parameters())) + 1)
        return loss

    def refused(touch):
        try:
            touch()
        except RuntimeError as error:
            assert "call resume() on the block's object" in str(error), error
        else:
            raise AssertionError("a touch in a pause is no error")

    def local(parameter):
        return getattr(parameter, "_local_tensor", parameter).detach()

    return run.train(model, forward=forward)


def ddp_with_pauses(run):
    return pausing(run, DistributedDataParallel(layers(), bucket_cap_mb=0.2))


def fsdp_with_pauses(run):
    return pausing(run, sharded())


# -- data parallel ----------------------------------------------------------------------------------------------------


def ddp(run, micro_batches=1, **options):
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.2, **options)

    def between(number):
        return model.no_sync() if number + 1 < micro_batches else contextlib.nullcontext()

    return run.train(model, micro_batches=micro_batches, between=between)


def ddp_wrapped_before(run):
    first = run.train(run.made)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(run.made.module, file)  # the hooks on its gradients are no part of it
    return first, len(file.getvalue())


ddp_wrapped_before.before = lambda: DistributedDataParallel(layers(), bucket_cap_mb=0.2)


def ddp_with_buckets_as_gradients(run):
    return ddp(run, gradient_as_bucket_view=True)


class Wayward(nn.Module):
    """Layers of which each rank leaves out another in each step: it has no gradient there."""

    def __init__(self, rank):
        super().__init__()
        self.layers, self._left_out = layers(), rank

    def forward(self, x):
        self._left_out = (self._left_out + 1) % LAYERS
        for number, layer in enumerate(self.layers):
            x = layer(x) if number != self._left_out else x
        return x


def ddp_with_unused_parameters(run):
    return [
        run.train(
            DistributedDataParallel(
                Wayward(run.rank), bucket_cap_mb=0.2, find_unused_parameters=True, gradient_as_bucket_view=are_views
            )
        )
        for are_views in (False, True)
    ]


ddp_with_unused_parameters.part = WHOLE


def ddp_with_a_static_graph_and_buckets_as_gradients(run):
    return ddp(run, static_graph=True, gradient_as_bucket_view=True)


def ddp_with_a_hook(name):
    """Trains with a hook that compresses gradients in callbacks of futures, on gloo's threads."""

    def program(run):
        first = run.train(hooked(name))
        # PowerSGD fails where parameters may be unused, also without a block.
        options = {"find_unused_parameters": True} if name == "bf16_compress" else {"static_graph": True}
        return first, run.train(hooked(name, gradient_as_bucket_view=True, **options))

    program.__name__ = f"ddp_with_{name}"
    program.part = HOOKS.get(name, WHOLE)
    return program


# Parts of the peak: callbacks of PowerSGD close over most of a step's memory, and what torch's own hook does in C++
# holds all buckets.
HOOKS = {"powerSGD": 0.75, "builtin_fp16": 0.6}


def hooked(name, **options):
    # PowerSGD's callbacks wait on gloo's threads for others: with several buckets it waits for ever, also without a
    # block.
    model = DistributedDataParallel(layers(), bucket_cap_mb=25 if name == "powerSGD" else 0.2, **options)
    hook = getattr(default_hooks, f"{name}_hook", None)
    if hook is not None:
        model.register_comm_hook(None, hook)
    elif name == "builtin_fp16":  # its callback is C++, on a thread of gloo's that Python does not know
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    elif name == "wrapped_in_bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))
    else:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model


def ddp_with_a_static_graph(run):
    return ddp(run, static_graph=True)


def ddp_with_accumulation(run):
    return ddp(run, micro_batches=3)


def ddp_with_uneven_inputs(run):
    model = DistributedDataParallel(layers(), bucket_cap_mb=0.2)
    losses = []
    with model.join():
        for _ in range(STEPS + 2 * run.rank):
            with run.step():
                loss = model(run.batch()).square().mean()
                loss.backward()
                losses.append(loss.item())
                model.zero_grad()
    return losses


# Its end is one op that copies the whole model.
ddp_with_uneven_inputs.part = 0.8


# -- fully sharded ----------------------------------------------------------------------------------------------------


def sharded(**options):
    model = layers()
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def fsdp(run):
    return run.train(sharded())


def fsdp_without_resharding(run):
    return run.train(sharded(reshard_after_forward=False))


def fsdp_that_reshards_all(run):
    """The outermost module, too, gives up behind its forward pass what it needs first in the backward pass."""
    return run.train(sharded(reshard_after_forward=True))


def fsdp_that_reshards_to_pairs(run):
    """Four ranks gather from two in the backward pass."""
    return run.train(sharded(reshard_after_forward=2))


def fsdp_in_mixed_precision(run):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return run.train(sharded(mp_policy=policy), clip=0.5)


# What gloo holds while it reduces a layer is almost half of what each of four ranks has.
fsdp_in_mixed_precision.part_of_four = WHOLE


def fsdp_beside_its_own_offloading(run):
    return run.train(sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)))


def fsdp_with_accumulation(run):
    model = sharded()

    @contextlib.contextmanager
    def between(number):
        model.set_requires_gradient_sync(number == 2)
        yield

    return run.train(model, micro_batches=3, between=between)


def fsdp_saved_and_loaded(run):
    model = sharded()
    first = run.train(model)
    folder = os.path.join(run.folder, "saved", "plain" if run.tide is None else str(run.tide.budget > PLENTY // 2))
    state = get_model_state_dict(model)
    checkpoint.save(state, checkpoint_id=folder)
    run.train(model)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state, options=StateDictOptions(strict=True))
    return first, whole(model), run.train(model)


# -- tensor parallel, pipelines, and both with others
# -------------------------------------------------------------------


def parallel(mesh):
    model = layers()
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def tensor_parallel(run):
    run._random.manual_seed(7)  # all ranks see the same batch
    return run.train(parallel(init_device_mesh("cpu", (run.size,))))


def tensor_parallel_and_fsdp(run):
    mesh = init_device_mesh("cpu", (run.size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallel(mesh["tensor"])
    for layer in model:
        fully_shard(layer, mesh=mesh["data"])
    run._random.manual_seed(7 + mesh["data"].get_local_rank())
    return run.train(fully_shard(model, mesh=mesh["data"]))


def pipeline(run, schedule, stages_each=1):
    micro_batches, count = 4, run.size * stages_each
    per_stage = max(LAYERS // count, 1)
    all_layers = layers(per_stage * count)
    numbers = [run.rank + run.size * round_ for round_ in range(stages_each)]
    parts = [nn.Sequential(*all_layers[per_stage * number : per_stage * (number + 1)]) for number in numbers]
    stages = [
        PipelineStage(part, number, count, torch.device("cpu"), input_args=(torch.zeros(ROWS // 4, WIDTH),))
        for part, number in zip(parts, numbers, strict=True)
    ]

    def loss_of(output, target):
        return (output - target).square().mean()

    pipe = schedule(stages if stages_each > 1 else stages[0], n_microbatches=micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([each for part in parts for each in part.parameters()], lr=1e-3)
    run._random.manual_seed(7)
    losses = []
    for _ in range(STEPS):
        batch, target, found = run.batch(), run.batch(), []
        with run.step():
            first, last = run.rank == 0, run.rank == run.size - 1
            pipe.step(*([batch] if first else []), **({"target": target, "losses": found} if last else {}))
            optimizer.step()
            optimizer.zero_grad()
        losses += [loss.item() for loss in found]
    return losses, [whole(part) for part in parts]


def pipeline_gpipe(run):
    return pipeline(run, ScheduleGPipe)


def pipeline_1f1b(run):
    return pipeline(run, Schedule1F1B)


def pipeline_interleaved(run):
    return pipeline(run, ScheduleInterleaved1F1B, stages_each=2)


# -- collectives by themselves -----------------------------------------------------------------------------------------


def collectives(run):
    """Launched and left: what they use is out of sight until their Work is complete, or never waited for."""
    results, size = [], run.size
    for number in range(12):
        with run.step():
            mine = [run.batch(512) + number for _ in range(6)]
            work = [dist.all_reduce(mine[0], async_op=True)]
            gathered = [torch.empty_like(mine[1]) for _ in range(size)]
            work.append(dist.all_gather(gathered, mine[1], async_op=True))
            part = torch.empty(512 // size, WIDTH)
            work.append(dist.reduce_scatter_tensor(part, mine[2], async_op=True))
            exchanged = torch.empty_like(mine[3])
            work.append(dist.all_to_all_single(exchanged, mine[3], async_op=True))
            dist.broadcast(mine[4], 0, async_op=True)  # nobody keeps the Work
            summed, joined = (
                all_reduce(mine[5], "sum", dist.group.WORLD),
                all_gather_single(mine[5], 0, dist.group.WORLD),
            )
            scattered = reduce_scatter_single(mine[5], "sum", 0, dist.group.WORLD)
            busy = [torch.randn(512, WIDTH, generator=run._random).exp() for _ in range(8)]
            neighbours = (run.rank + 1) % size, (run.rank - 1) % size
            received = torch.empty_like(mine[0])
            sent = mine[1] + 1
            pairs = [dist.P2POp(dist.isend, sent, neighbours[0]), dist.P2POp(dist.irecv, received, neighbours[1])]
            exchanges = dist.batch_isend_irecv(pairs)
            busy = [each.log() for each in busy]
            for each in (*work, *exchanges):
                each.wait()
            dist.barrier()
            results += [frozen(each) for each in (mine, gathered, part, exchanged, received, busy)]
            results += [frozen(each + 0) for each in (summed, joined, scattered)]
    return results


def collectives_waited_for_elsewhere(run):
    """Functional ones, launched here, and waited for by another thread: then what they use may move."""
    results = []
    for number in range(12):
        with run.step():
            mine = [run.batch(512) + number for _ in range(3)]
            scattered = [reduce_scatter_single(each, "sum", 0, dist.group.WORLD) for each in mine]
            threads = [threading.Thread(target=wait_tensor, args=(each,)) for each in scattered]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            for each in mine if run.tide is not None else ():
                run.tide.evict(each)  # an error, if it were taken for being in use
            busy = [torch.randn(512, WIDTH, generator=run._random).exp() for _ in range(20)]
            results += [frozen([each + 0 for each in scattered]), frozen(mine), frozen(busy)]
    return results


PROGRAMS = {
    2: (
        ddp,
        ddp_wrapped_before,
        ddp_with_buckets_as_gradients,
        ddp_with_a_static_graph,
        ddp_with_a_static_graph_and_buckets_as_gradients,
        ddp_with_unused_parameters,
        ddp_with_accumulation,
        ddp_with_uneven_inputs,
        ddp_with_pauses,
        fsdp,
        fsdp_with_pauses,
        fsdp_without_resharding,
        fsdp_that_reshards_all,
        fsdp_in_mixed_precision,
        fsdp_beside_its_own_offloading,
        fsdp_with_accumulation,
        fsdp_saved_and_loaded,
        tensor_parallel,
        pipeline_gpipe,
        pipeline_1f1b,
        pipeline_interleaved,
        collectives,
        collectives_waited_for_elsewhere,
    ),
    4: (ddp, fsdp, fsdp_that_reshards_to_pairs, fsdp_with_pauses, tensor_parallel_and_fsdp, pipeline_1f1b, collectives),
}


# -- running them -----------------------------------------------------------------------------------------------------


def main(rank, size, folder, mode, part, parts):
    """Runs one rank's process: one of `parts` parts of the programs."""
    run_all(rank, size, folder, mode, PROGRAMS[int(size)][int(part) :: int(parts)])


def main_of_hook(rank, size, folder, mode, name):
    """Runs one rank's process for a program with a communication hook of DDP."""
    run_all(rank, size, folder, mode, [ddp_with_a_hook(name)])


def run_all(rank, size, folder, mode, programs):
    rank, size = int(rank), int(size)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    for program in programs:
        compare(program, Run(rank, size, folder), mode)
    dist.destroy_process_group()
    print("done", flush=True)


def compare(program, plain, mode):
    plain.made = getattr(program, "before", lambda: None)()
    random.seed(plain.rank)
    expected = program(plain), random.random()
    plain.made = None
    peak = in_block(program, plain, expected, PLENTY, mode).peak_bytes
    part = getattr(program, "part", PART)
    if plain.size == 4:
        part = getattr(program, "part_of_four", part)
    tide = in_block(program, plain, expected, int(part * peak), mode)
    figures = tide.figures
    moved = figures["totals"]["evictions"]
    print(f"{program.__name__}: {tide.peak_bytes} of {peak} bytes, {moved} moved out, {tide.phase}", flush=True)
    assert tide.peak_bytes <= tide.budget, f"{program.__name__}: {tide.peak_bytes} bytes of {tide.budget}"
    assert figures["totals"]["evictions"] > 0, f"{program.__name__}: nothing moved"
    assert figures["dispatch"]["ops_past_python"] > 0, f"{program.__name__}: {figures['dispatch']}"
    getattr(program, "expect", lambda figures: None)(figures)


def in_block(program, plain, expected, memory, mode):
    gc.collect()  # models are full of cycles, and all tensors of the process count
    run = Run(plain.rank, plain.size, plain.folder)
    run.made = getattr(program, "before", lambda: None)()
    run.gathers_of_loop = plain.gathers_of_loop
    pool = os.path.join(plain.folder, "pool")
    os.makedirs(pool, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
        options = {"pool_size": 128 * MIB, "memory": memory, "staging": 256 * KIB, "mode": mode}
        options |= getattr(program, "options", {})
        with tidelog.offload(pool=pool, **options) as tide:
            run.tide = tide
            random.seed(plain.rank)
            got = program(run), random.random()
            tide.figures = tide.stats()
            run.tide = None
            del run
            gc.collect()  # what is left at the end would stay out
    assert_same(frozen(expected), frozen(got), f"{program.__name__} of rank {plain.rank} in {memory} bytes")
    return tide


class PushOut(TorchDispatchMode):
    """Moves out what each op has used that is integers."""

    def __init__(self, tide):
        super().__init__()
        self.tide, self.refused = tide, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, result)):
            if isinstance(each, torch.Tensor) and not each.is_floating_point() and each.numel():
                try:
                    self.tide.evict(each)
                except (tidelog.UnmovableError, tidelog.PinnedError):
                    self.refused += 1
        return result


def push_out_what_a_reducer_has(folder):
    """DDP compares shapes, and agrees on buckets, in integers whose address it keeps from one op to the next."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    with tidelog.offload(pool=folder, pool_size=64 * MIB, memory="8MiB", staging=256 * KIB, mode="reactive") as tide:
        with PushOut(tide) as pushing:
            model = DistributedDataParallel(layers(), bucket_cap_mb=0.2)
        assert pushing.refused > 0
        for _ in range(2):
            pushing.refused = 0
            with pushing:
                loss = model(torch.ones(ROWS, WIDTH)).square().mean()
            loss.backward()
        assert pushing.refused > 0, "the second pass makes the buckets anew"
        assert all(parameter.grad is not None for parameter in model.parameters())
    dist.destroy_process_group()
    print("done", flush=True)


# -- ranks that fail --------------------------------------------------------------------------------------------------


def fail_and_live_on(rank, size, folder):
    """Rank 1 runs out of memory; its program knows better, and goes on. The others wait for it."""
    try:
        train_for_ever(rank, size, folder, failing="1")
    except tidelog.BudgetError:
        print("goes on", flush=True)
        time.sleep(3600)


def train_for_ever(rank, size, folder, failing=""):
    """Trains until another rank fails, or this one is killed. The rank that is `failing` runs out of memory."""
    rank, size = int(rank), int(size)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    pool = os.path.join(folder, "pool")
    os.makedirs(pool, exist_ok=True)
    run = Run(rank, size, folder)
    introduce = Ranks.introduce

    def introduce_and_say_so(ranks):
        introduce(ranks)
        print("known", flush=True)

    Ranks.introduce = introduce_and_say_so
    with tidelog.offload(pool=pool, pool_size=128 * MIB, memory="2MiB", staging=256 * KIB) as tide:
        model = sharded()
        number = 0
        while True:
            with tide.step():
                if failing == str(rank) and number == 3:
                    torch.zeros(MIB)
                model(run.batch()).square().mean().backward()
                for parameter in model.parameters():
                    parameter.grad = None
            number += 1


# -- plans ------------------------------------------------------------------------------------------------------------


def print_when_planned(rank, size, folder):
    """Trains for some steps, and prints which is the first that follows a plan. The plan of rank 1 is late."""
    rank, size = int(rank), int(size)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    pool = os.path.join(folder, "pool")
    os.makedirs(pool, exist_ok=True)
    run, first = Run(rank, size, folder), None
    with tidelog.offload(pool=pool, pool_size=128 * MIB, memory="2MiB", staging=256 * KIB) as tide:
        if rank == 1:
            hold, late = tide.session.hold_plan, iter([False])
            tide.session.hold_plan = lambda on: hold(on) and next(late, True)
        model = sharded()
        for number in range(12):
            with tide.step():
                model(run.batch()).square().mean().backward()
                for parameter in model.parameters():
                    parameter.grad = None
                if tide.phase == "planned" and first is None:
                    first = number
            tide.await_plan()
        del model
        gc.collect()
    dist.destroy_process_group()
    print("planned from", first, flush=True)
