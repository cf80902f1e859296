"""A program of several ranks that keeps a checkpoint every few steps, and goes on from the newest that is there."""

import collections
import contextlib
import hashlib
import os
import re
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import tidelog
import tidelog.dcp
from tidetest import KIB, MIB, power

WIDTH, LAYERS, ROWS = 128, 4, 8
EVERY, KEPT = 3, 2  # steps between checkpoints; how many of them stay


def begin(rank, size, folder):
    """Joins the other ranks; returns this one's number and the pool."""
    rank, size, folder = int(rank), int(size), Path(folder)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    pool = folder / "pool"
    with contextlib.suppress(FileExistsError):
        pool.mkdir()
    dist.barrier()
    return rank, pool


def made():
    """A sharded model with odd sizes, which no number of ranks divides, and its optimizer."""
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH + 3), nn.GELU(), nn.Linear(WIDTH + 3, WIDTH)) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def state_of(model, optimizer, rank, step):
    """Returns the state from which a run continues. Each rank has a random state of its own."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, f"random {rank}": torch.get_rng_state(), "step": step}


def kept(pool):
    """The steps of the checkpoints that a pool has, in order."""
    if not any(pool.iterdir()):
        return []
    names = tidelog.dcp.names(pool)
    return sorted(int(re.fullmatch(r"step-(\d+)", name)[1]) for name in names)


def load(model, optimizer, rank, pool, step, random=True):
    state = state_of(model, optimizer, rank, 0)
    if not random:
        del state[f"random {rank}"]
    dcp.load(state, storage_reader=tidelog.dcp.StorageReader(pool, f"step-{step}"))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if random:
        torch.set_rng_state(state[f"random {rank}"])
    return state["step"]


def train(rank, size, folder, steps, way):
    """Prints each step's number and loss, in hexadecimal, and the checkpoints that have returned. `way`: "plain",
    without a block, "block", with checkpoints, "async", with some that go on beside the steps, or "recorded", as
    `power` can record it."""
    rank, pool = begin(rank, size, folder)
    beside = dist.new_group(backend="gloo") if way == "async" else None
    saves = collections.deque()
    model, optimizer = made()
    torch.manual_seed(100 + rank)
    step = 0
    if way != "plain" and (found := kept(pool)):
        step = load(model, optimizer, rank, pool, found[-1])
        assert step == found[-1]
    dist.barrier()  # the others have read what is this rank's share in a moment
    print(f"begins {step}", flush=True)
    options = {"pool": pool, "pool_size": 64 * MIB, "memory": MIB, "staging": 256 * KIB, "buffered": True}
    if way == "recorded":
        options["data_path"] = "posix"
    block = tidelog.offload(model, optimizer, **options) if way != "plain" else contextlib.nullcontext()
    with block as tide:
        if tide:
            tidelog.dcp.delete_unfinished(tide)
            power.note("open")
        while step < int(steps):
            step += 1
            with tide.step() if tide else contextlib.nullcontext():
                loss = model(torch.randn(ROWS, WIDTH)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            print(f"step {step} {loss.item().hex()}", flush=True)
            if tide and step % EVERY == 0:
                writer = tidelog.dcp.StorageWriter(tide, f"step-{step}")
                state = state_of(model, optimizer, rank, step)
                if beside is not None:
                    returned(saves)
                    saves.append((step, dcp.async_save(state, storage_writer=writer, process_group=beside)))
                    tidelog.dcp.delete(tide, f"step-{step - KEPT * EVERY}")
                    continue
                dcp.save(state, storage_writer=writer)
                print(f"kept {step}", flush=True)
                power.note(f"kept {step}")
                old = step - KEPT * EVERY
                power.note(f"deletes {old}")
                tidelog.dcp.delete(tide, f"step-{old}")
        returned(saves)
        if tide:
            moved = tide.stats()["totals"]["evictions"]
            assert moved > 0, "nothing moved"
        print(f"digest {digest(model, optimizer)}", flush=True)
    dist.destroy_process_group()
    print("done", flush=True)


def go_on(rank, size, folder, steps, kill_after=0, devices=""):
    """Continues by `resume`: of all that it goes on from the block itself takes care. Prints the same, and the random
    state that it has in the end. `devices`: those that are left of a pool.
    """
    rank, pool = begin(rank, size, folder)
    model, optimizer = made()
    torch.manual_seed(100 + rank)
    options = {"pool": pool, "pool_size": 64 * MIB, "memory": MIB, "staging": 256 * KIB, "buffered": True}
    if devices:
        options |= {"pool": devices, "degraded": True}
    with tidelog.offload(model, optimizer, resume="latest", **options) as tide:
        tidelog.dcp.delete_unfinished(tide)
        step = tide.resumed.state["step"] if tide.resumed else 0
        print(f"begins {step} {tide.resumed.name if tide.resumed else None}", flush=True)
        if tide.resumed:
            print(f"digest {digest(model, optimizer)}", flush=True)
        while step < int(steps):
            step += 1
            with tide.step():
                loss = model(torch.randn(ROWS, WIDTH)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            print(f"step {step} {loss.item().hex()}", flush=True)
            if step % EVERY == 0:
                state = {**tidelog.dcp.state_of(model, optimizer), "step": step, "data": [{"place": torch.ones(2)}]}
                dcp.save(state, storage_writer=tidelog.dcp.StorageWriter(tide, f"step-{step}"))
            if step == int(kill_after):
                os.kill(os.getpid(), signal.SIGKILL)
        if tide.resumed:
            assert tide.resumed.state["data"][0]["place"].eq(1).all(), tide.resumed.state
        print(f"digest {digest(model, optimizer)}", flush=True)
    dist.destroy_process_group()
    print("done", flush=True)


def returned(saves):
    """Waits for what has been begun beside the steps, and says what is kept."""
    while saves:
        step, save = saves.popleft()
        save.result()
        print(f"kept {step}", flush=True)


def digest(model, optimizer):
    """Returns the digest of the whole state, however many ranks have it."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    sum_ = hashlib.sha256()
    tensors = dict(of_model)
    for key, state in of_optimizer["state"].items():
        tensors.update({f"{key} {name}": value for name, value in state.items()})
    for key, tensor in sorted(tensors.items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        sum_.update(key.encode() + whole.detach().contiguous().numpy().tobytes())
    return sum_.hexdigest()


def show(rank, size, folder, pool, step):
    """Prints the digest of a checkpoint, loaded on another number of ranks."""
    rank, _ = begin(rank, size, folder)
    model, optimizer = made()
    load(model, optimizer, rank, Path(pool), int(step), random=False)
    print(f"digest {digest(model, optimizer)}", flush=True)
    dist.destroy_process_group()
    print("done", flush=True)
