"""Steps of a training loop that does not mark them, found by its optimizers."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

# One that steps less often than once in so many steps of another is not waited for.
_RARELY = 8


class OptimizerSteps:
    """Context in which a step ends where the optimizer of the loop has stepped, and the next begins. Where there are
    several, it ends once each has stepped.

    Micro-batches whose gradients add up are one step, and an evaluation in between is a part of
    one: results do not depend on it, and a plan is left where the loop does something else.
    """

    def __init__(
        self,
        step: Callable[[], contextlib.AbstractContextManager[object]],
        is_live: Callable[[], bool],
        before_first: Callable[[], None],
        name: Callable[[Optimizer], None],
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.began = time.perf_counter()
        self.seconds: list[float] = []  # of each step that has ended
        self.on_end: Callable[[], object] = bool  # called where a step has ended
        self._mark = step  # a context manager: one step
        self._is_live = is_live
        self._before_first = before_first  # called before an optimizer steps for the first time
        self._name = name  # called with the loop's optimizer, once there is one
        self._say = say  # for what is to be told to the user
        self._clock = clock  # in seconds
        self._thread = threading.get_ident()
        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()  # optimizer -> its steps
        self._stepped_since: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # the last step's end
        self._hooks: list[RemovableHandle] = []
        self._step = contextlib.ExitStack()
        self._step_began = clock()

    def __enter__(self) -> OptimizerSteps:
        self._thread = threading.get_ident()
        self._hooks = [
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._stepped),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            # What follows the last step is no whole one.
            self._step.__exit__(_Unfinished, _Unfinished(), None)

    def _steps(self, _optimizer: Optimizer, _arguments: object, _keywords: object) -> None:
        if not self._counts and threading.get_ident() == self._thread and self._is_live():
            self._before_first()

    def _stepped(self, optimizer: Optimizer, _arguments: object, _keywords: object) -> None:
        if threading.get_ident() != self._thread or not self._is_live():
            return
        if not self._counts:
            self._name(optimizer)
        elif optimizer not in self._counts and len(self._counts) == 1:
            self._say(
                "several optimizers step in this loop: a step is taken to end once each has stepped; "
                "mark steps by `with tide.step():` where that is wrong"
            )
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self._stepped_since.add(optimizer)
        if not self._have_all_stepped():
            return
        self._stepped_since.clear()
        self._step.close()
        now = self._clock()
        self.seconds.append(now - self._step_began)
        self._step_began = now
        self.on_end()
        self._step.enter_context(self._mark())

    def _have_all_stepped(self) -> bool:
        most = max(self._counts.values())
        often = (optimizer for optimizer, count in self._counts.items() if count * _RARELY >= most)
        return all(optimizer in self._stepped_since for optimizer in often)


class _Unfinished(Exception):
    """Ends a step before its end."""


def owner_of(optimizer: Optimizer) -> nn.Module | None:
    """The module with most of the optimizer's parameters that is no part of another one; None:
    there is none."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    parts = {id(child) for module in modules for child in module.children()}
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

    def count(module: nn.Module) -> int:
        return sum(id(parameter) in trained for parameter in module.parameters())

    whole = [module for module in modules if id(module) not in parts]
    best = max(whole, key=count, default=None)
    return best if best is not None and count(best) else None
