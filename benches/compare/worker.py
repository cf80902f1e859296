"""One run of a peer that is a Python library: prints what came of it as a line of JSON.

    worker.py check deepspeed
    worker.py deepspeed --rw=read --files=A:B --bytes=402653184 --tensor=1048576 --seconds=1 --threads=2
"""

import argparse
import contextlib
import json
import os
import resource
import sys
import time

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
    """Of this process and its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def aio_module():
    """DeepSpeed's async_io extension, compiled when it is first asked for."""
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    # It tells its story on standard output, which is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        from deepspeed.ops.op_builder import AsyncIOBuilder

        builder = AsyncIOBuilder()
        if not builder.is_compatible(verbose=True):
            raise SystemExit("error: DeepSpeed's async_io cannot be built (on Debian and Ubuntu: apt-get install libaio-dev)")
        return builder.load(verbose=False)


def deepspeed(options):
    import torch

    files, threads = options.files.split(":"), options.threads
    each = options.bytes // len(files)
    handles = [aio_module().aio_handle(BLOCK_SIZE, QUEUE_DEPTH, False, True, threads) for _ in files]
    tensors = [handle.new_cpu_locked_tensor(each, torch.empty(0, dtype=torch.uint8)) for handle in handles]
    for tensor in tensors:
        tensor.random_(0, 256)
    work = list(zip(handles, tensors, files))
    for handle, tensor, file in work:
        if not os.path.exists(file) or os.path.getsize(file) < each:
            handle.sync_pwrite(tensor, file, 0)

    def turn():
        for handle, tensor, file in work:
            begin = handle.async_pread if options.rw == "read" else handle.async_pwrite
            if begin(tensor, file, 0) != 0:
                raise SystemExit(f"error: DeepSpeed refused {file}")
        for handle, _, _ in work:
            handle.wait()

    return timed(turn, each * len(files), options.seconds)


def saved_file(options, save, load):
    """Saves, or loads, a dictionary of tensors of one size, as one file."""
    import torch

    file, count = options.files, options.bytes // options.tensor
    tensors = {f"tensor.{index}": torch.randint(256, (options.tensor,), dtype=torch.uint8) for index in range(count)}

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

    if options.rw == "read":
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
    print(f"{module} {version}")


def main():
    if sys.argv[1] == "check":
        return check(sys.argv[2])
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["deepspeed", "safetensors", "torch-save"])
    parser.add_argument("--rw", choices=["read", "write"], required=True)
    parser.add_argument("--files", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--tensor", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    run = {"deepspeed": deepspeed, "safetensors": safetensors, "torch-save": torch_save}[options.what]
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
