"""One parameter's update that an optimizer has put off: what it computes with, and the storages on which it
hangs until it has run.

It has the numbers of its step (a scheduler may change them right after), the gradient (which may be set to
None), and the memory that all of it has. Torch's access guard is set on its storages: what nobody noticed is
an error, never an old byte. To run it is to call the class's own step with one parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from tidelog import _element_wise, _errors, _guard, _movers, _record
from tidelog._element_wise import Group, tensors_in
from tidelog._record import Storage, untyped_storage


class Step:
    """One step of an optimizer that was taken note of."""

    def __init__(self, optimizer: Optimizer, run: Callable[[Update], None]) -> None:
        """`run` runs one of its updates unless it has run."""
        self.optimizer = weakref.ref(optimizer)
        self.run = run
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
    """One parameter's update that has not run."""

    def __init__(self, step: Step, group: Group, parameter: Tensor, gradient: Tensor, name: str) -> None:
        """`name`: of the parameter, for errors."""
        self.step = step
        self._group = group
        self._parameter = parameter
        # By views of what the parameter and its gradient are now: either may get other memory meanwhile,
        # and a parameter's version is that of the step.
        self._view = parameter.data
        self._view.grad = gradient.data
        self._before = dict(step.state.get(parameter, ()))
        found = (parameter, gradient, *tensors_in(self._before))
        self.storages = list({(storage := untyped_storage(each))._cdata: storage for each in found}.values())
        self._text = (
            f"tidelog: an update of {name}, which its optimizer has put off (updates='lazy'), has not run yet, and "
            "this access did not go through the offload block (another thread, a raw kernel). Touch the "
            "parameter by a torch op inside the block first."
        )

    def run(self) -> None:
        """Runs it, unless it has run."""
        self.step.run(self)

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

    def refuse(self) -> None:
        """Raises the error that the guard would give."""
        raise _errors.Error(self._text)

    def guard(self, storage: Storage) -> None:
        """Sets the guard on one of its storages that is in memory. What is out has another."""
        if storage._tide is None or not storage._tide.state & _record.AWAY:
            _guard.setting(storage, self._text)()

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
                    _movers.open_to_reads(storage)
