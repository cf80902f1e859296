"""The early optimizer: a parameter is updated in the backward pass, as soon as its gradient is complete, so
that gradients never leave.

A gradient is complete when as many have been added up as a whole step has been seen to add up. The
first two steps of a parameter run in place: the first makes its state, the second is profiled. The
step itself then checks that it would have done the same. What uses a parameter between its update and the
step, or its gradient afterwards, is an error (`_watched`).
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from tidelog import _errors, _patches
from tidelog._patches import Wrapper
from tidelog._whole import whole
from tidelog.order import _crossings, _element_wise
from tidelog.order._element_wise import Group
from tidelog.order._shards import is_plain, storage_of
from tidelog.order._update import Step, Update, may_run_alone, tensors_of
from tidelog.order._updates import Updates, interrupts_deferred
from tidelog.order._watched import Begun, UsedUp, Watch, Watched, are_all, marks_of
from tidelog.output._figures import UpdateFigures
from tidelog.storages._ops import Args, Kwargs


_BY_DDP = (
    "DistributedDataParallel keeps all gradients in its buckets, and has the sums over the ranks when its backward pass "
    "ends: an earlier update would free none of them, and would need the communication hook, which is the program's. "
    "updates='lazy' moves as much"
)


class _Trained:
    """The parameters of one optimizer."""

    def __init__(self) -> None:
        self.parameters: dict[int, Watched] = {}  # by id
        self.expects = 0  # the most gradients that any of them has a step


class EarlyUpdates(Updates):
    """The parameters of one block that are updated in the backward pass."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._early = 0  # updates that have run before their step
        self._trained: weakref.WeakKeyDictionary[Optimizer, _Trained] = weakref.WeakKeyDictionary()
        self._after: RemovableHandle | None = None
        self._reduced: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # whose gradients DDP reduces

    def begin(self) -> None:
        super().begin()
        self._after = register_optimizer_step_post_hook(self._after_step)
        _patches.replace(Optimizer, "zero_grad", partial(self._zeroing, lambda optimizer: [optimizer]))
        _patches.replace(nn.Module, "zero_grad", partial(self._zeroing, lambda _module: list(self._trained)))

    def is_ahead(self) -> bool:
        return any(watched.updated is not None for watched in self._all())

    def figures(self) -> UpdateFigures:
        pending = sum(watched.updated is not None for watched in self._all())
        return {"pending": pending, "late": 0, "early": self._early}

    def _all(self) -> Iterator[Watched]:
        for trained in list(self._trained.values()):
            yield from trained.parameters.values()

    # -- a gradient has been made -------------------------------------------------------------------

    @whole
    def _accumulated(self, watched: Watched, parameter: Tensor) -> None:
        """A hook of the parameter: a gradient has been added to its own."""
        optimizer = watched.optimizer()
        if not self.is_live() or optimizer is None or _crossings.is_incomplete(parameter):
            return
        if watched.updated is not None:
            watched.updated.refuse()
        if self.is_elsewhere():
            self._keep_in_place(watched, optimizer, "their backward pass runs in another thread than the block's")
            return
        watched.counts(parameter.grad)
        if (why := watched.look_back()) is not None:
            self._keep_in_place(watched, optimizer, why)
        if watched.stays or watched.place >= len(optimizer.param_groups):
            return
        group = optimizer.param_groups[watched.place]
        if watched.is_known:
            if not watched.expects == self._trained[optimizer].expects:
                return
            if watched.count == watched.expects:
                with interrupts_deferred():
                    self._update(watched, optimizer, parameter, watched.numbers_of(group))
            elif watched.count < watched.expects and (gradient := parameter.grad) is not None and is_plain(gradient):
                if are_all(marks_of(gradient), Begun) and self.is_seen(storage_of(gradient)):
                    watched.begins(gradient)
            return
        tensors, gradient = self._usable(optimizer, parameter), parameter.grad
        if not tensors or gradient is None:
            return
        others = [storage_of(each) for each in tensors if each is not gradient]
        if (why := watched.watch(gradient, others, _element_wise.numbers_of(group))) is not None:
            self._keep_in_place(watched, optimizer, why)

    def _usable(self, optimizer: Optimizer, parameter: Tensor) -> list[Tensor]:
        """Returns the tensors that an update would use; nothing, where it has to stay in its place."""
        gradient = parameter.grad
        if gradient is None or gradient.requires_grad:
            return []
        tensors = tensors_of(Step(optimizer), parameter, gradient)
        if not may_run_alone(tensors) or not all(self.is_seen(storage_of(each)) for each in tensors):
            return []
        return tensors

    def _update(self, watched: Watched, optimizer: Optimizer, parameter: Tensor, numbers: Group) -> None:
        """The gradient is complete."""
        tensors = self._usable(optimizer, parameter)
        if parameter.grad is None or not tensors or not all(are_all(marks_of(each), Begun) for each in tensors):
            return
        step = Step(optimizer)
        try:
            update = Update(step, numbers, parameter, parameter.grad)
        except RuntimeError:  # of a type that a view of the parameter takes no gradient of
            return
        del tensors
        # On whatever stream the parameter was used: the program's step waits for it, and this one comes before.
        self.streams.await_others()
        try:
            self.run_apart(update.compute)
        except BaseException as error:
            watched.fail(tensors_of(step, parameter), error)
            raise
        del update  # and with it the gradient
        self._early += 1
        watched.use_up(parameter, tensors_of(step, parameter), numbers)

    def _keep_in_place(self, watched: Watched, optimizer: Optimizer, why: str) -> None:
        watched.stay()
        self.say_once(optimizer, why, f" (those of {watched.name}, for one)")

    # -- a step -----------------------------------------------------------------------------------

    @whole
    def note(self, optimizer: Optimizer, step: Step) -> list[Group]:
        trained = self._trained.setdefault(optimizer, _Trained())
        noted = [_element_wise.noted(group) for group in optimizer.param_groups]
        _check(optimizer, trained, noted)
        groups, before = [], trained.parameters
        trained.parameters = {}
        reduced = {id(parameter) for module in self._reduced for parameter in module.parameters()}
        for place, (group, numbers) in enumerate(zip(optimizer.param_groups, noted)):
            in_place = []
            for parameter in group["params"]:
                watched = _of(before, parameter)
                if id(parameter) in reduced:
                    self.say_once(optimizer, _BY_DDP)
                elif watched is None:
                    watched = self._begin_to_watch(optimizer, parameter)
                if parameter.grad is not None and (watched is None or watched.updated is None):
                    in_place.append(parameter)
                if watched is not None:
                    trained.parameters[id(parameter)] = watched
                    if (why := watched.why_not(group)) is not None:
                        self._keep_in_place(watched, optimizer, why)
                    watched.step(place, numbers)
            if in_place:
                groups.append({**numbers, "params": in_place})
        for key in before.keys() - trained.parameters.keys():
            before[key].forget()
        trained.expects = max((watched.expects for watched in trained.parameters.values()), default=0)
        self.pending[id(self)] = self
        return groups

    def _begin_to_watch(self, optimizer: Optimizer, parameter: Tensor) -> Watched | None:
        if not is_plain(parameter) or not parameter.is_leaf or not parameter.requires_grad:
            return None
        watched = Watched(optimizer, parameter)
        watched.handle = parameter.register_post_accumulate_grad_hook(partial(self._accumulated, watched))
        return watched

    @whole
    def _after_step(self, optimizer: Optimizer, _args: Args, _kwargs: Kwargs) -> None:
        if (trained := self._trained.get(optimizer)) is not None and self.is_live() and not self.is_elsewhere():
            for watched in trained.parameters.values():
                gradient = watched.watched_gradient()
                if gradient is None or not is_plain(gradient) or not are_all(marks_of(gradient), Watch):
                    continue
                if self.is_seen(storage_of(gradient)):
                    watched.watch_gradient(gradient)

    @whole
    def leave_to(self, optimizer: Optimizer, why: str) -> None:
        """Leaves parameters to their optimizer; none may have been updated before."""
        trained = self._trained.get(optimizer)
        if trained is None:
            return
        for watched in trained.parameters.values():
            if watched.updated is not None:
                raise _errors.OrderError(
                    f"{watched.name} has been updated in the backward pass (updates='early'), and now the step of "
                    f"{type(optimizer).__name__} must run in one: {why}. Run with updates='lazy' or 'own'."
                )
        for watched in trained.parameters.values():
            watched.forget()
        del self._trained[optimizer]

    def _zeroing(self, optimizers_of: Callable[[Any], list[Optimizer]], original: Wrapper) -> Wrapper:
        """A step that was given up leaves no count behind."""

        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(owner, *args, **kwargs)
            if not torch.compiler.is_compiling() and self.is_live() and not self.is_elsewhere():
                for optimizer in optimizers_of(owner):
                    self._give_up(optimizer)
            return result

        return zero_grad

    @whole
    def _give_up(self, optimizer: Optimizer) -> None:
        trained = self._trained.get(optimizer)
        for watched in trained.parameters.values() if trained is not None else ():
            if watched.count and watched.updated is None:
                parameter = watched.parameter()
                if parameter is not None and parameter.grad is None:  # a gradient of zeroes tells by itself
                    watched.give_up()

    @whole
    def rests(self, optimizer: Optimizer) -> bool:
        trained = self._trained.get(optimizer)
        if trained is None:
            return True
        if any(watched.updated is not None for watched in trained.parameters.values()):
            return False
        for watched in trained.parameters.values():
            watched.forget()
        del self._trained[optimizer]
        return True

    # -- what else happens --------------------------------------------------------------------------

    def look_at(self, optimizer: Optimizer) -> None:
        trained = self._trained.get(optimizer)
        for watched in trained.parameters.values() if trained is not None else ():
            watched.state_is_used()

    def expect_reducer(self, module: nn.Module) -> None:
        self._reduced.add(module)
        reduced = {id(parameter) for parameter in module.parameters()}
        for optimizer, trained in list(self._trained.items()):
            for key in reduced & trained.parameters.keys():
                self._keep_in_place(trained.parameters[key], optimizer, _BY_DDP)

    def end(self) -> BaseException | None:
        super().end()
        if self._after is not None:
            self._after.remove()
        left = 0
        for watched in list(self._all()):
            left += watched.updated is not None
            watched.forget()
        self._trained.clear()
        self.pending.clear()
        if left and not self.is_forked():
            warnings.warn(
                f"{left} parameters have been updated in the last backward pass (updates='early'), and their optimizer "
                "has not stepped: they are one step ahead of the others. Go on from a checkpoint.",
                _errors.LeftBehindWarning,
                stacklevel=4,
            )
        return None


def is_ours(hook: object) -> bool:
    """Returns whether a hook of a parameter is one of these."""
    return isinstance(hook, partial) and isinstance(getattr(hook.func, "__self__", None), EarlyUpdates)


def _of(parameters: dict[int, Watched], parameter: Tensor) -> Watched | None:
    watched = parameters.get(id(parameter))
    return watched if watched is not None and watched.parameter() is parameter else None


def _check(optimizer: Optimizer, trained: _Trained, noted: list[Group]) -> None:
    """Raises an error, before anything is changed, where the step would not do what the backward pass did."""
    left = {id(watched): watched for watched in trained.parameters.values() if watched.updated is not None}
    for group, numbers in zip(optimizer.param_groups, noted):
        for parameter in group["params"]:
            watched = _of(trained.parameters, parameter)
            if watched is not None and left.pop(id(watched), None) is not None:
                watched.check(parameter, numbers)
            elif parameter.grad is not None:
                for mark in marks_of(parameter.grad):
                    if isinstance(mark, UsedUp):
                        mark.refuse()
    for watched in left.values():
        raise _errors.OrderError(
            f"{watched.name} has been updated in the backward pass (updates='early'), and its optimizer has it no more."
        )
