"""dcp.async_save into a pool: the state of the call, whatever the training does meanwhile; no copy of it in memory;
whole or not there."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tidelog
import tidelog.dcp
from test_checkpoints import LAYERS, MIB, made, offload, train, written
from tidelog.dcp import StorageReader, StorageWriter
from tidetest import process

dcp = pytest.importorskip("torch.distributed.checkpoint")
CheckpointException = dcp.api.CheckpointException


def save(state, tide, name, writer=StorageWriter, **options):
    return dcp.async_save(state, storage_writer=writer(tide, name), no_dist=True, **options)


def load(state, pool, name):
    dcp.load(state, storage_reader=StorageReader(pool, name), no_dist=True)
    return state


class Held(StorageWriter):
    """Goes no further than its plan until it is told to."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.may_go_on, self.has_begun = threading.Event(), threading.Event()

    def prepare_global_plan(self, plans):
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        return super().prepare_global_plan(plans)


def test_it_has_the_state_of_the_call_though_all_of_it_is_changed_before_it_is_kept(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        train(model, optimizer, 2)
        tide.checkpoint("beside")
        flags = [True, 3, {"text"}]
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "flags": flags,
            "pair": (torch.ones(3), "of no list"),
            "part": model.layers[3].weight.detach()[2:5, ::2].t(),
            "conjugate": torch.tensor([1 + 2j]).conj(),
            "nothing": torch.zeros(0, 7),
        }
        expected = [state["part"].clone(), state["conjugate"].clone()]
        writer = Held(tide, "async")
        future = dcp.async_save(state, storage_writer=writer, no_dist=True)
        assert writer.has_begun.wait(60)
        train(model, optimizer, 2)
        flags.clear()
        state["pair"][0].zero_()
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.zero_()
                tide.evict(tensor)
        assert tidelog.dcp.names(tide) == [] and not future.done()
        writer.may_go_on.set()
        future.result(60)
        assert tidelog.dcp.names(tide) == ["async"]
        with tidelog.Checkpoints(pool) as checkpoints:
            assert {seal["name"] for seal in checkpoints.list()} == {"beside", "async (metadata)", "async (part)"}
            checkpoints.verify("async (part)")
    tide.restore()
    wanted = tidelog.restore(pool, "beside")
    other, its_optimizer = made(seed=5)
    train(other, its_optimizer, 1)
    found = {
        "model": other.state_dict(),
        "optimizer": its_optimizer.state_dict(),
        "flags": None,
        "pair": None,
        "part": torch.zeros(256, 3),
        "conjugate": torch.zeros(1, dtype=torch.complex64),
        "nothing": torch.ones(0, 7),
    }
    load(found, pool, "async")
    assert found["flags"] == [True, 3, {"text"}] and found["pair"][0].eq(1).all()
    assert torch.equal(found["part"], expected[0]) and torch.equal(found["conjugate"], expected[1])
    for key, value in wanted["model"].items():
        assert torch.equal(found["model"][key], value), key
    for key, values in wanted["optimizer"]["state"].items():
        for name, value in values.items():
            assert torch.equal(found["optimizer"]["state"][key][name], value), (key, name)


def test_what_cannot_move_is_written_at_the_call(pool):
    tensors = [torch.zeros(1000) for _ in range(3)]
    with offload(None, None, pool) as tide:
        alias = [tensor.numpy() for tensor in tensors]
        writer = Held(tide, "a")
        future = dcp.async_save({"t": tensors}, storage_writer=writer, no_dist=True)
        for each in alias:
            each[:] = 5
        writer.may_go_on.set()
        future.result(60)
    assert all(tensor.eq(0).all() for tensor in load({"t": [torch.ones(1000) for _ in range(3)]}, pool, "a")["t"])


def test_what_is_out_is_not_written_again_and_tied_weights_are_kept_once(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        train(model, optimizer, 2)
        for tensor in [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]:
            tide.evict(tensor)
        before = written(tide)
        save({"model": model.state_dict()}, tide, "a").result(60)
        assert written(tide) - before < MIB / 2
        with tidelog.Checkpoints(pool) as checkpoints:
            (part,) = [seal for seal in checkpoints.list() if seal["name"].endswith("(part)")]
        assert (LAYERS - 1) * MIB < part["bytes"] < LAYERS * MIB


PEAK = """
import sys, torch, torch.distributed.checkpoint as dcp, tidelog
from tidelog.dcp import StorageWriter

def status(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) << 10

with tidelog.offload(pool=sys.argv[1], memory=24 * MIB, staging=2 * MIB, pool_size=512 * MIB, buffered=True) as tide:
    state = {str(number): torch.full((MIB,), float(number)) for number in range(32)}  # 128 MiB
    dcp.async_save({"warm": torch.zeros(9)}, storage_writer=StorageWriter(tide, "warm"), no_dist=True).result()
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmHWM")
    future = dcp.async_save(state, storage_writer=StorageWriter(tide, "a"), no_dist=True)
    for tensor in state.values():
        tensor.add_(1)
    future.result()
    more = status("VmHWM") - before
    assert tide.peak_bytes <= tide.budget
    del state, tensor
print(more)
"""


@pytest.mark.host_memory("it looks at the process's memory")
def test_it_takes_no_memory_for_a_copy_of_the_state(pool):
    ended = process.run(PEAK, pool)
    assert ended.code == 0, ended.err
    assert int(ended.out) < 40 * MIB, "of 128 MiB of state, of which at most 24 are in memory"


def test_a_second_save_waits_for_the_first(pool):
    tensor = torch.zeros(1000)
    with offload(None, None, pool) as tide:
        writer = Held(tide, "a")
        first = dcp.async_save({"t": tensor}, storage_writer=writer, no_dist=True)
        threading.Timer(0.5, writer.may_go_on.set).start()
        tensor.add_(1)
        second = save({"t": tensor}, tide, "b")
        assert first.done(), "one at a time"
        tensor.add_(1)
        save({"t": tensor}, tide, "c").result(60)
        second.result(60)
        # One that is not beside the steps waits, too.
        writer = Held(tide, "d")
        fourth = dcp.async_save({"t": tensor}, storage_writer=writer, no_dist=True)
        threading.Timer(0.5, writer.may_go_on.set).start()
        dcp.save({"t": tensor}, storage_writer=StorageWriter(tide, "e"), no_dist=True)
        assert fourth.done()
        assert set(tidelog.dcp.names(tide)) == set("abcde")
    for name, value in zip("abcd", (0, 1, 2, 2), strict=True):
        assert load({"t": torch.full((1000,), 9.0)}, pool, name)["t"].eq(value).all(), name


def test_steps_with_their_own_checkpoints_go_on_beside_it(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        for number in range(6):
            (loss,) = train(model, optimizer, 1)
            assert loss == loss
            future = save({"model": model.state_dict(), "number": number}, tide, f"async-{number}")
            tide.checkpoint(f"own-{number}", {"model": model.state_dict(keep_vars=True)})
        future.result(60)
        with tidelog.Checkpoints(pool) as checkpoints:
            for seal in checkpoints.list():
                checkpoints.verify(seal["name"])
    tide.restore()
    for number in range(6):
        own = tidelog.restore(pool, f"own-{number}")["model"]
        found = load({"model": made(3)[0].state_dict(), "number": None}, pool, f"async-{number}")
        assert found["number"] == number
        for key, value in own.items():
            assert torch.equal(found["model"][key], value), (number, key)


class Computes(dcp.DefaultSavePlanner):
    def transform_object(self, write_item, object):
        found = super().transform_object(write_item, object)
        return found * 2 if isinstance(found, torch.Tensor) else found


def test_what_goes_wrong_is_in_the_future_and_leaves_nothing(pool):
    tensor, large = torch.zeros(1000), torch.zeros(9 * MIB)
    with offload(None, None, pool, pool_size=64 * MIB, memory=192 * MIB) as tide:
        save({"t": tensor}, tide, "a").result(60)
        before = tide.stats()["pool"]["live"]
        wrong = [
            ("has a checkpoint 'a'", save({"t": tensor}, tide, "a")),
            ("compute", save({"t": tensor}, tide, "b", planner=Computes())),
            (
                "flatten",
                save({"in": {"t": tensor}}, tide, "b", planner=dcp.DefaultSavePlanner(flatten_state_dict=False)),
            ),
            ("layout", save({"t": torch.eye(3).to_sparse()}, tide, "b")),
            ("full", save({"t": large + 1, "u": large + 2}, tide, "b")),
        ]
        for message, future in wrong:
            with pytest.raises(CheckpointException, match=message):
                future.result(60)
        tide.saves.wait()
        tidelog.dcp.delete_unfinished(tide)
        assert tidelog.dcp.names(tide) == ["a"]
        with tidelog.Checkpoints(pool) as checkpoints:
            assert len(checkpoints.list()) == 2
        assert tide.stats()["pool"]["live"] == before
        save({"t": tensor}, tide, "b").result(60)


def test_what_is_kept_is_verified_before_it_counts(pool, monkeypatch):
    from tidelog.abi._seals import Pool

    def lost(pool, seal):
        raise tidelog.DeviceError(f"bytes of {seal} are lost")

    tensor = torch.zeros(1000)
    with offload(None, None, pool) as tide:
        monkeypatch.setattr(Pool, "verify", lost)
        with pytest.raises(CheckpointException, match=r"bytes of a \(part\) are lost"):
            save({"t": tensor}, tide, "a").result(60)
        assert tidelog.dcp.names(tide) == []
        dcp.async_save({"t": tensor}, storage_writer=StorageWriter(tide, "a", verify=False), no_dist=True).result(60)


def test_other_stagers_and_threads_are_refused_by_what_to_do(pool):
    tensor = torch.zeros(1000)
    stager = dcp.staging.BlockingAsyncStager()
    with offload(None, None, pool) as tide, ThreadPoolExecutor(1) as threads:
        with pytest.raises(CheckpointException, match="async_stager"):
            save({"t": tensor}, tide, "a", async_stager=stager).result(60)
        with pytest.raises(tidelog.Error, match="on the thread of an open offload block"):
            threads.submit(StorageWriter(tide, "a").stage, {"t": tensor}).result()
    with pytest.raises(tidelog.Error, match="an open offload block"):
        save({"t": tensor}, tide, "a")


PROCESS = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, tidelog
from tidelog.dcp import StorageWriter, names
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meeting", rank=0, world_size=1)
kind = dcp.state_dict_saver.AsyncCheckpointerType.PROCESS
with tidelog.offload(pool=sys.argv[1], memory=24 * MIB, staging=2 * MIB, pool_size=64 * MIB, buffered=True) as tide:
    state = {"t": torch.zeros(9)}
    future = dcp.async_save(state, storage_writer=StorageWriter(tide, "a"), async_checkpointer_type=kind)
    try:
        future.result()
    except tidelog.Error as error:
        print(error)
    dcp.async_save(state, storage_writer=StorageWriter(tide, "b")).result()
    print(names(tide))
dist.destroy_process_group()
print("done")
"""


def test_another_process_is_refused_by_name(pool, tmp_path):
    ended = process.run(PROCESS, pool, tmp_path)
    process.assert_done(ended)
    assert "AsyncCheckpointerType.PROCESS" in ended.out and "['b']" in ended.out


def test_the_end_of_the_block_waits_for_it(pool):
    tensor = torch.zeros(1000)
    with offload(None, None, pool) as tide:
        writer = Held(tide, "a")
        future = dcp.async_save({"t": tensor}, storage_writer=writer, no_dist=True)
        threading.Timer(0.5, writer.may_go_on.set).start()
    assert future.done() and tidelog.dcp.names(pool) == ["a"]


@pytest.mark.parametrize("ends", [True, False])
def test_a_block_that_fails_leaves_it_whole_or_not_there(pool, ends, monkeypatch):
    monkeypatch.setattr("tidelog.checkpoints._async_saves._FAILS_WITHIN_SECONDS", 1.0)
    tensor = torch.zeros(1000)
    with pytest.raises(ZeroDivisionError), offload(None, None, pool) as tide:
        writer = Held(tide, "a")
        future = dcp.async_save({"t": tensor}, storage_writer=writer, no_dist=True)
        if ends:
            threading.Timer(0.1, writer.may_go_on.set).start()
        raise ZeroDivisionError
    writer.may_go_on.set()
    if ends:
        future.result(60)
        assert tidelog.dcp.names(pool) == ["a"]
        return
    with pytest.raises((CheckpointException, tidelog.Error), match="this save is over"):
        future.result(60)
    with tidelog.Checkpoints(pool) as checkpoints:
        assert checkpoints.list() == []


KILLED = """
import sys, torch, torch.distributed.checkpoint as dcp, tidelog
from test_async_saves import Held
with tidelog.offload(pool=sys.argv[1], memory=24 * MIB, staging=2 * MIB, pool_size=64 * MIB, buffered=True) as tide:
    tensor = torch.zeros(MIB)
    writer = Held(tide, "a")
    future = dcp.async_save({"t": tensor}, storage_writer=writer, no_dist=True)
    writer.has_begun.wait()
    print("held", flush=True)
    future.result()
"""


def test_a_kill_leaves_none_and_what_it_held_can_be_freed(pool):
    running = process.start(KILLED, pool)
    running.await_line("held")
    os.kill(running.pid, signal.SIGKILL)
    assert running.finish().code == -signal.SIGKILL
    assert tidelog.dcp.names(pool) == []
    with tidelog.Checkpoints(pool) as checkpoints:
        (left,) = checkpoints.list()
        assert left["name"].endswith(" (staged)") and left["alone"] >= 4 * MIB
    with offload(nn.Linear(3, 3), None, pool, resume="latest") as tide:
        assert tide.resumed is None, "it is none"
        assert tidelog.dcp.delete_unfinished(tide) == []
        with tidelog.Checkpoints(pool) as checkpoints:
            assert checkpoints.list() == []


@pytest.mark.parametrize("way", ["save", "async_save"])
def test_state_that_is_out_stays_out_while_torch_looks_at_it(pool, way):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        train(model, optimizer, 2)
        states = [value for state in optimizer.state.values() for value in state.values()]
        for tensor in [*model.parameters(), *states]:
            tide.evict(tensor)
        before = tide.stats()["totals"]["bytes_read"]
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if way == "save":
            dcp.save(state, storage_writer=StorageWriter(tide, "a"), no_dist=True)
        else:
            save(state, tide, "a").result(60)
        assert not model.layers[3].weight.is_pinned() and not tide.is_resident(model.layers[3].weight)
        assert tide.stats()["totals"]["bytes_read"] == before, "nothing came back"
