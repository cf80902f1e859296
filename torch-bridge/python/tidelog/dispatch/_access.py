"""Accesses that are no op of the block's thread: they find the bytes, and are accounted for.

What notices them is `_escape`, for calls that do not go through the dispatcher, and `_threads`, for
other threads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from tidelog import _errors, _turns
from tidelog._whole import whole
from tidelog.abi._native import MODIFIES, Session
from tidelog.dispatch._hook import Hook
from tidelog.dispatch._steps import Steps
from tidelog.memory import _record
from tidelog.memory._record import Hold, Storage, run_updates
from tidelog.native._built import native
from tidelog.native._module import Ledger, Record
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ledger import adopt, borrowed, of_a_reducer
from tidelog.storages._ops import Args, Kwargs, Launch

# Held by a thread that does what that of an ended block would have done. One for all: a tensor may be another block's.
_taking_over = threading.RLock()


_loans = threading.local()


def loans_of_this_thread() -> list[Record]:
    """Returns the records that this thread, which is not the block's, uses right now."""
    found: list[Record] | None = getattr(_loans, "records", None)
    if found is None:
        found = _loans.records = []
    return found


def lacks(record: Record) -> bool:
    """Returns whether this thread, which is not the block's, cannot read a storage as it is. What it has borrowed has
    its memory, also where the block's thread waits to take that.
    """
    return bool(record.state & _record.AWAY) and record not in loans_of_this_thread()


class Access:
    """Access to the storages of one block other than by ops."""

    def __init__(
        self,
        ledger: Ledger,
        session: Session,
        steps: Steps,
        hook: Hook,
        async_uses: AsyncUses,
        expect_reducer: Callable[[nn.Module], None],
        meet_others: Callable[[], None],
        await_copies: Callable[[], None],
        make_usual: Callable[[Storage], None],
    ) -> None:
        """`expect_reducer` and `meet_others`: called with a module whose gradients DDP reduces, and once there is a
        process group. `await_copies` and `make_usual`: of the device."""
        self.is_open = False  # whether the block runs; it says so
        self.is_paused = False  # whether it does nothing meanwhile: nothing comes back
        self.has_captured = False  # whether CUDA graphs have addresses of what was made in a pause
        self._ledger = ledger
        self._session = session
        self._steps = steps
        self._hook = hook
        self.waited = async_uses.waited  # for a `Work`
        self.expect_reducer = expect_reducer
        self.meet_others = meet_others
        self.await_copies = await_copies
        self.owns = ledger.owns
        self.maps = ledger.maps  # a slice of a file
        self.make_usual = make_usual
        self._thread_instead: int | None = None
        self.begin()

    def begin(self) -> None:
        """The block begins, in this thread."""
        self._owner = threading.current_thread()
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def by_any_thread(self) -> Iterator[None]:
        """Allows any thread to act once the block has ended, or its thread: one after the other."""
        # A thread that Python has not started says that it is alive after its end, too.
        is_running = self._owner.is_alive() and self._owner.ident in sys._current_frames()
        if self._session.forked or (self.is_open and is_running):
            yield
            return
        with _taking_over:
            self._thread = threading.get_ident()
            yield

    def is_elsewhere(self) -> bool:
        """Returns whether this is another thread than the block's own."""
        return threading.get_ident() not in (self._thread, self._thread_instead) and not _turns.is_mine()

    def workers(self) -> tuple[int | None, ...]:
        """The block's own thread, and the one that does its work, if there is one."""
        return self._thread, self._thread_instead

    def is_instead(self) -> bool:
        """Returns whether the access is one that does the work of the block's own."""
        return threading.get_ident() != self._thread

    def is_replaced(self) -> bool:
        """Returns whether another thread does the work of the block's own right now."""
        return self._thread_instead is not None

    @whole
    def goes_on_in(self, thread: int | None) -> None:
        """Lets another thread, which has the same modes, do the work of the block's own, which waits."""
        self._thread_instead = thread

    def is_live(self) -> bool:
        """Returns whether the block runs, in this process."""
        return self.is_open and not self.is_paused and not self._session.forked

    def may_be_out(self) -> bool:
        """Returns whether tensors move: not while all fits."""
        return not self._ledger.quiet

    @whole
    def bring_back(self, *storages: Storage, written: Storage | None = None) -> None:
        """Makes storages resident, together, for an access that does not go through the dispatcher.
        `written`: the one that it writes or gives other memory; a copy of it that is being written
        is cancelled first."""
        run_updates(storages)
        records = [record for storage in storages if (record := storage._tide) is not None]
        changed = written._tide if written is not None else None

        def is_due(record: Record) -> bool:
            if record is changed:
                return bool(record.state & (_record.AWAY | _record.LEAVING))
            return bool(record.state & _record.AWAY) and (not self.is_elsewhere() or lacks(record))

        def due() -> list[Record]:
            return [*filter(is_due, records)]

        if self._session.forked:
            for record in due():
                _record.refuse_in_child(record)
            return
        if not due():
            return
        if self.is_paused:
            raise _errors.PausedError(due()[0].guard_text())
        with self.by_any_thread():
            missing = due()  # another thread may have been at it
            if not missing:
                return
            if self.is_elsewhere():
                with self.turn(missing[0]):
                    self.bring_back(*storages, written=written)
                return
            for other in {record.ledger.access for record in missing} - {self}:
                theirs = [
                    each for record in records if record.ledger.access is other and (each := record()) is not None
                ]
                other.bring_back(*theirs, written=written)
            ours = [record for record in records if record.ledger.access is self]
            self._steps.place.touch({self._ledger.number_of(each): MODIFIES if each is changed else 0 for each in ours})
            self.await_copies()

    @contextlib.contextmanager
    def turn(self, wanted: Record) -> Iterator[None]:
        """Gives this thread, which is not the block's, a turn in which it may do what else the block's alone may do:
        see `_turns`. An error says of what it wants that it cannot have it.
        """
        try:
            with _turns.taken(borrows=bool(loans_of_this_thread())):
                if not self.is_live():
                    _record.refuse(wanted)
                with self._steps.of_none():
                    yield
        except _turns.Refused as error:
            raise _errors.Error(f"{wanted.guard_text()} It waited in vain: {error}.") from None

    @whole
    def bring_and_borrow(self, storages: Sequence[Storage], written: Sequence[Storage], wanted: Record) -> list[Record]:
        """Brings storages back for another thread, which uses them until it ends the loans of these records."""
        with self.turn(wanted):
            for storage in storages:
                if storage._tide_update is not None:
                    storage._tide_update.touch("another thread's op")
            records = [record for storage in storages if (record := storage._tide) is not None]
            for other in {record.ledger.access for record in records} - {self}:
                theirs = [
                    each for record in records if record.ledger.access is other and (each := record()) is not None
                ]
                other.bring_back(*theirs, written=theirs[0])
            changed = [record for storage in written if (record := storage._tide) is not None]
            used = [*records, *loans_of_this_thread()]  # who makes room would wait for those
            ours = {self._ledger.number_of(each): 0 for each in used if each.ledger.access is self}
            ours |= {self._ledger.number_of(each): MODIFIES for each in changed if each.ledger.access is self}
            for record in changed:
                self._ledger.modifies(record)
            self._steps.place.touch(ours)
            self.await_copies()
            return borrowed(storages)

    @whole
    def wrote(self, storage: Storage) -> None:
        """A storage was written by a call that is no op."""
        record = storage._tide
        if self._session.forked or self.is_elsewhere():
            return  # a clean copy is compared with memory before it is trusted, so nothing is lost
        if record is not None and record.state & _record.AWAY:
            return  # it left after the write, which the call's own ops made
        if record is not None and record.ledger is self._ledger:
            self._ledger.number_of(record)
            self._ledger.modified(record)
        self._ledger.measure_again(storage)

    @whole
    def came(self, storage: Storage, makes_room: bool = True) -> None:
        """A storage has come with memory that no op has made. `makes_room`: for it at once, not at the next op."""
        native().record_for(storage).is_alone = True
        if self.is_elsewhere():
            return
        self._ledger.record_of(storage)
        if self._ledger.live <= self._ledger.limit:
            return
        if self._ledger.quiet:
            self._steps.budget_reached()
        elif makes_room:
            self._steps.end_touch()

    @whole
    def empty(self, storage: Storage) -> None:
        """A storage is about to be emptied: what is out of it need not come back."""
        record = storage._tide
        is_out = record is not None and record.ledger is self._ledger and record.state == _record.OUT
        if record is not None and record.parted is not None and record.parted.moving:
            is_out = False  # a device may touch its memory
        if is_out and self.is_live() and not self.is_elsewhere():
            self._ledger.discard(storage)
        else:
            self.bring_back(storage, written=storage)

    def of_a_pool(self, on: bool) -> None:
        """Sets whether storages that are registered from now on are in memory that the program manages itself. Other
        memory would not be the same to it, so they stay where they are.
        """
        self._ledger.newborn_moves = not on

    def of_a_reducer(self) -> contextlib.AbstractContextManager[None]:
        """Marks the time in which a reducer of DDP makes its buckets."""
        return of_a_reducer(self._ledger) if self.is_live() and not self.is_elsewhere() else contextlib.nullcontext()

    @whole
    def keep_buckets(self) -> None:
        """Brings the buckets of DDP back, which stay from here on."""
        self._ledger.buckets_stay = True
        buckets = [each for each in self._ledger.all() if not each.is_guarded]
        self.bring_back(*(storage for each in buckets if (storage := each()) is not None))

    def launch(self, func: Launch, args: Args, kwargs: Kwargs) -> Any:
        """Launches a kernel that gets addresses."""
        return self._hook.launch(func, args, kwargs) if self.is_live() else func(*args, **kwargs)

    @contextlib.contextmanager
    def pinned(self, storages: Sequence[Storage]) -> Iterator[None]:
        """Holds storages in place; and asking for an address pins nothing."""
        holds = self.bring_and_hold(storages)
        records = [record for storage in storages if (record := storage._tide) is not None]
        for record in records:
            record.addresses_end += 1
        try:
            yield
        finally:
            for record in records:
                record.addresses_end -= 1
            del holds

    @whole
    def bring_and_hold(self, storages: Sequence[Storage]) -> list[Hold | None]:
        """Makes storages resident, and keeps them where they are until what this returns is gone."""
        self.bring_back(*storages)
        self.await_copies()
        return [self.hold(storage) for storage in storages]

    @whole
    def unpin(self, storage: Storage) -> None:
        """Unpins a storage of which nobody uses an address any more: it may move again."""
        native().record_for(storage).has_address = False

    @whole
    def hold(self, storage: Storage) -> Hold | None:
        """Keeps a storage's memory where it is until what this returns is gone. None: it does not
        move anyway."""
        record = storage._tide if self.is_elsewhere() else self._ledger.record_of(storage)
        return Hold(record) if record is not None else None

    @whole
    def moves(self, tensor: Tensor) -> bool:
        """Returns whether the tensor's memory may leave while the block is open."""
        record = adopt(self._ledger, tensor)
        return record is not None and not record.pins

    @whole
    def rebind(self, storage: Storage) -> None:
        """Hands a storage over to another block; this one has ended."""
        record = storage._tide
        with self.by_any_thread():
            self.bring_back(storage, written=storage)
            if record is not None:
                self._ledger.forget(record)
            if self._session.is_open():
                self._session.flush()
