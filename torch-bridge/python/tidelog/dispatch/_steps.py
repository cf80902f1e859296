"""The steps of a block, op by op: the first ones are profiled, from that a plan is made, and later
ones follow it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from tidelog._errors import BudgetError, Error
from tidelog._whole import whole
from tidelog.abi._native import Session, StepMark
from tidelog.dispatch._dispatch import Kernels
from tidelog.dispatch._performer import Performer
from tidelog.memory._device import Host
from tidelog.memory._heap import Cache, Heap, asked_for
from tidelog.memory._record import Storage
from tidelog.output import _logging
from tidelog.output._figures import Phase, SecondsOfAStep, StepFigures, Totals
from tidelog.storages._ledger import Ledger
from tidelog.storages._ops import Op, info_of

# Half of what is evicted at least where CUDA has no memory: a segment of torch's allocator (its kLargeBuffer).
_ROOM_BYTES_MIN = 10 << 20


class Plan:
    """The plan that a session follows, as the hook needs it."""

    __slots__ = ("due", "funcs", "infos", "needs", "ops")

    due: bytes

    def __init__(self, funcs: list[Op], needs: list[int]) -> None:
        # Which op is expected. Behind the last one is none.
        self.funcs: list[Op | None] = [*funcs, None]
        self.infos = [info_of(func) for func in funcs]
        self.needs = [*needs]  # bytes of its outputs

    def follow(self, due: bytes) -> None:
        """Takes over what is due when: a step may begin with another plan for the same ops."""
        self.due = due
        self.ops = min(len(due), len(self.infos))
        if self.ops < len(self.infos):
            self.funcs[self.ops] = None


class Place(ctypes.Structure):
    """Where in a step the program is, as the kernels in C++ see and change it: `Place` in native/block.h."""

    _fields_ = (("next_op", ctypes.c_int64), ("follows", ctypes.c_bool), ("profiles", ctypes.c_bool))
    next_op: int  # outside a step below zero; inside, the index of the next op
    follows: bool  # whether the step is as planned so far
    profiles: bool  # whether a plan is wanted, and there is none yet


class Steps(Place):
    """Tells the session where in which step the program is, and waits for it there."""

    def __init__(
        self,
        ledger: Ledger,
        session: Session,
        performer: Performer,
        device: Host,
        heap: Heap | Cache,
        kernels: Kernels,
        *,
        learns: bool,
    ) -> None:
        super().__init__()
        self.leave_step()
        self.profiles = learns
        # An op is about to be launched, which uses these storages; None: it may use any.
        self.notice: Callable[[Mapping[int, int] | None], None] = ledger.launches
        self.notices: list[str] = []  # for the user; the session has others
        # In a distributed program: whether to follow the first plan, given whether it is ready.
        self.follows_plan: Callable[[bool], bool] | None = None
        self._kernels = kernels
        self._ledger = ledger
        self._session = session
        self._performer = performer
        self._device = device
        self._heap = heap
        self._learns = learns  # whether a plan is wanted
        self._known_plan: Plan | None = None  # what steps may follow
        # Of the ops of a step that is being profiled. Kernels in C++ add to them, too: they are never replaced.
        self._funcs: list[Op] = []
        self._needs: list[int] = []
        self._rested = False  # whether the last step needed no migration at all
        self._pressed = False  # whether the budget was ever reached: then ops are looked at
        self._has_noticed = False  # what slows steps under a plan
        self._left = ""  # how the step that is open has left the plan
        self._last: SecondsOfAStep = {}

    # -- steps ------------------------------------------------------------------------------------

    @whole
    def begin(self) -> None:
        """A step begins."""
        ledger = self._ledger
        self._performer.look_at_async_uses()
        self.judge_quiet()
        if self.follows_plan is not None and self.profiles:
            is_ready = self._session.hold_plan(True)
            if self.follows_plan(is_ready):
                self._session.hold_plan(False)
        self._session.step(StepMark.BEGIN)
        ledger.reuse_numbers()
        self._take_plan()
        if not ledger.quiet:
            self.next_op = 0
            self.follows = self._known_plan is not None

    def end(self, completed: bool, started: float) -> None:
        """A step that began at `started` has ended; `completed`: by no exception."""
        self._rested = self._ledger.quiet
        self._ledger.end_quiet()
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
        if self.profiles and (durations := self._device.streams.durations()):
            self._session.durations(durations)
        self._session.step(StepMark.COMPLETE)
        self.judge_quiet()
        self._last = {"seconds": time.perf_counter() - started}

    @property
    def plan(self) -> Plan | None:
        """The plan that this step follows, as long as it matches."""
        return self._known_plan if self.follows else None

    def leave_step(self) -> None:
        """What follows is in no step."""
        self.next_op, self.follows = -1, False

    def _take_plan(self) -> None:
        """A plan may have become ready: the first for steps like the last one, or another for the
        same ops."""
        if self._known_plan is not None:
            self._known_plan.follow(self._session.plan())
            self._kernels.follow(self._known_plan)
        elif self._learns and self._funcs:
            plan = Plan(self._funcs, self._needs)
            plan.follow(self._session.plan())
            if plan.ops:
                self._known_plan, self.profiles = plan, False
                self._kernels.follow(plan)
                _logging.plan_followed(plan.ops)
                self._notice_what_slows()
        self._forget_profile()

    def _notice_what_slows(self) -> None:
        """On the host the threads that move tensors compute: copies and checksums."""
        if self._has_noticed:
            return
        self._has_noticed = True
        threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
        if not self._device.option and threads >= cores:
            fewer = f": torch.set_num_threads({cores - 1}) leaves them one, try which is faster" if cores > 1 else ""
            self.notices.append(
                f"torch computes with {threads} threads on {cores} cores, so the threads that move tensors take "
                f"turns with it{fewer}"
            )

    def judge_quiet(self) -> None:
        """Whether ops need not be looked at: all is at rest, and the budget was never reached."""
        if self._pressed or not self._ledger.is_at_rest():
            self._ledger.end_quiet()
        else:
            self._device.streams.await_copies()
            self._device.streams.is_blind = True
            self._ledger.begin_quiet()

    def budget_reached(self) -> None:
        """The quiet ends: from here on every op is looked at."""
        self._pressed = True
        self._heap.take_over()
        self._ledger.end_quiet()
        self.leave_step()
        self.end_op()

    def learn_again(self) -> None:
        """Between two steps: those to come are others, and are learnt as the first ones were."""
        self._session.learn_again()
        self._kernels.forget_plan()
        self._known_plan, self.profiles = None, self._learns
        self._forget_profile()

    def _forget_profile(self) -> None:
        self._funcs.clear()
        self._needs.clear()

    # -- ops --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Ops that run meanwhile are in the middle of another: they are none of the step."""
        with self.of_none(), self._performer.inside():
            yield

    @contextlib.contextmanager
    def of_none(self) -> Iterator[None]:
        """Ops that run meanwhile are none of the step."""
        outer, follows = self.next_op, self.follows
        try:
            self.leave_step()
            yield
        finally:
            self.next_op, self.follows = outer, follows

    def is_performing(self) -> bool:
        """Whether a request of the session is being done right now."""
        return self._ledger.is_performing or self._kernels.is_busy()

    def begin_op(self, index: int, fingerprint: int, name: bytes, uses: Mapping[int, int], needs: int) -> None:
        """Blocks until the op's storages are resident and its outputs have room."""
        self._session.op_begin(index, fingerprint, name, uses, needs)
        self.notice(uses)
        if index >= 0 and self.profiles:
            self._device.streams.op_begins(index)

    def end_op(self) -> None:
        """Reports that the op has run and waits until the budget holds with its outputs."""
        self._session.op_end()
        self._ledger.note_peak()

    def make_room(self, error: Exception, func: Op, uses: Mapping[int, int], needs: int, times: int) -> None:
        """CUDA has no memory for an op that is running, though the budget has: fragments, libraries
        and other processes have it. Storages leave, so many times what the op needs, and what is cached
        goes back to the driver."""
        ledger = self._ledger
        spare = max(ledger.limit - ledger.live, 0)
        if not any("CUDA had no memory" in notice for notice in self.notices):
            self.notices.append(
                f"CUDA had no memory for {func}, with {spare} bytes of the budget left: tensors left to make "
                "room, and it ran again. A smaller memory= spares that"
            )
        wanted, made = times * max(needs, asked_for(error), _ROOM_BYTES_MIN), False
        while wanted and not made:
            with contextlib.suppress(BudgetError):  # so much cannot leave
                name = b"memory that CUDA did not have"
                self._session.op_begin(-1, 0, name, uses, spare + wanted)
                made = True
            wanted -= -(-wanted // 4)
        self._heap.release()

    def op_ran(self, index: int, func: Op, born: int) -> None:
        """An op that was looked at in full has run."""
        if index >= 0:
            self.profiled(index, func, born)
        self.end_op()
        self._heap.allocated(born)

    def profiled(self, index: int, func: Op, born: int) -> None:
        """An op of a step has run; if the step is being profiled, this is noted."""
        if self.profiles:
            del self._funcs[index:], self._needs[index:]
            self._funcs.append(func)
            self._needs.append(born)
            self._device.streams.op_ran()

    def leave_plan(self, func: Op) -> None:
        """The program does something else than the step that was planned: the rest of the step is
        reactive."""
        plan, index = self.plan, self.next_op
        expected = plan.funcs[index] if plan is not None and index < plan.ops else "the end of the step"
        self.follows = False
        self._session.leave_plan()
        self._left = (
            f"a step left the plan at op {index}: {func} ran where {expected} was planned. The rest of that step had no "
            "plan: what was out came in only when an op asked for it, and the op waited. Other steps that leave the plan "
            "are not named"
        )

    def make_usual(self, storage: Storage) -> None:
        """A storage that is in memory may be resized: it has memory of torch's, unless somebody has its address."""
        if storage._tide is None or not storage._tide.pins:
            self._device.make_usual(storage)

    # -- what users ask ---------------------------------------------------------------------------

    def phase(self) -> Phase:
        """ "profiling", "planned" or "reactive"."""
        if not self._learns:
            return "reactive"
        return "planned" if self._known_plan is not None or self._rested else "profiling"

    def last_step(self, figures: Totals) -> StepFigures:
        """`figures`, the session's of the last complete step, with what only Python knows of it."""
        return {**self._last, **figures, "stall_seconds": figures["stall_ns"] / 1e9}
