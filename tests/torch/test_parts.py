"""Plans that move parts of tensors: the same bits, fewer bytes, and nobody meets a tensor of which a part is out."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
import torch

import tidelog
from tidelog.memory import _kept, _record
from tidetest import MIB
from tidetest.parting import (
    BUDGET,
    COUNT,
    DEADLINE_SECONDS,
    SIZE,
    STAGING,
    Program,
    expected,
    in_memory,
    offload,
    out_in_part,
    plain,
    step,
    step_until_parts_move,
)

pytestmark = [
    pytest.mark.host_memory("test_gpu_parts.py has a GPU's"),
    pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning"),  # some of it does not fit at the end
]


def test_parts_move_less_with_the_same_bits(pool, tmp_path):
    program = Program()
    with offload(program, pool) as tide:
        for _ in range(3):
            step(tide, program)
        step_until_parts_move(tide, program)
        figures, plan = tide.last_step(), tide.stats()["plan"]
        assert plan["storages_in_parts"] and plan["parts_of_storages"] > plan["storages_in_parts"]
        assert tide.stats()["parts"]["storages"] >= 1
        # A whole tensor would be 8 MiB each way.
        moves = figures["fetches_of_parts"] + figures["evictions_of_parts"]
        assert 0 < figures["bytes_of_parts"] < moves * SIZE
        assert tide.peak_bytes <= BUDGET
        simulated = tide.simulate_step()
        assert simulated is not None and simulated["bytes_read"] < COUNT * SIZE
        tide.report(tmp_path / "step.html")
        assert "storages move in" in (tmp_path / "step.html").read_text()
        assert program.sums() == expected(program)


def test_whole_is_the_default(pool):
    program = Program()
    with offload(program, pool, parts="whole") as tide:
        for _ in range(6):
            step(tide, program)
        assert tide.stats()["parts"] is None and not tide.stats()["totals"]["fetches_of_parts"]


def test_what_is_out_in_part_keeps_its_address_and_counts_in_part(pool):
    program = Program()
    with offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
        record = tensor.untyped_storage()._tide
        address, live = record.parted.address, tide.live_bytes
        assert not tide.is_resident(tensor)
        assert live <= BUDGET
        assert live == STAGING + sum(map(in_memory, program.tensors))
        tide.restore(tensor)
        assert tide.live_bytes == STAGING + sum(map(in_memory, program.tensors))
        assert record.state != _record.OUT and record.parted is None and record.present == 0
        with tide.pinned(tensor):
            assert tensor.data_ptr() == address
        assert program.sums() == expected(program)


@pytest.mark.parametrize(
    "touch",
    [
        lambda tensor: tensor.detach().tolist()[::4096],
        lambda tensor: tensor.detach().numpy().copy()[::4096].tolist(),
        lambda tensor: tensor.view(-1, 2).detach()[:, 1].clone()[::2048].tolist(),
        lambda tensor: [tensor[-1].item(), tensor[0].item()],
        lambda tensor: tensor.untyped_storage()[SIZE - 1],
    ],
)
def test_a_touch_brings_all_parts_back(pool, touch):
    program = Program()
    with offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
        index = next(at for at, each in enumerate(program.tensors) if each is tensor)
        got = touch(tensor)
    assert got == touch(plain(program.factors).tensors[index])


def test_another_thread_sees_the_bytes_and_never_zeros(pool):
    program = Program()
    with offload(program, pool) as tide:
        tensor, met = out_in_part(tide, program), []
        thread = threading.Thread(target=lambda: met.append(tensor.detach().double().sum().item()))
        thread.start()
        thread.join(30)
        assert len(met) == 1 and met[0] in expected(program), met
        assert program.sums() == expected(program)


def test_torch_s_own_guard_is_set_while_a_part_is_out(pool):
    """Checks torch's guard, for code in C++ that comes past the dispatcher."""
    program = Program()
    with offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
        with pytest.raises(RuntimeError, match="is on NVMe"):
            _record.data_ptr(tensor.untyped_storage())
        tide.restore(tensor)
        with tide.pinned(tensor):
            assert _record.data_ptr(tensor.untyped_storage())


def test_pages_go_after_loans_have_ended_and_count_from_when_they_come(pool, monkeypatch):
    program, seen = Program(), []
    with offload(program, pool) as tide:
        requests, whole = tide.performer.parts, tide.performer.requests
        await_loans, allocate = whole.await_loans, requests.allocate

        def awaited(record):
            seen.append("loans")
            await_loans(record)

        def allocated(record, storage, length, begin):
            before = record.present
            address = allocate(record, storage, length, begin)
            assert record.present == before + length
            return address

        def told(what, call):
            def wrapper(address, length):
                seen.append((what, address, length))
                call(address, length)

            return wrapper

        monkeypatch.setattr(whole, "await_loans", awaited)
        monkeypatch.setattr(requests, "allocate", allocated)
        for what in ("decommit", "recommit"):
            monkeypatch.setattr(_kept, what, told(what, getattr(_kept, what)))
        step_until_parts_move(tide, program)
        step(tide, program)
    went = {each[1:] for each in seen if each[0] == "decommit"}
    assert went and all(seen[at - 1] == "loans" for at, each in enumerate(seen) if each[0] == "decommit")
    for part in went:
        moves = [each[0] for each in seen if each[1:] == part]
        assert moves == ["decommit", "recommit"] * (len(moves) // 2) + ["decommit"] * (len(moves) % 2), moves


def test_a_part_that_cannot_be_read_fails_the_touch_every_time(pool):
    program = Program()
    with offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
        for folder in pool.split(","):
            for file in Path(folder).iterdir():
                os.truncate(file, MIB)
        for _ in range(2):
            with pytest.raises(tidelog.DeviceError):
                tensor.detach().sum()
            assert tensor.untyped_storage()._tide.state == _record.OUT
        got = {}
        for index, other in enumerate(program.tensors):
            with contextlib.suppress(tidelog.DeviceError):  # of what was out, or left for the other to come
                got[index] = other.detach().double().sum().item()
    with pytest.raises(RuntimeError, match="is on NVMe"):
        tensor.detach().sum()
    values = expected(program)
    assert got == {index: values[index] for index in got}


def test_an_eviction_takes_all_parts(pool):
    program = Program()
    with offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
        for _ in range(2):
            tide.evict(tensor)
            record = tensor.untyped_storage()._tide
            assert record.state == _record.OUT and record.present == 0
            assert record.parted is None or not record.parted.moving  # another plan may have it whole
            tide.restore(tensor)
        assert program.sums() == expected(program)


def await_that_all_that_counts_lives(tide, program):
    """Waits for storages that die while a part of them comes back: each is there until the part is."""
    until = time.monotonic() + DEADLINE_SECONDS
    while tide.live_bytes != STAGING + sum(map(in_memory, program.tensors)):
        assert time.monotonic() < until, tide.stats()
        tide.session.settle()


def test_what_dies_with_a_part_out_is_gone(pool):
    program = Program()
    with offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
        index = next(at for at, each in enumerate(program.tensors) if each is tensor)
        del tensor
        program.tensors[index] = torch.nn.Parameter(torch.zeros(1))
        await_that_all_that_counts_lives(tide, program)
        step(tide, program)
        await_that_all_that_counts_lives(tide, program)


def test_a_step_that_differs_and_the_next(pool):
    program = Program()
    with offload(program, pool) as tide:
        out_in_part(tide, program)
        for _ in range(2):
            with tide.step():
                program.change(2, 0.5)
                program.change(0, 2)
            step(tide, program)
    tide.restore()
    assert program.sums() == expected(program)


def test_a_tensor_that_stays_behind_in_part_comes_back(pool):
    program = Program()
    with pytest.warns(tidelog.LeftBehindWarning), offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
    left = [each for each in program.tensors if not tide.is_resident(each)]
    assert left
    with pytest.raises(RuntimeError, match="is on NVMe"):
        left[0].detach().sum()
    tide.restore()
    assert tide.is_resident(tensor) and program.sums() == expected(program)


def test_a_checkpoint_has_all_parts(pool):
    program = Program()
    with offload(program, pool) as tide:
        out_in_part(tide, program)
        tide.checkpoint("now", {"tensors": [each.detach() for each in program.tensors]})
        at_the_time = expected(program)
        step(tide, program)
    tide.restore()
    with tidelog.Checkpoints(pool) as checkpoints:
        state = checkpoints.restore("now")
    assert [each.double().sum().item() for each in state["tensors"]] == at_the_time


def test_a_child_of_a_fork_meets_an_error(pool):
    program = Program()
    with offload(program, pool) as tide:
        tensor = out_in_part(tide, program)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                tensor.detach().tolist()
            except tidelog.ForkedError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert program.sums() == expected(program)


def test_where_parts_cannot_move_it_is_said(pool):
    program = Program()
    with offload(program, pool, mode="reactive") as tide:
        for _ in range(4):
            step(tide, program)
        notices = [notice for notice in tide.stats()["notices"] if "storages move whole" in notice]
        assert len(notices) == 1 and tide.stats()["parts"] is None
        assert program.sums() == expected(program)
