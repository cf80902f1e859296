"""A peer that is a Python library, as a process that serves runs until its input ends.

    worker.py check deepspeed       # loads what it needs, and says which version it is
    worker.py serve                 # a line of JSON for each run, answered with a line of JSON

So each run is as warm as ours: libraries are loaded, memory is locked, and threads are there.
"""

import functools
import json
import os
import resource
import sys
import time
import types

RAMP_SECONDS = 0.2
BLOCK_SIZE, QUEUE_DEPTH = 1 << 20, 128  # what DeepSpeed takes if nothing is said


def timed(turn, bytes_per_turn, seconds):
    """Turns for a while, whole ones; the first ones warm up."""

    def turns(seconds):
        count, begun = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - begun < seconds:
            turn()
            count += 1
        return count, time.perf_counter() - begun

    turns(RAMP_SECONDS)
    before = cpu_seconds()
    count, passed = turns(seconds)
    moved = count * bytes_per_turn
    used = cpu_seconds() - before
    return {"bytes_per_second": moved / passed, "cpu_seconds_per_gib": used / (moved / 2**30)}


def cpu_seconds():
    """Returns the processor time of this process and its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@functools.cache
def aio_module():
    """DeepSpeed's async_io extension, compiled when it is first asked for."""
    # The compiler's driver lies beside the interpreter.
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    from deepspeed.ops.op_builder import AsyncIOBuilder

    builder = AsyncIOBuilder()
    if not builder.is_compatible(verbose=True):
        raise SystemExit(
            "error: DeepSpeed's async_io cannot be built (on Debian and Ubuntu: apt-get install libaio-dev)"
        )
    return builder.load(verbose=False)


# Of the case at hand: what was locked for another is given back.
@functools.lru_cache(maxsize=2)
def locked(threads, each, index):
    """A handle and a tensor for one device."""
    import torch

    handle = aio_module().aio_handle(BLOCK_SIZE, QUEUE_DEPTH, False, True, threads)
    tensor = handle.new_cpu_locked_tensor(each, torch.empty(0, dtype=torch.uint8))
    return handle, tensor.random_(0, 256)


def deepspeed(options):
    each = options.bytes // len(options.files)
    work = [(*locked(options.threads, each, index), file) for index, file in enumerate(options.files)]
    for handle, tensor, file in work:
        if not os.path.exists(file) or os.path.getsize(file) < each:
            handle.sync_pwrite(tensor, file, 0)

    def turn():
        for handle, tensor, file in work:
            begin = handle.async_pread if options.rw == "read" else handle.async_pwrite
            if begin(tensor, file, 0) != 0:
                raise RuntimeError(f"DeepSpeed refused {file}")
        for handle, _, _ in work:
            handle.wait()

    return timed(turn, each * len(work), options.seconds)


@functools.lru_cache(maxsize=1)
def dictionary(count, length):
    """Makes a dictionary of `count` tensors of one size."""
    import torch

    return {f"tensor.{index}": torch.randint(256, (length,), dtype=torch.uint8) for index in range(count)}


def saved_file(options, save, load):
    """Saves, or loads, a dictionary of tensors of one size, as one file."""
    (file,), count = options.files, options.bytes // options.tensor
    tensors = dictionary(count, options.tensor)

    def save_durably():
        save(tensors, file)
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def load_cold():
        # Loading what the kernel kept in memory would not ask the device.
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for tensor in load(file).values():
            # A mapped file is read when it is looked at.
            tensor[::4096].sum()

    if options.rw == "read" and not os.path.exists(file):
        save_durably()
    return timed(load_cold if options.rw == "read" else save_durably, count * options.tensor, options.seconds)


def safetensors(options):
    from safetensors.torch import load_file, save_file

    return saved_file(options, save_file, load_file)


def torch_save(options):
    import torch

    return saved_file(options, torch.save, torch.load)


def check(module):
    """Loads what a peer needs; says which version it is."""
    version = __import__(module).__version__
    if module == "deepspeed":
        aio_module()
    return f"{module} {version}"


def serve(results):
    ways = {"deepspeed": deepspeed, "safetensors": safetensors, "torch-save": torch_save}
    for line in sys.stdin:
        options = types.SimpleNamespace(**json.loads(line))
        print(json.dumps(ways[options.way](options)), file=results, flush=True)


def main():
    # Libraries tell their stories on standard output, which is for results here.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if sys.argv[1] == "check":
        print(check(sys.argv[2]), file=results, flush=True)
    else:
        serve(results)


if __name__ == "__main__":
    main()
