"""One contender in a process of its own: trains some steps, and tells of each.

    trainer.py '{"way": "plain", "steps": 12, "micro_batches": 1}'

Its output is a line of JSON for the process as it begins, and one for each step.
"""

import contextlib
import importlib
import json
import os
import sys
import time
import warnings

import memory_used
import one_rank
import torch

import job


def train_plain(options, stack):
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    return lambda batches: job.train_step(model, optimizer, batches)


def train_save_on_cpu(options, stack):
    step = train_plain(options, stack)
    stack.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=False))
    return step


def train_fsdp2(options, stack):
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    model = job.model()
    stack.enter_context(one_rank.group())
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    optimizer = job.optimizer(model.parameters())
    return lambda batches: job.train_step(model, optimizer, batches)


def train_zero_infinity(options, stack):
    import zero_infinity

    stack.enter_context(one_rank.variables())
    return zero_infinity.begin(options["tried"], options["folder"], options["micro_batches"])


def train_in_block(options, stack):
    return _in_block(options, stack, job.train_step)


def train_by_layers(options, stack):
    """All micro-batches pass a block of layers before the next one."""
    import tidelog

    def train_step(model, optimizer, batches):
        def loss_of(model, batch):
            return job.loss_of(model, batch) / len(batches)

        total = sum(tidelog.accumulate(model, batches, loss_of), 0.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return _in_block(options, stack, train_step)


def _in_block(options, stack, train_step):
    import tidelog

    # The process ends with the block: what stays on NVMe then is of no use to anybody.
    warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    block = tidelog.offload(
        model,
        optimizer,
        pool=options["folder"],
        memory=options["memory"],
        pool_size=options["pool_size"],
        **options["options"],
    )
    block = stack.enter_context(block)

    def step(batches):
        with block.step():
            return train_step(model, optimizer, batches)

    step.phase = lambda: block.phase
    return step


WAYS = {
    "plain": train_plain,
    "save_on_cpu": train_save_on_cpu,
    "fsdp2": train_fsdp2,
    "zero_infinity": train_zero_infinity,
    "block": train_in_block,
    "block_by_layers": train_by_layers,
}


def prepare(way):
    """Imports all that it takes; says what it is."""
    # The first optimizer imports half of torch; that is not what is measured.
    torch.optim.AdamW([torch.zeros(1)])
    if way == "zero_infinity":
        import zero_infinity

        return zero_infinity.load()
    if way.startswith("block"):
        import tidelog

        return f"Tidelog {tidelog.__version__}"
    if way == "fsdp2":
        importlib.import_module("torch.distributed.fsdp")
    return f"torch {torch.__version__}"


def run(options, tell):
    torch.set_num_threads(options["threads"])
    tell(what=prepare(options["way"]))
    batches = job.steps(options["steps"], options["micro_batches"])
    base = memory_used.anonymous()
    with contextlib.ExitStack() as stack:
        memory_used.begin_peak()
        began = time.perf_counter()
        step = WAYS[options["way"]](options, stack)
        tell(base_bytes=base, setup_seconds=time.perf_counter() - began, setup_peak_bytes=memory_used.peak() - base)
        for each in batches:
            memory_used.begin_peak()
            before, began = memory_used.moved(), time.perf_counter()
            loss = step(each)
            seconds, after = time.perf_counter() - began, memory_used.moved()
            tell(
                seconds=seconds,
                loss=float(loss).hex(),
                peak_bytes=memory_used.peak() - base,
                bytes_read=after[0] - before[0],
                bytes_written=after[1] - before[1],
                phase=step.phase() if hasattr(step, "phase") else None,
            )
        # What is in memory is of no use to anybody any more.
        os._exit(0)


def main():
    # Libraries tell their stories on standard output, which is for results here.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**line):
        print(json.dumps(line), file=results, flush=True)

    run(json.loads(sys.argv[1]), tell)


if __name__ == "__main__":
    main()
