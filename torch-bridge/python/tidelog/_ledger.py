"""The ledger: every storage that a block has met, how many bytes of them are in memory, and what the residency machine
has yet to hear of them."""

import array
import os

import torch

from tidelog import _movers, _record

_resizable = torch._C.StorageBase.resizable
_nbytes = torch._C.StorageBase.nbytes
_untyped_storage = torch._C.TensorBase.untyped_storage

# Births that the machine has not heard of, at most: most storages die before anybody needs to know.
_BIRTHS_UNTOLD_MAX = 4096

# Asking a storage for its device costs as much as all the rest of taking it on; below this size it cannot matter where
# tensors are either here or on meta.
_DEVICE_CHECK_BYTES_MIN = 64 << 10


class Ledger:
    """Ctrl-C may end any of these methods at a call (Python looks for signals there, and at loops): what counts and what
    tells that it was counted change with no call in between."""

    def __init__(self, tide, device, limit, outside):
        self.tide = tide  # whose ledger it is: told when the limit is reached, and when another block takes over
        self.limit = limit  # of `live`
        self.live = 0  # bytes of the storages that are in memory
        self.peak = 0  # the highest `live` at an op boundary
        # Nothing is out, on its way or copied, and there is room: ops need not be looked at. See `Steps.judge_quiet`.
        self.quiet = False
        self.marked = 0  # storages that are not plainly resident
        self.records = {}
        self.births, self.deaths, self._pin_requests = [], [], []  # of which the machine has not heard
        self._births_max = _BIRTHS_UNTOLD_MAX
        self._device = device
        self._device_check_min = 0 if torch.cuda.is_initialized() else _DEVICE_CHECK_BYTES_MIN
        self._on_death = self._storage_died  # bound once
        self._record_type = type(
            "Record", (_record.Record,), {"ledger": self, "outside": outside, "process": os.getpid()}
        )
        # Numbers of dead storages serve again, but not within a step: a profile tells storages apart by them.
        self._next_id, self._free_ids, self._retired_ids = 0, [], []
        self._aliased = {}  # storage id -> its addresses, of pinned storages: others may lie in the same memory

    # -- births and deaths ------------------------------------------------------------------------

    def take_on(self, storage, func):
        """Registers an op's new storage while all is quiet, and ends the quiet where the limit is reached."""
        size = _nbytes(storage)
        if size >= self._device_check_min and not self._device.owns(storage):
            return  # another device's, or a meta tensor: it has a size, and no memory
        record = storage._tide = self._record_type(storage, self._on_death)
        record.size = size
        record.birth = func
        births = self.births
        births.append(record)
        self.live = live = self.live + size
        if live > self.peak:
            if live > self.limit:
                self.tide.steps.budget_reached()
            self.peak = self.live
        elif len(births) > self._births_max:
            self.births = [record for record in births if record() is not None]
            self._births_max = 2 * len(self.births) + _BIRTHS_UNTOLD_MAX

    def record_of(self, storage, birth=None):
        """The storage's record; a storage that was never met is taken on. None: not ours to move."""
        record = storage._tide
        if record is not None and record.ledger is self:
            return record
        if record is not None:
            record.ledger.tide.access.hand_over(storage, record)
        if not self._device.owns(storage):
            return None
        size = 0 if self._is_alias(storage) else _nbytes(storage)
        if size == 0:
            return None  # nothing to move; looked at again when an op has given it bytes
        record = storage._tide = self._record_type(storage, self._on_death)
        record.size = size
        record.birth = birth
        self._number(record)
        self.births.append(record)
        self.live += size
        if storage._aliased:
            self.pin(record)
        return record

    def adopt(self, tensor):
        """The record of a tensor's storage, as `record_of` has it. None also where there is no storage."""
        if tensor is not None:
            try:
                storage = _untyped_storage(tensor)
            except (NotImplementedError, RuntimeError):
                return None  # sparse and opaque layouts have no storage of their own
            return self.record_of(storage)
        return None

    def _is_alias(self, storage):
        """Whether the storage only shows memory that another one owns, and that counts there."""
        if not self._aliased or _resizable(storage):
            return False
        address = _movers.data_pointer(storage)
        return any(begin <= address < end for begin, end in self._aliased.values())

    def _number(self, record):
        if self._free_ids:
            record.id = self._free_ids.pop()
        else:
            record.id = self._next_id
            self._next_id += 1
        self.records[record.id] = record

    def reuse_numbers(self):
        """A step begins: numbers of storages that died before it serve again."""
        self._free_ids += self._retired_ids
        self._retired_ids.clear()

    def _storage_died(self, record):
        if record.id is None:
            self.live -= record.size
        elif self.records.pop(record.id, None) is not None:
            if record.state:
                self.marked -= 1
            self._aliased.pop(record.id, None)
            if not record.state & _record.OUT:
                self.live -= record.size
            if record.told:
                self.deaths.append(record.id)
            else:
                self._retired_ids.append(record.id)

    def find_the_dead(self):
        """An interrupt may fall into the callback that reports a death, and Python then drops both."""
        for record in [record for record in self.records.values() if record() is None]:
            self._storage_died(record)

    def note_peak(self):
        """All that is alive at this moment counts for `peak`."""
        self.peak = max(self.peak, self.live)

    # -- where storages are, and which of them stay there -----------------------------------------

    def mark(self, record, state):
        """Notes the mark that the residency machine put on a storage."""
        self.marked += (state != _record.SETTLED) - (record.state != _record.SETTLED)
        record.state = state
        if state:
            self.quiet = False

    def modifies(self, record):
        """The storage is about to differ from its copy in the log."""
        if record.state == _record.CLEAN:
            self.mark(record, _record.SETTLED)

    def has_away(self):
        """Whether any storage has no memory, or not its bytes yet."""
        return any(record.state & _record.AWAY for record in self.records.values())

    def movable(self, storage):
        """Whether the storage's memory is torch's own to give and take."""
        record = storage._tide
        if record is not None and record.state & _record.AWAY:
            return True  # it moved; and torch aborts the process where a guarded storage is asked whether it is shared
        return self._device.movable(storage)

    def pin(self, record):
        """Keeps a storage where it is for its life: an alias exists that Tidelog cannot see."""
        record.pins += 1
        if (storage := record()) is not None:
            address = _movers.data_pointer(storage)
            self._aliased[record.id] = (address, address + record.size)
        self._pin_requests.append((record.id, 1))

    def unpin(self, record):
        """Takes one `pin` back."""
        record.pins -= 1
        if not record.pins:
            self._aliased.pop(record.id, None)
        self._pin_requests.append((record.id, 0))

    # -- what the residency machine hears ---------------------------------------------------------

    def has_news(self):
        """Whether there is anything for `tell`."""
        return self.births or self.deaths or self._pin_requests

    def tell(self, session):
        """Tells births, deaths and pins that the machine has not heard of yet.

        Ctrl-C may land anywhere: what was sent but not yet crossed off is sent again, which is harmless.
        """
        if self.births or self.deaths:
            births = array.array("Q")
            for record in self.births:
                if record.told or record() is not None:
                    if record.id is None:
                        self._number(record)
                    record.told = True  # before it is sent: from here on its death is reported
                    index, slot = record.birth[:2] if isinstance(record.birth, tuple) else (-1, 0)
                    storage = record()
                    stays = storage is None or not self.movable(storage)
                    births.extend((record.id | stays << 32, record.size, ((index & 0xFFFFFFFF) << 16) | slot))
            deaths = array.array("I", self.deaths)
            address, length = births.buffer_info()
            dead_address, dead = deaths.buffer_info()
            session.check(
                session.library.tide_session_sync(session.handle, address, length // 3, dead_address, dead)
            )
            self.births.clear()
            self._retired_ids += deaths
            del self.deaths[:dead]
        while self._pin_requests:
            identity, on = self._pin_requests[0]
            if not on:
                del self._pin_requests[0]  # told twice, it would take another's pin away
            if identity in self.records:
                session.check(session.library.tide_session_pin(session.handle, identity, on))
            if on:
                del self._pin_requests[0]
