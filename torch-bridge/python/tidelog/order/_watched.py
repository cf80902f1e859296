"""One parameter that is updated in the backward pass: what hangs on its storages, and when.

While a step is profiled, a watch notes who uses them once the gradient has been made. From the update on
until the optimizer steps nobody may use the parameter and its state; the gradient is gone until somebody
sets it to None, or to zero.
"""

from __future__ import annotations

import weakref
from types import UnionType

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from tidelog import _errors
from tidelog.memory._record import Pending, Storage, fill, nbytes, unseen
from tidelog.native._built import native
from tidelog.order import _element_wise
from tidelog.order._element_wise import Group
from tidelog.order._shards import maker_of_similar, storage_of
from tidelog.order._update import Mark, hang_beside, hanging_on, name_of, take_off

_ZEROES = {torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default}

_INSTEAD = "Or run with updates='lazy' or 'own'."


class Watch(Pending):
    """Notes who uses storages, and keeps nobody from it."""

    def __init__(self, storages: list[Storage]) -> None:
        self.why: str | None = None  # what is in the way: who has used one of them
        self.has_stepped = False  # the optimizer: the gradient alone is watched
        self._storages: list[weakref.ref[Storage]] = []
        self.hang(storages)

    def hang(self, storages: list[Storage]) -> None:
        """Hangs watches on storages."""
        for storage in storages:
            hang_beside(storage, self)
        self._storages += map(weakref.ref, storages)

    def run(self) -> None:
        """A call that is no op uses one of them."""
        self.touch(None)

    def touch(self, func: object) -> None:
        """An op uses one of them. To make a view is no use yet: FSDP2 makes several gradients as views of one tensor."""
        if self.has_stepped and func in _ZEROES:
            self.take_off()
        elif not getattr(func, "is_view", False):
            self.note("a call that is no op" if func is None else str(func))

    def note(self, used_by: str) -> None:
        """The first user is enough."""
        self.take_off()
        when = "gradients after the step" if self.has_stepped else "what updates use before the step"
        self.why = f"{used_by} uses {when}"

    def guard(self, storage: Storage) -> None:
        """Guards nothing."""

    def take_off(self) -> None:
        """Removes the watches."""
        for reference in self._storages:
            if (storage := reference()) is not None:
                take_off(storage, self)
        self._storages.clear()


class Begun(Pending):
    """Hangs on a gradient that more may be added to, and keeps nobody from using it: a step may be given up."""

    def __init__(self, storage: Storage, watch: Watch | None = None) -> None:
        """`watch`: which notes who uses it."""
        self.is_zeroed = False
        self._is_used = False
        self._storage, self._watch = weakref.ref(storage), watch
        if watch is not None:
            take_off(storage, watch)  # it hears of this one's uses
        hang_beside(storage, self)

    def run(self) -> None:
        """A call that is no op uses it."""
        self.touch(None)

    def touch(self, func: object) -> None:
        """An op uses it."""
        if func in _ZEROES:
            self.is_zeroed = True
            return
        self._is_used = True
        if self._watch is not None and self._watch.why is None:
            self._watch.touch(func)

    def guard(self, storage: Storage) -> None:
        """Guards nothing."""

    def is_given_up(self, gradient: Tensor) -> bool:
        """Returns whether the begun is gone, and this is a new one. To add to it would have used it."""
        return self.is_zeroed or not (self._is_used or self in marks_of(gradient))

    def take_off(self) -> None:
        """Removes the watches."""
        if (storage := self._storage()) is not None:
            take_off(storage, self)


class Updated(Mark):
    """A parameter that has been updated in the backward pass, while its optimizer has not stepped."""

    error = _errors.OrderError

    def run(self) -> None:
        """A call that is no op uses it."""
        self.refuse()

    def touch(self, func: object) -> None:
        """An op uses it."""
        self.refuse()


class UsedUp(Mark):
    """A gradient that an update has used up: a tensor without memory stands for it."""

    error = _errors.OrderError

    def __init__(self, stand_in: Tensor, name: str) -> None:
        super().__init__(
            [stand_in],
            f"tidelog: the gradient of {name} is gone: with updates='early' its update has used it up in the backward "
            "pass, and freed it. Until it is set to None or to zero after the step, nothing may read it, or add "
            f"to it. Read gradients in hooks of tensors (register_hook). {_INSTEAD}",
        )
        self.has_stepped = False  # the optimizer: now the gradient may be set to zero
        (storage,) = self.storages
        self.storages.clear()  # it owns this, and not the other way round
        self._storage = weakref.ref(storage)
        self._size = nbytes(storage)
        storage._tide_update = self
        native().empty(storage, self._text)

    def run(self) -> None:
        """A call that is no op uses it."""
        self.refuse()

    def touch(self, func: object) -> None:
        """An op uses it. To set it to zero needs no bytes; it is zero from here on, whatever becomes of the op."""
        storage = self._storage()
        if storage is None or not self.has_stepped or func not in _ZEROES:
            self.refuse()
            return
        native().give(storage, self._size, None)
        fill(storage, 0)
        storage._tide_update = None


class Watched:
    """One parameter of one optimizer."""

    def __init__(self, optimizer: Optimizer, parameter: Tensor) -> None:
        self.optimizer, self.parameter = weakref.ref(optimizer), weakref.ref(parameter)
        self.place = 0  # of its group
        self.count = 0  # of gradients that have been added up since the last step
        self.expects = 0  # how many make the gradient complete: the most that were seen
        self.is_known = False  # a step was profiled, and nothing is in the way
        self.stays = False  # it is updated where the program steps
        self.handle: RemovableHandle  # of the hook that says when a gradient has been made
        self.updated: Updated | None = None
        self.failure: str | None = None
        self._watch: Watch | None = None
        self._begun: Begun | None = None
        self._numbers: Group = {}  # of its group, when the gradient was made
        self._of_the_step: Group = {}  # of its group, as the last step had them
        self._used_up: UsedUp | None = None
        self._storage: Storage  # that was updated

    @property
    def name(self) -> str:
        """Returns the name for errors."""
        parameter = self.parameter()
        return name_of(parameter) if parameter is not None else "a parameter that is gone"

    def forget(self) -> None:
        """Forgets all but that its gradient is gone."""
        self.handle.remove()
        self._end_watch()
        self.give_up()
        self._open()

    # -- gradients add up ---------------------------------------------------------------------------

    def counts(self, gradient: Tensor | None) -> None:
        """A gradient has been made, or added to the one that there is. What was added up in a step that was given up
        counts no longer."""
        if self._begun is not None and gradient is not None and self._begun.is_given_up(gradient):
            self.count = 0
        self._end_begun()
        self.count += 1

    def begins(self, gradient: Tensor) -> None:
        """Begins a sum: more is to be added to this."""
        self._begun = Begun(storage_of(gradient))

    def give_up(self) -> None:
        """The gradient is set to zero, or to None, before the step."""
        self._end_begun()
        self.count = 0

    def _end_begun(self) -> None:
        if self._begun is not None:
            self._begun.take_off()
            self._begun = None

    # -- a step is profiled -------------------------------------------------------------------------

    def watch(self, gradient: Tensor, others: list[Storage], numbers: Group) -> str | None:
        """A gradient has been made, which may be the last before the step. `others`: what else an update would use.
        Returns what is in the way."""
        self._end_watch()
        storage = storage_of(gradient)
        is_taken = not are_all(hanging_on(storage), Watch | Begun)
        if is_taken or any(other._tide_update is not None for other in others):
            return "something else is updated in the same memory"
        self._watch, self._numbers = Watch([storage, *others]), numbers
        self._begun = Begun(storage, self._watch)
        return None

    def why_not(self, group: Group) -> str | None:
        """The optimizer steps, with this group: what has come between the gradient and the step?"""
        watch, optimizer, parameter = self._watch, self.optimizer(), self.parameter()
        if watch is None or optimizer is None or parameter is None:
            return None
        if watch.why is not None or watch.has_stepped:
            return watch.why
        begun, gradient = self._begun, parameter.grad
        if begun is None or gradient is None or begun not in marks_of(gradient) or begun.is_zeroed:
            return "something sets gradients between the backward pass and the step"
        for name in self.differences(_element_wise.numbers_of(group), optimizer):
            return f"{name} changes between the backward pass and the step"
        return None

    def look_back(self) -> str | None:
        """A gradient has been made, the first since the step: who has used the last one after it?"""
        watch = self._watch
        if watch is None or not watch.has_stepped:
            return None
        self._end_watch()
        self.is_known = watch.why is None
        return watch.why

    def watched_gradient(self) -> Tensor | None:
        """The gradient, if the optimizer has stepped in its place: what happens to it now?"""
        parameter = self.parameter()
        is_watched = self._watch is not None and self._watch.has_stepped
        return parameter.grad if is_watched and parameter is not None else None

    def watch_gradient(self, gradient: Tensor) -> None:
        """Watches a gradient again."""
        if self._watch is not None:
            self._watch.hang([storage_of(gradient)])

    def state_is_used(self) -> None:
        """Handles a use of the optimizer's state."""
        if self.updated is not None:
            self.updated.refuse()
        if self._watch is not None and not self._watch.has_stepped:
            self._watch.note("a look at optimizer.state")

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.take_off()
            self._watch = None

    # -- it is updated --------------------------------------------------------------------------------

    def numbers_of(self, group: Group) -> Group:
        """Returns the numbers with which an update computes now, as far as a group says it."""
        numbers = _element_wise.numbers_of(group)
        if "foreach" in numbers:  # torch decides it by all parameters
            numbers["foreach"] = self._of_the_step.get("foreach")
        return numbers

    def use_up(self, parameter: Tensor, tensors: list[Tensor], numbers: Group) -> None:
        """Uses up a gradient after its update. `tensors`: the parameter and its state."""
        self._numbers, self._storage = numbers, storage_of(parameter)
        self._close(
            tensors,
            "has been updated in the backward pass (updates='early'), and its optimizer has not stepped since. "
            "Until then nothing may use it or its state: neither a look at them nor one more micro-batch than in the "
            "steps before; and a step may not be left out. Call step() first.",
        )
        gradient = parameter.grad
        assert gradient is not None
        make = maker_of_similar(gradient)
        parameter.grad = gradient = None
        with unseen():
            parameter.grad = make()
        self._used_up = UsedUp(parameter.grad, self.name)

    def fail(self, tensors: list[Tensor], error: BaseException) -> None:
        """An error has come in the middle of its update."""
        self.failure = (
            f"was being updated in the backward pass when an error came ({error!r}). Go on from a checkpoint."
        )
        self._close(tensors, self.failure)

    def _close(self, tensors: list[Tensor], text: str) -> None:
        self.updated = Updated(tensors, f"tidelog: {self.name} {text} {_INSTEAD}")
        self.updated.hang()

    # -- its optimizer steps --------------------------------------------------------------------------

    def check(self, parameter: Tensor, numbers: Group) -> None:
        """Raises an error where the step would not do what was done in the backward pass."""
        optimizer = self.optimizer()
        assert optimizer is not None
        if self.failure is not None:
            self._refuse(self.failure)
        if parameter.grad is None or self._used_up not in marks_of(parameter.grad):
            self._refuse(
                "has been updated in the backward pass (updates='early'), and since then something has set its "
                "gradient: the step would have used that. Set gradients before the backward pass or after the step."
            )
        if storage_of(parameter) is not self._storage:
            self._refuse(
                "has been updated in the backward pass (updates='early'), and got other memory since then: the step "
                "would have updated that. Set `.data` before the backward pass or after the step."
            )
        for name in self.differences(numbers, optimizer):
            self._refuse(
                f"has been updated in the backward pass (updates='early') with {name}={self._numbers.get(name)!r}, and "
                f"its optimizer steps with {numbers.get(name)!r}. Change numbers before the backward pass or after "
                "the step: a scheduler steps after its optimizer."
            )

    def _refuse(self, text: str) -> None:
        raise _errors.OrderError(f"{self.name} {text} {_INSTEAD}")

    def differences(self, numbers: Group, optimizer: Optimizer) -> list[str]:
        """Describes the numbers that are no longer what they were when the gradient was made. Whatever else users keep
        in a group is not looked at.
        """
        return [name for name in optimizer.defaults if numbers.get(name) != self._numbers.get(name)]

    def step(self, place: int, numbers: Group) -> None:
        """Records a step of its optimizer, with these numbers for its group."""
        parameter = self.parameter()
        if self.updated is not None and parameter is not None:
            torch.autograd.graph.increment_version(parameter)  # what was computed with it is out of date from here on
        self._open()
        if self._watch is not None and not self._watch.has_stepped:
            self.expects = max(self.expects, self.count)
            self._watch.take_off()
            self._watch.has_stepped = True
        self.place, self._of_the_step = place, numbers
        self.give_up()

    def stay(self) -> None:
        """Leaves the update in its place from here on."""
        self._end_watch()
        self._end_begun()
        self.stays, self.is_known = True, False

    def _open(self) -> None:
        if self._used_up is not None:
            self._used_up.has_stepped = self.updated is not None
            self._used_up = None
        if self.updated is not None:
            self.updated.take_off()
            self.updated = None


def marks_of(tensor: Tensor) -> list[Pending]:
    """Returns the marks on a tensor's memory, if it has any of its own."""
    try:
        return hanging_on(storage_of(tensor))
    except RuntimeError:
        return []  # sparse


def are_all(marks: list[Pending], kind: type[Watch] | type[Begun] | UnionType) -> bool:
    """Returns whether all marks are of other gradients in the same memory, and in nobody's way."""
    return all(isinstance(each, kind) for each in marks)
