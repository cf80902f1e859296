"""The ledger: every storage that a block has met, how many bytes of them are in memory, and what
the session has yet to learn of them. No other class changes these."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tidelog.abi._native import Session, birth_words
from tidelog.memory import _movers, _record
from tidelog.memory._device import Host
from tidelog.memory._record import Reach, Record, Storage, nbytes, resizable, untyped_storage
from tidelog.storages._ops import Op, info_of, is_wrapper, living_tensors, memory_of
from tidelog.storages._unmet import NoUnmet, Unmet

# The most births that are pending: most storages die before the session needs to learn of them.
_BIRTHS_PENDING_MAX = 4096

# The host's random state. `Generator.set_state` reads it in C++, where nobody sees that.
_RANDOM_STATE_BYTES = nbytes(untyped_storage(torch.get_rng_state()))

# To ask a storage for its device costs as much as all the rest of registering it. Below this size
# it cannot matter, where tensors are either here or on meta.
_DEVICE_CHECK_BYTES_MIN = 64 << 10


class Counters(ctypes.Structure):
    """What the kernels in C++ look at with each op: `Counters` in dispatch/cpp/ledger.h."""

    _fields_ = (
        ("limit", ctypes.c_int64),
        ("counted", ctypes.c_int64),
        ("peak", ctypes.c_int64),
        ("marked", ctypes.c_int64),
        ("quiet", ctypes.c_bool),
        ("expects_buckets", ctypes.c_bool),
    )
    limit: int
    counted: int
    peak: int
    marked: int
    quiet: bool
    expects_buckets: bool


class Ledger(Counters):
    """Ctrl-C may end any of these methods at a call (Python looks for signals there, and at loops).
    So what counts and what says that it was counted change with no call in between."""

    def __init__(self, device: Host, limit: int, outside: str) -> None:
        super().__init__()
        self.limit = limit  # of `live`
        # See `live`; with the dead that are not crossed off yet, without what Python has not met.
        self.counted = 0
        self.peak = 0  # the highest `live` at an op boundary
        # Nothing is out, on its way or copied, and there is room: ops need not be looked at.
        self.quiet = False
        self.records: dict[int, Record] = {}  # by number
        self.births: list[Record] = []  # that the session has not heard of: pending, as the next five
        self._deaths: list[int] = []
        self._resized: list[Record] = []
        self._modified: list[int] = []  # numbers of storages
        self._pin_requests: list[tuple[int, bool]] = []
        self._async_changes: list[int] = []  # numbers of storages with a first or without any asynchronous use
        self._births_max = _BIRTHS_PENDING_MAX
        self.expects_buckets = False  # whether there is a reducer of DDP
        self.marked = 0  # storages that are not plainly resident
        self._device = device
        self._device_check_min = 0 if torch.cuda.is_initialized() else _DEVICE_CHECK_BYTES_MIN
        self._when_full: Callable[[], None]
        self.meets_later(NoUnmet())
        # Records of storages that have died. Their weak references call a function in C, because
        # Python drops an interrupt that comes in one of its own.
        self._dead: list[Record] = []
        self._on_death = self._dead.append
        own = {"ledger": self, "outside": outside, "process": os.getpid()}
        self._record_type: type[Record] = type("Record", (Record,), own)
        self._plain_type = self._record_type
        # Numbers of dead storages are used again, but not within a step: a profile tells storages
        # apart by them.
        self._next_id = 0
        self._free_ids: list[int] = []
        self._retired_ids: list[int] = []
        # Number -> addresses of a pinned storage: others may lie in the same memory.
        self._aliased: dict[int, tuple[int, int]] = {}

    @contextlib.contextmanager
    def of_a_reducer(self) -> Iterator[None]:
        """Storages that are registered meanwhile are buckets of DDP. For each gradient its reducer
        asks, between two ops and in C++, whether the bucket shares memory with it. The guard would
        refuse that, too; all else that happens to a bucket is an op."""
        self.expects_buckets = True
        plain = self._record_type
        self._record_type = type("Bucket", (plain,), {"is_guarded": False})
        try:
            yield
        finally:
            self._record_type = plain

    def of_a_pool(self, on: bool) -> None:
        """Whether storages that are registered from now on are in memory that the program manages
        itself. Other memory would not be the same to it, so they stay where they are."""
        self._record_type = type("Pooled", (self._plain_type,), {"moves": False}) if on else self._plain_type

    def leave_in_pools(self, record: Record, pools: Sequence[range]) -> None:
        """The same of a storage that was there before, if it lies in one of these."""
        if (storage := record()) is not None and any(_movers.data_pointer(storage) in pool for pool in pools):
            record.moves = False

    def connect(self, access: Reach, when_full: Callable[[], None]) -> None:
        """`access`: how other blocks and threads reach the storages of this one. `when_full` is
        called where a birth exceeds the limit while all is quiet."""
        self._record_type.access = access
        self._when_full = when_full

    def meets_later(self, unmet: Unmet) -> None:
        """From here on there may be storages that Python has not met (`_dispatch`)."""
        self._unmet, self.unmet_bytes = unmet, unmet.bytes

    def meets_all(self) -> None:
        """From here on there are none."""
        self._unmet.meet_all()
        self.meets_later(NoUnmet())

    # -- births and deaths ------------------------------------------------------------------------

    def register(self, storage: Storage, func: Op) -> None:
        """Registers an op's new storage while all is quiet, and ends the quiet where the limit is
        reached."""
        if not self.quiet:  # an output before this one has ended it
            self.record_of(storage, func)
            return
        size = nbytes(storage)
        if size >= self._device_check_min and not self._device.owns(storage):
            return  # another device's, or a meta tensor: it has a size, and no memory
        record = self._new_record(storage, size, func)
        if self.expects_buckets and info_of(func).written:
            record.is_guarded = False  # as in `record_of_written`
        births = self.births
        births.append(record)
        self.counted += size
        if self.counted + self.unmet_bytes() > self.peak:
            self.has_grown()
        elif len(births) > self._births_max:
            births[:] = [record for record in births if record() is not None]
            self._births_max = 2 * len(births) + _BIRTHS_PENDING_MAX

    def has_grown(self) -> None:
        """More may be in memory than ever, while all is quiet."""
        live = self.live
        if live > self.limit:
            self._when_full()
        self.peak = max(self.peak, self.live)

    def born(self, storage: Storage, birth: object) -> None:
        """Registers an op's new storage while a plan is followed: as `record_of`, but a number is
        given when it is asked for."""
        if self._aliased or self.expects_buckets or storage._aliased:
            self.record_of(storage, birth)
            return
        size = nbytes(storage)
        if size == 0 or (size >= self._device_check_min and not self._device.owns(storage)):
            return
        record = self._new_record(storage, size, birth)
        self.births.append(record)
        self.counted += size

    def record_of(self, storage: Storage, birth: object = None) -> Record | None:
        """The storage's record; one that was never met is registered. None: not ours to move."""
        record = storage._tide
        if record is not None and record.ledger is self:
            return record
        if record is not None:
            record.access.rebind(storage)
        if not self._device.owns(storage):
            return None
        size = 0 if self._is_alias(storage) else nbytes(storage)
        if size == 0:
            return None  # nothing to move; looked at again when an op has given it bytes
        record = self._new_record(storage, size, birth)
        self.number_of(record)
        self.births.append(record)
        self.counted += size
        if storage._aliased:
            self.pin(record)
        return record

    def _new_record(self, storage: Storage, size: int, birth: object) -> Record:
        """A record of a storage that has none here, which does not count yet."""
        record = self._record_type(storage, self._on_death)
        record.size, record.birth, record.state = size, birth, _record.SETTLED
        storage._tide = record
        return record

    def record_of_written(self, storage: Storage) -> Record | None:
        """The record of a storage that an op writes. With DDP, one that was never met is a bucket of
        a reducer that is older than the block: C++ alone has it."""
        is_new = storage._tide is None
        record = self.record_of(storage)
        if is_new and record is not None and self.expects_buckets:
            record.is_guarded = False
        return record

    def adopt(self, tensor: Tensor | None) -> Record | None:
        """The record of a tensor's storage, as by `record_of`. None also where there is no
        storage, or one without memory: torch.compile leaves tensors behind that only stand for others."""
        if tensor is not None and not torch._is_functional_tensor(tensor):
            try:
                storage = untyped_storage(tensor)
            except RuntimeError:
                for component in memory_of(tensor):
                    self.record_of(component)
                return None  # sparse and opaque layouts have no storage of their own
            return self.record_of(storage) if not is_wrapper(tensor) else None
        return None

    def adopt_what_lives(self) -> None:
        """Adopts every tensor that Python has."""
        for tensor in living_tensors():
            self.adopt(tensor)
        if self.quiet and self.live > self.limit:
            self._when_full()

    def _is_alias(self, storage: Storage) -> bool:
        """Whether the storage only shows memory that another one owns, and that counts there."""
        if not self._aliased or resizable(storage):
            return False
        address = _movers.data_pointer(storage)
        return any(begin <= address < end for begin, end in self._aliased.values())

    def number_of(self, record: Record) -> int:
        """The number by which the session knows a storage, given when it is first needed."""
        if record.id is None:
            if self._free_ids:
                record.id = self._free_ids.pop()
            else:
                record.id = self._next_id
                self._next_id += 1
            self.records[record.id] = record
        return record.id

    def number_from(self, first: int) -> None:
        """The numbers below this are the session's own."""
        self._next_id = first

    def reuse_numbers(self) -> None:
        """A step begins: numbers of storages that died before it are used again."""
        self._free_ids += self._retired_ids
        self._retired_ids.clear()

    @property
    def live(self) -> int:
        """Bytes of the storages that are in memory: all but those that are OUT."""
        if self._dead:
            self.collect_dead()
        return self.counted + self.unmet_bytes()

    def collect_dead(self) -> None:
        """Crosses off the storages that have died."""
        dead = self._dead
        count = len(dead)
        for record in dead[:count]:
            if record.id is None:  # most die before anybody asks for their number
                self.counted -= record.size
                record.size = 0
            else:
                self._storage_died(record)
        del dead[:count]

    def _storage_died(self, record: Record) -> None:
        """Told twice, it counts once."""
        number = record.id
        if self.records.get(number) is record:
            # No call from here on.
            if record.state:
                self.marked -= 1
            if number in self._aliased:
                del self._aliased[number]
            self.counted -= record.present if record.state & _record.OUT else record.size
            if record.reported:
                self._deaths += [number]
            else:
                self._retired_ids += [number]
            del self.records[number]

    def discard(self, storage: Storage) -> None:
        """A storage that is out is emptied: its bytes are never read again, and what it holds later
        is a new one's."""
        _movers.discard(storage)
        if storage._tide is not None:
            self._storage_died(storage._tide)
        storage._tide = None

    def forget(self, record: Record) -> None:
        """Another block takes the storage over from this one, which has ended."""
        if self.records.pop(record.id, None) is not None:
            self._deaths.append(record.id)

    # -- where storages are, and which of them stay there -----------------------------------------

    def mark(self, record: Record, state: int) -> None:
        """Notes the mark that the session put on a storage. What is marked OUT counts no longer."""
        self.marked += (state != _record.SETTLED) - (record.state != _record.SETTLED)
        counted, counts = not record.state & _record.OUT, not state & _record.OUT
        self.counted += record.size * (counts - counted)
        record.state = state
        if state:
            self.quiet = False

    def has_present(self, record: Record, size: int) -> None:
        """So many bytes are in memory of a storage that is marked OUT because parts of it are."""
        self.counted += size - record.present
        record.present = size

    def modifies(self, record: Record) -> None:
        """The storage is about to differ from its copy in the log, by what the session is asked about."""
        if record.state == _record.CLEAN:
            self.mark(record, _record.SETTLED)

    def modified(self, record: Record) -> None:
        """The same by what the session is not asked about: it hears of it before anything else."""
        self._modified.append(record.id)  # before the mark: told without need, it does no harm
        self.modifies(record)

    def make_usual(self, storage: Storage) -> None:
        """A storage that is in memory may be resized: it has memory of torch's, unless somebody has its address."""
        if storage._tide is None or not storage._tide.pins:
            self._device.make_usual(storage)

    def measure_again(self, storage: Storage) -> None:
        """Something may have resized this storage."""
        record = self.record_of(storage)
        if record is not None and (size := nbytes(storage)) != record.size:
            self._resized.append(record)
            self.counted += size - record.size
            record.size = size

    def has_away(self) -> bool:
        """Whether any storage has no memory, or not its bytes yet."""
        self.collect_dead()
        return any(record.state & _record.AWAY for record in self.records.values())

    def owns(self, storage: Storage) -> bool:
        """Whether its memory is of the kind that the block moves."""
        return self._device.owns(storage)

    def movable(self, storage: Storage) -> bool:
        """Whether the storage's memory is torch's own to give and take."""
        record = storage._tide
        if record is not None and record.state & _record.AWAY:
            return True  # it moved; and torch aborts if a guarded storage is asked if it is shared
        if storage._tide_update is not None:
            return True  # it was asked then, and is guarded since
        may_move = (record is None or record.moves) and nbytes(storage) != _RANDOM_STATE_BYTES
        return may_move and self._device.movable(storage)

    def pin(self, record: Record) -> None:
        """Keeps a storage where it is for its life: an alias exists that Tidelog cannot see."""
        record.pins += 1
        if (storage := record()) is not None:
            address = _movers.data_pointer(storage)
            self._aliased[self.number_of(record)] = (address, address + record.size)
        self._pin_requests.append((self.number_of(record), True))

    def unpin(self, record: Record) -> None:
        """Takes one `pin` back."""
        record.pins -= 1
        if not record.pins:
            self._aliased.pop(record.id, None)
        self._pin_requests.append((record.id, False))

    def async_use_begins(self, record: Record) -> None:
        """An op that has returned uses the storage until `async_use_ends`: it stays meanwhile."""
        record.async_uses += 1
        if record.async_uses == 1:
            self._async_changes.append(self.number_of(record))

    def async_use_ends(self, record: Record) -> None:
        """One of the asynchronous uses of a storage has ended."""
        record.async_uses -= 1
        if not record.async_uses:
            self._async_changes.append(self.number_of(record))

    # -- how much is in memory --------------------------------------------------------------------

    def note_peak(self) -> None:
        """All that is alive at this moment counts for `peak`."""
        self.peak = max(self.peak, self.live)

    def restart_peak(self) -> None:
        """What was alive before counts for `peak` no longer."""
        self.peak = self.live

    def is_at_rest(self) -> bool:
        """Whether nothing is out, on its way or copied, and there is room."""
        return self.live <= self.limit and self.marked == 0

    def begin_quiet(self) -> None:
        """All is at rest: ops need not be looked at from here on."""
        self.quiet = True

    def end_quiet(self) -> None:
        """From here on every op is looked at."""
        self.quiet = False

    # -- what the session hears -------------------------------------------------------------------

    def has_pending(self) -> object:
        """Whether there is anything that the session has not heard of."""
        if self._dead:
            self.collect_dead()
        self._unmet.tell_unmet()
        return (
            self.births or self._modified or self._deaths or self._resized or self._pin_requests or self._async_changes
        )

    def pending(self) -> tuple[list[Any], ...]:
        """The lists of what the session has not heard of, beside births. The kernels of `_dispatch` look there
        and at births: none is ever replaced."""
        return (
            self._dead,
            *(self._modified, self._deaths, self._resized, self._pin_requests, self._async_changes),
        )

    def send_pending(self, session: Session) -> None:
        """Sends what the session has not heard of: births, deaths, sizes, modifications and pins.

        Ctrl-C may come anywhere: what was sent but not yet crossed off is sent again, which is
        harmless.
        """
        if self.births or self._deaths:
            born, deaths = self.births[:], self._deaths[:]
            session.sync(self._births_to_report(born), deaths)
            del self.births[: len(born)]  # another thread may have met a storage since
            self._retired_ids += deaths
            del self._deaths[: len(deaths)]
        while self._resized:
            record = self._resized[0]
            if self.records.get(record.id) is record:
                session.resized(record.id, record.size)
            del self._resized[0]
        while self._modified:
            number = self._modified[0]
            if number in self.records:
                session.modified(number)
            del self._modified[0]
        while self._pin_requests:
            number, on = self._pin_requests[0]
            if not on:
                del self._pin_requests[0]  # sent twice, it would take another's pin away
            if number in self.records:
                session.pin(number, on)
            if on:
                del self._pin_requests[0]
        while self._async_changes:
            number = self._async_changes[0]
            if (used := self.records.get(number)) is not None:
                session.async_use(number, used.async_uses > 0)
            del self._async_changes[0]

    def _births_to_report(self, born: Sequence[Record]) -> list[int]:
        """What the session is sent of those of these that are alive still."""
        births: list[int] = []
        for record in born:
            storage = record()
            if storage is None and not record.reported:
                continue
            if record.id is None:
                self.number_of(record)
            record.reported = True  # before it is sent: from here on its death is reported
            stays = storage is None or not self.movable(storage)
            index, slot = record.birth[:2] if isinstance(record.birth, tuple) else (-1, 0)
            births += birth_words(record.id, stays, record.size, index, slot)
        return births

    def name_of(self, number: int) -> str | None:
        """What errors call the storage of this number; None: there is none."""
        record = self.record_at(number)
        return record.describe() if record is not None else None

    def record_at(self, number: int) -> Record | None:
        """The record of the storage of this number; None: there is none."""
        record = self.records.get(number)
        return record if record is not None else self._unmet.meet_numbered(number)
