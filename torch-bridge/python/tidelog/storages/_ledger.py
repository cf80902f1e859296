"""The ledger: every storage that a block has met, how many bytes of them are in memory, and what the session has yet to
learn of them. It is kept in C++ (native/ledger.h), where no other changes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor

from tidelog.memory import _moves
from tidelog.memory._device import Host
from tidelog.memory._record import Holder, Reach, Record, Storage, nbytes, untyped_storage
from tidelog.native._built import native
from tidelog.storages._ops import is_wrapper, memory_of


class Ledger(Protocol):
    """What the one of a block has for Python."""

    limit: int  # of `live`
    live: int  # bytes of the storages that are in memory: all but those that are OUT
    counted: int  # the same, with those that have died unseen
    departing: int  # bytes that have been given up and are read still
    peak: int  # the highest `live` at an op boundary
    marked: int  # storages that are not plainly resident
    quiet: bool  # nothing is out, on its way or copied, and there is room: ops need not be looked at
    expects_buckets: bool  # whether there is a reducer of DDP
    newborn_is_guarded: bool  # whether storages that are met from now on are guarded when they are out
    newborn_moves: bool  # whether they move
    asks_device: bool  # whether plain memory on the host may be locked by CUDA
    maps_memory: bool  # whether what comes back has memory of ours, not of torch's
    is_in_child: bool  # whether this is a child of a fork: the session is its parent's

    def connect(self, access: Reach, when_full: Callable[[], None]) -> None:
        """`access`: how other blocks and threads reach the storages of this one. `when_full` is called where a birth
        exceeds the limit while all is quiet."""

    # -- births and deaths

    def record_of(self, holder: Holder) -> Record | None:
        """The storage's record; one that was never met is registered. None: not ours to move."""

    def record_of_written(self, holder: Holder) -> Record | None:
        """The record of a storage that an op writes. With DDP, one that was never met is a bucket of a reducer that is
        older than the block: C++ alone has it."""

    def number_of(self, record: Record) -> int:
        """The number by which the session knows a storage, given when it is first needed."""

    def number_from(self, first: int) -> None:
        """The numbers below this are the session's own."""

    def reuse_numbers(self) -> None:
        """A step begins: numbers of storages that died before it are used again."""

    def record_at(self, number: int) -> Record | None:
        """The record of the storage of this number; None: there is none."""

    def name_of(self, number: int) -> str | None:
        """What errors call the storage of this number; None: there is none."""

    def all(self) -> list[Record]:
        """The records of all storages that live."""

    def unmovable(self) -> list[str]:
        """The names of those that stay where they are."""

    def discard(self, storage: Storage) -> None:
        """A storage that is out is emptied: its bytes are never read again, and what it holds later is a new one's."""

    def forget(self, record: Record) -> None:
        """Another block takes the storage over from this one, which has ended."""

    # -- where storages are, and which of them stay there

    def owns(self, storage: Storage) -> bool:
        """Whether its memory is of the kind that the block moves."""

    def mark(self, record: Record, state: int) -> None:
        """Notes the mark that the session put on a storage. What is marked OUT counts no longer."""

    def has_present(self, record: Record, size: int) -> None:
        """So many bytes are in memory of a storage that is marked OUT because parts of it are."""

    def modifies(self, record: Record) -> None:
        """The storage is about to differ from its copy in the log, by what the session is asked about."""

    def modified(self, record: Record) -> None:
        """The same by what the session is not asked about: it hears of it before anything else."""

    def measure_again(self, holder: Holder) -> None:
        """Something may have resized this storage."""

    def has_away(self) -> bool:
        """Whether any storage has no memory, or not its bytes yet."""

    def movable(self, storage: Storage) -> bool:
        """Whether the storage's memory is torch's own to give and take."""

    def pin(self, record: Record) -> None:
        """Keeps a storage where it is for its life: an alias exists that Tidelog cannot see."""

    def unpin(self, record: Record) -> None:
        """Takes one `pin` back."""

    def async_use_begins(self, record: Record) -> None:
        """An op that has returned uses the storage until `async_use_ends`: it stays meanwhile."""

    def async_use_ends(self, record: Record) -> None:
        """One of the asynchronous uses of a storage has ended."""

    def begins(self, record: Record) -> None:
        """A device or a copy may touch the storage's memory from here on: nobody else frees it."""

    def ends(self, record: Record) -> None:
        """Neither does any more."""

    # -- in what order ops and moves use memory

    def launches(self, needs: int) -> None:
        """An op is about to be launched on the current stream, and may use any storage. It makes at most so many
        bytes."""

    def share(self, storage: Storage) -> None:
        """A storage has its bytes again, or is about to lose its memory: that concerns every stream."""

    def after(self, record: Record) -> int:
        """The handle of an event behind everything that was launched, which is noted with a storage whose memory is
        about to be touched. 0: it is all done."""

    def order(self, record: Record) -> None:
        """From here on streams wait for the bytes that are on their way to a storage."""

    # -- memory that goes and comes

    def take(self, record: Record) -> None:
        """A storage that is OUT loses its memory. Where a copy reads that still, it goes when that is over."""

    def make_room(self, needs: int) -> None:
        """So many bytes more are within the limit, with what has been given up and is read still."""

    def let_go(self) -> None:
        """All that has been given up goes: what is launched from here on waits for what reads it."""

    def let_go_at_once(self) -> None:
        """The same where no device reads anything any more."""

    # -- how much is in memory

    def restart_peak(self) -> None:
        """What was alive before counts for `peak` no longer."""

    def is_at_rest(self) -> bool:
        """Whether nothing is out, on its way or copied, and there is room."""

    def begin_quiet(self) -> None:
        """All is at rest: ops need not be looked at from here on."""

    def end_quiet(self) -> None:
        """From here on every op is looked at."""

    def flush(self) -> None:
        """Sends what the session has not heard of: births, deaths, sizes, modifications and pins."""


def ledger_of(device: Host, limit: int, outside: str) -> Ledger:
    """The ledger of a new block. `limit`: of bytes in memory; `outside`: where storages are that are out, in words."""
    place = device.place
    made = native().Ledger(
        *(device, device.streams, place.type, place.index if place.index is not None else -1),
        *(limit, outside, os.getpid()),
    )
    made.asks_device = place.type == "cpu" and torch.cuda.is_initialized()
    made.random_state_bytes = nbytes(untyped_storage(torch.get_rng_state()))
    return cast(Ledger, made)


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
    records: list[Record] = [native().record_for(storage) for storage in storages]
    for record in records:
        record.borrow(1)
    return records


def release_loans(records: Sequence[Record]) -> None:
    """The opposite: it uses them no longer."""
    for record in records:
        record.borrow(-1)


@contextlib.contextmanager
def of_a_reducer(ledger: Ledger) -> Iterator[None]:
    """Storages that are registered meanwhile are buckets of DDP. For each gradient its reducer asks, between two ops
    and in C++, whether the bucket shares memory with it. The guard would refuse that, too; all else that happens to a
    bucket is an op.
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
    if (storage := record()) is not None and any(_moves.data_pointer(storage) in pool for pool in pools):
        record.moves = False
