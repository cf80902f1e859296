"""The steps of a block: the first ones are profiled, from that a plan is made, and later ones follow it. Where in a
step the program is, and what its ops are, is kept in C++ (native/step.h).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import torch

from tidelog._budget_error import BudgetError
from tidelog._errors import Error
from tidelog._whole import whole
from tidelog.abi._native import Session, StepMark
from tidelog.memory._device import Host
from tidelog.memory._heap import Cache, Heap, asked_for
from tidelog.memory._record import Storage
from tidelog.native._built import native
from tidelog.native._module import Ledger
from tidelog.storages._async_uses import AsyncUses
from tidelog.output import _logging
from tidelog.output._figures import Phase, SecondsOfAStep, StepFigures, Totals

# A step that follows a plan is timed by the device's clock so often: two events an op, some 2 us of the thread's time.
TIMED_EVERY = 16

# Half of what is evicted at least where CUDA has no memory: a segment of torch's allocator (its kLargeBuffer).
_ROOM_BYTES_MIN = 10 << 20


class Steps:
    """Tells the session where in which step the program is, and waits for it there."""

    def __init__(
        self,
        ledger: Ledger,
        session: Session,
        async_uses: AsyncUses,
        device: Host,
        heap: Heap | Cache,
        *,
        learns: bool,
    ) -> None:
        self.place = native().step(ledger)
        self.place.profiles = learns
        self.notices: list[str] = []  # for the user; the session has others
        # In a distributed program: whether to follow the first plan, given whether it is ready.
        self.follows_plan: Callable[[bool], bool] | None = None
        self._ledger = ledger
        self._session = session
        self._async_uses = async_uses
        self._device = device
        self._heap = heap
        self._learns = learns  # whether a plan is wanted
        self._rested = False  # whether the last step needed no migration at all
        self._pressed = False  # whether the budget was ever reached: then ops are looked at
        self._has_noticed = False  # what slows steps under a plan
        self._unprofiled = 0  # steps so far whose ops are not profiled
        self._left = ""  # how the step that is open has left the plan
        self._last: SecondsOfAStep = {}
        self.paused_seconds = 0.0  # of all pauses that have ended

    def clock(self) -> float:
        """Seconds on a clock that stands still in pauses."""
        return time.perf_counter() - self.paused_seconds

    # -- steps ------------------------------------------------------------------------------------

    @whole
    def begin(self) -> None:
        """A step begins."""
        ledger = self._ledger
        self._async_uses.look()  # what a collective used is let go, also where nothing has to be moved
        ledger.look_again()
        self.judge_quiet()
        if self.follows_plan is not None and self.place.profiles:
            is_ready = self._session.hold_plan(True)
            if self.follows_plan(is_ready):
                self._session.hold_plan(False)
        self._session.step(StepMark.BEGIN)
        ledger.reuse_numbers()
        self._take_plan()
        if not ledger.quiet:
            self.place.next_op = 0
            self.place.follows = self.place.has_plan
        if not self.place.profiles:
            # The first step under a plan is not yet as the others.
            if self._unprofiled % TIMED_EVERY == min(1, TIMED_EVERY - 1):
                self.tell_clock()
                self._device.streams.clock_begins()
            self._unprofiled += 1

    def end(self, completed: bool, started: float) -> None:
        """A step that began at `started` (of `clock`) has ended; `completed`: by no exception."""
        self._rested = self._ledger.quiet
        self._ledger.end_quiet()
        # Of the step before: the device has got to its end by now.
        self.tell_clock()
        self._device.streams.clock_ends()
        if not completed:
            # An exception is on its way, or the block ends: what came after the last step was none.
            self._left = ""
            # What else is wrong surfaces at the next touch.
            with contextlib.suppress(Error):
                self._session.step(StepMark.INTERRUPTED)
            return
        if self._left and not any("left the plan" in notice for notice in self.notices):
            self.notices.append(self._left)
        self._left = ""
        if self.place.profiles and (durations := self._device.streams.durations()):
            self._session.durations(durations)
        self._session.step(StepMark.COMPLETE)
        self.judge_quiet()
        self._last = {"seconds": self.clock() - started}

    def tell_clock(self) -> None:
        """Passes on what the device's clock says of the last complete step, if that was timed."""
        if spans := self._device.streams.clock_spans():
            self._session.step_spans(spans)

    def await_device(self) -> None:
        """Waits until what was launched is done, for who times a step."""
        if (event := self._device.streams.after()) is not None:
            event.synchronize()

    def is_planned(self) -> bool:
        """Returns whether this step follows a plan, and matches it so far."""
        return self.place.has_plan and self.place.follows

    def _take_plan(self) -> None:
        """A plan may have become ready: the first for steps like the last one, or another for the
        same ops."""
        place = self.place
        if place.has_plan:
            place.plan(self._session.plan())
        elif self._learns and place.has_profile and (ops := place.plan(self._session.plan())):
            place.profiles = False
            _logging.plan_followed(ops)
            self._notice_what_slows()
        place.forget_profile()

    def _notice_what_slows(self) -> None:
        """Threads that move tensors may take turns with those that compute."""
        if self._has_noticed:
            return
        self._has_noticed = True
        threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
        if self._device.moves_by_cores and threads >= cores:
            fewer = f": torch.set_num_threads({cores - 1}) leaves them one, try which is faster" if cores > 1 else ""
            self.notices.append(
                f"torch computes with {threads} threads on {cores} cores, so the threads that move tensors take "
                f"turns with it{fewer}"
            )

    def judge_quiet(self) -> None:
        """Decides whether ops need not be looked at: all is at rest, and the budget was never reached."""
        if self._pressed or not self._ledger.is_at_rest():
            self._ledger.end_quiet()
        else:
            self._device.streams.await_copies()
            self._device.streams.is_blind = True
            self._ledger.begin_quiet()

    @whole
    def count_what_is_mapped(self) -> None:
        """Counts slices of files that nobody else has, before a step is known to begin: an optimizer is about to write
        them, which gives each a page of memory where it had the file's. Where all fits no op is looked at for that."""
        self._ledger.look_again()
        if self._ledger.live > self._ledger.limit:
            self.budget_reached()

    def budget_reached(self) -> None:
        """The quiet ends: from here on every op is looked at."""
        self._pressed = True
        self._heap.take_over()
        self._ledger.end_quiet()
        self.place.leave()
        self.place.end_op()

    def learn_again(self) -> None:
        """Restarts learning between two steps: those to come are others, and are learnt as the first ones were."""
        self._session.learn_again()
        self.place.forget_plan()
        self.place.forget_profile()
        self.place.profiles = self._learns

    # -- ops --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def of_none(self) -> Iterator[None]:
        """Ops that run meanwhile are none of the step."""
        place = self.place
        outer, follows = place.next_op, place.follows
        try:
            place.leave()
            yield
        finally:
            place.next_op, place.follows = outer, follows

    def make_room(self, said: str, name: str, needs: int, times: int) -> None:
        """CUDA has no memory for an op that is running, as it said, though the budget has: fragments, libraries and
        other processes have it. Storages leave, so many times what the op needs, and what is cached goes back to the
        driver.
        """
        ledger = self._ledger
        spare = max(ledger.limit - ledger.live, 0)
        if not any("CUDA had no memory" in notice for notice in self.notices):
            self.notices.append(
                f"CUDA had no memory for {name}, with {spare} bytes of the budget left: tensors left to make "
                "room, and it ran again. A smaller memory= spares that"
            )
        wanted, made = times * max(needs, asked_for(said), _ROOM_BYTES_MIN), False
        while wanted and not made:
            with contextlib.suppress(BudgetError):  # so much cannot leave
                uses = self.place.running_uses()
                self._session.op_begin(-1, 0, b"memory that CUDA did not have", uses, spare + wanted)
                made = True
            wanted -= -(-wanted // 4)
        ledger.let_go()
        self._heap.release()

    def left_plan(self, index: int, name: str, planned: str | None) -> None:
        """The program has done something else than the step that was planned: the rest of the step is reactive."""
        self._session.leave_plan()
        self._left = (
            f"a step left the plan at op {index}: {name} ran where {planned or 'the end of the step'} was planned. The rest "
            "of that step had no plan: what was out came in only when an op asked for it, and the op waited. Other steps "
            "that leave the plan are not named"
        )

    @whole
    def end_touch(self) -> None:
        """Lets storages leave again that were brought back for an access that is no op."""
        self.place.end_touch()

    def make_usual(self, storage: Storage) -> None:
        """A storage that is in memory may be resized: it has memory of torch's, unless somebody has its address."""
        if storage._tide is None or not storage._tide.pins:
            self._device.make_usual(storage)

    # -- what users ask ---------------------------------------------------------------------------

    def phase(self) -> Phase:
        """ "profiling", "planned" or "reactive"."""
        if not self._learns:
            return "reactive"
        return "planned" if self.place.has_plan or self._rested else "profiling"

    def last_step(self, figures: Totals) -> StepFigures:
        """`figures`, the session's of the last complete step, with what only Python knows of it."""
        return {**self._last, **figures, "stall_seconds": figures["stall_ns"] / 1e9}
