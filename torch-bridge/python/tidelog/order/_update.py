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
from tidelog.memory._record import Pending, Storage, untyped_storage
from tidelog.native._built import native
from tidelog.order import _element_wise
from tidelog.order._element_wise import Group, tensors_in


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

    def __init__(self, step: Step, group: Group, parameter: Tensor, gradient: Tensor) -> None:
        self.step = step
        self._group = group
        self._parameter = parameter
        # By views of what the parameter and its gradient are now: either may get other memory meanwhile,
        # and a parameter's version is that of the step.
        self._view = parameter.data
        self._view.grad = gradient.data
        self._before = dict(step.state.get(parameter, ()))

    def compute(self) -> None:
        """The update itself."""
        entry = dict(self._before)
        try:
            self.step.compute(self._group, self._view, entry)
        finally:
            self._keep(entry)

    def _keep(self, entry: dict[str, Any]) -> None:
        """What the update has put into the state, where nobody else has put anything meanwhile."""
        changed = {name: value for name, value in entry.items() if self._before.get(name) is not value}
        if changed:
            kept = self.step.state.setdefault(self._parameter, {})
            for name, value in changed.items():
                if kept.get(name) is self._before.get(name):
                    kept[name] = value


class Mark(Pending):
    """Hangs on storages that nobody may use as they are. Torch's access guard is set on them: what nobody
    noticed is an error, never a wrong byte."""

    error: type[_errors.Error] = _errors.Error

    def __init__(self, tensors: list[Tensor], text: str) -> None:
        """`text`: of the error."""
        self.storages = list({(storage := untyped_storage(each))._cdata: storage for each in tensors}.values())
        self._text = text

    def refuse(self) -> None:
        """Raises the error that the guard would give."""
        raise self.error(self._text)

    def guard(self, storage: Storage) -> None:
        """Sets the guard on one of its storages that is in memory. What is out has another."""
        if storage._tide is None or not storage._tide.state & _record.AWAY:
            native().guard(storage, self._text)

    def hang(self) -> None:
        """From here on whoever touches its storages finds it."""
        for storage in self.storages:
            storage._tide_update = self
            self.guard(storage)

    def take_off(self) -> None:
        """Nobody finds it any more."""
        for storage in self.storages:
            if storage._tide_update is self:
                storage._tide_update = None
                if storage._tide is None or not storage._tide.state & _record.AWAY:
                    native().open_to_reads(storage)


def tensors_of(step: Step, *parameter: Tensor) -> list[Tensor]:
    """What an update uses: the parameter, its gradient if that is given, its state."""
    return [*parameter, *tensors_in(step.state.get(parameter[0], {}))]


def name_of(parameter: Tensor) -> str:
    """What errors call it."""
    record = untyped_storage(parameter)._tide
    return record.describe() if record is not None else "a parameter"
