"""The ways to train: without limit, with save_on_cpu hooks, FSDP2 and DeepSpeed with their offload, and Tidelog under a
limit.

Each runs in a process of its own and writes its losses, its seconds a step and the most bytes that it held to a file.
What a machine lacks for one is a `Lacking`, with the reason.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import socket
import sys
import tempfile
import time
import warnings

import torch

from tidetest.ballast import Ballast
from training import GIB

# What torch's libraries take of the GPU beside tensors, and the allocator's segments around those.
LIBRARIES_BYTES = 1 * GIB
LEARNING_RATE = 3e-4


class Lacking(Exception):
    """Error of a run that this machine cannot do, with the reason."""


def run_plain(arguments):
    step = own_step(make(arguments))
    with PeakOf(arguments.device) as peak:
        losses, seconds = train(arguments, step)
    finish(arguments, losses, seconds, peak_bytes=peak.bytes)


def run_hooks(arguments):
    """Activations go to page-locked host memory, as torch itself does it; parameters and states stay."""
    pinned = arguments.device == "cuda"
    step = own_step(make(arguments))
    with PeakOf(arguments.device) as peak:
        losses, seconds = train(arguments, step, lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned))
    finish(arguments, losses, seconds, peak_bytes=peak.bytes)


def run_fsdp(arguments):
    """FSDP2 on one rank: parameters, gradients and states live on the CPU, which updates them."""
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    except ImportError as error:
        raise Lacking(f"torch {torch.__version__} has no FSDP2: {error}") from None
    with one_rank("gloo" if arguments.device == "cpu" else "cpu:gloo,cuda:nccl"):
        model = make(arguments, where="cpu")
        policy = CPUOffloadPolicy(pin_memory=arguments.device == "cuda")
        mesh = torch.distributed.device_mesh.init_device_mesh(arguments.device, (1,))
        for layer in model.blocks:
            fully_shard(layer, mesh=mesh, offload_policy=policy)
        fully_shard(model, mesh=mesh, offload_policy=policy)
        with PeakOf(arguments.device) as peak:
            losses, seconds = train(arguments, own_step(model))
    finish(arguments, losses, seconds, peak_bytes=peak.bytes)


def run_deepspeed(arguments):
    """ZeRO-Infinity: stage 3, parameters and states on NVMe by DeepSpeed's own asynchronous I/O."""
    if importlib.util.find_spec("deepspeed") is None:
        raise Lacking(f"{sys.executable} has no deepspeed")
    if arguments.device == "cpu":
        raise Lacking("there is no GPU; make compare-training compares with ZeRO-Infinity on a CPU")
    import deepspeed

    on_nvme = {"device": "nvme", "nvme_path": arguments.folder, "pin_memory": True}
    zero = {"stage": 3, "offload_param": on_nvme, "offload_optimizer": on_nvme, "sub_group_size": 100_000_000}
    config = {"train_micro_batch_size_per_gpu": arguments.batch[0], "zero_optimization": zero}
    config |= {
        "optimizer": {"type": "Adam", "params": {"lr": LEARNING_RATE, "adam_w_mode": True, "weight_decay": 1e-2}}
    }
    with one_rank("nccl"):
        engine, *_ = deepspeed.initialize(model=make(arguments, where="cpu"), config=config)

        def step(inputs, targets):
            loss = torch.nn.functional.cross_entropy(engine(inputs).flatten(0, 1), targets.flatten())
            engine.backward(loss)
            engine.step()
            return loss.detach()

        with PeakOf(arguments.device) as peak:
            losses, seconds = train(arguments, step)
    finish(arguments, losses, seconds, peak_bytes=peak.bytes)


def run_limited(arguments):
    import tidelog

    # The process ends with the block: what stays on NVMe then is of no use to anybody.
    warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
    if arguments.device == "cuda":
        Ballast(arguments.limit + LIBRARIES_BYTES)
    options = {"memory": arguments.limit, "pool_size": arguments.pool_size, "device": arguments.device}
    options |= {"buffered": not is_direct(arguments.folder), "host_memory": arguments.host_memory}
    with tidelog.offload(pool=arguments.folder, **options) as tide:
        losses, seconds = train(arguments, own_step(make(arguments)), tide.step, tide.await_plan)
        stats, last = tide.stats(), tide.last_step()
        if stats["plan"]:
            tide.trace(arguments.trace)
    if tide.peak_bytes > arguments.limit:
        sys.exit(f"train.py: {tide.peak_bytes} bytes of tensors lived under a limit of {arguments.limit}")
    figures = {"stall_seconds": last["stall_seconds"], "host_memory": arguments.host_memory}
    figures["bytes_out"] = last["bytes_written"] + last["bytes_to_host"]
    figures["bytes_in"] = last["bytes_read"] + last["bytes_from_host"]
    figures |= {key: stats[key] for key in ("data_path", "gpu", "plan", "notices")}
    figures |= {"gpu_memory": stats["gpu_memory"], "rates": stats["machine"]}
    if arguments.device == "cuda":
        figures["reserved_bytes"] = torch.cuda.max_memory_reserved()
    figures["staging_in_budget"] = 0 if arguments.device == "cuda" else tide.staging
    finish(arguments, losses, seconds, peak_bytes=tide.peak_bytes, limit=arguments.limit, **figures)


RUNS = {"plain": run_plain, "hooks": run_hooks, "fsdp": run_fsdp, "deepspeed": run_deepspeed, "limited": run_limited}


# -- what they share --------------------------------------------------------------------------------------------


def make(arguments, where=None):
    """The demo's GPT at another size, built on the device."""
    import gpt

    torch.use_deterministic_algorithms(True)
    gpt.WIDTH, gpt.LAYERS, gpt.CONTEXT = arguments.width, arguments.layers, arguments.context
    gpt.HEADS, gpt.BATCH = max(arguments.width // 128, 1), arguments.batch[0]
    # Drawn on the same device everywhere: a GPU's generator and the CPU's give other weights.
    torch.manual_seed(1234)
    with torch.device(arguments.device):
        model = gpt.GPT()
    return model.to(where) if where else model


def own_step(model):
    """A step of the demo's loop, with torch's optimizer."""
    import gpt

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=False)
    return lambda inputs, targets: gpt.train_step(model, optimizer, inputs, targets)


def train(arguments, step, around=contextlib.nullcontext, between=lambda: None):
    import gpt

    losses, seconds = [], []
    for inputs, targets in gpt.batches(gpt.corpus(), arguments.steps, seed=99):
        started = time.perf_counter()
        # No device is set for what the step makes: hooks that page-lock host memory would ask for it on the GPU.
        with around():
            loss = step(inputs.to(arguments.device), targets.to(arguments.device))
        losses.append(loss.item().hex())  # waits for the device
        seconds.append(time.perf_counter() - started)
        between()
    return losses, seconds


def finish(arguments, losses, seconds, **figures):
    figures |= {"losses": losses, "seconds": seconds}
    pathlib.Path(arguments.result).write_text(json.dumps(figures))


class PeakOf:
    """The most bytes of tensors that were alive: by torch's allocator on a GPU, counted on a CPU."""

    def __init__(self, device):
        self._cuda = device == "cuda"

    def __enter__(self):
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            from memory import LiveStorages

            self._counting = LiveStorages()
            self._counting.__enter__()
        return self

    def __exit__(self, *error):
        if self._cuda:
            self.bytes = torch.cuda.max_memory_allocated()
        else:
            self._counting.__exit__(*error)
            self.bytes = self._counting.peak


@contextlib.contextmanager
def one_rank(backend):
    """A process group of this process alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update(alone)
    torch.distributed.init_process_group(backend)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def is_direct(folder):
    """Returns whether files there can be read past the page cache; memory-backed ones cannot on older kernels."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.close(os.open(file.name, os.O_RDWR | os.O_DIRECT))
        except OSError:
            return False
    return True
