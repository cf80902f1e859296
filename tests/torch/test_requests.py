"""What a session asks for is done in C++ where it is usual: as in Python, request by request."""

import _thread
import itertools
import threading
from functools import partial

import pytest
import torch
from torch import nn

import tidelog
from tidelog.abi._library import Status
from tidelog.abi._native import Request
from tidelog.dispatch._performer import Performer
from tidelog.memory import _record
from tidetest import KIB, MIB, device
from tidetest.bits import assert_same, bits
from tidetest.requests import Requests, returning, leave_to_python, of_python

pytestmark = pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning")

SIZE = 256 * KIB
USUAL = [Request.EVICT, Request.RELEASE, Request.ALLOCATE, Request.SETTLE]  # those of parts are done in Python


def block(pool, memory=64 * MIB, **options):
    options = {"staging": MIB, "pool_size": 128 * MIB, "mode": "reactive", **options}
    return tidelog.offload(pool=pool, memory=memory, **options)


def moves(pool, in_python):
    """Moves tensors that are new, changed, unchanged, shared by views, not seen by Python, and dead."""
    torch.manual_seed(0)
    opened = block(pool)
    requests = Requests(opened)
    if in_python:
        opened.performer.in_cpp = False  # ops are as they are
    with opened as tide:
        tide.device.streams.after()  # what nobody has seen launched is done: Python waits for that
        tensors = [torch.randn(SIZE // 4) for _ in range(4)]
        tensors.append(torch.nn.Parameter(torch.randn(64, 64)))
        views = [tensor.view(2, -1) for tensor in tensors]
        for _ in range(3):
            for place, tensor in enumerate(tensors):
                tide.evict(tensor)
                assert tensor.sum().isfinite()
                tide.evict(views[place])  # unchanged
                with torch.no_grad():
                    views[place].mul_(2)
                tide.evict(tensor)
        del tensors[0], views[0]  # it is out
        fresh = [torch.ones(SIZE // 4) + number for number in range(3)]
        for tensor in fresh:
            tide.evict(tensor)
            tide.evict(tensor.clone())
        found = bits(torch.cat([tensor.flatten() for tensor in [*tensors, *fresh]]))
        assert tide.ledger.marked == sum(record.state != 0 for record in tide.ledger.all())
    return requests.answered, found


def test_each_is_done_as_in_python(pool, tmp_path, monkeypatch):
    moves(pool, in_python=True)  # the first time ops go through Python, which names what they make otherwise
    in_python, expected = moves(pool, in_python=True)
    other = tmp_path / "another"
    other.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Performer, "_REQUESTS", {})  # none comes there
        answered, found = moves(str(other), in_python=False)
    for number, (ours, theirs) in enumerate(zip(answered, in_python, strict=False)):
        assert ours == theirs, number
    assert len(answered) == len(in_python) > 100
    assert {request[0] for request in answered} == {*USUAL}
    assert_same(found, expected, "what has moved")


@pytest.fixture
def tide(pool):
    with block(pool) as tide:
        yield tide


def borrowed(_tide, tensor):
    """Another thread uses it: its memory stays until that thread has ended."""
    record = tensor.untyped_storage()._tide
    record.borrow(1)
    timer = threading.Timer(0.2, lambda: record.borrow(-1))
    timer.start()
    return timer.join


def resized(_tide, tensor):
    """In C++, which nobody has heard of."""
    torch._C.StorageBase.resize_(tensor.untyped_storage(), 2 * SIZE)
    return None


def pinned(_tide, tensor):
    """In this moment."""
    record = tensor.untyped_storage()._tide
    record.pins += 1

    def unpin():
        record.pins -= 1

    return unpin


@pytest.mark.parametrize("become", [borrowed, resized, pinned])
def test_what_is_unusual_is_left_to_python(tide, become, monkeypatch):
    tensors = [torch.full((SIZE // 4,), float(number)) for number in range(3)]
    for tensor in tensors:
        tide.evict(tensor)
        tensor.mul_(2)
    done = of_python(monkeypatch)
    end = become(tide, tensors[1])
    status = [tide.session.evict(tensor.untyped_storage()._tide.id) for tensor in tensors][-1]
    tide.performer.drive(status)
    assert done[0] == Request.EVICT
    assert done.count(Request.EVICT) == 1, "the others were usual"
    if end is not None:
        end()
    for number, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full((SIZE // 4,), 2.0 * number))
        tide.evict(tensor)


def test_what_was_lent_between_its_copy_and_its_release_keeps_its_memory(tide, monkeypatch):
    tensor = torch.ones(SIZE // 4)
    tide.evict(tensor)
    tensor.mul_(2)
    record = tensor.untyped_storage()._tide
    status = tide.session.evict(record.id)
    tide.performer.perform()
    assert record.state == _record.LEAVING
    done = of_python(monkeypatch)
    end = borrowed(tide, tensor)
    tide.performer.drive(status)
    # What a GPU has copied is compared again before it goes, which meets the loan first.
    assert done == [Request.RELEASE if device.is_host() else Request.EVICT]
    end()
    assert not tide.is_resident(tensor)
    assert tensor.sum() == SIZE // 2


# -- waits of ops ----------------------------------------------------------------------------------


def out_of(tide, count):
    """So many tensors that are out. Whoever sums one up knows already what that needs."""
    tensors = [torch.full((SIZE // 4,), float(number)) for number in range(count)]
    for tensor in tensors:
        tide.evict(tensor)
    for _ in range(2):
        tide.evict(tensors[0])
        tensors[0].sum()
    return tensors


def test_ops_wait_past_python(tide, monkeypatch):
    tensors = out_of(tide, 8)
    tide.evict(tensors[0])
    with monkeypatch.context() as patch:
        patch.setattr(Performer, "drive", None)  # none comes there
        sums = [tensor.sum() for tensor in tensors]
    assert torch.stack(sums).tolist() == [number * SIZE // 4 for number in range(8)]


def interrupted():
    # Nothing of this is in Python: a signal would be handled there, not by who waits. SIGINT is 2, as WAITING is.
    return map(partial(max, key=_thread.interrupt_main), [[int(Status.WAITING)]])


def failed():
    return [int(Status.DEVICE_FAILED)]


@pytest.mark.parametrize(("error", "first"), [(KeyboardInterrupt, interrupted), (tidelog.DeviceError, failed)])
def test_a_wait_past_python_ends_at_once_by(tide, error, first, monkeypatch):
    here, out = out_of(tide, 2)
    waits = itertools.repeat(int(Status.WAITING))
    returns = itertools.chain(first(), itertools.islice(waits, 3), itertools.repeat(*failed()))
    with monkeypatch.context() as patch:
        patch.setattr(Performer, "_await", None)
        with returning(tide, resume=waits, wait=returns):
            here.sum()  # the first goes through Python
            with pytest.raises(error):
                out.sum()
    assert list(itertools.islice(returns, 4)) == [Status.WAITING] * 3 + failed()
    assert (here.sum(), out.sum()) == (0, SIZE // 4)


def test_training_is_the_same_whoever_moves(pool):
    def train(steps):
        torch.manual_seed(0)
        model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        yield model, optimizer
        for _ in range(steps):
            loss = model(torch.randn(64, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()

    _, *expected = train(16)
    training = train(16)
    model, optimizer = next(training)
    options = {"pool": pool, "memory": 3 * MIB, "staging": MIB // 2, "pool_size": 256 * MIB}
    losses, moved = [], []
    with tidelog.offload(model, optimizer, **options) as tide:
        for number in range(16):
            leave_to_python(tide, number % 3 == 2)
            with tide.step():
                losses.append(next(training))
            moved.append(tide.last_step()["evictions"])
        assert tide.phase == "planned"
        assert min(moved[4:]) > 0, moved
    assert losses == expected
