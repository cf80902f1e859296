"""Requests of a session for storages, where C++ leaves it to Python (native/performer.h).

Ctrl-C may end any of these at a call (Python looks for signals there, and at loops). Then the request comes again, and
does no harm.
"""

from __future__ import annotations

import time

import torch

from tidelog import _turns
from tidelog.abi._native import PartsState, Session
from tidelog.memory import _record
from tidelog.memory._device import Host
from tidelog.memory._heap import Cache, Heap
from tidelog.memory._record import Storage, data_ptr, nbytes
from tidelog.native._built import native
from tidelog.native._module import Ledger, Record
from tidelog.storages._async_uses import AsyncUses

_LOAN_POLL_SECONDS = 0.0002


class Requests:
    """Does what one session asks for."""

    def __init__(
        self, session: Session, ledger: Ledger, device: Host, heap: Heap | Cache, async_uses: AsyncUses
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._device = device
        self._heap = heap
        self._async_uses = async_uses

    def evict(self, record: Record, storage: Storage, size: int) -> int:
        """The bytes of a storage are about to be copied out. Returns their address, or 0."""
        address = self.address_of(record, storage, size)
        if address:
            self._ledger.begins(record)
        return address

    def release(self, record: Record, storage: Storage, _size: int) -> None:
        """Releases the memory of a storage whose bytes are elsewhere."""
        if record.in_flight:
            if record.state & _record.COMING:
                self._ledger.order(record)  # it is not wanted any more
            self._ledger.mark(record, _record.OUT)
            self.await_loans(record)
            self._ledger.take(record)
            self._device.reclaim()
            self._ledger.ends(record)

    def allocate(self, record: Record, storage: Storage, size: int) -> int:
        """Allocates memory for bytes that are coming. Returns its address, or 0."""
        address = self._memory_for(record, storage, size)
        if not address:
            return 0  # declined: the session has others leave and asks again, or says so
        self._ledger.mark(record, _record.COMING)
        self._ledger.begins(record)
        self._heap.allocated(size)
        return address

    def settle(self, record: Record, storage: Storage, state: int) -> None:
        """Settles a storage that is in memory, and that no transfer touches."""
        self._ledger.order(record)
        if record.state & _record.AWAY:
            native().open_to_reads(storage)
            self._ledger.share(storage)
        self._ledger.mark(record, _record.CLEAN if state == PartsState.COPIED else _record.SETTLED)
        self._ledger.ends(record)
        if storage._tide_update is not None:
            storage._tide_update.guard(storage)

    def address_of(self, record: Record, storage: Storage, size: int) -> int:
        """The address of a storage that leaves from here on; 0: it cannot now."""
        update = storage._tide_update
        if update is None:
            return self._begin_copy(record, storage, size)
        native().open_to_reads(storage)
        try:
            return self._begin_copy(record, storage, size)
        finally:
            update.guard(storage)

    def _begin_copy(self, record: Record, storage: Storage, size: int) -> int:
        ledger, before = self._ledger, record.state
        # The mark first, then the look: another thread borrows what it uses, or pins it, before it
        # looks for the mark.
        ledger.mark(record, _record.LEAVING)
        self.await_loans(record)
        if not record.pins and not ledger.movable(storage):
            ledger.pin(record)
        if record.pins or nbytes(storage) != size:
            ledger.mark(record, before)
            ledger.measure_again(storage)  # another thread may have resized it
            return 0
        return data_ptr(storage)

    def await_loans(self, record: Record) -> None:
        """Waits until no other thread uses the storage."""
        if record.loans:
            with _turns.awaiting_loans():
                while record.loans:
                    self._async_uses.look()  # a loan may last until one of them ends
                    time.sleep(_LOAN_POLL_SECONDS)

    def _memory_for(self, record: Record, storage: Storage, size: int) -> int:
        """The address of memory that the storage got. 0: there is none, also not in what the
        allocator keeps for later."""
        for last in (False, True):
            try:
                return self._give(record, storage, size)
            except torch.OutOfMemoryError:
                if not last:
                    self._ledger.let_go()
                    self._heap.release()
        return 0

    def _give(self, record: Record, storage: Storage, size: int) -> int:
        self._ledger.make_room(size)
        fresh = self._device.divisible(size)
        if fresh is None:
            address = native().give(storage, size, record.guard())
            if self._ledger.divides_from and self._device.is_divisible(storage):
                self._session.divisible(record.id)
            return address
        address = data_ptr(fresh)
        native().swap(storage, fresh, record.guard(), bool)
        self._session.divisible(record.id)
        return address
