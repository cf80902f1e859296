"""Ops that go on after they have returned: collectives, sends and receives.

A collective reads and writes raw addresses, on another thread or stream, until its `Work` is
complete, whoever waits for it, and also where nobody does. So what it uses stays where it is until
then. The residency machine keeps it there; this class tells it when such a use begins and ends.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from tidelog.memory._record import Storage
from tidelog.native._built import native
from tidelog.native._module import Ledger, Record
from tidelog.storages._ledger import borrowed, release_loans
from tidelog.storages._ops import Args, Kwargs, OpInfo, OpOverload, Work, awaits, storages_of

_POLL_MS = 1


class _Use:
    """Use of storages by one `Work`. That keeps the storages alive: their memory counts until it ends, and is nobody
    else's.
    """

    __slots__ = ("ends_alone", "records", "storages", "waited", "work")

    def __init__(self, work: Work, storages: Sequence[Storage], records: Sequence[Record], ends_alone: bool) -> None:
        self.work = work
        self.storages = storages
        self.ends_alone = ends_alone
        self.records = records
        self.waited = False

    def has_ended(self) -> bool:
        # Gloo's reduce-scatter never says that it is complete.
        return self.waited or self.work.is_completed()


class AsyncUses:
    """The asynchronous uses of a block's storages that have not ended."""

    def __init__(self, ledger: Ledger, when_begun: Callable[[], None]) -> None:
        self._ledger = ledger
        self._when_begun = when_begun
        self._running: list[_Use] = []
        self._elsewhere: collections.deque[_Use] = collections.deque()  # that other threads began: `began_elsewhere`
        self.lists = self._running, self._elsewhere  # C++ looks whether there are any: never replaced

    def began(self, info: OpInfo, args: Args, kwargs: Kwargs, result: Any) -> None:
        """An op has returned, and goes on where its result says so."""
        self.look()
        self._when_begun()
        for work in info.works_in(result):
            storages = [each for each in storages_of(args, kwargs) if self._ledger.record_of_written(each) is not None]
            records = [record for storage in storages if (record := storage._tide) is not None]
            use = _Use(work, storages, records, info.ends_alone(storages))
            self._running.append(use)
            for record in use.records:
                self._ledger.async_use(record, True)

    def began_elsewhere(self, info: OpInfo, result: Any, storages: Sequence[Storage]) -> None:
        """Begins a use in another thread, which cannot speak to the session: its storages are borrowed until the use
        ends.
        """
        for work in info.works_in(result):
            self._elsewhere.append(_Use(work, storages, borrowed(storages), info.ends_alone(storages)))

    def launch(self, func: OpOverload, args: Args, kwargs: Kwargs, run: Callable[[], Any]) -> Any:
        """Runs a functional collective as the ops that it is made of, which are seen."""
        with native().BetweenOps():
            result = run()
        if awaits(func):
            self._waited_for(storages_of(args, kwargs))
        return result

    def waited(self, work: Work) -> None:
        """Records that somebody has waited for this `Work`."""
        for use in [*self._running, *self._elsewhere]:
            if use.work is work:
                self._is_awaited(use)

    def _waited_for(self, storages: Sequence[Storage]) -> None:
        """Records that somebody has waited for everything that used these storages."""
        for use in [*self._running, *self._elsewhere]:
            if any(storage in storages for storage in use.storages):
                self._is_awaited(use)

    def _is_awaited(self, use: _Use) -> None:
        """Ends a use that was waited for. On a GPU it may go on: the current stream alone waits for it, and no
        thread."""
        use.waited = True
        for record in use.records:
            self._ledger.awaited_here(record)

    def look(self) -> bool:
        """Notes the uses that have ended; returns whether any has."""
        ended = [use for use in self._running if use.has_ended()]
        for use in ended:
            self._running.remove(use)
            for record in use.records:
                self._ledger.async_use(record, False)
        for _ in range(len(self._elsewhere)):
            use = self._elsewhere.popleft()
            if use.has_ended():
                release_loans(use.records)
            else:
                self._elsewhere.append(use)
        return bool(ended)

    def forget(self) -> None:
        """The block has ended: nothing leaves any more."""
        self._running.clear()
        while self._elsewhere:
            release_loans(self._elsewhere.popleft().records)

    def __bool__(self) -> bool:
        """Returns whether there is any."""
        return bool(self._running or self._elsewhere)

    def wait_ms(self) -> int:
        """Returns the milliseconds to wait before they are looked at again: nothing else says when they end. 0: waiting
        does not help.
        """
        helps = self.look() or any(use.ends_alone for use in [*self._running, *self._elsewhere])
        return _POLL_MS if helps else 0
