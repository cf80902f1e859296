"""The ledger of a block, which is kept in C++ (native/ledger.h): how it begins, how tensors that are there already come
into it, and loans to other threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tidelog.memory._device import Host
from tidelog.memory._record import Storage, data_ptr, nbytes, untyped_storage
from tidelog.native._built import native
from tidelog.native._module import Ledger, Record
from tidelog.storages._ops import is_wrapper, memory_of


def ledger_of(device: Host, limit: int, outside: str) -> Ledger:
    """The ledger of a new block. `limit`: of bytes in memory; `outside`: where storages are that are out, in words."""
    made = native().ledger(device, device.streams, device.place, limit, outside)
    made.asks_device = device.locks_memory()
    made.random_state_bytes = nbytes(untyped_storage(torch.get_rng_state()))
    return made


def adopt(ledger: Ledger, tensor: Tensor | None) -> Record | None:
    """The record of a tensor's storage. None also where there is no storage, or one without memory: torch.compile
    leaves tensors behind that only stand for others.
    """
    if tensor is not None and not torch._is_functional_tensor(tensor):
        try:
            storage = untyped_storage(tensor)
        except RuntimeError:
            for component in memory_of(tensor):
                ledger.record_of(component)
            return None  # sparse and opaque layouts have no storage of their own
        return ledger.record_of(storage) if not is_wrapper(tensor) else None
    return None


def borrowed(storages: Sequence[Storage]) -> list[Record]:
    """Counts another thread in that uses these storages: their records. Also of those that no block has met: the
    block's thread may meet them, and have them leave, while they are in use."""
    records = [native().record_for(storage) for storage in storages]
    for record in records:
        record.borrow(1)
    return records


def release_loans(records: Sequence[Record]) -> None:
    """The opposite: it uses them no longer."""
    for record in records:
        record.borrow(-1)


@contextlib.contextmanager
def of_a_reducer(ledger: Ledger) -> Iterator[None]:
    """Storages that are registered meanwhile are buckets of DDP, or integers: of those its reducer keeps addresses
    from one op to the next, so they stay. For each gradient it asks, between two ops and in C++, whether the bucket
    shares memory with it, which reads no address. The guard would refuse that, too; all else that happens to a bucket
    is an op.
    """
    ledger.expects_buckets = True
    ledger.newborn_is_guarded = False
    try:
        yield
    finally:
        ledger.newborn_is_guarded = True


def leave_in_pools(record: Record, pools: Sequence[range]) -> None:
    """A storage that lies in one of these, which the program manages itself, stays there: other memory would not be the
    same to it."""
    if (storage := record()) is not None and any(data_ptr(storage) in pool for pool in pools):
        record.moves = False
