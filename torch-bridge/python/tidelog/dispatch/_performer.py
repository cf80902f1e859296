"""What only Python can do for a session: free and allocate storages' memory, when it asks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import torch

from tidelog import _turns
from tidelog.abi._library import Status
from tidelog.abi._native import Request, Session
from tidelog.dispatch._parts import PartRequests
from tidelog.memory import _moves, _record
from tidelog.memory._device import Host
from tidelog.memory._heap import Cache, Heap
from tidelog.memory._record import Record, Storage, data_ptr, nbytes
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ledger import Ledger

# A lookup in an enum is a call of its own until Python 3.12, and these are looked at for each op.
_READY, _ACTION = Status.READY, Status.ACTION

_WAIT_MS = 50  # short, so that Ctrl-C is heard
_ASYNC_POLL_MS = 1  # while ops that have returned use storages: nothing else says when they end
_LOAN_POLL_SECONDS = 0.0002


class Performer:
    """Performs the requests of one session, and waits where it waits."""

    def __init__(
        self,
        session: Session,
        ledger: Ledger,
        device: Host,
        heap: Heap | Cache,
        async_uses: AsyncUses,
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._device = device
        self.in_cpp = True  # usual requests are done by native/performer.h
        self._heap = heap
        self._async_uses = async_uses
        self.is_performing = False  # whether a request is being done, here
        self._depth = 0  # how many ops, or requests, are around what is done now
        self._parts = PartRequests(session, ledger, device, heap, self._evict_storage, self._await_loans)
        self.performs_all()

    def drive(self, status: int) -> None:
        """Performs what the session asks for and waits where it waits, until it is ready."""
        while status != _READY:
            if status == _ACTION:
                self.perform()
                status = self._session.resume()
            else:
                status = self._await()

    def _await(self) -> int:
        """Waits a while for what the session waits for; returns how it goes on."""
        uses = self._async_uses
        if not uses:
            return self._session.wait(_WAIT_MS)  # without the lock of the interpreter
        if uses.look() or uses.end_alone():
            return self._session.wait(_ASYNC_POLL_MS)
        return self._session.resume_or_refuse()

    def settle(self) -> None:
        """Takes in what completed, and evicts until the budget holds."""
        self.drive(self._session.settle())

    def await_leaving(self, records: Sequence[Record]) -> None:
        """Waits until these are out or stay, as far as they are on their way out."""
        while any(record.state == _record.LEAVING for record in records):
            self.drive(self._session.wait(_WAIT_MS))

    def performs_all(self) -> None:
        """From here on all is done here."""
        # Does requests as long as they are usual; returns whether that was all (`_dispatch`).
        self.perform_usual: Callable[[], bool] = bool

    def perform(self) -> None:
        """Performs what is asked for now. A request that an interrupt cut short is handed out again
        until it is reported done."""
        outer = self.is_performing
        try:
            self.is_performing = True
            self._perform()
        finally:
            self.is_performing = outer

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What begins meanwhile is in the middle of an op, or of a request: a finalizer that runs ops. What is around
        it stays as it is."""
        outer, performing = self._depth, self.is_performing
        try:
            self._depth, self.is_performing = outer + 1, False
            self.drive(self._session.nest(outer + 1))
            yield
        finally:
            self._depth, self.is_performing = outer, performing
            self._session.nest(outer)  # what is to be done next is for whoever is around

    def _perform(self) -> None:
        session = self._session
        while not self.perform_usual() and (action := session.next_action()) is not None:
            record = self._ledger.record_at(action.storage)
            storage = record() if record is not None else None
            address = after = 0
            if record is not None and storage is not None:
                if action.kind > Request.SETTLE:
                    session.action_done(action.sequence, *self._parts.perform(action, record, storage))
                    continue
                address = self._REQUESTS[action.kind](self, record, storage, action.size)
            elif record is not None and action.kind in (Request.RELEASE, Request.SETTLE):
                self._ledger.ends(record)  # its memory was in flight when it died
            if address and record is not None and (after := self._ledger.after(record)):
                if action.kind == Request.ALLOCATE and self._device.streams.complete_by_event():
                    # From then on the event is behind the copies, no longer before them.
                    session.allocated(action.sequence, address, after, after)
                    continue
            session.action_done(action.sequence, address, after)

    def look_at_async_uses(self) -> None:
        """What a collective used is let go, also where nothing has to be moved."""
        self._async_uses.look()

    def leave(self, record: Record) -> None:
        """The block ends and the storage stays out."""
        if (storage := record()) is not None:
            _moves.guard(storage, record.guard_text())

    def make_usual(self) -> None:
        """What is in memory has memory of torch's again, as far as there is some."""
        with contextlib.suppress(RuntimeError):  # there is none for a copy, or the GPU has failed for good
            here = (each for each in self._ledger.all() if not each.state & (_record.AWAY | _record.LEAVING))
            self._device.make_all_usual(storage for each in here if not each.pins and (storage := each()) is not None)

    def drop_all(self) -> None:
        """The session has ended: no device touches anything any more."""
        self._device.streams.await_copies()
        for record in self._ledger.all():
            self._ledger.ends(record)
            if record.parted is not None:
                record.parted.moving.clear()

    # Ctrl-C may end any of these at a call (Python looks for signals there, and at loops). Then the
    # request comes again, and does no harm.

    def _evict(self, record: Record, storage: Storage, size: int) -> int:
        address = self._evict_storage(record, storage, size)
        if address:
            self._ledger.begins(record)
        return address

    def _evict_storage(self, record: Record, storage: Storage, size: int) -> int:
        update = storage._tide_update
        if update is None:
            return self._begin_copy(record, storage, size)
        _moves.open_to_reads(storage)
        try:
            return self._begin_copy(record, storage, size)
        finally:
            update.guard(storage)

    def _begin_copy(self, record: Record, storage: Storage, size: int) -> int:
        ledger, before = self._ledger, record.state
        # The mark first, then the look: another thread borrows what it uses, or pins it, before it
        # looks for the mark.
        ledger.mark(record, _record.LEAVING)
        self._await_loans(record)
        if not record.pins and not ledger.movable(storage):
            ledger.pin(record)
        if record.pins or nbytes(storage) != size:
            ledger.mark(record, before)
            ledger.measure_again(storage)  # another thread may have resized it
            return 0
        return _moves.data_pointer(storage)

    def _await_loans(self, record: Record) -> None:
        if record.loans:
            with _turns.awaiting_loans():
                while record.loans:
                    self._async_uses.look()  # a loan may last until one of them ends
                    time.sleep(_LOAN_POLL_SECONDS)

    def _release(self, record: Record, storage: Storage, _size: int) -> int:
        if record.in_flight:
            self._ledger.order(record)  # what is coming, and is not wanted any more
            self._ledger.mark(record, _record.OUT)
            self._await_loans(record)
            self._ledger.share(storage)
            _moves.take(storage, record.guard())
            self._device.reclaim()
            self._ledger.ends(record)
        return 0

    def _allocate(self, record: Record, storage: Storage, size: int) -> int:
        address = self._memory_for(record, storage, size)
        if not address:
            return 0  # declined: the session has others leave and asks again, or says so
        self._ledger.mark(record, _record.COMING)
        self._ledger.begins(record)
        self._heap.allocated(size)
        return address

    def _memory_for(self, record: Record, storage: Storage, size: int) -> int:
        """The address of memory that the storage got. 0: there is none, also not in what the
        allocator keeps for later."""
        for last in (False, True):
            try:
                return self._give(record, storage, size)
            except torch.OutOfMemoryError:
                if not last:
                    self._heap.release()
        return 0

    def _give(self, record: Record, storage: Storage, size: int) -> int:
        fresh = self._device.divisible(size)
        if fresh is None:
            return _moves.give(storage, size, record.guard())
        address = data_ptr(fresh)
        _moves.swap(storage, fresh, record.guard())
        self._session.divisible(record.id)
        return address

    def _settle(self, record: Record, storage: Storage, clean: int) -> int:
        if record.state & _record.AWAY:
            self._ledger.order(record)
            _moves.open_to_reads(storage)
            self._ledger.share(storage)
        self._ledger.mark(record, _record.CLEAN if clean else _record.SETTLED)
        self._ledger.ends(record)
        if storage._tide_update is not None:
            storage._tide_update.guard(storage)
        return 0

    _REQUESTS: ClassVar[dict[int, Callable[[Performer, Record, Storage, int], int]]] = {
        Request.EVICT: _evict,
        Request.RELEASE: _release,
        Request.ALLOCATE: _allocate,
        Request.SETTLE: _settle,
    }
