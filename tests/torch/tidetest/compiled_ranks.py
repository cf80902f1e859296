"""Distributed programs of compiled models on ranks of this machine, compared as those of tidetest.ranks are."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tidetest import ranks


def ddp_over_a_compiled_model(run):
    torch._dynamo.reset()
    return run.train(DistributedDataParallel(torch.compile(ranks.layers()), bucket_cap_mb=1))


def ddp_that_is_compiled(run):
    """Dynamo splits the graph where buckets end."""
    torch._dynamo.reset()
    model = DistributedDataParallel(ranks.layers(), bucket_cap_mb=1)
    return run.train(model, forward=torch.compile(model))


def fsdp_of_compiled_layers(run):
    torch._dynamo.reset()
    model = ranks.layers()
    for layer in model:
        layer.compile()
        fully_shard(layer)
    return run.train(fully_shard(model))


PROGRAMS = (ddp_over_a_compiled_model, ddp_that_is_compiled, fsdp_of_compiled_layers)


def main(rank, size, folder, mode, name, kernels):
    """Runs one rank's process. `kernels`: the folder of those that were compiled."""
    import torch._inductor.config

    from tidelog.escapes import _compiled

    torch._inductor.config.compile_threads = 1
    os.environ.update(LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size, TORCHINDUCTOR_CACHE_DIR=kernels)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=int(size))
    launched, call = [], _compiled._Kernel.__call__

    def count(kernel, *arguments):
        launched.append(kernel)
        return call(kernel, *arguments)

    _compiled._Kernel.__call__ = count
    (program,) = (each for each in PROGRAMS if each.__name__ == name)
    ranks.compare(program, ranks.Run(int(rank), int(size), folder), mode)
    assert len(launched) > 2 * ranks.STEPS * ranks.LAYERS, len(launched)  # of both blocks
    dist.destroy_process_group()
    print("done", flush=True)
