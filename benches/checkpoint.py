"""Measures the stop of a training step for a checkpoint of state that is out and clean, and what it writes.

In each round, one after the other: by reference in the pool, torch.save with fsync inside the block, and
torch.save with fsync and torch.distributed.checkpoint with fsync of the same tensors by a plain process
that has them in memory. Then some tensors are changed, and what a checkpoint of them writes is counted.

    python benches/checkpoint.py --folder /mnt/nvme --size 8GiB --rounds 5
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "torch-bridge" / "python"))

TENSOR = 32 << 20  # bytes
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def main(description, size, measure):
    """Measures what the command line asks for; prints what was found as JSON."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--folder", default=".", help="on the disk that is measured")
    options.add_argument("--size", default=size, help="bytes of the state")
    options.add_argument("--rounds", type=int, default=5)
    asked = options.parse_args()
    size = int(asked.size[:-3]) * UNITS[asked.size[-3:]]
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        print(json.dumps(measure(Path(folder), size, asked.rounds), indent=2))


def measure(folder, size, rounds):
    """Seconds and bytes written of each way, by round."""
    plain, ours = begun(saves_plain_state, folder, size)
    import tidelog

    ways = ["by reference", "torch.save in the block", "torch.save of a plain process", "dcp.save of a plain process"]
    found, written = {way: [] for way in ways}, []
    options = {"memory": max(size // 8, 512 << 20), "staging": 64 << 20, "pool_size": size * 3 // 2 + (1 << 30)}
    (folder / "pool").mkdir()
    with tidelog.offload(pool=folder / "pool", **options) as tide:
        state = state_of(size, tide.evict)
        # The first also names where everything lies; those after it hold the same versions.
        before = bytes_written(tide)
        first = {"seconds": timed(lambda: tide.checkpoint("first", state))}
        first["bytes_written"] = bytes_written(tide) - before
        for round_ in range(rounds):
            before = bytes_written(tide)
            found[ways[0]].append(timed(lambda: tide.checkpoint(f"round {round_}", state)))
            written.append(bytes_written(tide) - before)
            found[ways[1]].append(timed_save(state, folder / "block.pt"))
            for tensor in state.values():
                tide.evict(tensor)
            for way in ways[2:]:
                ours.send(way)
                found[way].append(ours.recv())
        dirty = [write_after_changes(tide, state, changed) for changed in (1, len(state) // 8, len(state) // 4)]
        with tidelog.Checkpoints(folder / "pool") as checkpoints:
            held = checkpoints.list()[0]
            checkpoints.verify("round 0")
        state.clear()
    ours.send("end")
    plain.join()
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    return {
        "state_bytes": size,
        "tensors": size // TENSOR,
        "checkpoint_bytes": held["bytes"],
        "first": first,
        "seconds": found,
        "median_seconds": medians,
        "times_less": {way: seconds / medians[ways[0]] for way, seconds in medians.items()},
        "bytes_written_by_reference": written,
        "part_of_the_state_written": max(written) / size,
        "after_changes": dirty,
    }


def begun(saves_plain_state, folder, size):
    """Starts the other process; returns it once it has its state, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    plain = context.Process(target=saves_plain_state, args=(theirs, folder, size))
    plain.start()
    ours.recv()
    return plain, ours


def state_of(size, then=lambda tensor: None):
    """Makes tensors of `size` bytes; `then` is done with each as it is made."""
    import torch

    state = {}
    for number in range(size // TENSOR):
        state[f"tensor {number}"] = torch.empty(TENSOR // 4).uniform_()
        then(state[f"tensor {number}"])
    return state


def write_after_changes(tide, state, changed):
    """Measures the bytes that a checkpoint writes once `changed` tensors have changed since the one before: those that
    are out again, whose bytes their eviction wrote, and those in memory.
    """
    before = bytes_written(tide)
    for tensor in list(state.values())[:changed]:
        tensor.add_(1)
    seconds = timed(lambda: tide.checkpoint(f"{changed} changed", state))
    written, dirty = bytes_written(tide) - before, changed * TENSOR
    return {"dirty_bytes": dirty, "written_since": written, "ratio": written / dirty, "seconds": seconds}


def saves_plain_state(pipe, folder, size):
    """Runs the other process: it has the state in memory, and saves it when asked."""
    import torch.distributed.checkpoint as dcp

    state = state_of(size)
    pipe.send("ready")
    while (asked := pipe.recv()) != "end":
        if asked.startswith("torch"):
            pipe.send(timed_save(state, folder / "plain.pt"))
        else:
            writer = dcp.FileSystemWriter(folder / "dcp", sync_files=True)
            pipe.send(timed(lambda: dcp.save(state, storage_writer=writer, no_dist=True)))
            shutil.rmtree(folder / "dcp")


def timed_save(state, path):
    """Seconds; the file is gone then, so that the disk has to hold one of them."""
    seconds = timed(lambda: save(state, path))
    path.unlink()
    return seconds


def save(state, path):
    import torch

    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def timed(act):
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def bytes_written(tide):
    return sum(device["bytes_written"] for device in tide.stats()["devices"])


if __name__ == "__main__":
    main(__doc__, "8GiB", measure)
