"""Performance of a session's requests: by callbacks, in C++ (native/performer.h) and in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tidelog.abi._native import Session
from tidelog.dispatch._parts import PartRequests
from tidelog.dispatch._requests import Requests
from tidelog.memory import _record
from tidelog.memory._device import Host
from tidelog.memory._heap import Cache, Heap
from tidelog.native._built import native
from tidelog.native._module import Ledger, Record
from tidelog.storages._async_uses import AsyncUses

_WAIT_MS = 50


class Performer:
    """Performs the requests of one session."""

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
        self._heap = heap
        self._async_uses = async_uses
        self.requests = Requests(session, ledger, device, heap, async_uses)
        self.parts = PartRequests(ledger, device, heap, self.requests)

    def connect(self) -> None:
        """The session, which is open, calls back from here on, and hears of the ledger's storages."""
        uses = self._async_uses
        self._callbacks = native().connect(
            *(self._session, self._ledger, self.requests, self.parts),
            *(self._heap.allocated, lambda: uses.wait_ms(), uses.lists),
        )

    def await_leaving(self, records: Sequence[Record]) -> None:
        """Waits until these are out or stay, as far as they are on their way out."""
        while any(record.state == _record.LEAVING for record in records):
            self._session.wait(_WAIT_MS)

    def leave(self, record: Record) -> None:
        """The block ends and the storage stays out."""
        if (storage := record()) is not None:
            native().guard(storage, record.guard_text())

    def make_usual(self) -> None:
        """Gives memory of torch's to storages that are in memory, as far as there is some."""
        here = [each for each in self._ledger.all() if not (each.state & (_record.AWAY | _record.LEAVING) or each.pins)]
        with contextlib.suppress(RuntimeError):  # there is none for a copy, or the GPU has failed for good
            for record in here if self._ledger.maps_memory else ():
                if (storage := record()) is not None:
                    self._device.make_usual(storage)

    def drop_all(self) -> None:
        """The session has ended: no device touches anything any more."""
        self._device.streams.await_copies()
        self._ledger.let_go_at_once()
        for record in self._ledger.all():
            self._ledger.ends(record)
            if record.parted is not None:
                record.parted.moving.clear()
