"""The hook: ops of the block that are not usual pass here, before and after they run.

Three paths, by how much must be known. Correctness never depends on which one is taken:

quiet     nothing is out or on its way and there is room: only an op's new storages are registered.
watchful  a plan is being followed: the op's storages are checked for being out, the plan's triggers
          fire at their op index, and the op is checked against the one that the plan expects.
observed  the session is asked about every storage that the op touches.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import OutOfMemoryError, Tensor
from torch.nn import Parameter

from tidelog import _turns
from tidelog._errors import BudgetError
from tidelog._turns import give_way, waiting
from tidelog._whole import collect, come_again, held, is_collecting, is_whole, stop_collecting, take_held, whole
from tidelog.abi._native import MODIFIES, Session
from tidelog.dispatch._dispatch import Kernels, get_compiler
from tidelog.dispatch._steps import Plan, Steps
from tidelog.memory import _record
from tidelog.memory._heap import Cache, Heap
from tidelog.memory._record import Holder, Record, has_storage, record_in, unseen
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ledger import Ledger
from tidelog.storages._ops import (
    SCALARS,
    Args,
    Info,
    Kwargs,
    Launch,
    Op,
    OpOverload,
    functional_collectives,
    halves,
    holders_of,
    info_of,
    merged,
    storages,
    storages_of,
)

_NONE = type(None)
# Has torch run an op.
Run: TypeAlias = Callable[[], Any]
# Beyond this many remembered shapes the memory of output sizes starts afresh.
_FORESIGHT_ENTRIES_MAX = 1 << 16
# CUDA has no memory for an op: room for so many times what it needs is made, try by try.
_ROOM_TIMES = (2, 8, 32)
_NO_KWARGS: Kwargs = {}
_HERE = contextlib.nullcontext()


@functools.cache
def apart() -> Callable[..., Any]:
    """Calls a function where torch.compile looks at no frame that is entered, wherever it looks at each."""
    call: Callable[..., Any] = torch.compiler.disable(lambda function, *arguments: function(*arguments))
    return call


class Hook:
    """Asks the session before each op and reports to it afterwards."""

    in_cpp = True  # whether usual ops do not come here

    def __init__(
        self,
        ledger: Ledger,
        session: Session,
        steps: Steps,
        heap: Heap | Cache,
        async_uses: AsyncUses,
        kernels: Kernels,
    ) -> None:
        self._ledger = ledger
        self._session = session
        self._steps = steps
        self._heap = heap
        self._async_uses = async_uses
        self._kernels = kernels
        # Ops over lists are done in pieces of this.
        self._chunk_bytes_max = max(ledger.limit // 4, 1)
        self.updates: Mapping[int, object] = {}  # of an optimizer, that have not run: what they use comes here
        self.looks_on: Callable[[Op, Args, Kwargs, Any], None] | None = None  # at each op that is looked at in full
        self._uses: dict[int, int] = {}  # storage id -> use, of the op that is running
        self.of_no_step = steps.of_none  # while ops run for another thread
        # (op, shapes, sizes) -> bytes of its new outputs, when last seen
        self._foresight: dict[tuple[int, ...], int] = {}

    def __call__(self, func: OpOverload, args: Args, kwargs: Kwargs, run: Run) -> Any:
        """Called by the op's kernel. `run` has torch run it with these arguments."""
        if get_compiler() is not None:
            return apart()(self.__call__, func, args, kwargs, run)
        if waiting:
            give_way(sys._getframe(1), works=True)
        # As `whole` does it, which would cost a call more.
        collects = is_collecting()
        try:
            stop_collecting()
            return self._seen(func, args, kwargs, run)
        finally:
            if collects:
                collect()
            if held:
                [*map(come_again, take_held())]

    is_whole(__call__)
    _turns.is_middle(__call__.__code__, of_any_thread=True)

    def _seen(self, func: OpOverload, args: Args, kwargs: Kwargs, run: Run) -> Any:
        ledger = self._ledger
        if ledger.quiet:
            self._kernels.adopt(func)
            try:
                result = run()
            except OutOfMemoryError as error:
                return self._looked_at(error, func, args, kwargs, run)
            kind = type(result)
            if kind is Tensor and has_storage(result):
                if record_in(result) is None:
                    ledger.register(result, (info := info_of(func)).name, bool(info.written))
            elif kind is not _NONE:
                self._register_all(result, func)
                if info_of(func).launches:
                    self._async_uses.began(info_of(func), args, kwargs, result)
            return result
        return self._op(func, args, kwargs, run)

    @whole
    def launch(self, func: Launch, args: Args, kwargs: Kwargs) -> Any:
        """A kernel that gets addresses is about to be launched: it is an op like any other."""
        if self._ledger.quiet:
            result = func(*args, **kwargs)
            if result is not None:
                self._register_all(result, func)
            return result
        return self._launch(func, args, kwargs) if kwargs else self._kernels.launch(func, args, self._launch)

    def _launch(self, func: Launch, args: Args, kwargs: Kwargs = _NO_KWARGS) -> Any:
        if self._kernels.is_inside():
            return self._nested(func, args, kwargs)
        with unseen():
            return self._op(func, args, kwargs, _call_of(func, args, kwargs))

    def _nested(self, func: Launch, args: Args, kwargs: Kwargs) -> Any:
        """A launch inside a running op is a part of it: what the op uses stays, and what the launch
        uses besides comes in."""
        if self._session.forked:
            return self._in_forked_child(args, kwargs, _call_of(func, args, kwargs))
        uses = {record.id: 0 for record in self._records_of(holders_of(args, kwargs))}
        for record in self._records_of(func.modified(args, kwargs)):
            uses[record.id] = MODIFIES
            self._ledger.modifies(record)
        if uses:
            self.touch(uses)
        return func(*args, **kwargs)

    def inside(self, func: Op, args: Args, kwargs: Kwargs, run: Run) -> Any:
        """An op in the middle of another, or of a request."""
        if self._ledger.quiet:  # it stays so: nobody knows what the op around uses, and that must not leave
            return run()
        if self._session.forked:
            return self._in_forked_child(args, kwargs, run)
        uses = self._uses
        try:
            self._uses = {}
            with self._steps.inside():
                return self._observed_here(func, info_of(func), args, kwargs, run)
        finally:
            self._uses = uses

    def _op(self, func: Op, args: Args, kwargs: Kwargs, run: Run) -> Any:
        plan = self._steps.plan  # None in a child of a fork
        if plan is not None:
            return self._watchful(plan, func, args, kwargs, run)
        if self._session.forked:
            return self._in_forked_child(args, kwargs, run)
        return self._observed(func, info_of(func), args, kwargs, run)

    def expect_collectives(self) -> None:
        """The program is distributed. Any other is spared a look at each op."""
        self.__class__ = DistributedHook

    def _in_forked_child(self, args: Args, kwargs: Kwargs, run: Run) -> Any:
        """Memory that the fork copied is as good as any; what was out stays with the parent."""
        for storage in storages_of(args, kwargs):
            if storage._tide is not None:
                _record.refuse_in_child(storage._tide)
        return run()

    def made(self, tensor: Tensor) -> None:
        """An op that did not come here gave this, which has no storage of its own."""
        with unseen():
            self._records_of(holders_of((tensor,), {}))

    def _register_all(self, result: Any, func: Op) -> None:
        info = info_of(func)
        for holder in holders_of((result,), {}):
            if record_in(holder) is None:
                self._ledger.register(holder, info.name, bool(info.written))

    # -- a plan is being followed -----------------------------------------------------------------

    def _watchful(self, plan: Plan, func: Op, args: Args, kwargs: Kwargs, run: Run) -> Any:
        ledger, steps = self._ledger, self._steps
        index = steps.next_op
        if func is not plan.funcs[index]:
            steps.leave_plan(func)
            return self._observed(func, info_of(func), args, kwargs, run)
        info, needs = plan.infos[index], plan.needs[index]
        if (
            info.special
            or plan.due[index]
            or self._session.attention[0]
            # The dead are looked for only where that may be enough.
            or (ledger.counted + needs > ledger.limit and ledger.live + needs > ledger.limit)
            or not self._is_settled(info, args, kwargs)
        ):
            return self._observed(func, info, args, kwargs, run)
        steps.next_op = index + 1
        steps.notice(None)
        try:
            result = run()
        except OutOfMemoryError as error:
            steps.next_op = index
            return self._looked_at(error, func, args, kwargs, run)
        kind = type(result)
        if kind is Tensor and has_storage(result):
            ledger.record_of(result, (index, 0, info.name))
        elif kind is not _NONE:
            self._register(result, index, info)
        if needs:
            self._heap.allocated(needs)
        if ledger.counted > ledger.limit and ledger.live > ledger.limit:
            steps.end_op()
        return result

    def _is_settled(self, info: Info, args: Args, kwargs: Kwargs) -> bool:
        """Whether the session need not be asked about what an op uses: all of it is in memory, and none is
        being copied out. Of copies of what it writes it is told later."""
        ledger, clean = self._ledger, False
        # As `holders_of`, in place: this is done for most ops.
        for value in args:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                if not has_storage(value):
                    break
                record = record_in(value)
                if record is None or record.ledger is not ledger:
                    return False
                if record.state:
                    if record.state != _record.CLEAN:
                        return False
                    clean = True
            elif kind not in SCALARS:
                break
        else:
            if not kwargs or SCALARS.issuperset(map(type, kwargs.values())):
                if clean and info.written:
                    self._modifies_clean(info, args, kwargs)
                return True
        for holder in holders_of(args, kwargs):
            record = record_in(holder)
            if record is None or record.ledger is not ledger:
                return False
            if record.state and record.state != _record.CLEAN:
                return False
        if info.written:
            self._modifies_clean(info, args, kwargs)
        return True

    def _modifies_clean(self, info: Info, args: Args, kwargs: Kwargs) -> None:
        """What an op writes has no copy from here on."""
        for holder in info.modified(args, kwargs):
            record = record_in(holder)
            if record is not None and record.state:
                self._ledger.modified(record)

    # -- one op, looked at in full ----------------------------------------------------------------

    def _observed(self, func: Op, info: Info, args: Args, kwargs: Kwargs, run: Run) -> Any:
        if self._steps.is_performing():
            return self.inside(func, args, kwargs, run)
        return self._observed_here(func, info, args, kwargs, run)

    def _observed_here(self, func: Op, info: Info, args: Args, kwargs: Kwargs, run: Run) -> Any:
        steps = self._steps
        self._kernels.adopt(func)
        if self._async_uses:
            self._async_uses.look()
        shapes: list[Any] = [info.seed]
        sizes: list[int] = []
        holders = holders_of(args, kwargs, shapes, sizes)
        if info.written and self._ledger.expects_buckets:
            for holder in info.modified(args, kwargs):
                self._ledger.record_of_written(holder)
        records = self._records_of(holders)
        if info.chunks and sum(record.size for record in records) > self._chunk_bytes_max:
            pieces = halves(args, kwargs)
            if pieces is not None:
                return merged([self._observed_here(func, info, *piece, _call_of(func, *piece)) for piece in pieces])

        uses = {} if info.looks and info.leaves_out(args) else {record.id: 0 for record in records}
        if info.written:
            for record in self._records_of(info.modified(args, kwargs)):
                uses[record.id] = MODIFIES
                self._ledger.modifies(record)
        fingerprint = _fingerprint(shapes, records)
        foreseen = (fingerprint, *sizes)
        index = steps.next_op
        needs = self._foresight.get(foreseen)
        if needs is None:
            needs = info.expect(func, args, kwargs)
        self._begin(index, info.text, fingerprint, uses, needs)
        if index >= 0:
            steps.next_op = index + 1
        if info.resizes:
            for storage in storages(holders):
                self._steps.make_usual(storage)
        try:
            if info.asks_pinned and any(record.state & _record.AWAY for record in records):
                result: Any = False  # torch would look at memory that is not there; page-locked memory never moves
            else:
                result = run()
        except OutOfMemoryError as error:
            result = self._again_with_room(error, func, needs, run)
        finally:
            self._uses = {}
        born = self._register(result, index, info)
        if info.launches:
            self._async_uses.began(info, args, kwargs, result)
        if self.looks_on is not None:
            self.looks_on(func, args, kwargs, result)
        if len(self._foresight) >= _FORESIGHT_ENTRIES_MAX:
            self._foresight.clear()
        self._foresight[foreseen] = born
        if info.resizes:
            for holder in holders:
                self._ledger.measure_again(holder)
        steps.op_ran(index, func, born)
        return result

    # -- an op for which CUDA had no memory, though the budget had ---------------------------------

    def _looked_at(self, error: OutOfMemoryError, func: Op, args: Args, kwargs: Kwargs, run: Run) -> Any:
        """Runs an op again that was not looked at, this time in full."""
        self._refuse_second_run(error, func)
        if self._ledger.quiet:
            self._steps.budget_reached()
        return self._observed(func, info_of(func), args, kwargs, run)

    def _again_with_room(self, error: OutOfMemoryError, func: Op, needs: int, run: Run) -> Any:
        """Room that is in pieces may not do: more leaves then, in the end nearly all that the op does not
        use."""
        self._refuse_second_run(error, func)
        for times in _ROOM_TIMES:
            self._steps.make_room(error, func, self._uses, needs, times)
            try:
                return run()
            except OutOfMemoryError as again:
                self._refuse_second_run(again, func)
                error = again
        raise error

    def _refuse_second_run(self, error: OutOfMemoryError, func: Op) -> None:
        if not info_of(func).repeats or isinstance(error, BudgetError):
            raise error

    # -- records ----------------------------------------------------------------------------------

    def _records_of(self, holders: Iterable[Holder]) -> list[Record]:
        ledger = self._ledger
        records: list[Record] = []
        for holder in holders:
            record = record_in(holder)
            if record is None or record.ledger is not ledger:
                record = ledger.record_of(holder)
            if record is not None:
                records.append(record)
        return records

    def _begin(self, index: int, name: bytes, fingerprint: int, uses: dict[int, int], needs: int) -> None:
        self._uses = uses
        self._steps.begin_op(index, fingerprint, name, uses, needs)

    def _register(self, result: Any, index: int, info: Info) -> int:
        """Registers the storages that an op brought into the world; returns their bytes."""
        ledger = self._ledger
        born = 0
        for slot, holder in enumerate(holders_of((result,), {})):
            record = record_in(holder)
            if record is None or record.ledger is not ledger:
                record = ledger.record_of(holder, (index, slot, info.name))
                if record is not None:
                    born += record.size
        return born

    # -- an access that is no op ------------------------------------------------------------------

    @whole
    def touch(self, uses: Mapping[int, int]) -> None:
        """Makes storages ready for an access from outside the dispatcher, also from inside a
        running op. `uses` says by storage number which of them it writes, as for an op. The access
        follows, and nobody says when it has ended: what it uses stays until the next op, or
        `end_touch`."""
        outer = self._uses
        try:
            with self._steps.inside() if self._steps.is_performing() else _HERE:
                self._begin(-1, b"an access outside the dispatcher", 0, {**self._running_uses(), **uses}, 0)
        finally:
            self._uses = outer
        self._ledger.note_peak()

    @whole
    def end_touch(self) -> None:
        """What was brought back for an access may leave again."""
        if not self._running_uses():
            self._steps.end_op()

    def _running_uses(self) -> dict[int, int]:
        """What the op uses that is running, whoever looked at it."""
        return {**self._kernels.running_uses(), **self._uses}


class DistributedHook(Hook):
    """The hook of a distributed program: functional collectives are made the ops that they are."""

    _functional = functional_collectives()

    def _seen(self, func: OpOverload, args: Args, kwargs: Kwargs, run: Run) -> Any:
        if func not in self._functional:
            return super()._seen(func, args, kwargs, run)
        return self._async_uses.launch(func, args, kwargs, run)


def _call_of(func: Op, args: Args, kwargs: Kwargs) -> Run:
    return partial(func, *args, **kwargs)


def _fingerprint(shapes: list[Any], records: list[Record]) -> int:
    """A hash over the op, the shapes and types of its tensors, and which of them share memory."""
    places: dict[int, int] = {}
    aliasing = [places.setdefault(record.id, len(places)) for record in records]
    return hash((*shapes, *aliasing)) & 0xFFFFFFFFFFFFFFFF
