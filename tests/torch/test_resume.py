"""A block that goes on from a checkpoint: the same bits, within the budget, or an error that says what is missing."""

import ctypes
import gc
import json
import os
import signal
import subprocess
import time
import weakref

import pytest
import torch
from torch import nn

import tidelog
import tidelog.dcp
from test_checkpoints import FORMAT, LAYERS, MIB, made, offload, set_clock_back, train
from tidelog import _devices
from tidelog.abi._seals import Pool
from tidetest import process

dcp = pytest.importorskip("torch.distributed.checkpoint")

STEPS = 6


def program(pool, seed, kill_after):
    """A training program that goes on from the newest checkpoint; prints its losses."""
    model, optimizer = made(int(seed))
    with offload(model, optimizer, pool, resume="latest") as tide:
        begun = tide.resumed.state["step"] if tide.resumed else 0
        print("begins", begun, flush=True)
        for step in range(begun + 1, STEPS + 1):
            (loss,) = train(model, optimizer, 1)
            print("loss", loss.hex(), flush=True)
            state = {"model": model.state_dict(keep_vars=True), "optimizer": optimizer.state_dict()}
            tide.checkpoint(f"step-{step}", {**state, "rng": {"cpu": torch.get_rng_state()}, "step": step})
            if step == int(kill_after):
                os.kill(os.getpid(), signal.SIGKILL)


def run(pool, seed, kill_after=0):
    ran = process.run("from test_resume import program\nprogram(*sys.argv[1:])", pool, seed, kill_after)
    assert ran.code == (-signal.SIGKILL if kill_after else 0), ran.err
    return ran.out.splitlines()


def test_a_killed_run_goes_on_from_its_newest_checkpoint_with_the_same_losses(pool):
    torch.manual_seed(0)
    expected = [f"loss {loss.hex()}" for loss in train(*made(), STEPS)]
    assert run(pool, 0, kill_after=2) == ["begins 0", *expected[:2]]
    # Whatever the model begins with.
    assert run(pool, 7, kill_after=4) == ["begins 2", *expected[2:4]]
    assert run(pool, 8) == ["begins 4", *expected[4:]]


def losing(pool, device):
    """A training program from under which a device is emptied, with what was offloaded to it."""
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        for loss in train(model, optimizer, 2):
            print(loss.hex(), flush=True)
        tide.checkpoint("here")
        os.truncate(device, 0)
        train(model, optimizer, 4)
    print("it was not noticed")


def lacking(devices):
    """Returns the places of the devices that a pool goes on without."""
    command = [FORMAT, "inspect", *devices, "--output", "json"]
    said = subprocess.run(command, check=True, capture_output=True).stdout
    return json.loads(said)["gone_on_without"]


def test_a_run_goes_on_with_the_same_bits_on_a_pool_without_one_device(tmp_path):
    names = [str(tmp_path / name) for name in "abc"]
    command = [FORMAT, "format", *names, "--size", "512MiB", "--copies", "2", "--buffered", "--yes"]
    subprocess.run(command, check=True, capture_output=True)
    model, optimizer = made()
    with offload(model, optimizer, ",".join(names)) as tide:
        train(model, optimizer, 2)
        tide.checkpoint("here")
        expected = train(model, optimizer, 4)
    tide.restore()
    os.remove(names[1])
    left = f"{names[0]},{names[2]}"
    model, optimizer = made(seed=99)
    with pytest.raises(tidelog.Error, match="degraded"), offload(model, optimizer, left):
        pass
    with offload(model, optimizer, left, degraded=True, resume="latest") as tide:
        assert tide.resumed.name == "here"
        losses = train(model, optimizer, 2)
        tide.checkpoint("there")
        assert sum(device["bytes_written"] for device in tide.stats()["devices"]) > 4 * MIB
    tide.restore()
    # What was kept meanwhile has its second copy once there is another device.
    command = [FORMAT, "replace", "1", str(tmp_path / "new"), names[0], names[2], "--buffered", "--yes"]
    subprocess.run(command, check=True, capture_output=True)
    os.remove(names[0])
    model, optimizer = made(seed=98)
    with offload(model, optimizer, f"{names[2]},{tmp_path / 'new'}", degraded=True, resume="latest") as tide:
        assert tide.resumed.name == "there"
        assert losses + train(model, optimizer, 2) == expected
    tide.restore()


def test_a_run_that_loses_a_device_goes_on_from_its_checkpoint_while_another_is_made(tmp_path):
    names = [str(tmp_path / name) for name in "abc"]
    command = [FORMAT, "format", *names, "--size", "512MiB", "--copies", "2", "--buffered", "--yes"]
    subprocess.run(command, check=True, capture_output=True)
    expected = train(*made(), 6)
    ran = process.run("from test_resume import losing\nlosing(*sys.argv[1:])", ",".join(names), names[1])
    assert ran.code == 1 and f"({names[1]})" in ran.err, ran.err
    assert ran.out.splitlines() == [loss.hex() for loss in expected[:2]]
    os.remove(names[1])
    # It goes on with what is left; and once another device is begun, while that is made.
    model, optimizer = made(seed=99)
    with offload(model, optimizer, f"{names[0]},{names[2]}", degraded=True, resume="latest") as tide:
        assert tide.resumed.name == "here"
        assert train(model, optimizer, 2) == expected[2:4]
        tide.checkpoint("there")
    tide.restore()
    command = [FORMAT, "replace", "1", names[1], names[0], names[2], "--begin", "--buffered", "--yes"]
    subprocess.run(command, check=True, capture_output=True)
    model, optimizer = made(seed=98)
    with offload(model, optimizer, ",".join(names), degraded=True, resume="latest") as tide:
        assert tide.resumed.name == "there"
        assert train(model, optimizer, 2) == expected[4:]
        tide.checkpoint("end")
        weights = {name: weight.clone() for name, weight in model.state_dict().items()}
        deadline = time.monotonic() + 60
        while lacking(names) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert lacking(names) == []
        rebuild = tide.stats()["rebuild"]
        assert rebuild["bytes_done"] == rebuild["bytes_total"] > 0 and rebuild["whole"], rebuild
        assert (rebuild["place"], rebuild["error"]) == (1, None), rebuild
    tide.restore()
    # Now another one may go.
    os.remove(names[0])
    model, optimizer = made(seed=97)
    with offload(model, optimizer, f"{names[1]},{names[2]}", degraded=True, resume="latest") as tide:
        assert tide.resumed.name == "end"
        assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    tide.restore()


def test_a_block_whose_pool_is_refused_lets_go_of_its_model(tmp_path):
    model, optimizer = made()
    missing = str(tmp_path / "missing")
    with pytest.raises(tidelog.Error, match="does not exist"), offload(model, optimizer, missing, must_exist=True):
        pass
    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [it() for it in gone] == [None, None]


def test_what_it_goes_on_from_is_more_than_its_budget(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        assert tide.resumed is None
        train(model, optimizer, 2)
        tide.checkpoint("here")
        expected = train(model, optimizer, 2)
    tide.restore()
    other, its_optimizer = made(seed=99)
    with offload(other, its_optimizer, pool, resume="here") as tide:
        assert tide.resumed == ("here", {})
        assert tide.peak_bytes <= 14 * MIB < 3 * (LAYERS - 1) * MIB
        assert train(other, its_optimizer, 2) == expected
    tide.restore()


def test_the_latest_is_the_newest_that_a_block_kept(pool):
    model = nn.Linear(3, 3)
    with offload(model, None, pool, resume="latest") as tide:
        assert tide.resumed is None, "there is none yet"
        for number in (8, 9, 10):
            with torch.no_grad():
                model.weight.fill_(number)
            tide.checkpoint(f"step-{number}")
        dcp.save({"t": torch.zeros(3)}, storage_writer=tidelog.dcp.StorageWriter(tide, "step-11"), no_dist=True)
    with offload(model, None, pool, resume="latest") as tide:
        assert tide.resumed.name == "step-10"
    with offload(model, None, pool, resume="step-8"):
        assert model.weight.eq(8).all()


class Counting(nn.Linear):
    """A module with state that is no tensor, and some that is."""

    def __init__(self, count):
        super().__init__(3, 3)
        self.seen = {"count": count, "sum": torch.full((5,), float(count))}

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state


def test_what_modules_keep_besides_tensors_goes_on_too(pool):
    with offload(Counting(5), None, pool) as tide:
        tide.checkpoint("x")
    model = Counting(0)
    with offload(model, None, pool, resume="x"):
        pass
    assert model.seen["count"] == 5 and model.seen["sum"].eq(5).all()


@pytest.mark.parametrize(
    ("model", "resume", "message"),
    [
        (None, "latest", "needs the model"),
        (nn.Linear(3, 3), "missing", "there is no seal"),
        (nn.Linear(3, 3), "bare", "has no model"),
        (nn.Linear(3, 3, bias=False), "whole", "only one of both has bias"),
        (nn.Linear(3, 4), "whole", r"weight has \(3, 3\) in the checkpoint 'whole', and \(4, 3\)"),
    ],
)
def test_what_it_cannot_go_on_from_is_refused_and_the_block_is_closed(pool, model, resume, message):
    with offload(nn.Linear(3, 3), None, pool) as tide:
        tide.checkpoint("whole")
        tide.checkpoint("bare", {"t": torch.zeros(3)})
    with pytest.raises(tidelog.Error, match=message), offload(model, None, pool, resume=resume):
        raise AssertionError("it has begun")
    with offload(None, None, pool) as tide:
        assert tide.is_open


def test_the_latest_is_the_one_that_was_committed_last_though_the_clock_was_set_back(pool, monkeypatch):
    set_clock_back(monkeypatch)
    for step in (8, 16, 9):
        model, optimizer = made(step)
        with offload(model, optimizer, pool) as tide:
            tide.checkpoint(f"step {step}")
    model, optimizer = made()
    with offload(model, optimizer, pool, resume="latest") as tide:
        assert tide.resumed.name == "step 9"


def test_a_seal_in_a_batch_holds_what_the_batch_has_put(pool):
    with offload(None, None, pool):
        pass
    opened = Pool.open(pool, read_only=False, buffered=True)
    library = opened._library
    library.tide_batch_put.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint64]
    identity, tickets, found = opened.named("weights"), [], ctypes.create_string_buffer(1000)
    for content in (b"old", b"new"):
        with opened.batch() as batch:
            assert library.tide_batch_put(batch, b"weights", content * 100, 300) == 0
            opened.seal(batch, f"of {content.decode()}", [identity])
    for content in (b"old", b"new"):
        opened.get(tickets, f"of {content.decode()}", identity, 0, ctypes.addressof(found), 300)
        opened.wait_all(tickets)
        assert found.raw[:300] == content * 100
    opened.close()


def test_lists_of_devices_are_read_as_the_library_reads_them(tmp_path):
    names = {
        "/a, /b ": ["/a", "/b"],
        r"/a\,b,/c": ["/a,b", "/c"],
        r"/a\b,/c\\,/d\\\,": [r"/a\b", "/c\\", "/d\\,"],
        "/a,": ["/a", ""],
    }
    for text, wanted in names.items():
        assert _devices.split(text) == wanted
    for path in (tmp_path / "a,b", tmp_path / "c\\,d", tmp_path / "e\\"):
        assert _devices.split(_devices.listed(path)) == [str(path)]
    folder = tmp_path / "a,b"
    folder.mkdir()
    with pytest.raises(tidelog.PoolError, match="for a comma that is part of a name"):
        with offload(None, None, str(folder)):
            pass
    assert not any(folder.iterdir()) and list(tmp_path.iterdir()) == [folder]
    with offload(None, None, folder):
        pass
    assert (folder / "tidelog.device").exists()
