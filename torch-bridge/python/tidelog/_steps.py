"""The steps of a block, op by op: what the first ones do is profiled, and from that a plan is made that later ones follow."""

import array
import time

from tidelog import _record
from tidelog._plan import Plan


class Steps:
    """Tells the residency machine where in which step the program is, and waits for it there."""

    def __init__(self, ledger, session, performer, device, heap, *, learns):
        self.plan = None  # the Plan that this step follows, as long as it matches
        self.next_op = -1  # outside a step; inside, the index of the next op
        self.heap = heap
        self.notice = self._notice_stream if device.option else device.notice  # an op is about to be launched
        self._ledger = ledger
        self._session = session
        self._performer = performer
        self._device = device
        self._learns = learns  # whether a plan is wanted
        self._known_plan = None  # what steps may follow
        self._funcs, self._needs = [], []  # of the ops of a step that is being profiled
        self._rested = False  # whether the last step needed no migration at all
        self._pressed = False  # whether the budget was ever reached: from then on ops are looked at
        self._last = {}
        self.notices = []  # for the user; those of the machine are its session's

    # -- steps ------------------------------------------------------------------------------------

    def begin(self):
        """A step begins."""
        ledger, session = self._ledger, self._session
        ledger.find_the_dead()
        self.judge_quiet()
        self._performer.drive(session.library.tide_session_step(session.sync(), 1))
        ledger.reuse_numbers()
        self._take_plan()
        if not ledger.quiet:
            self.next_op = 0
            self.plan = self._known_plan

    def end(self, completed, started):
        """A step that began at `started` has ended; `completed`: by no exception."""
        ledger, session = self._ledger, self._session
        self._rested = ledger.quiet
        ledger.quiet = False
        durations = array.array("Q", self._device.durations() if completed and self._is_profiling() else ())
        if durations:
            session.check(session.library.tide_session_durations(session.handle, *durations.buffer_info()))
        status = session.library.tide_session_step(session.sync(), 0 if completed else 2)
        if not completed:
            return  # an exception is on its way: what else is wrong surfaces at the next touch
        self._performer.drive(status)
        self.judge_quiet()
        self._last = {"seconds": time.perf_counter() - started}

    def _take_plan(self):
        """A plan may have become ready: the first for steps like the last one, or another for the same ops."""
        library, handle = self._session.library, self._session.handle
        if self._known_plan is not None:
            self._known_plan.read(library, handle)
        elif self._learns and self._funcs:
            plan = Plan(library, handle, self._funcs, self._needs)
            self._known_plan = plan if plan.ops else None
        self._funcs, self._needs = [], []

    def judge_quiet(self):
        """Nothing is out, on its way, or copied; and the last step left room."""
        ledger = self._ledger
        quiet = ledger.marked == 0 and ledger.live <= ledger.limit and not self._pressed
        self._device.blind |= quiet
        ledger.quiet = quiet

    def budget_reached(self):
        """The quiet ends: from here on every op is looked at."""
        self._pressed = True
        self.heap.take_over()
        self._ledger.quiet = False
        self.next_op, self.plan = -1, None
        self.end_op()

    # -- ops --------------------------------------------------------------------------------------

    def begin_op(self, index, fingerprint, name, uses, count, needs):
        """Blocks until the op's storages are resident and its outputs have room."""
        session = self._session
        self._performer.drive(
            session.library.tide_session_op_begin(session.sync(), index, fingerprint, name, uses, count, needs)
        )
        self.notice()
        if index >= 0 and self._is_profiling():
            self._device.op_begins(index)

    def end_op(self):
        """Reports that the op has run and waits until the budget holds with its outputs."""
        session = self._session
        self._performer.drive(session.library.tide_session_op_end(session.sync()))
        self._ledger.note_peak()

    def op_ran(self, index, func, born):
        """An op that was looked at in full has run."""
        if index >= 0 and self._is_profiling():
            del self._funcs[index:], self._needs[index:]
            self._funcs.append(func)
            self._needs.append(born)
            self._device.op_ran()
        self.end_op()
        self.heap.allocated(born)

    def leave_plan(self, func):
        """The program does something else than the step that was planned: the rest of the step is reactive."""
        plan, index = self.plan, self.next_op
        expected = plan.funcs[index] if index < plan.ops else "the end of the step"
        self.plan = None
        self._session.leave_plan()
        if not any("left the plan" in notice for notice in self.notices):
            self.notices.append(
                f"a step left the plan at op {index}: {func} ran where {expected} was planned; "
                "that step went on reactively (said once)"
            )

    def _is_profiling(self):
        return self._known_plan is None and self._learns

    def _notice_stream(self):
        """An op is about to be launched, on whatever stream."""
        known = len(self._device.streams)
        self._device.notice()
        if len(self._device.streams) > max(known, 1):
            for record in list(self._ledger.records.values()):  # what moved before was another stream's alone
                if (storage := record()) is not None and not record.state & _record.AWAY:
                    self._device.share(storage)

    # -- what users ask ---------------------------------------------------------------------------

    def phase(self):
        """"profiling", "planned" or "reactive"."""
        if not self._learns:
            return "reactive"
        return "planned" if self._known_plan is not None or self._rested else "profiling"

    def last_step(self, figures):
        """`figures`, the machine's of the last complete step, with what only this side knows of it."""
        return {**self._last, **figures, "stall_seconds": figures["stall_ns"] / 1e9}
