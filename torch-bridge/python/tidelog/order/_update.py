"""One parameter's update, apart from those of its optimizer's other parameters: what it computes with, and what
hangs on storages that nobody may use as they are.

An update has the numbers of its step (a scheduler may change them right after), the gradient (which may be
set to None), and the memory that all of it has. To run it is to call the class's own step with one
parameter.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from tidelog import _errors
from tidelog.memory import _record
from tidelog.memory._record import Pending, Storage
from tidelog.native._built import native
from tidelog.order import _element_wise
from tidelog.order._element_wise import Group, tensors_in
from tidelog.order._shards import are_apart, is_plain, local, part_of, storage_of


class Step:
    """A step of an optimizer as the optimizer is now."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.state: dict[Tensor, dict[str, Any]] = vars(optimizer)["state"]  # past what watches over it
        self._kind = type(optimizer)
        self._step = _element_wise.step_of(self._kind)
        self._attributes = dict(vars(optimizer))

    def stand_in(self, groups: list[Group], state: object) -> Optimizer:
        """An optimizer like this one was, with other groups and state."""
        like: Optimizer = object.__new__(self._kind)
        vars(like).update(self._attributes, param_groups=groups, state=state)
        return like

    def compute(self, group: Group, view: Tensor, entry: dict[str, Any]) -> None:
        """The step of one parameter."""
        self._step(self.stand_in([{**group, "params": [view]}], {view: entry}))


class Update:
    """One parameter's update."""

    def __init__(
        self, step: Step, group: Group, parameter: Tensor, gradient: Tensor, instead: Tensor | None = None
    ) -> None:
        """`instead`: the copy of the parameter that is updated, where it is not the parameter itself."""
        self.step = step
        self._group = group
        self._parameter = parameter
        # By views of what the parameter and its gradient are now: either may get other memory meanwhile,
        # and a parameter's version is that of the step. Ops of a DTensor are not for the middle of another op, where
        # an update may run; those of its local part are the same.
        self._view = local(parameter if instead is None else instead).data
        self._view.grad = local(gradient).data
        self._before = dict(step.state.get(parameter, ()))
        self._given = {name: local(value) for name, value in self._before.items()}
        self.entry = dict(self._given)

    def compute(self) -> None:
        """The update itself."""
        try:
            self.run()
        finally:
            self.keep()

    def run(self) -> None:
        """Computes the update, whose state is not its optimizer's yet."""
        self.step.compute(self._group, self._view, self.entry)

    def keep(self) -> None:
        """Keeps the update's changes to the state, where nobody else has put anything meanwhile."""
        changed = {name: value for name, value in self.entry.items() if self._given.get(name) is not value}
        if changed:
            kept = self.step.state.setdefault(self._parameter, {})
            for name, value in changed.items():
                if kept.get(name) is self._before.get(name):
                    kept[name] = part_of(value, self._parameter)


class Mark(Pending):
    """Hangs on storages that nobody may use as they are. Torch's access guard is set on them: what nobody
    noticed is an error, never a wrong byte."""

    error: type[_errors.Error] = _errors.Error

    def __init__(self, tensors: list[Tensor], text: str) -> None:
        """`text`: of the error."""
        self.storages: list[Storage] = []
        self._text = text
        self.add(tensors)

    def add(self, tensors: list[Tensor]) -> None:
        """Adds storages on which it is to hang."""
        known = {storage._cdata for storage in self.storages}
        more = {(storage := storage_of(each))._cdata: storage for each in tensors}
        self.storages += [storage for key, storage in more.items() if key not in known]

    def refuse(self) -> None:
        """Raises the error that the guard would give."""
        raise self.error(self._text)

    def guard(self, storage: Storage) -> None:
        """Sets the guard on one of its storages that is in memory. What is out has another, and a bucket of DDP none."""
        record = storage._tide
        if record is None or (record.is_guarded and not record.state & _record.AWAY):
            native().guard(storage, self._text)

    def hang(self) -> None:
        """Hangs on its storages, so that whoever touches them finds it."""
        for storage in self.storages:
            if storage._tide_update is not self:
                storage._tide_update = self
                self.guard(storage)

    def take_off(self) -> None:
        """Removes itself from its storages."""
        for storage in self.storages:
            if storage._tide_update is self:
                storage._tide_update = None
                if storage._tide is None or not storage._tide.state & _record.AWAY:
                    native().open_to_reads(storage)


class Several(Pending):
    """Updates of several parameters, on a storage that their gradients share, as those of a layer do that FSDP2 has
    reduced.
    """

    def __init__(self, *pending: Pending) -> None:
        self.pending = list(pending)

    def run(self) -> None:
        """A call that is no op uses it."""
        for each in [*self.pending]:
            each.run()

    def touch(self, func: object) -> None:
        """An op uses it."""
        for each in [*self.pending]:
            each.touch(func)

    def guard(self, storage: Storage) -> None:
        """Sets those that there are."""
        for each in self.pending:
            each.guard(storage)


def hanging_on(storage: Storage) -> list[Pending]:
    """Returns the marks on a storage."""
    found = storage._tide_update
    return found.pending if isinstance(found, Several) else [found] if found is not None else []


def hang_beside(storage: Storage, pending: Pending) -> None:
    """Hangs this on a storage, beside what hangs there."""
    there = hanging_on(storage)
    if pending not in there:
        storage._tide_update = Several(*there, pending) if there else pending


def take_off(storage: Storage, pending: Pending) -> None:
    """Removes a mark from a storage."""
    left = [each for each in hanging_on(storage) if each is not pending]
    storage._tide_update = Several(*left) if len(left) > 1 else left[0] if left else None


def tensors_of(step: Step, *parameter: Tensor) -> list[Tensor]:
    """Returns the tensors of an update: the parameter, its gradient if that is given, its state."""
    return [*parameter, *tensors_in(step.state.get(parameter[0], {}))]


def may_run_alone(tensors: list[Tensor]) -> bool:
    """Returns whether an update that uses these can run at any time on this rank: `tensors_of` a parameter."""
    return all(map(is_plain, tensors)) and are_apart(tensors[0], tensors[1:])


def name_of(parameter: Tensor) -> str:
    """Returns the name of a parameter for errors."""
    record = storage_of(parameter)._tide
    return record.describe() if record is not None else "a parameter"
