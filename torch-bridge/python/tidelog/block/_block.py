"""The offload block: how it begins and ends, and what the user asks of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from functools import partial
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from tidelog import _errors, _turns
from tidelog._budget_error import BudgetError
from tidelog._options import size_a_day
from tidelog._whole import whole
from tidelog.abi._native import PART_NUMBERS, Session, SessionOptions
from tidelog.block._loop import OptimizerSteps, owner_of
from tidelog.block._names import Names, Together
from tidelog.block._pause import Pauses
from tidelog.block._ranks import Ranks, local_world_size
from tidelog.block._refusals import Refusals
from tidelog.block._restoring import Restoring
from tidelog.block._what import ActivationsAlone
from tidelog.checkpoints import _checkpoint
from tidelog.checkpoints._async_saves import Saves
from tidelog.checkpoints._resume import Resumed
from tidelog.dispatch import _parts
from tidelog.dispatch._access import Access
from tidelog.dispatch._dispatch import Kernels
from tidelog.dispatch._hook import Hook
from tidelog.dispatch._performer import Performer
from tidelog.dispatch._steps import Steps
from tidelog.escapes import _escape, _threads
from tidelog.escapes._handlers import Handlers
from tidelog.memory import _heap, _record
from tidelog.memory._device import Host
from tidelog.memory._record import Storage
from tidelog.native._built import native
from tidelog.order._chains import CallsOfClasses, CallsSeen
from tidelog.order._early import EarlyUpdates
from tidelog.order._host import HostUpdates
from tidelog.order._lazy import LazyUpdates
from tidelog.order._updates import Updates
from tidelog.output import _logging, _notebook
from tidelog.output._figures import (
    AllocatorName,
    PartsName,
    Phase,
    RecomputeName,
    SimulatedStep,
    Stats,
    StepFigures,
    StrPath,
    UpdatesName,
    WhatName,
)
from tidelog.output._notebook import Report
from tidelog.recompute._choosable import CheckpointedRegions, NamedBlocks
from tidelog.recompute._recompute import Recompute
from tidelog.recompute._regions import Regions
from tidelog.storages._alone import find_alone
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ledger import adopt, leave_in_pools, ledger_of
from tidelog.storages._ops import living_tensors, memory_of

_EVICTION_ATTEMPTS = 8
_PLAN_POLL_SECONDS = 0.001
_THROTTLE_MS = 50  # at a time, so that signals are seen

_UPDATES: dict[UpdatesName, type[Updates]] = {
    "own": Updates,
    "lazy": LazyUpdates,
    "early": EarlyUpdates,
    "host": HostUpdates,
}

# The block that is open (at most one in a process), and those that ended with tensors out.
_active: Tide | None = None
_left_behind: list[Tide] = []


@dataclass(frozen=True)
class Settings:
    """Settings of a block: the options of `offload`, read."""

    budget: int  # bytes
    staging: int  # bytes
    buffers: int  # bytes of staging that are in the same memory as tensors
    least: Callable[[int], int]  # the smallest budget that has so much beside its buffers
    mode: Literal["auto", "reactive"]
    device: Host
    outside: str  # where what is out is, in words
    updates: UpdatesName
    beside: int  # bytes of host memory in which updates run there
    recompute: RecomputeName
    blocks: CallsSeen | CallsOfClasses | None  # of blocks, which may run again
    parts: PartsName
    allocator: AllocatorName
    what: WhatName
    write_budget: int | None  # bytes a day, of all ranks here
    resume: str | None
    together: Together | None  # how, where it is with the other ranks
    report: StrPath | None
    session: SessionOptions


class Tide:
    """An open offload block. Made by `offload`."""

    def __init__(self, model: nn.Module | None, optimizer: Optimizer | None, settings: Settings) -> None:
        self.budget, self.staging = settings.budget, settings.staging
        self.mode, self.device = settings.mode, settings.device
        self._settings = settings
        self._has_write_budget = False
        self.resumed: Resumed | None = None  # the checkpoint that this block goes on from
        device = self.device
        limit = self.budget - settings.buffers
        self._heap = heap = device.heap(self.budget, limit)
        self.ledger = ledger = ledger_of(device, limit, settings.outside)
        self.session = session = Session(ledger)
        self.refusals = Refusals(ledger, device, self.budget, settings.buffers, self.staging, settings.least)
        session.tell_refusal = self.refusals.tell
        self._ranks = Ranks()
        self._async_uses = async_uses = AsyncUses(ledger, when_begun=self._is_distributed)
        self.performer = performer = Performer(session, ledger, device, heap, async_uses)
        learns = self.mode == "auto"
        self._kernels = kernels = Kernels()
        self.steps = Steps(ledger, session, async_uses, device, heap, learns=learns)
        self.updates = _UPDATES[settings.updates](
            ledger,
            lambda: self.access.is_live(),
            lambda: session.forked,
            device,
            self.steps.notices.append,
            lambda hook: getattr(hook, "__self__", None) is self.loop,
            lambda: self.access.is_elsewhere(),
            settings.beside,
        )
        self._moves_updates = settings.updates != "own"
        self._hook = hook = Hook(self.steps, heap, async_uses, self.updates)
        self.access = Access(
            *(ledger, session, self.steps, hook, async_uses, self.updates.expect_reducer, self._ranks.introduce),
            *(device.streams.await_copies, self.steps.make_usual),
        )
        self.updates.in_turn = self.access.turn
        # What the ops of other threads make is not known before they have run.
        notice = partial(ledger.launches, ledger.limit)
        services = hook.services(_threads.Bystander(self.access, async_uses, notice))
        self._open_kernels = partial(kernels.open, services, self.steps.place, session, self.updates.pending)
        self._handlers = Handlers(self.access, lambda: native().is_busy() or self.updates.is_ahead())
        self._restoring = Restoring(ledger, session, performer, self.access)
        ledger.connect(self.access, self.steps.budget_reached)
        self._recompute = None
        if settings.recompute == "best":
            regions, why_never = Regions(self.steps, self.access), self._why_no_choice(settings)
            choosable = (
                NamedBlocks(regions, settings.blocks) if settings.blocks is not None else CheckpointedRegions(regions)
            )
            self._recompute = Recompute(choosable, self.steps, session, why_never, self.steps.notices.append)
        access = self.access
        self._alone = (
            ActivationsAlone(ledger, access.is_live, access.is_elsewhere) if settings.what == "activations" else None
        )
        self._names = Names(lambda: (model, optimizer), ledger, session)
        self._is_named = model is not None or optimizer is not None
        # Steps of a loop that does not mark them.
        self.loop = OptimizerSteps(
            self._step,
            self.access.is_live,
            self.steps.count_what_is_mapped,
            self._name_what_trains,
            self.steps.notices.append,
            self.steps.clock,
        )
        self._at_work = contextlib.ExitStack()
        self.saves = Saves()  # of torch.distributed.checkpoint, beside the steps
        self._pauses = Pauses(
            ledger,
            session,
            self.access,
            self.steps,
            self.updates,
            async_uses,
            device,
            heap,
            self.saves,
            self._adopt_what_lives,
        )

    # -- the block ------------------------------------------------------------------------------

    @whole
    def __enter__(self) -> Tide:
        global _active
        if _active is self:
            raise _errors.Error(
                "this offload block is open already: it was entered before, and has not been left since."
            )
        if self in _left_behind:
            raise _errors.Error(
                "this offload block was left with tensors out: call restore() on it before it is entered again, or "
                "enter another one, which takes them over."
            )
        if _active is not None:
            raise _errors.Error(
                "an offload block is open already in this process; leave it before entering "
                "another (one block can hold several models: pass a torch.nn.ModuleList)."
            )
        self.access.begin()
        # First of all: others are told of a rank that ends before its first collective, too.
        self._ranks.introduce()
        try:
            if self._settings.together is not None:
                self.resumed = self._names.resume_together(self._settings.together)
            self._heap.make_way()
            self.session.open(self._settings.session)
            self.performer.connect()
            if self._settings.allocator == "arena":
                self.device.use_arena(self.ledger.limit)
            self._use_parts()
            self._set_write_budget(self._settings.write_budget)
        except BaseException as error:
            self._leave_ranks(error)
            self._names.forget()
            raise
        _active = self
        ledger = self.ledger
        try:
            _logging.block_begins(self.budget, self.session.stats())
            _escape.install(self.access, self.device.has_graphs, self.steps.notices.append)
            access = self.access
            busy = native().is_under_way, native().is_under_way_here
            _turns.begin(lambda: not access.is_elsewhere(), access.workers, *busy)
            _threads.watch_futures(access)
            self._at_work.enter_context(self.device.at_work())
            self.access.is_open = True
            before = _heap.anonymous_bytes()
            if self._alone is not None:
                self._alone.before_what_lives()
            self._adopt_what_lives()
            self._names.name_all()
            base = before - sum(record.size for record in ledger.all() if not record.is_slice)
            self._heap.begin(base, lambda: ledger.live)
            self.session.settle()
            if ledger.marked:
                self._heap.take_over()
            ledger.restart_peak()
            self.steps.judge_quiet()
            self._handlers.begin()
            with contextlib.ExitStack() as entered:
                entered.enter_context(self.loop)
                self._open_kernels()
                if self._moves_updates:
                    self.updates.begin()
                if self._alone is not None:
                    self._at_work.callback(self._alone.end)
                    self._alone.begin()
                if self._recompute is not None:
                    self._at_work.callback(self._recompute.close)
                    self._recompute.begin()
                entered.pop_all()  # `__exit__` leaves them
        except BaseException as error:
            self._leave_ranks(error)
            self._end_block()
            raise
        if self._settings.resume is not None and self._settings.together is None:
            try:
                self.resumed = self._names.resume(self._settings.resume)
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def _use_parts(self) -> None:
        """Lets plans move parts of storages, if that was asked for and can be."""
        settings = self._settings
        if settings.parts == "whole":
            return
        why = _parts.why_not(settings.device, settings.mode)
        if why is None:
            self.ledger.maps_memory, self.ledger.divides_from = settings.device.use_parts()
            self.session.use_parts()
            self.ledger.number_from(PART_NUMBERS)
        else:
            self.steps.notices.append(f'parts="best": storages move whole: {why}')

    def _set_write_budget(self, per_day: int | None) -> None:
        self._has_write_budget = per_day is not None
        self.session.set_write_budget((per_day or 0) // local_world_size())

    def _leave_ranks(self, error: BaseException | None) -> None:
        """The block ends, by that error if there is one: from here on this rank explains nothing."""
        self._ranks.leave()
        self._ranks.failed(error)

    def _adopt_what_lives(self) -> None:
        """Every tensor of this process counts against the budget from the start, ours or not."""
        ledger, pools, is_refused = self.ledger, self.device.pools(), False
        tensors = [*living_tensors()]
        find_alone(ledger, tensors)
        for each in tensors:
            for tensor in (each, each.grad if each.is_leaf else None):
                record = adopt(ledger, tensor)
                if pools and record is not None:
                    leave_in_pools(record, pools)
                if ledger.live > ledger.limit and not (is_refused or self.is_paused):
                    try:
                        self.session.settle()
                    except BudgetError:  # it is raised when all that cannot move has been counted
                        is_refused = True
        ledger.look_again()
        for earlier in list(_left_behind):
            if not earlier.ledger.has_away():
                earlier._close()

    @whole
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._require_its_turn()
        if self.is_paused and not self.session.forked:
            with contextlib.suppress(_errors.Error):  # what does not come back is named below
                self._pauses.end(at_once=False)
        failure = self.updates.end()
        self._kernels.close()
        self.loop.__exit__()
        if self.session.forked:
            return False  # the block is the parent's; whatever ends the child goes on
        self.saves.end_block(fails=kind is not None)
        self._leave_ranks(error)
        with contextlib.suppress(_errors.Error):
            _logging.block_ends(self.peak_bytes, self.stats())
        try:
            if kind is None and self._settings.report is not None:
                self.report(self._settings.report)
        finally:
            self._end_block()
        self._ranks.explain(error)
        if failure is not None and kind is None:
            raise failure
        return False

    def _require_its_turn(self) -> None:
        """A block is left once, by the thread that entered it. Where that has ended, by any."""
        if not self.is_open:
            raise _errors.Error("this offload block is not open: it was not entered, or has been left already.")
        with self.access.by_any_thread():
            if self.access.is_elsewhere():
                raise _errors.Error(
                    "this offload block was entered in another thread, which is running: leave the block there."
                )

    def _end_block(self) -> None:
        global _active
        self._kernels.close()
        failure = ""
        try:
            self._restoring.stop_migrations()
            failure = self._restoring.what_fits()
        finally:
            self.device.streams.await_copies()
            self.access.is_open = False
            self._async_uses.forget()
            self._names.forget()
            _turns.end()
            self._at_work.close()
            self._heap.end()
            self._handlers.end()
            _escape.remove()
            _active = None
            if self.ledger.has_away():
                _left_behind.append(self)
                self._restoring.leave_the_rest(self.budget, self._settings.outside, failure)
            else:
                self._close()

    def _close(self) -> None:
        try:
            self.session.close()
        finally:
            self.performer.drop_all()
            if self in _left_behind:
                _left_behind.remove(self)

    @contextlib.contextmanager
    def step(self) -> Iterator[Tide]:
        """Marks one training step. Results do not depend on it; plans do. In a loop that marks none,
        a step ends where its optimizer has stepped."""
        self._require_open()
        self.loop.__exit__()
        with self._step():
            yield self

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        steps = self.steps
        started = steps.clock()
        self._open_kernels()
        if self._recompute is not None:
            native().observe(self._recompute.begin_step())
        if self._alone is not None:
            self._alone.begin_step()
        steps.begin()
        completed = False
        try:
            yield
            completed = True
        finally:
            is_planned = steps.is_planned()
            steps.place.leave()
            if self.access.is_live():
                self._end_step(completed, started, is_planned)
                if completed and self._has_write_budget:
                    self._throttle()
            elif self.is_paused:
                self._end_step(False, started, False)

    @whole
    def _end_step(self, completed: bool, started: float, is_planned: bool) -> None:
        if not self.ledger.quiet:
            self._names.name_states()
        self.steps.end(completed, started)
        if self._recompute is not None:
            self._recompute.end_step(started if completed else None, is_planned)

    def _throttle(self) -> None:
        """Keeps to the write budget. A handler of the program's that has run ends it: the program may want to react.
        What is left of it is added to the next one."""
        ran = self._handlers.ran
        while self.session.throttle(_THROTTLE_MS) and self._handlers.ran == ran:
            pass

    def _why_no_choice(self, settings: Settings) -> str | None:
        """Returns the reason why all regions run as the program has them, if that is so."""
        if self.mode != "auto":
            return f"mode={self.mode!r}: nothing is planned"
        if settings.updates == "lazy":
            return 'updates="lazy": updates run in the regions\' first runs'
        if settings.updates == "host":
            return 'updates="host": parameters return in the regions\' first runs'
        return None

    def _is_distributed(self) -> None:
        self._ranks.introduce()
        self.steps.follows_plan = self._ranks.follows_plan

    # -- what users ask ---------------------------------------------------------------------------

    def _name_what_trains(self, optimizer: Optimizer) -> None:
        if not self._is_named:
            self.name(owner_of(optimizer), optimizer)

    @whole
    def name(self, model: nn.Module | None, optimizer: Optimizer | None = None) -> None:
        """Names tensors in errors and reports, as the arguments of `offload` do, where model and
        optimizer are made inside the block. Neither is kept alive by it."""
        self._require_open()
        named = weakref.ref(model) if model is not None else lambda: None
        stepped = weakref.ref(optimizer) if optimizer is not None else lambda: None
        self._names.follow(lambda: (named(), stepped()))

    @whole
    def evict(self, tensor: Tensor) -> None:
        """Moves a tensor's memory out now and waits until it is out. No plan brings it back before
        the next op."""
        self._require_open()
        for storage in memory_of(tensor):
            self._evict(storage)

    def _evict(self, storage: Storage) -> None:
        record = self.ledger.record_of(storage)
        if record is None or not self.ledger.movable(storage):
            name = record.describe() if record else "the tensor"
            if not self.ledger.owns(storage):
                raise _errors.UnmovableError(f"{name} is on {storage.device}, whose memory this block does not move.")
            raise _errors.UnmovableError(f"{name} cannot move: its memory is not torch's own.")
        if record.pins:
            raise _errors.PinnedError(
                f"{record.describe()} cannot move: numpy, DLPack or a raw pointer holds an alias of its memory."
            )
        self.steps.end_touch()
        self._async_uses.look()
        for _ in range(_EVICTION_ATTEMPTS):  # what is on its way in must arrive before it can leave
            if not record.is_out:
                self.session.settle()
            self.session.evict(record.id)  # also what is out, which a plan would bring back
            if record.is_out:
                return
        raise _errors.Error(f"{record.describe()} could not be moved out; stats()['notices'] says why.")

    def checkpoint(self, name: str, state: object = None) -> None:
        """Keeps a state in the pool under a name, until the checkpoint is deleted or the pool is gone:
        what is out and unchanged by reference, what has changed by one write. Without `state`: the
        state_dicts of the model and the optimizer of `offload`, and torch's random state, as a dict
        with "model", "optimizer" and "rng". When this returns, it survives any crash. `tidelog.restore`
        gives it back; `tidelog.Checkpoints` lists, verifies, deletes and exports."""
        self._require_open()
        if state is None:
            state = self._names.state()
        self.steps.end_touch()
        _checkpoint.write(self, name, state)

    @contextlib.contextmanager
    def pinned(self, *tensors: Tensor) -> Iterator[None]:
        """Holds the tensors in memory, where they are: code that Tidelog does not see may use their addresses.
        Addresses that are asked for inside are not used after it; outside, asking for one pins a tensor for its life,
        as nothing says for how long it is used.
        """
        self._require_open()
        with self.access.pinned([storage for tensor in tensors for storage in memory_of(tensor)]):
            yield

    def unpin(self, *tensors: Tensor) -> None:
        """Says that nobody uses an address of these tensors any more that `data_ptr()` gave: they may
        move again. Memory that NumPy has seen stays, as torch itself fixes it."""
        self._require_open()
        for storage in (storage for tensor in tensors for storage in memory_of(tensor)):
            self.access.unpin(storage)

    def pause(self) -> None:
        """Gives back all memory of the device that this block has, for others to use it: inference, or a job that
        goes first. A GPU's tensors leave to host memory, as far as there is some, and to the pool; the host's to the
        pool. Until `resume`, ops are torch's own, and whoever touches what is out gets an error that names it. Between
        any two ops of the block's thread, best between two steps. What is not torch's own to move stays
        (`stats()["unmovable"]`); where something is pinned, or in use by a collective, nothing leaves."""
        self._require_open()
        self._pauses.begin()

    def resume(self, *, at_once: bool = True) -> None:
        """Ends a pause. When this returns, what left by it is back, as far as the budget has room beside what the
        program has made meanwhile; where the device has no memory for it, an error says so. `at_once=False`: it comes
        back as ops need it, which costs less, and where there is no memory an op says so. After an error the block goes
        on with what has come."""
        if not self.is_open:
            self._require_open()
        self._pauses.end(at_once=at_once)

    @contextlib.contextmanager
    def paused(self, *, at_once: bool = True) -> Iterator[None]:
        """A pause, as long as the `with` block: `pause`, and `resume` at its end."""
        self.pause()
        try:
            yield
        finally:
            if self.is_paused:
                self.resume(at_once=at_once)

    @property
    def is_paused(self) -> bool:
        """Returns whether `pause` was called, and `resume` was not yet."""
        return self.access.is_paused

    def is_resident(self, tensor: Tensor) -> bool:
        """Returns whether the tensor's bytes are in memory now."""
        records = [storage._tide for storage in memory_of(tensor)]
        return not any(record is not None and record.state & _record.AWAY for record in records)

    @whole
    def restore(self, *tensors: Tensor) -> None:
        """Brings tensors back; without arguments, all that is out, whatever the budget says."""
        if self.is_paused:
            self._require_open()
        if tensors:
            for tensor in tensors:
                self.access.bring_back(*memory_of(tensor))
            return
        with self.access.by_any_thread():
            if not self.session.is_open():
                return  # the block ended with nothing out
            if self.access.is_elsewhere():
                raise _errors.Error(
                    "restore() was called in another thread than that of this offload block, which is open: call it "
                    "there, or after the block."
                )
            self._restoring.everything()
            if not self.is_open:
                self._close()

    def set_write_budget(self, write_budget: int | str | None) -> None:
        """Has another write budget hold from here on, as `offload` takes it; None: none. What was written before
        counts no longer, and steps are planned for again."""
        self._require_open()
        self._set_write_budget(None if write_budget is None else size_a_day(write_budget, "write_budget"))

    def await_plan(self) -> None:
        """Waits until no plan is being made, no better one is likely to be found, and no regions are chosen. What is to
        be timed under the plan, or compared step by step, waits for it between two steps: the next one follows what was
        found. Where nothing is planned, there is no plan to wait for.
        """
        self._require_open()
        while self._is_planning() or (self._recompute is not None and self._recompute.is_choosing()):
            time.sleep(_PLAN_POLL_SECONDS)

    def _is_planning(self) -> bool:
        figures = self.session.stats()
        return bool(figures["planning"] or figures["improving"])

    @property
    def is_open(self) -> bool:
        """Returns whether the block is running."""
        return self.access.is_open

    @property
    @whole
    def live_bytes(self) -> int:
        """Bytes of storages in memory, staging included where that is in the same memory."""
        return self.ledger.live + self._settings.buffers

    @property
    def peak_bytes(self) -> int:
        """The highest `live_bytes` at an op boundary so far."""
        return self.ledger.peak + self._settings.buffers

    @property
    def phase(self) -> Phase:
        """ "profiling", "planned" or "reactive"."""
        return self.steps.phase()

    def stats(self) -> Stats:
        """Figures of the block so far, as a dict."""
        self._tell_clock()
        stats = self.session.stats()
        stats["notices"] += self.steps.notices
        stats["dispatch"] = self._kernels.figures()
        stats["updates"] = self.updates.figures()
        stats["recompute"] = self._recompute.figures() if self._recompute is not None else None
        stats["gpu_memory"], stats["host_heap"] = self._heap.figures(), self._heap.host_figures()
        stats["unmovable"] = self.ledger.unmovable()
        return stats

    def _tell_clock(self) -> None:
        """The session hears what the device's clock says of the last step."""
        if self.session.is_open() and not self.session.forked:
            self.steps.tell_clock()

    def last_step(self) -> StepFigures:
        """Figures of the last complete step: seconds, bytes_written, bytes_read, evictions,
        fetches, stalls, stall_seconds."""
        return self.steps.last_step(self.stats()["last_step"])

    def simulate_step(self) -> SimulatedStep | None:
        """Simulates a step of the plan at the pace of the last one, in the words of `last_step`. None where the last
        step followed no plan to its end.
        """
        figures = self.session.simulate()
        if figures is None:
            return None
        if "why_not" in figures:
            raise _errors.Error(f"the plan cannot be simulated: {figures['why_not']}")
        seconds, stalled = figures["time_ns"] / 1e9, figures["stall_ns"] / 1e9
        return cast(SimulatedStep, {**figures, "seconds": seconds, "stall_seconds": stalled})

    def report(self, path: StrPath) -> Report:
        """Writes the HTML report. What it returns is a path, and shows the page in a notebook."""
        self._tell_clock()
        self.session.write_report(path)
        return Report(os.fspath(path))

    def __repr__(self) -> str:
        budget = _notebook.binary(self.budget)
        if not self.is_open:
            return f"<tidelog.Tide with a budget of {budget}, not open>"
        if self.is_paused:
            return f"<tidelog.Tide paused, with a budget of {budget}>"
        return f"<tidelog.Tide {self.phase}, {_notebook.binary(self.live_bytes)} of {budget} in memory>"

    def _repr_html_(self) -> str:
        """Returns the HTML of the block for notebooks."""
        if not self.session.is_open():
            return _notebook.text("a tidelog block that is not open")
        return _notebook.of_block(self.stats(), self.phase, self.budget, self.live_bytes, self.peak_bytes)

    def trace(self, path: StrPath) -> None:
        """Writes the trace of the planned step, for `tidelog-plan`: ops, their times, the storages
        that they use."""
        self.session.write_trace(path)

    def _require_open(self) -> None:
        if not self.is_open:
            raise _errors.Error("this offload block is not open: use `with tidelog.offload(...) as tide:`.")
        if self.session.forked:
            raise _errors.ForkedError("this offload block belongs to the parent process.")
        if self.is_paused:
            raise _errors.PausedError("this offload block is paused: call resume() on it first.")


def open_here() -> Tide | None:
    """The block that is open, if this is its thread."""
    return _active if _active is not None and _active.access.is_live() and not _active.access.is_elsewhere() else None


@atexit.register
def _drain_at_exit() -> None:
    """No device may write into memory that the interpreter is about to free."""
    with contextlib.ExitStack() as closings:  # one that fails does not keep the others from closing
        for tide in [_active, *_left_behind]:
            if tide is not None:
                closings.callback(tide._close)


def _mark_forked() -> None:
    for tide in [_active, *_left_behind]:
        if tide is not None:
            tide.session.forked = True
            native().suspend(False)
            tide.device.streams.forget_copies()
            tide.ledger.is_in_child = True
            tide.steps.place.follows = False


def _run_updates() -> None:
    """A child has what the program's steps have left, as far as it is in memory."""
    if (tide := open_here()) is not None:
        tide.updates.run_all()


os.register_at_fork(before=_run_updates, after_in_child=_mark_forked)
