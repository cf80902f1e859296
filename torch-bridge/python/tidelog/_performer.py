"""What only Python can do for the residency machine: free and allocate storages' memory, when it asks for that."""

import ctypes
import time

import torch

from tidelog import _movers, _native, _record

_nbytes = torch._C.StorageBase.nbytes

_LOAN_POLL_SECONDS = 0.0002


class Performer:
    """Performs the requests of one block's machine, and waits where the machine waits."""

    def __init__(self, session, ledger, device, mover, heap):
        self._session = session
        self._ledger = ledger
        self._device = device
        self._mover = mover
        self._heap = heap
        self._in_flight = {}  # storage id -> storage (and event): alive while a device or a copy may touch it
        self._action = _native.Action()

    def drive(self, status):
        """Performs what the machine asks for and waits where it waits, until it is ready."""
        session = self._session
        while status != _native.READY:
            if status == _native.ACTION:
                self.perform()
                status = session.library.tide_session_resume(session.sync())
            elif status == _native.WAITING:
                # Short, so that Ctrl-C is heard; the lock of the interpreter is released meanwhile.
                status = session.library.tide_session_wait(session.sync(), 50)
            else:
                raise session.error(status)

    def settle(self):
        """Takes in what completed, and evicts until the budget holds."""
        session = self._session
        self.drive(session.library.tide_session_settle(session.sync()))

    def perform(self):
        """Performs what is asked for now. A request that an interrupt cut short is handed out again until it is
        reported done."""
        library, handle, action = self._session.library, self._session.handle, self._action
        while library.tide_session_next_action(handle, ctypes.byref(action)) == _native.ACTION:
            record = self._ledger.records.get(action.storage)
            storage = record() if record is not None else None
            address = after = 0
            if storage is not None:
                address = self._ACTIONS[action.kind](self, record, storage, action.size)
            if address and (event := self._device.after()) is not None:
                self._in_flight[record.id] = storage, event
                after = event.cuda_event
            library.tide_session_action_done(handle, action.sequence, address, after)

    def drop_all(self):
        """The session has ended: no device touches anything any more."""
        self._in_flight.clear()

    def _begin_eviction(self, record, storage, size):
        ledger, before = self._ledger, record.state
        # The mark first, then the look: another thread borrows what it uses, or pins it, before it looks for the mark.
        ledger.mark(record, _record.LEAVING)
        self._await_loans(record)
        if not record.pins and not ledger.movable(storage):
            ledger.pin(record)
        if record.pins or _nbytes(storage) != size:
            ledger.mark(record, before)
            self._session.measure_again(storage)  # another thread may have resized it
            return 0
        self._in_flight[record.id] = storage
        return _movers.data_pointer(storage)

    def _await_loans(self, record):
        while record.loans:
            time.sleep(_LOAN_POLL_SECONDS)

    # Ctrl-C may end any of these at a call (Python looks for signals there, and at loops), and then the request comes
    # again: what counts and what tells that it was counted change with no call in between.

    def _release(self, record, storage, _size):
        if record.id in self._in_flight:
            self._ledger.mark(record, _record.OUT)
            self._await_loans(record)
            self._device.share(storage)
            self._mover.take(storage, record.guard_text())
            self._ledger.live -= record.size
            del self._in_flight[record.id]
        return 0

    def _allocate(self, record, storage, size):
        address = self._memory_for(record, storage, size)
        if not address:
            return 0  # declined: the machine has others leave, and asks again, or says so
        if record.state & _record.OUT:
            self._ledger.live += record.size
            record.state = _record.COMING
        self._in_flight[record.id] = storage
        self._heap.allocated(size)
        return address

    def _memory_for(self, record, storage, size):
        """The address of memory that the storage got. 0: there is none, also not in what the allocator keeps for later."""
        for last in (False, True):
            try:
                return self._mover.give(storage, size, record.guard_text())
            except torch.OutOfMemoryError:
                if not last:
                    self._heap.give_back()
        return 0

    def _settle(self, record, storage, clean):
        if record.state & _record.AWAY:
            _movers.open_to_reads(storage)
            self._device.share(storage)
        self._ledger.mark(record, _record.CLEAN if clean else _record.SETTLED)
        self._in_flight.pop(record.id, None)
        return 0

    _ACTIONS = {
        _native.EVICT: _begin_eviction,
        _native.RELEASE: _release,
        _native.ALLOCATE: _allocate,
        _native.SETTLE: _settle,
    }
