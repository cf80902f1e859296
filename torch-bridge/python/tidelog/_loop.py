"""Steps of a training loop that does not mark them, found by its optimizer."""

import contextlib
import gc
import threading
import time
import weakref

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tidelog._block import Tide


class OptimizerSteps:
    """While it is entered, a step ends where the first optimizer of the loop has stepped, and the
    next begins. Where several optimizers take turns, the one that stepped first counts; once it is
    gone, another takes its place.

    Micro-batches whose gradients add up are one step, and an evaluation in between is a part of
    one: results do not depend on it, and a plan is left where the loop does something else.
    """

    def __init__(self, tide: Tide):
        self.began = time.perf_counter()
        self.seconds = []  # of each step that has ended
        self._tide = tide
        self._thread = threading.get_ident()
        self._first = lambda: None
        self._step = contextlib.ExitStack()
        self._step_began = self.began

    def __enter__(self):
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *error):
        self._hook.remove()
        # What follows the last step is no whole one.
        self._step.__exit__(_Unfinished, _Unfinished(), None)

    def _stepped(self, optimizer, _arguments, _keywords):
        if threading.get_ident() != self._thread or not self._tide.access.is_live():
            return
        if self._first() is None:
            self._first = weakref.ref(optimizer)
            self._tide.name(owner_of(optimizer), optimizer)
        if self._first() is not optimizer:
            return
        self._step.close()
        now = time.perf_counter()
        self.seconds.append(now - self._step_began)
        self._step_began = now
        self._step.enter_context(self._tide.step())


class _Unfinished(Exception):
    """Ends a step before its end."""


def owner_of(optimizer):
    """The module with most of the optimizer's parameters that is no part of another one; None:
    there is none."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    parts = {id(child) for module in modules for child in module.children()}
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

    def count(module):
        return sum(id(parameter) in trained for parameter in module.parameters())

    whole = [module for module in modules if id(module) not in parts]
    best = max(whole, key=count, default=None)
    return best if best is not None and count(best) else None
