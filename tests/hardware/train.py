#!/usr/bin/env python3
"""Trains a GPT of a billion parameters on a GPU: without limit, with save_on_cpu hooks, and with Tidelog at parts of that
peak, and compares every bit of every loss.

    python tests/hardware/train.py [--fraction 0.5 ...] [--pool DIR ...] [--batch 8 ...] [--output json]

A limited run cannot cheat: what CUDA has beside the limit is taken from it first, and the model is built inside the block.
Each run is a process of its own. Exit code 1: a loss differs in any bit, or a run failed; 2: wrong use; 77: there is no GPU.
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "torch-bridge" / "python"), str(ROOT / "demo")]

import torch  # noqa: E402

GIB = 1 << 30
NO_GPU = 77
# What torch's libraries take of the GPU beside tensors, and the allocator's segments around those.
LIBRARIES_BYTES = 1 * GIB
WARM_STEPS = 3  # profiled, planned, and the first that follows the plan: none of them is timed


def main():
    arguments = parse_arguments()
    if arguments.run:
        return RUNS[arguments.run](arguments)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("train.py: torch finds no CUDA GPU: nothing ran")
        return NO_GPU
    results = []
    for batch in arguments.batch:
        plain = run_child(arguments, "plain", batch)
        results.append(row("no limit", batch, plain, plain))
        show(arguments, results[-1])
        if "failed" in plain:
            continue
        results.append(row("save_on_cpu", batch, run_child(arguments, "hooks", batch), plain))
        show(arguments, results[-1])
        for folder in arguments.pool or [tempfile.gettempdir()]:
            for fraction in arguments.fraction:
                limit = int(plain["peak_bytes"] * fraction)
                # The model is not there yet when the pool is made: its size is told.
                pool_size = min(3 * plain["peak_bytes"] // 2, shutil.disk_usage(folder).free * 9 // 10)
                sizes = ["--limit", str(limit), "--pool-size", str(pool_size)]
                found = run_child(arguments, "limited", batch, *sizes, "--pool", folder)
                results.append(row(f"{fraction:.0%} on {folder}", batch, found, plain))
                show(arguments, results[-1])
    if arguments.output == "json":
        print(json.dumps(results, indent=1))
    return 0 if all(result["same"] for result in results) else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fraction", type=float, nargs="+", default=[0.5, 0.33, 0.25], help="limits, as parts of the peak")
    parser.add_argument("--pool", nargs="+", help="folders for the pool, one run each (a disk, /dev/shm; default: a temporary one)")
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 8, 16], help="sequences a step, one comparison each")
    parser.add_argument("--steps", type=int, default=6, help=f"steps of each run; the first {WARM_STEPS} are not timed")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=2048, help="20 layers of 2048 are 1.01 billion parameters")
    parser.add_argument("--context", type=int, default=512, help="tokens a sequence")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script itself")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    parser.add_argument("--run", choices=list(RUNS), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--pool-size", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.steps <= WARM_STEPS:
        parser.error(f"--steps {arguments.steps}: at least {WARM_STEPS + 1}, of which the last are timed")
    if any(not 0 < fraction <= 1 for fraction in arguments.fraction):
        parser.error(f"--fraction {arguments.fraction}: each is above 0, and 1 at most")
    return arguments


# -- the runs, each in a process of its own ---------------------------------------------------------------------


def run_plain(arguments):
    with PeakOf(arguments.device) as peak:
        losses, seconds = train(arguments, *make(arguments))
    finish(arguments, losses, seconds, peak_bytes=peak.bytes)


def run_hooks(arguments):
    """Activations go to page-locked host memory, as torch itself does it; parameters and states stay."""
    pinned = arguments.device == "cuda"
    with PeakOf(arguments.device) as peak:
        model, optimizer = make(arguments)
        around = lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned)  # noqa: E731
        losses, seconds = train(arguments, model, optimizer, around)
    finish(arguments, losses, seconds, peak_bytes=peak.bytes)


def run_limited(arguments):
    import tidelog

    # The process ends with the block: what stays on NVMe then is of no use to anybody.
    warnings.simplefilter("ignore", tidelog.LeftBehindWarning)
    with tempfile.TemporaryDirectory(prefix="tidelog-train-", dir=arguments.pool[0]) as folder:
        if arguments.device == "cuda":
            take_the_rest(arguments.limit + LIBRARIES_BYTES)
        options = {"memory": arguments.limit, "pool_size": arguments.pool_size, "device": arguments.device}
        options |= {"buffered": not is_direct(folder)}
        with tidelog.offload(pool=folder, **options) as tide:
            losses, seconds = train(arguments, *make(arguments), tide.step, lambda: await_plan(tide))
            stats, last = tide.stats(), tide.last_step()
        if tide.peak_bytes > arguments.limit:
            sys.exit(f"train.py: {tide.peak_bytes} bytes of tensors lived under a limit of {arguments.limit}")
        figures = {key: last[key] for key in ("bytes_written", "bytes_read", "stall_seconds")}
        figures |= {key: stats[key] for key in ("data_path", "gpu")}
        finish(arguments, losses, seconds, peak_bytes=tide.peak_bytes, **figures)


RUNS = {"plain": run_plain, "hooks": run_hooks, "limited": run_limited}


def make(arguments):
    """The demo's GPT at another size, built on the device."""
    import gpt

    torch.use_deterministic_algorithms(True)
    gpt.WIDTH, gpt.LAYERS, gpt.CONTEXT = arguments.width, arguments.layers, arguments.context
    gpt.HEADS, gpt.BATCH = max(arguments.width // 128, 1), arguments.batch[0]
    torch.manual_seed(1234)
    with torch.device(arguments.device):
        model = gpt.GPT()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)


def await_plan(tide):
    """Steps go on while a plan is made; here they wait for it, so that those that are timed follow it."""
    while tide.stats()["planning"]:
        time.sleep(0.01)


def train(arguments, model, optimizer, around=contextlib.nullcontext, between=lambda: None):
    import gpt

    losses, seconds = [], []
    for inputs, targets in gpt.batches(gpt.corpus(), arguments.steps, seed=99):
        started = time.perf_counter()
        with torch.device(arguments.device), around():
            loss = gpt.train_step(model, optimizer, inputs.to(arguments.device), targets.to(arguments.device))
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


def take_the_rest(left):
    """Takes memory from CUDA itself, not from torch, until `left` bytes are free."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # the context, which the driver's calls below use
    driver, address, piece = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), 4 * GIB
    while piece >= 2 << 20:
        spare = torch.cuda.mem_get_info()[0] - left
        if spare < piece or driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(piece)):
            piece //= 2


def is_direct(folder):
    """Whether files there can be read past the page cache; memory-backed ones cannot."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        try:
            os.close(os.open(file.name, os.O_RDWR | os.O_DIRECT))
        except OSError:
            return False
    return True


# -- the table --------------------------------------------------------------------------------------------------


def run_child(arguments, kind, batch, *extra):
    with tempfile.NamedTemporaryFile("r", suffix=".json") as result:
        command = [sys.executable, __file__, "--run", kind, "--result", result.name, "--batch", str(batch)]
        for name in ("steps", "layers", "width", "context", "device"):
            command += [f"--{name}", str(getattr(arguments, name))]
        # Deterministic matrix products need it (torch.use_deterministic_algorithms).
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        child = subprocess.run([*command, *extra], env=environment, stderr=subprocess.PIPE, text=True, check=False)
        if child.returncode:
            sys.stderr.write(child.stderr)
            return {"failed": (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]}
        return json.load(result)


def row(name, batch, found, plain):
    result = {"run": name, "batch": batch, "same": False, **found}
    if "failed" not in found:
        result["same"] = found["losses"] == plain["losses"]
        result["step_seconds"] = statistics.median(found["seconds"][WARM_STEPS:])
        result["ratio"] = result["step_seconds"] / statistics.median(plain["seconds"][WARM_STEPS:])
    return result


def show(arguments, result):
    if arguments.output == "json":
        return
    line = f"FACT {result['run']:24} batch {result['batch']:3}: "
    if "failed" in result:
        print(line + "FAILED: " + result["failed"], flush=True)
        return
    line += f"{result['step_seconds']:.3f} s a step ({result['ratio']:.2f} x), peak {result['peak_bytes'] / GIB:.2f} GiB"
    if "bytes_read" in result:
        moved = f"{result['bytes_written'] / GIB:.2f} GiB out, {result['bytes_read'] / GIB:.2f} GiB in"
        line += f", in the last step {moved}, {result['stall_seconds']:.2f} s waiting"
    print(line + (", same bits" if result["same"] else ", DIFFERENT LOSSES"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
