"""Storages of which parts are out. Their memory stays where it is: pages are given back, and come again.

While a part is out, the storage has no pointer and is guarded, as one that is out as a whole. Its memory hangs on its
record meanwhile, and is the storage's again when the last part has come back, at the address that it had.
"""

from __future__ import annotations

from functools import partial

import torch

from tidelog.abi._native import PartsState
from tidelog.dispatch._requests import Requests
from tidelog.memory import _record
from tidelog.memory._device import Host
from tidelog.memory._heap import Cache, Heap
from tidelog.memory._record import Storage, data_ptr
from tidelog.native._built import native
from tidelog.native._module import Event, Ledger, Record

_MARKS = {
    PartsState.RESIDENT: _record.SETTLED,
    PartsState.COPIED: _record.CLEAN,
    PartsState.LEAVING: _record.LEAVING,
}


class MemoryInParts:
    """The memory of a storage of which parts move."""

    def __init__(self, storage: Storage, size: int, device: Host) -> None:
        self._size, self._device = size, device
        self._aside: torch.UntypedStorage = native().without_memory(storage, size)
        self._is_aside = False  # whether that has the memory
        self._out: dict[int, int] = {}  # the parts that have no pages: where each begins, and its bytes
        self._arrivals: dict[int, Event] = {}  # where a part that is coming begins -> behind which it may be written
        # Where a part begins that a device may touch -> the storage (and event), alive as long.
        self.moving: dict[int, Storage | tuple[Storage, object]] = {}

    @property
    def address(self) -> int:
        """Returns the address of the memory that was taken from the storage."""
        return data_ptr(self._aside)

    @property
    def present(self) -> int:
        """The bytes that are in memory."""
        return self._size - sum(self._out.values())

    @property
    def is_done(self) -> bool:
        """Returns whether all is in memory and nothing moves."""
        return not (self._out or self.moving)

    def leaves(self, storage: Storage, begin: int, length: int, message: str | None) -> None:
        """A part's pages are given back."""
        if not self._is_aside:
            native().swap(storage, self._aside, message, partial(setattr, self, "_is_aside", True))
        self._device.decommit(self.address, begin, length)
        self._out[begin] = length

    def comes(self, begin: int, length: int) -> bool:
        """A part is about to be written. `False`: there is no memory for it."""
        if begin not in self._out:
            return True  # it is asked for again
        memory = self._device.recommit(self.address, begin, length)
        if not memory:
            return False
        if not isinstance(memory, bool):
            self._arrivals[begin] = memory
        del self._out[begin]
        return True

    def arrival(self, begin: int) -> Event | None:
        """Returns the event behind which a part that is coming may be written, if it has one of its own."""
        return self._arrivals.get(begin)

    def stays(self, begin: int) -> None:
        """No transfer touches a part any more."""
        self.moving.pop(begin, None)
        self._arrivals.pop(begin, None)

    def is_back(self, storage: Storage) -> None:
        """All parts have come: the storage has its memory."""
        if self._is_aside:
            native().swap(storage, self._aside, None, partial(setattr, self, "_is_aside", False))
        else:
            native().open_to_reads(storage)


class PartRequests:
    """Does what a session asks for of parts. As for whole storages, Ctrl-C may come at any call: then the request
    comes again, and does no harm."""

    def __init__(self, ledger: Ledger, device: Host, heap: Heap | Cache, whole: Requests) -> None:
        self._ledger = ledger
        self._device = device
        self._heap = heap
        self._whole = whole

    def after(self, record: Record, storage: Storage, begin: int) -> int:
        """The event after which the memory of a part that moves may be touched; 0: at once."""
        assert record.parted is not None
        event = record.parted.arrival(begin) or self._device.streams.after()
        if event is None:
            return 0
        record.parted.moving[begin] = storage, event
        return event.handle

    def evict(self, record: Record, storage: Storage, _length: int, begin: int) -> int:
        """A part is about to be copied out. Returns its address, or 0."""
        away = bool(record.state & _record.AWAY)
        if record.parted is None and not self._device.is_divisible(storage):
            return 0  # the program has given it other memory
        address = (
            record.parted.address if away and record.parted else self._whole.address_of(record, storage, record.size)
        )
        if not address:
            return 0
        if record.parted is None:
            record.parted = MemoryInParts(storage, record.size, self._device)
        record.parted.moving[begin] = storage
        return address + begin

    def release(self, record: Record, storage: Storage, length: int, begin: int) -> None:
        """Releases the pages of a part whose bytes are elsewhere."""
        parted: MemoryInParts | None = record.parted
        if parted is None or begin not in parted.moving:
            return  # what was coming, and was not asked for yet
        self._ledger.mark(record, _record.OUT)
        self._whole.await_loans(record)
        parted.leaves(storage, begin, length, record.guard())
        self._ledger.has_present(record, parted.present)
        parted.stays(begin)

    def allocate(self, record: Record, storage: Storage, length: int, begin: int) -> int:
        """Returns the bytes are coming. Returns the address, or 0."""
        parted: MemoryInParts | None = record.parted
        assert parted is not None  # it has left, and was not back since
        if not parted.comes(begin, length):
            self._heap.release()
            if not parted.comes(begin, length):
                return 0
        parted.moving[begin] = storage
        self._ledger.has_present(record, parted.present)
        self._heap.allocated(length)
        return parted.address + begin

    def settle(self, record: Record, storage: Storage, state: int, begin: int) -> None:
        """No transfer touches the part; `state` says where all of the storage's are."""
        parted: MemoryInParts | None = record.parted
        if parted is not None:
            parted.stays(begin)
        if state == PartsState.AWAY:
            return
        if record.state & _record.AWAY:
            if parted is not None:
                parted.is_back(storage)
            self._ledger.has_present(record, 0)
        self._ledger.mark(record, _MARKS[PartsState(state)])
        if parted is not None and parted.is_done:
            record.parted = None
        if storage._tide_update is not None:
            storage._tide_update.guard(storage)


def why_not(device: Host, mode: str) -> str | None:
    """Returns the reason why storages move whole, if they have to."""
    if mode != "auto":
        return f"mode={mode!r}: nothing is planned"
    return device.why_no_parts()
