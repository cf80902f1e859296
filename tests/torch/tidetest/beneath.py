"""What stands between a block and torch's kernels: it sees each op once the block has done what comes before it, and
before the block does what comes after it. Ops outside of a block it sees as a dispatch mode does.
"""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tidelog.dispatch import _hook
from tidelog.escapes._threads import Bystander
from tidelog.native._built import native


class Beneath(TorchDispatchMode):
    """While it is on, no op goes past Python. It is entered before a block is."""

    def handle(self, func, args, kwargs, run):
        """Runs an op by `run`, and returns what that returns."""
        raise NotImplementedError

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(_hook.Hook, "in_cpp", False)
        for observer in (_hook.Hook, Bystander):
            self._patch.setattr(observer, "__call__", self._around(observer.__call__))
        call_of = _hook._call_of

        def call(func, args, kwargs):
            run = call_of(func, args, kwargs)
            is_op = isinstance(func, torch._ops.OpOverload)
            return functools.partial(self.handle, func, args, kwargs, run) if is_op else run

        self._patch.setattr(_hook, "_call_of", call)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._patch.undo()

    def _around(self, original):
        def call(observer, func, args, kwargs, run):
            return original(observer, func, args, kwargs, functools.partial(self.handle, func, args, kwargs, run))

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        run = functools.partial(func, *args, **kwargs)
        is_seen_by_a_block = native().works_here() and not native().is_inside()
        return run() if is_seen_by_a_block else self.handle(func, args, kwargs, run)
