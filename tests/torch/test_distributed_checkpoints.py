"""torch.distributed.checkpoint on a pool: by reference, committed by all ranks at once, found whole or not at all."""

import functools
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch

import tidelog
import tidelog.dcp
from test_checkpoints import FORMAT, MIB, WIDTH, made, offload, set_clock_back, train, written
from tidelog.dcp import StorageReader, StorageWriter
from tidetest import process, resumable

dcp = pytest.importorskip("torch.distributed.checkpoint")
CheckpointException = dcp.api.CheckpointException


def test_it_holds_by_reference_and_loads_parts(pool):
    model, optimizer = made()
    with offload(model, optimizer, pool) as tide:
        train(model, optimizer, 2)
        states = [value for state in optimizer.state.values() for value in state.values()]
        for tensor in [*model.parameters(), *states]:
            tide.evict(tensor)  # what was dirty is written here
        before = written(tide)
        state = {"model": model.state_dict(), "step": 2, "config": {"width": WIDTH}}
        dcp.save(state, storage_writer=StorageWriter(tide, "dcp"), no_dist=True)
        assert written(tide) - before < 2 * MIB, "what is out is held by reference"
        tide.checkpoint("beside", {"model": model.state_dict(keep_vars=True)})
        train(model, optimizer, 1)
    wanted = tidelog.restore(pool, "beside")["model"]
    other, _ = made(seed=5)
    found = {"model": other.state_dict(), "step": 0, "config": {"width": 0}}
    dcp.load(found, storage_reader=StorageReader(pool, "dcp"), no_dist=True)
    assert (found["step"], found["config"]) == (2, {"width": WIDTH})
    for key, value in wanted.items():
        assert torch.equal(found["model"][key], value), key
    part = {"model": {"layers.3.bias": torch.zeros(WIDTH)}}
    dcp.load(part, storage_reader=StorageReader(pool, "dcp"), no_dist=True)
    assert torch.equal(part["model"]["layers.3.bias"], wanted["layers.3.bias"])


def save(state, tide, name):
    dcp.save(state, storage_writer=StorageWriter(tide, name), no_dist=True)


def load(state, pool, name):
    dcp.load(state, storage_reader=StorageReader(pool, name), no_dist=True)
    return state


def test_a_name_that_is_taken_is_refused_and_can_be_deleted(pool):
    tensor = torch.zeros(1000)
    with offload(None, None, pool) as tide:
        save({"t": tensor}, tide, "a")
        tensor.add_(1)
        save({"t": tensor}, tide, "b")
        with pytest.raises(
            CheckpointException, match="has a checkpoint 'a': take another name, or call tidelog.dcp.delete"
        ):
            save({"t": tensor}, tide, "a")
        assert tidelog.dcp.names(tide) == ["a", "b"]
        assert load({"t": torch.ones(1000)}, pool, "a")["t"].eq(0).all()
        tidelog.dcp.delete(tide, "a")
        with pytest.raises(CheckpointException, match="there is no seal"):
            load({"t": torch.ones(1000)}, pool, "a")
        save({"t": tensor + 1}, tide, "a")
    assert set(tidelog.dcp.names(pool)) == {"a", "b"}
    assert load({"t": torch.zeros(1000)}, pool, "a")["t"].eq(2).all()
    assert load({"t": torch.zeros(1000)}, pool, "b")["t"].eq(1).all()


def test_names_are_in_the_order_of_their_commits_though_the_clock_was_set_back(pool, monkeypatch):
    set_clock_back(monkeypatch)
    names = ["step 8", "step 16", "before"]
    with offload(None, None, pool) as tide:
        for name in names:
            save({"t": torch.zeros(3)}, tide, name)
        assert tidelog.dcp.names(tide) == names
    assert tidelog.dcp.names(pool) == names


class EndsBeforeItsFinish(StorageWriter):
    def finish(self, metadata, results):
        raise OSError("it ends here")


def test_a_save_that_did_not_finish_is_no_checkpoint_and_is_made_again(pool):
    tensor = torch.zeros(1000)
    with offload(None, None, pool) as tide:
        with pytest.raises(CheckpointException, match="ends here"):
            dcp.save({"t": tensor}, storage_writer=EndsBeforeItsFinish(tide, "a"), no_dist=True)
        assert tidelog.dcp.names(tide) == []
        with pytest.raises(CheckpointException, match="there is no seal"):
            load({"t": tensor}, pool, "a")
        tensor.add_(5)
        save({"t": tensor}, tide, "a")
        assert load({"t": torch.zeros(1000)}, pool, "a")["t"].eq(5).all()
        with pytest.raises(CheckpointException, match="ends here"):
            dcp.save({"t": tensor}, storage_writer=EndsBeforeItsFinish(tide, "b"), no_dist=True)
        assert tidelog.dcp.delete_unfinished(tide) == ["b"]
        assert load({"t": torch.zeros(1000)}, pool, "a")["t"].eq(5).all()
        tidelog.dcp.delete(tide, "a", "b")
        with tidelog.Checkpoints(pool) as checkpoints:
            assert checkpoints.list() == []


def test_a_part_of_another_save_is_never_taken_for_the_one_that_was_committed(pool):
    tensor = torch.zeros(1000)
    with offload(None, None, pool) as tide:
        save({"t": tensor}, tide, "a")
        tensor.add_(1)
        # As a program would that writes parts past the coordinator.
        writer = EndsBeforeItsFinish(tide, "a")
        writer.prepare_global_plan = lambda plans: plans
        with pytest.raises(CheckpointException, match="ends here"):
            dcp.save({"t": tensor}, storage_writer=writer, no_dist=True)
        with pytest.raises(CheckpointException, match="is of another save than its metadata"):
            load({"t": torch.zeros(1000)}, pool, "a")


TRAIN = """
from tidetest import resumable
resumable.train(*sys.argv[1:])
"""

SHOW = """
from tidetest import resumable
resumable.show(*sys.argv[1:])
"""


def start(script, size, folder, *arguments):
    """Starts a program on `size` ranks."""
    (folder / "meeting").unlink(missing_ok=True)
    words = [(rank, size, folder, *arguments) for rank in range(size)]
    return [process.start(script, *each, imports=["tidetest.resumable"]) for each in words]


def finished(started):
    """Returns the output of each rank; all of them end well."""
    ended = process.finish_all(started)
    for each in ended:
        process.assert_done(each)
    return [each.out for each in ended]


def found(word, text):
    """Returns the values that a rank printed of each step, or of each checkpoint."""
    return re.findall(rf"^{word} (.+)$", text, re.MULTILINE)


@functools.cache
def plain_losses(steps):
    """Returns the output of two ranks without a block."""
    with tempfile.TemporaryDirectory() as folder:
        return [found("step", text) for text in finished(start(TRAIN, 2, Path(folder), steps, "plain"))]


@pytest.mark.host_memory(4)
def test_a_checkpoint_of_two_ranks_loads_on_one_and_on_four(tmp_path):
    saved = finished(start(TRAIN, 2, tmp_path, 6, "block"))
    digests = {found("digest", text)[0] for text in saved}
    assert len(digests) == 1
    for size in (1, 4):
        folder = tmp_path / f"on {size}"
        folder.mkdir()
        loaded = finished(start(SHOW, size, folder, tmp_path / "pool", 6))
        assert {found("digest", text)[0] for text in loaded} == digests, size


@pytest.mark.host_memory(2)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["block", "async"])
def test_a_run_that_is_killed_goes_on_with_the_same_losses(tmp_path, kills, way):
    """Kills runs at random points, one rank or the other. Every checkpoint that had returned is there whole."""
    steps, choose = 12 * kills, random.Random(kills)
    expected = plain_losses(steps)
    pool, most_kept, progressed, resumed = tmp_path / "pool", 0, 0, 0
    for number in range(kills):
        started = start(TRAIN, 2, tmp_path, steps, way)
        for each in started:
            each.await_line(f"begins {most_kept}")
        if (number == 0 or choose.random() < 0.6) and most_kept + resumable.EVERY < steps:
            started[0].await_line(f"kept {most_kept + resumable.EVERY}")
        time.sleep(0.5 * choose.random())
        victim = choose.randrange(2)
        os.kill(started[victim].pid, signal.SIGKILL)
        ended = process.finish_all(started)
        assert ended[victim].code in (-signal.SIGKILL, 0), ended[victim]
        for rank, each in enumerate(ended):
            assert set(found("step", each.out)) <= set(expected[rank]), f"{number}: other losses"
        resumed += most_kept > 0
        returned = [max(map(int, found("kept", each.out)), default=most_kept) for each in ended]
        there = resumable.kept(pool)
        # The other rank may have returned from a save that this one was killed in, or neither, and it is there.
        assert max(returned) <= (there[-1] if there else 0) <= max(returned) + resumable.EVERY, (number, there)
        progressed += bool(there) and there[-1] > most_kept
        most_kept = there[-1] if there else 0
        for share in range(2):
            with tidelog.Checkpoints(pool, share=share) as checkpoints:
                for step in there:
                    checkpoints.verify(f"step-{step} (part)")
    ended = finished(start(TRAIN, 2, tmp_path, steps, way))
    for rank, text in enumerate(ended):
        losses = found("step", text)
        assert losses == expected[rank][len(expected[rank]) - len(losses) :], "other losses"
    assert resumed > kills / 3 and progressed > kills / 3, (resumed, progressed)
    assert found("digest", ended[0]) == found("digest", ended[1])


GO_ON = """
from tidetest import resumable
resumable.go_on(*sys.argv[1:])
"""


@pytest.mark.host_memory(2)
def test_ranks_go_on_by_resume_with_the_same_losses_and_other_numbers_of_ranks_with_the_same_state(tmp_path):
    expected = [losses[:10] for losses in plain_losses(24)]
    begun = start(GO_ON, 2, tmp_path, 10, 7)  # both are killed after step 7
    assert [each.finish().code for each in begun] == [-signal.SIGKILL] * 2
    ended = finished(start(GO_ON, 2, tmp_path, 10))
    for rank, text in enumerate(ended):
        assert found("begins", text) == ["6 step-6"]
        assert found("step", text) == expected[rank][6:], "other losses"
    assert len({found("digest", text)[0] for text in ended}) == 1, "they begin with different states"
    with_tensors = start(GO_ON, 1, tmp_path, 9)
    (alone,) = process.finish_all(with_tensors)
    assert "go on with ranks" in alone.err, alone


@pytest.mark.host_memory(2)
def test_ranks_go_on_by_resume_on_a_pool_without_one_device(tmp_path):
    names = [str(tmp_path / name) for name in "abc"]
    command = [FORMAT, "format", *names, "--size", "64MiB", "--shares", "2", "--copies", "2"]
    subprocess.run([*command, "--buffered", "--yes"], check=True, capture_output=True)
    expected = [losses[:13] for losses in plain_losses(24)]
    begun = start(GO_ON, 2, tmp_path, 10, 7, ",".join(names))  # both are killed after step 7
    assert [each.finish().code for each in begun] == [-signal.SIGKILL] * 2
    os.remove(names[1])
    left = f"{names[0]},{names[2]}"
    assert tidelog.dcp.names(left, degraded=True) == ["step-3", "step-6"]
    with pytest.raises(tidelog.Error, match="degraded"):
        tidelog.dcp.names(left)
    for begin, steps in [(6, 10), (9, 13)]:
        ended = finished(start(GO_ON, 2, tmp_path, steps, 0, left))
        for rank, text in enumerate(ended):
            assert found("begins", text) == [f"{begin} step-{begin}"]
            assert found("step", text) == expected[rank][begin:steps], "other losses"


@pytest.mark.host_memory(4)
def test_four_ranks_checkpoint_is_gone_on_from_by_two(tmp_path):
    four = finished(start(GO_ON, 4, tmp_path, 3))
    (digest,) = {found("digest", text)[0] for text in four}
    two = finished(start(GO_ON, 2, tmp_path, 4))
    for text in two:
        assert found("begins", text) == ["3 step-3"] and found("digest", text)[0] == digest


REFUSED = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, tidelog
from tidetest import resumable
from tidelog.dcp import StorageWriter
rank, pool = resumable.begin(*sys.argv[1:4])
options = {"pool": pool, "pool_size": 64 * MIB, "memory": MIB, "staging": 256 * KIB, "buffered": True}

def refused(of, resume, **state):
    if dist.is_initialized():
        dist.barrier()  # nobody reads any more
    if state:
        with tidelog.offload(None, None, **options) as tide:
            dcp.save(state, storage_writer=StorageWriter(tide, resume))
    try:
        with tidelog.offload(of, None, resume=resume, **options):
            raise AssertionError("it has begun")
    except (tidelog.Error, dcp.api.CheckpointException) as error:
        print(f"refused {resume} {error}".replace(chr(10), " "), flush=True)

model = torch.nn.Linear(3, 3)
with tidelog.offload(model, None, resume="latest", **options) as tide:
    assert tide.resumed is None
    if rank == 0:
        tide.checkpoint("own")
dist.barrier()
refused(model, "latest")
refused(model, "missing")
refused(model, "bare", t=torch.zeros(3))
refused(model, "other", model=torch.nn.Linear(3, 3, bias=False).state_dict())
os.environ["LOCAL_WORLD_SIZE"] = "1"
refused(model, "machines")
dist.destroy_process_group()
os.environ["LOCAL_WORLD_SIZE"] = "2"
refused(model, "group")
print("done", flush=True)
"""


@pytest.mark.host_memory(2)
def test_what_ranks_cannot_go_on_from_is_refused_on_all_of_them(tmp_path):
    expected = {
        "latest": "1 that one process kept by tide.checkpoint ('own'",
        "missing": 'there is no seal "missing',
        "bare": "has no model",
        "other": "only one of both has bias",
        "machines": "1 of the 2 ranks are on this machine",
        "group": "init_process_group",
    }
    for text in finished(start(REFUSED, 2, tmp_path)):
        told = dict(line.split(" ", 1) for line in found("refused", text))
        assert told.keys() == expected.keys()
        for case, words in expected.items():
            assert words in told[case], (case, told[case])
