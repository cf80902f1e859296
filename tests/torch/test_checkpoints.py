"""Checkpoints by reference: what a run goes on from, in its pool, in a new process and in files."""

import os
import random
import signal
import subprocess
import textwrap
import typing
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import tidelog
from tidelog.abi._seals import Pool
from tidetest import process
from tidetest.requests import until_it_waits

FORMAT = Path(__file__).resolve().parents[2] / "target" / "release" / "tidelog-format"
MIB = 1 << 20
LAYERS, WIDTH = 12, 512  # each weight is 1 MiB


class Tied(nn.Module):
    """Layers, of which the first and the last have one weight."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.layers[-1].weight = self.layers[0].weight

    def forward(self, batch):
        for layer in self.layers:
            batch = torch.relu(layer(batch))
        return batch


def made(seed=0):
    torch.manual_seed(seed)
    model = Tied()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def offload(model, optimizer, pool, **options):
    options = {"memory": 14 * MIB, "staging": 2 * MIB, "pool_size": 512 * MIB, "buffered": True, **options}
    return tidelog.offload(model, optimizer, pool=pool, **options)


def go_on(state, steps):
    model, optimizer = made(seed=99)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"]["cpu"])
    return train(model, optimizer, steps)


def set_clock_back(monkeypatch):
    """Makes each later seal of a pool say an earlier time."""

    def backwards(self, seals=Pool.seals):
        return [{**seal, "sealed_at": 2_000_000_000 - seal["order"]} for seal in seals(self)]

    monkeypatch.setattr(Pool, "seals", backwards)


def in_new_process(pool, code):
    """Returns the output of a program that has the pool's path as its argument."""
    ran = process.run("pool = sys.argv[1]\n" + textwrap.dedent(code), pool)
    assert ran.code == 0, ran.err
    return ran.out


def test_a_run_goes_on_with_the_same_bits_from_a_checkpoint_of_which_nothing_was_copied_twice(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        train(model, optimizer, 3)
        before = written(tide)
        tide.checkpoint("step 3")
        first = written(tide) - before
        tide.checkpoint("step 3 again")
        assert tide.live_bytes <= 14 * MIB
        expected = train(model, optimizer, 3)
    with tidelog.Checkpoints(pool) as checkpoints:
        listed = {seal["name"]: seal for seal in checkpoints.list()}
        assert set(listed) == {"step 3", "step 3 again"}
        assert listed["step 3"]["bytes"] > 3 * (LAYERS - 1) * MIB
        assert first < listed["step 3"]["bytes"] / 2, "what is out is held by reference"
        for name in listed:
            checkpoints.verify(name)
            assert go_on(checkpoints.restore(name), 3) == expected
    tide.restore()  # what did not fit, and with it the pool is given back
    seen = in_new_process(pool, "import tidelog; print(sorted(tidelog.restore(pool, 'step 3')))")
    assert seen == "['model', 'optimizer', 'rng']\n"


def written(tide):
    return sum(device["bytes_written"] for device in tide.stats()["devices"])


@pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning")
def test_what_is_out_is_in_the_checkpoint_whoever_has_moved_it(pool):
    """A storage that `resize` has emptied has no size of its own."""
    model, optimizer = made()
    with offload(model, optimizer, pool, mode="reactive") as tide:
        train(model, optimizer, 2)
        for parameter in model.parameters():
            tide.evict(parameter)
        tide.checkpoint("out", {"model": model.state_dict()})
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        kept = tidelog.Checkpoints(Pool.of_session(tide.session))
        assert all(torch.equal(value, expected[name]) for name, value in kept.restore("out")["model"].items())
        kept.close()


def test_what_is_out_stays_out_and_what_changes_later_goes_elsewhere(pool):
    tensor = torch.arange(MIB, dtype=torch.float32)
    resident, view = torch.full((1000,), 7.0), tensor[10:20:2]
    with offload(None, None, pool) as tide:
        tide.evict(tensor)
        tide.checkpoint("x", {"a": tensor, "b": resident, "view": view, "n": 3})
        assert not tide.is_resident(tensor)
        tensor.zero_()
        resident.zero_()
        tide.evict(tensor)
        with tidelog.Checkpoints(pool) as checkpoints:
            state = checkpoints.restore("x")
            space = tide.stats()["pool"]
            assert space["sealed"] >= 4 * MIB
            assert torch.equal(state["a"], torch.arange(MIB, dtype=torch.float32))
            assert torch.equal(state["b"], torch.full((1000,), 7.0)) and state["n"] == 3
            assert torch.equal(state["view"], torch.tensor([10.0, 12, 14, 16, 18]))
            assert state["view"].data_ptr() == state["a"].data_ptr() + 40, "views stay views"
            checkpoints.delete("x")
            assert checkpoints.list() == []
        assert tide.stats()["pool"]["sealed"] == 0


def test_bytes_that_an_alias_changed_unseen_are_those_of_the_checkpoint(pool):
    tensor = torch.zeros(MIB)
    with offload(None, None, pool) as tide:
        tide.evict(tensor)
        tensor[0].item()  # it is back, and its copy is still good
        alias = tensor.numpy()
        alias[5] = 42
        tide.checkpoint("x", {"t": tensor})
        with tidelog.Checkpoints(pool) as checkpoints:
            assert checkpoints.restore("x")["t"][5] == 42


def test_tied_weights_are_tied_again(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        tide.checkpoint("x")
    state = tidelog.restore(pool, "x")["model"]
    first, last = state["layers.0.weight"], state[f"layers.{LAYERS - 1}.weight"]
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


def test_an_export_needs_no_pool_and_is_what_safetensors_reads(pool, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        train(model, optimizer, 1)
        tide.checkpoint("x", {"model": model.state_dict(keep_vars=True), "t": torch.arange(12).view(3, 4).t(), "n": 5})
    file = tmp_path / "x.safetensors"
    with tidelog.Checkpoints(pool) as checkpoints:
        checkpoints.export("x", file)
    tide.restore()
    wanted = model.state_dict()
    found = safetensors.load_file(file)
    assert torch.equal(found["t"], torch.arange(12).view(3, 4).t())
    assert len(found) == len(wanted) + 1
    for key, value in wanted.items():
        assert torch.equal(found[f"model.{key}"], value)
    assert not list(tmp_path.glob("*.partial"))


def test_with_two_copies_a_checkpoint_is_there_without_any_one_device(tmp_path):
    names = [str(tmp_path / name) for name in "abc"]
    command = [FORMAT, "format", *names, "--size", "128MiB", "--copies", "2", "--buffered", "--yes"]
    subprocess.run(command, check=True, capture_output=True)
    model, optimizer = made()
    with offload(model, optimizer, ",".join(names)) as tide:
        train(model, optimizer, 1)
        tide.checkpoint("x", {"model": model.state_dict(keep_vars=True)})
    tide.restore()
    wanted = model.state_dict()
    for gone in names:
        os.rename(gone, f"{gone} is away")
        left = ",".join(name for name in names if name != gone)
        with pytest.raises(tidelog.Error, match="degraded"):
            tidelog.Checkpoints(left)
        with tidelog.Checkpoints(left, degraded=True) as checkpoints:
            found = checkpoints.restore("x")["model"]
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[key], wanted[key]) for key in wanted)
        os.rename(f"{gone} is away", gone)


def test_a_file_is_imported_and_what_is_no_such_file_is_refused(pool, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {
        "a.weight": torch.randn(300, 500),
        "b": torch.arange(7),
        "none": torch.zeros(0, 3),
        "one": torch.tensor(5.0),
    }
    tensors["half"] = torch.randn(MIB).to(torch.bfloat16)
    path = tmp_path / "x.safetensors"
    safetensors.save_file(tensors, path, metadata={"step": "12", "by": "hand"})
    with offload(None, None, pool):
        pass
    with tidelog.Checkpoints(pool, read_only=False, buffered=True) as checkpoints:
        checkpoints.import_(path, "x")
        checkpoints.verify("x")
        found = checkpoints.restore("x")
        assert (found.pop("step"), found.pop("by")) == (12, "hand")
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
        checkpoints.export("x", tmp_path / "y.safetensors")
        assert safetensors.load_file(tmp_path / "y.safetensors").keys() == tensors.keys()
        (tmp_path / "cut").write_bytes(path.read_bytes()[:-1000])
        (tmp_path / "other").write_bytes(bytes(100) + b"1" * 100)
        for name in ("cut", "other"):
            with pytest.raises((tidelog.Error, ValueError)):
                checkpoints.import_(tmp_path / name, "z")
        assert [seal["name"] for seal in checkpoints.list()] == ["x"]
        assert checkpoints._pool.stats()["pool"]["live"] == checkpoints.list()[0]["alone"]


def test_two_parts_of_one_name_are_not_exported_as_one(pool, tmp_path):
    with offload(None, None, pool) as tide:
        tide.checkpoint("x", {"a.b": torch.zeros(3), "a": {"b": torch.ones(3)}})
    with tidelog.Checkpoints(pool) as checkpoints, pytest.raises(tidelog.Error, match=r"'a\.b'"):
        checkpoints.export("x", tmp_path / "x.safetensors")
    assert not list(tmp_path.glob("x.*"))


def test_the_last_and_every_kth_are_kept_and_the_newest_is_verified_first(pool):
    tensor = torch.zeros(1000)
    with offload(None, None, pool) as tide:
        for step in range(1, 11):
            tensor.add_(1)
            tide.checkpoint(f"step-{step}", {"t": tensor, "step": step})
        tide.checkpoint("best", {"t": tensor})
        with tidelog.Checkpoints(pool) as checkpoints:
            gone = checkpoints.retain(last=2, every=4, prefix="step-")
            assert gone == [f"step-{step}" for step in (1, 2, 3, 5, 6, 7)]
            kept = {seal["name"] for seal in checkpoints.list()}
            assert kept == {"step-4", "step-8", "step-9", "step-10", "best"}
            assert checkpoints.restore("step-4")["t"][0] == 4
            with pytest.raises(ValueError, match="at least one"):
                checkpoints.retain(last=0)


def test_code_in_a_checkpoint_runs_only_if_that_is_said(pool):
    with offload(None, None, pool) as tide:
        tide.checkpoint("x", {"t": torch.zeros(3), "path": __import__("pathlib").PurePosixPath("a")})
    with pytest.raises(tidelog.Error, match="weights_only=False"):
        tidelog.restore(pool, "x")
    assert str(tidelog.restore(pool, "x", weights_only=False)["path"]) == "a"


def test_what_cannot_be_kept_is_refused_by_name_and_the_run_goes_on(pool):
    sparse = torch.zeros(3).to_sparse()
    with offload(None, None, pool) as tide:
        for thing, why in [(sparse, "layout"), (torch.zeros(3).untyped_storage(), "storage")]:
            with pytest.raises(tidelog.Error, match=why):
                tide.checkpoint("x", {"t": thing})
        with pytest.raises(tidelog.Error, match="1 to 1024 bytes"):
            tide.checkpoint("", {})
        with tidelog.Checkpoints(pool) as checkpoints:
            assert checkpoints.list() == []
            with pytest.raises(tidelog.PoolError, match="there is no seal"):
                checkpoints.restore("x")
            with pytest.raises(tidelog.PoolError, match="there is no seal"):
                checkpoints.delete("x")
    with pytest.raises(tidelog.Error):
        tide.checkpoint("x", {})


def test_a_pool_full_of_checkpoints_refuses_with_figures_and_the_training_goes_on(pool):
    tensor = torch.zeros(2 * MIB)
    with offload(None, None, pool, pool_size=64 * MIB, memory=24 * MIB) as tide:
        with pytest.raises(tidelog.PoolError, match="full|no space|needs"):
            for step in range(20):
                tensor.add_(1)
                tide.checkpoint(f"step-{step}", {"t": tensor})
        tensor.add_(1)
        kept = step
        with tidelog.Checkpoints(pool) as checkpoints:
            names = [seal["name"] for seal in checkpoints.list()]
            assert sorted(names) == sorted(f"step-{number}" for number in range(kept))
            checkpoints.verify(names[-1])
            checkpoints.delete(*names)
        tide.checkpoint("after", {"t": tensor})
    assert tidelog.restore(pool, "after")["t"][0] == kept + 2


def test_checkpoints_that_returned_are_there_after_a_kill(pool):
    code = f"""
        import os, signal, torch, tidelog
        tensor = torch.zeros(1 << 18)
        with tidelog.offload(pool=pool, memory={8 * MIB}, staging={2 * MIB}, pool_size={256 * MIB}, buffered=True) as t:
            for step in range(5):
                tensor.add_(1)
                t.checkpoint(f"step-{{step}}", {{"t": tensor}})
            print("made", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    ran = process.run("pool = sys.argv[1]\n" + textwrap.dedent(code), pool)
    assert ran.out == "made\n" and ran.code == -signal.SIGKILL, ran.err
    with tidelog.Checkpoints(pool) as checkpoints:
        for step in range(5):
            assert checkpoints.restore(f"step-{step}")["t"].eq(step + 1).all()


def test_what_a_checkpoint_wrote_is_clean_and_neither_leaves_nor_is_kept_by_another_write(pool):
    names = [f"tensor {number}" for number in range(8)]
    state = {name: torch.randn(MIB // 4) for name in names}  # 1 MiB each, all in memory
    with offload(None, None, pool, memory=96 * MIB) as tide:
        for tensor in state.values():
            tensor.add_(1)
        tide.checkpoint("first", state)
        assert all(tide.is_resident(tensor) for tensor in state.values())
        kept = {"first": {name: tensor.clone() for name, tensor in state.items()}}
        for changed in range(4):
            for name in names[:changed]:
                state[name].mul_(2)
            before = written(tide)
            tide.checkpoint(f"{changed} changed", state)
            more = written(tide) - before
            assert changed * MIB <= more < changed * MIB + MIB // 4, (changed, more)
            kept[f"{changed} changed"] = {name: tensor.clone() for name, tensor in state.items()}
        before = written(tide)
        for tensor in state.values():
            tide.evict(tensor)
        assert written(tide) == before, "their copies are in the log"
    with tidelog.Checkpoints(pool) as checkpoints:
        for checkpoint, tensors in kept.items():
            found = checkpoints.restore(checkpoint)
            for name in names:
                assert torch.equal(found[name], tensors[name]), (checkpoint, name)


def test_a_tensor_is_read_when_it_is_asked_for(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        train(model, optimizer, 2)
        tide.checkpoint("x", {"model": model.state_dict(keep_vars=True), "list": [torch.ones(3)[1:], 5], "step": 2})
    tide.restore()
    with tidelog.Checkpoints(pool) as checkpoints:
        parts = checkpoints.parts("x")
        assert parts["step"] == 2 and parts["list.1"] == 5 and "list.2" not in parts
        assert parts["list.0"].untyped_storage().nbytes() == 8
        assert len(parts) == len(model.state_dict()) + 3
        for key, value in model.state_dict().items():
            assert torch.equal(parts[f"model.{key}"], value), key
        with pytest.raises(KeyError):
            parts["model"]


def test_what_is_on_its_way_out_is_not_written_a_second_time(pool):
    tensor = torch.zeros(8 * MIB)
    with offload(None, None, pool, memory=96 * MIB) as tide:
        for number in range(3):
            tensor.add_(1)
            before, storage = written(tide), tensor.untyped_storage()
            tide.steps.end_touch()
            # The write has begun, and nobody waits for it.
            until_it_waits(tide, partial(tide.session.evict, storage._tide.id))
            tide.checkpoint(f"{number}", {"t": tensor})
            assert 1 <= (written(tide) - before) / tensor.nbytes < 1.02, number
    assert tidelog.restore(pool, "2")["t"].eq(3).all()


def test_what_somebody_sees_the_memory_of_is_written_each_time(pool):
    tensor = torch.zeros(MIB // 4)
    with offload(None, None, pool) as tide:
        tensor.add_(1)
        alias = tensor.numpy()
        for number in range(3):
            alias[:] = number  # which nobody tells
            tide.checkpoint(f"{number}", {"t": tensor})
        with tidelog.Checkpoints(pool) as checkpoints:
            for number in range(3):
                assert checkpoints.restore(f"{number}")["t"].eq(number).all()


@pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning")
def test_what_comes_back_to_be_written_pushes_nothing_out_that_is_being_read(pool, monkeypatch):
    tensors = [torch.full((8 * MIB,), float(number)) for number in range(4)]  # 32 MiB each, and one fits
    with offload(None, None, pool, memory=48 * MIB) as tide:
        # As where what is out has its copy in parts: nobody finds it.
        monkeypatch.setattr(Pool, "copies", lambda _, session, asked, *, write: [None] * len(asked))
        tide.checkpoint("x", tensors)
        with tidelog.Checkpoints(pool) as checkpoints:
            for number, tensor in enumerate(checkpoints.restore("x")):
                assert tensor.eq(number).all(), number


def test_a_refused_checkpoint_leaves_nothing_in_the_pool(pool):
    large, small = torch.zeros(9 * MIB), torch.zeros(1000)
    with offload(None, None, pool, pool_size=64 * MIB, memory=96 * MIB) as tide:
        large.add_(1)
        small.add_(1)
        tide.checkpoint("small", {"small": small})
        before = tide.stats()["pool"]
        pinned = [torch.zeros(MIB) for _ in range(8)]
        aliases = [tensor.numpy() for tensor in pinned]
        for _ in range(3):
            with pytest.raises(tidelog.PoolError, match="full"):
                tide.checkpoint("large", {"large": large, "small": small, "pinned": pinned})
            assert tide.stats()["pool"]["live"] == before["live"]
        del aliases, pinned
        with tidelog.Checkpoints(pool) as checkpoints:
            assert [seal["name"] for seal in checkpoints.list()] == ["small"]


@pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_grows_over_steps_with_checkpoints_and_shapes_that_change(pool, steps):
    choose, state, seen = random.Random(5), {}, []
    with offload(None, None, pool, memory=8 * MIB, pool_size=128 * MIB) as tide:
        for step in range(1, steps + 1):
            with tide.step():
                state[f"tensor {choose.randrange(12)}"] = torch.full((choose.randrange(1, 300_000),), float(step))
                for tensor in state.values():
                    if choose.random() < 0.2:
                        tensor.add_(1)
            if step % 10 == 0:
                tide.checkpoint(f"step-{step}", {"state": state, "step": step})
                with tidelog.Checkpoints(pool) as checkpoints:
                    checkpoints.retain(last=3, prefix="step-")
            if step % (steps // 10) == 0:
                seen.append(Footprint.of(pool, tide))
        kept = {name: tensor.clone() for name, tensor in state.items()}
        found = tidelog.restore(pool, f"step-{steps}")["state"]
        assert kept.keys() == found.keys() and all(torch.equal(kept[name], found[name]) for name in kept)
    warm, end = seen[len(seen) // 3], seen[-1]
    # What stands, what the last three hold besides, and what they have not been able to free yet.
    assert end.live < 5 * 12 * 4 * 300_000 and end.index <= 4 * warm.index, seen
    assert (end.files, end.descriptors) == (warm.files, warm.descriptors), seen
    assert end.threads <= warm.threads + 2, seen  # a plan may be made beside the steps
    assert end.memory < warm.memory + 24 * MIB, seen


class Footprint(typing.NamedTuple):
    """Footprint of a run."""

    files: int  # bytes of the pool's files
    threads: int
    descriptors: int
    memory: int  # bytes of the process
    live: int
    index: int

    @classmethod
    def of(cls, pool, tide):
        files = sum(file.stat().st_size for folder in pool.split(",") for file in Path(folder).iterdir())
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        space = tide.stats()["pool"]
        descriptors = len(os.listdir("/proc/self/fd"))
        memory = int(status["VmRSS"].split()[0]) << 10
        return cls(files, int(status["Threads"]), descriptors, memory, space["live"], space["index"])
