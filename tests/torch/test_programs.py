"""Real programs give the same bits offloaded as plain, at a budget that they do not fit in."""

import contextlib
import functools
import gc
import warnings

import pytest
import torch

import tidelog
from programs import PROGRAMS
from tidetest import KIB, MIB, device
from tidetest.bits import assert_same
from tidetest.ledger import Ledger, pointer_layout_is_known

SHARE = 0.4  # of the plain peak
ROOM = 24 * KIB  # around the largest op: scalars, indices, generator states


def seeded(program, block, seed=1234):
    gc.collect()
    torch.manual_seed(seed)
    return program(block)


@contextlib.contextmanager
def plain_block(model, optimizer=None):
    yield contextlib.nullcontext


@contextlib.contextmanager
def ledger_block(ledgers, model, optimizer=None):
    with Ledger(before=False) as ledger:
        yield contextlib.nullcontext
    ledgers.append(ledger)


@functools.cache
def plain(name):
    """The plain result, and the budget that the program gets. Run twice: a program must repeat
    itself to be compared.
    """
    expected = seeded(PROGRAMS[name], plain_block)
    ledgers = []
    again = seeded(PROGRAMS[name], functools.partial(ledger_block, ledgers))
    check(expected, again)
    largest = max(ledger.largest_op_bytes for ledger in ledgers)
    peak = max(ledger.peak_bytes for ledger in ledgers)
    tensors = max(int(SHARE * peak), largest + ROOM)
    return expected, peak, largest, tensors


def check(expected, got):
    assert [name for name, _ in expected] == [name for name, _ in got]
    for (name, one), (_, other) in zip(expected, got):
        assert_same(one, other, name)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_offloaded_bits_are_the_plain_bits(pool, mode, name):
    expected, peak, largest, tensors = plain(name)
    if device.kind() == "cuda" and tensors >= 0.8 * peak:
        pytest.skip(f"{name}: one op of a GPU's library makes {largest} of the {peak} bytes")
    if pointer_layout_is_known():
        assert tensors < 0.8 * peak, f"peak {peak}, largest op {largest}: too little to move; make the program deeper"
    tides = []

    @contextlib.contextmanager
    def block(model, optimizer=None):
        with tidelog.offload(
            model,
            optimizer,
            pool=pool,
            memory=device.budget(tensors),
            staging=device.STAGING,
            mode=mode,
            pool_size=128 * MIB,
        ) as tide:
            yield tide.step
            tides.append((tide.stats(), tide.peak_bytes, tide.budget))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = seeded(PROGRAMS[name], block)
    check(expected, got)
    for stats, peak_bytes, budget in tides:
        written = stats["bytes_written"]
        assert sum(written.values()) if isinstance(written, dict) else written, (
            "nothing was evicted: the budget is too large"
        )
        assert stats["evictions"] > 0
        assert peak_bytes <= budget


def test_there_are_thirty_programs_or_more():
    assert len(PROGRAMS) >= 30
