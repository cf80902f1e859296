"""Measures the stop of training for torch.distributed.checkpoint, and the time until the checkpoint is there.

In each round, one after the other, after a part of the state has changed: async_save and save into the pool of a
block, and async_save of the same tensors to a folder, with fsync, by a plain process that has them in memory.

    python benches/async_saves.py --folder /mnt/nvme --size 4GiB --rounds 5
"""

import shutil
import statistics
import time
import warnings

from checkpoint import begun, bytes_written, main, state_of

CHANGED = 8  # one tensor in so many, before each save

OURS, OWN_SAVE, FOLDER = "async_save into the pool", "save into the pool", "async_save of a plain process to a folder"


def measure(folder, size, rounds):
    """Seconds until each call has returned, and until its checkpoint is there; bytes that were written."""
    plain, ours = begun(saves_plain_state, folder, size)
    import torch.distributed.checkpoint as dcp

    import tidelog
    from tidelog.dcp import StorageWriter, delete

    warnings.simplefilter("ignore")  # that there are no ranks
    found = {way: {"returned": [], "kept": [], "written": []} for way in (OURS, OWN_SAVE, FOLDER)}
    options = {"memory": max(size // 8, 512 << 20), "staging": 64 << 20, "pool_size": size * 2 + (1 << 30)}
    (folder / "pool").mkdir()
    with tidelog.offload(pool=folder / "pool", **options) as tide:
        state = state_of(size, tide.evict)
        for round_ in range(rounds):
            for way in (OURS, OWN_SAVE):
                for tensor in list(state.values())[round_ % CHANGED :: CHANGED]:
                    tensor.add_(1)
                before, started = bytes_written(tide), time.perf_counter()
                writer = StorageWriter(tide, f"{way} {round_}")
                if way == OURS:
                    future = dcp.async_save(state, storage_writer=writer, no_dist=True)
                else:
                    dcp.save(state, storage_writer=writer, no_dist=True)
                returned = time.perf_counter() - started
                if way == OURS:
                    future.result()
                add(found[way], returned, time.perf_counter() - started, bytes_written(tide) - before)
                delete(tide, f"{way} {round_ - 1}")
            ours.send(round_)
            add(found[FOLDER], *ours.recv())
        state.clear()
    ours.send("end")
    plain.join()
    medians = {
        way: {what: statistics.median(values) for what, values in figures.items()} for way, figures in found.items()
    }
    return {"state_bytes": size, "changed": f"1 in {CHANGED}", "rounds": found, "medians": medians}


def add(figures, returned, kept, written):
    for what, value in zip(figures, (returned, kept, written), strict=True):
        figures[what].append(value)


def saves_plain_state(pipe, folder, size):
    """Runs the other process: it has the state in memory, and saves it when asked."""
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")
    state = state_of(size)
    pipe.send("ready")
    while pipe.recv() != "end":
        started = time.perf_counter()
        writer = dcp.FileSystemWriter(folder / "dcp", sync_files=True)
        future = dcp.async_save(state, storage_writer=writer, no_dist=True)
        returned = time.perf_counter() - started
        future.result()
        pipe.send((returned, time.perf_counter() - started, size))
        shutil.rmtree(folder / "dcp")


if __name__ == "__main__":
    main(__doc__, "4GiB", measure)
