"""Accesses that are no op of the block's thread: they are made to find the bytes, and are accounted for.

What notices them is `_escape`, for calls that do not go through the dispatcher, and `_threads`, for other threads.
"""

import threading

from tidelog import _record
from tidelog._hook import MODIFIES


class Access:
    def __init__(self, ledger, session, hook):
        self._ledger = ledger
        self._session = session
        self._hook = hook
        self._thread = threading.get_ident()

    def is_elsewhere(self):
        """Whether this is another thread than the block's own."""
        return threading.get_ident() != self._thread

    def bring_back(self, *storages, written=None):
        """Makes storages resident, together, for an access that does not go through the dispatcher. `written`: the
        one that it writes or gives other memory; what copies it out is called off first."""
        records = [storage._tide for storage in storages if storage._tide is not None]
        changed = written._tide if written is not None else None
        due = [
            record
            for record in records
            if record.state & _record.AWAY or (record is changed and record.state & _record.LEAVING)
        ]
        if not due:
            return
        if self._session.forked:
            for record in due:
                record.refuse_in_child()
            return
        if self.is_elsewhere():
            due[0].refuse()
        ledger = self._ledger
        for foreign in {record.ledger for record in due if record.ledger is not ledger}:
            foreign.tide.access.bring_back(*(each() for each in records if each.ledger is foreign), written=written)
        self._hook.touch(
            {record.id: MODIFIES if record is changed else 0 for record in records if record.ledger is ledger}
        )

    def wrote(self, storage):
        """A storage was written by a call that is no op."""
        record, session = storage._tide, self._session
        if session.forked or self.is_elsewhere():
            return  # a clean copy is compared with memory before it is trusted, so nothing is lost
        if record is not None and record.state & _record.AWAY:
            return  # it left after the write, which the call's own ops made
        if record is not None and record.ledger is self._ledger:
            self._ledger.modifies(record)
            session.check(session.library.tide_session_modified(session.sync(), record.id))
        session.measure_again(storage)

    def hold(self, storage):
        """Keeps a storage's memory where it is until what this answers is gone. None: it does not move anyway."""
        record = storage._tide if self.is_elsewhere() else self._ledger.record_of(storage)
        return record.hold() if record is not None else None

    def moves(self, tensor):
        """Whether the tensor's memory may leave while the block is open."""
        record = self._ledger.adopt(tensor)
        return record is not None and not record.pins

    def hand_over(self, storage, record):
        """Another block takes a storage over from this one, which has ended."""
        self.bring_back(storage, written=storage)
        ledger, session = self._ledger, self._session
        if ledger.records.pop(record.id, None) is not None and session.handle and not session.forked:
            ledger.deaths.append(record.id)
            session.sync()
