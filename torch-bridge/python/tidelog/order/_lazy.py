"""The lazy optimizer: a step is deferred, and each parameter's update runs just before anybody
touches the parameter, its gradient or its state: mostly in the next forward pass.

Who touches it: ops, by their kernels; calls that are no ops, by the wrappers of `_escape`; who reads an
optimizer's state, by a property of the class; and the next step, a fork and the end of the block.
"""

from __future__ import annotations

import warnings
import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tidelog import _errors
from tidelog._whole import whole
from tidelog.native._built import native
from tidelog.order import _element_wise
from tidelog.order._element_wise import Group
from tidelog.order._shards import storage_of
from tidelog.order._update import Mark, Step, Update, may_run_alone, name_of, tensors_of
from tidelog.order._updates import Updates, interrupts_deferred
from tidelog.output._figures import UpdateFigures


class Late(Mark):
    """Updates of one step that have not run, of a parameter, or of several that share memory, as the gradients of a
    layer do that FSDP2 has reduced: they hang on what they use, and run together."""

    def __init__(self, step: Step, parameter: Tensor, updates: LazyUpdates) -> None:
        text = (
            f"tidelog: an update of {name_of(parameter)}, which its optimizer has put off (updates={updates.name!r}), has not "
            "run yet, and this access did not go through the offload block (another thread, a raw kernel). Touch "
            "the parameter by a torch op inside the block first."
        )
        super().__init__([], text)
        self.step = step
        self.each: list[Update] = []
        self._updates = updates
        # Where the step would have launched them: the program orders what it launches elsewhere by that.
        self.stream = updates.streams.current()

    def compute(self) -> None:
        """The updates themselves, in the program's order."""
        for update in self.each:
            update.compute()

    def run(self) -> None:
        """Runs the update, unless it has run."""
        self._updates.run(self)

    def touch(self, func: object) -> None:
        """Runs the update before an op."""
        self._updates.run_before_op(self)


class LazyUpdates(Updates):
    """The updates of one block that have not run."""

    name = "lazy"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._late = 0  # updates that have run after their step
        # Of each optimizer the parameters (by id) that had no state after a step that ran in its place.
        self._stateless: weakref.WeakKeyDictionary[Optimizer, set[int]] = weakref.WeakKeyDictionary()

    def figures(self) -> UpdateFigures:
        return {"pending": self._count(), "late": self._late, "early": 0}

    def _count(self) -> int:
        return sum(len(late.each) for late in self.pending.values())

    # -- a step -----------------------------------------------------------------------------------

    @whole
    def leave_to(self, optimizer: Optimizer, why: str) -> None:
        self._run_what_waited(optimizer)

    @whole
    def rests(self, optimizer: Optimizer) -> bool:
        if self.pending:
            self._run_what_waited(optimizer)
        return True

    def _run_what_waited(self, optimizer: Optimizer) -> None:
        """Runs updates that had a whole step to be touched in, and those that nobody will touch."""
        for update in list(self.pending.values()):
            if update.step.optimizer() in (optimizer, None):
                update.run()

    @whole
    def note(self, optimizer: Optimizer, step: Step) -> list[Group]:
        """Notes a step's updates; parameters without state stay in the step's place: the first step of each makes it."""
        self._run_what_waited(optimizer)
        groups, stateless = [], self._stateless.setdefault(optimizer, set())
        for group in optimizer.param_groups:
            numbers, at_once = _element_wise.noted(group), []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                has_state = bool(step.state.get(parameter))
                if (has_state or id(parameter) in stateless) and self._put_off(step, numbers, parameter):
                    continue
                at_once.append(parameter)
                if not has_state:
                    stateless.add(id(parameter))
            if at_once:
                groups.append({**numbers, "params": at_once})
        return groups

    def _put_off(self, step: Step, group: Group, parameter: Tensor) -> bool:
        """Notes one parameter's update; returns whether it may run later."""
        gradient = parameter.grad
        if gradient is None or not may_run_alone(tensors := tensors_of(step, parameter, gradient)):
            return False
        storages = [storage_of(each) for each in tensors]
        found = {id(each._tide_update): each._tide_update for each in storages if each._tide_update is not None}
        (late,) = found.values() if len(found) == 1 else (None,)
        if not isinstance(late, Late) or late.step is not step:
            for pending in found.values():
                pending.run()
            late = Late(step, parameter, self)
        if not all(map(self.is_seen, storages)):
            return False
        try:
            update = Update(step, group, parameter, gradient)
        except RuntimeError:  # of a type that a view of the parameter takes no gradient of
            return False
        torch.autograd.graph.increment_version(parameter)  # what was computed with it is out of date from here on
        late.each.append(update)
        late.add(tensors)
        self.pending[id(late)] = late
        late.hang()
        return True

    # -- running them -------------------------------------------------------------------------------

    def run_before_op(self, update: Late) -> None:
        """Runs one for an op of the block's."""
        if self.is_forked():
            self.run(update)
        self._run(update)

    def run_all(self) -> None:
        while self.pending:
            next(iter(self.pending.values())).run()

    def look_at(self, optimizer: Optimizer) -> None:
        for update in list(self.pending.values()):
            if update.step.optimizer() is optimizer:
                update.run()

    def run(self, update: Late) -> None:
        """Runs one, unless it has run."""
        if id(update) not in self.pending:
            return
        if self.is_forked():
            raise _errors.ForkedError(
                f"an update that has not run belongs to the parent process: see updates={self.name!r}."
            )
        if native().is_inside():
            update.refuse()
        if self.is_elsewhere():
            if (record := update.storages[0]._tide) is not None:
                with self.in_turn(record):
                    self.run(update)
                return
            update.refuse()
        self._run(update)

    @whole
    def _run(self, update: Late) -> None:
        """Defers Ctrl-C so that no parameter is left half updated."""
        with interrupts_deferred():
            self._forget(update)
            self._late += len(update.each)
            self.streams.call_on(update.stream, partial(self.run_apart, update.compute))

    def end(self) -> BaseException | None:
        """Runs all pending updates, as the program has stepped its optimizer."""
        failure = None
        try:
            if not self.is_forked():
                self.run_all()
        except BaseException as error:  # the block ends first
            failure = error
        super().end()
        left = self._count()
        for update in list(self.pending.values()):
            self._forget(update)
        if left and not self.is_forked():
            warnings.warn(
                f"the last updates of {left} parameters did not run: these are as they were before their "
                f"optimizer's last step ({failure!r}). Go on from a checkpoint.",
                _errors.LeftBehindWarning,
                stacklevel=4,
            )
        return failure

    def _forget(self, update: Late) -> None:
        update.take_off()
        self.pending.pop(id(update), None)
