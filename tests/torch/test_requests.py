"""Tests that usual requests of a session are done in C++."""

import contextlib
import ctypes
import threading
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import tidelog
from tidelog.abi import _native
from tidelog.memory import _record
from tidelog.storages._async_uses import AsyncUses
from tidetest import KIB, MIB, device, halfway, native
from tidetest.requests import of_python, until_it_waits, when_done

pytestmark = pytest.mark.filterwarnings("ignore::tidelog.LeftBehindWarning")

SIZE = 256 * KIB
HEADERS = Path(__file__).resolve().parents[2] / "torch-bridge" / "include"


def block(pool, memory=64 * MIB, **options):
    where = {"pool_size": 128 * MIB, "host_memory": device.host_memory}
    options = {"staging": MIB, "mode": "reactive", **where, **options}
    return tidelog.offload(pool=pool, memory=memory, **options)


@pytest.fixture
def tide(pool):
    with block(pool) as tide:
        yield tide


def borrowed(_tide, tensor):
    """Borrows the storage in another thread: its memory stays until that thread has ended."""
    record = tensor.untyped_storage()._tide
    record.borrow(1)
    timer = threading.Timer(0.2, lambda: record.borrow(-1))
    timer.start()
    return timer.join


def resized(_tide, tensor):
    """Resizes the storage in C++, unseen by the block."""
    torch._C.StorageBase.resize_(tensor.untyped_storage(), 2 * SIZE)
    return None


def pinned(_tide, tensor):
    """Pins the storage in this moment."""
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
    for tensor in tensors:
        tide.session.evict(tensor.untyped_storage()._tide.id)
    assert done[0] == "evict"
    assert done.count("evict") == 1, "the others were usual"
    if end is not None:
        end()
    for number, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full((SIZE // 4,), 2.0 * number))
        tide.evict(tensor)


@pytest.mark.host_memory("a GPU has copied before it can be asked")
def test_what_is_leaving_stays_when_all_is_restored(pool):
    """Checks a block that ends with more in memory than its budget, as it was told to: nothing is left behind."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", tidelog.LeftBehindWarning)
        with block(pool, memory=4 * MIB) as tide:
            tensors = [torch.full((SIZE // 4,), float(number)) for number in range(20)]
            assert tide.ledger.has_away()
            halfway.begin_eviction(tide, tensors[-1])
            tide.restore()
    assert [each[0].item() for each in tensors] == [*range(20)]


def test_what_was_lent_between_its_copy_and_its_release_keeps_its_memory(tide, monkeypatch):
    tensor = torch.ones(SIZE // 4)
    tide.evict(tensor)
    tensor.mul_(2)
    record = tensor.untyped_storage()._tide
    done, ends = of_python(monkeypatch), []
    if device.host_memory is None:
        until_it_waits(tide, partial(tide.session.evict, record.id))
        assert record.state == _record.LEAVING
        ends.append(borrowed(tide, tensor))
        tide.session.evict(record.id)
        # What a GPU has copied is compared again before it goes, which meets the loan first.
        assert done == ["release" if device.is_host() else "evict"]
    else:
        with when_done(tide, lambda _address: ends.append(borrowed(tide, tensor))):
            tide.session.evict(record.id)
        assert done == ["release"]
    for end in ends:
        end()
    assert not tide.is_resident(tensor)
    assert tensor.sum() == SIZE // 2


# -- waits of ops ----------------------------------------------------------------------------------


def out_of(tide, count):
    """Returns `count` tensors that are out. Whoever sums one up knows already what that needs."""
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
        patch.setattr(AsyncUses, "wait_ms", None)  # none comes there
        sums = [tensor.sum() for tensor in tensors]
    assert torch.stack(sums).tolist() == [number * SIZE // 4 for number in range(8)]


INTERRUPTING = """
#include <signal.h>
#include <tidelog.h>
int32_t (*set)(uint64_t, const tide_session_callbacks *);
static tide_session_callbacks theirs;
int waits;
static int32_t wait_ends(void *context) {
    if (++waits == 1) raise(SIGINT);
    return theirs.wait_ends(context);
}
int32_t set_callbacks(uint64_t session, const tide_session_callbacks *callbacks) {
    tide_session_callbacks ours = theirs = *callbacks;
    ours.wait_ends = wait_ends;
    return set(session, &ours);
}
"""


def test_ctrl_c_ends_a_wait_at_once(tide, tmp_path):
    here, *outs = out_of(tide, 9)
    stub = ctypes.CDLL(str(native.build(tmp_path, "interrupting", INTERRUPTING, f"-I{HEADERS}")))
    library = tide.session._library
    kept = library.tide_session_set_callbacks
    ctypes.c_void_p.in_dll(stub, "set").value = ctypes.cast(kept, ctypes.c_void_p).value
    library.tide_session_set_callbacks = stub.set_callbacks
    try:
        here.sum()
        tide.performer.connect()
        # On a busy machine the bytes of one may be there before it is waited for.
        with pytest.raises(KeyboardInterrupt):
            for out in outs:
                out.sum()
    finally:
        library.tide_session_set_callbacks = kept
        tide.performer.connect()
    assert ctypes.c_int.in_dll(stub, "waits").value == 1
    assert [each.sum() for each in (here, *outs)] == [number * SIZE // 4 for number in range(9)]


# -- how often the library is called ---------------------------------------------------------------


@contextlib.contextmanager
def counted(tide):
    """Counts Python's calls of each function of the library."""
    counts, library = {}, tide.session._library

    def counting(name, function):
        def call(*arguments):
            counts[name] = counts.get(name, 0) + 1
            return function(*arguments)

        return call

    kept = {name: getattr(library, name) for name in _native.SIGNATURES}
    for name, function in kept.items():
        setattr(library, name, counting(name, function))
    try:
        yield counts
    finally:
        for name, function in kept.items():
            setattr(library, name, function)


def test_an_eviction_is_one_call_of_the_library_whatever_moves_for_it(tide):
    tensors = out_of(tide, 3)
    for each in tensors:
        tide.evict(each)
    with counted(tide) as counts:
        tide.session.evict(tensors[1].untyped_storage()._tide.id)
    assert not tide.is_resident(tensors[1])
    assert counts == {"tide_session_evict": 1}


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
            tide.ledger.maps_memory = number % 3 == 2
            with tide.step():
                losses.append(next(training))
            moved.append(tide.last_step()["evictions"])
        assert tide.phase == "planned"
        assert min(moved[4:]) > 0, moved
    assert losses == expected
