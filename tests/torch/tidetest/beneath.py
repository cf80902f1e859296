"""Layer between a block and torch's kernels: it sees each op once the block has done what comes before it, and before
the block does what comes after it. Ops outside of a block it sees as a dispatch mode does.
"""

import functools

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from tidelog.dispatch import _hook
from tidelog.escapes._threads import Bystander
from tidelog.native._built import native
from tidelog.storages._ops import Launch, Trait


class Beneath(TorchDispatchMode):
    """Mode in which each op is one that may be written in Python, which is left to a function there. It is entered
    before a block is.
    """

    def handle(self, func, args, kwargs, run):
        """Runs an op by `run`, and returns what that returns."""
        raise NotImplementedError

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        facts, in_python, bystander = _hook._facts, _hook._in_python, Bystander.__call__

        def in_python_all(func, count):
            name, written, seed, traits = facts(func, count)
            return name, written, seed, traits if isinstance(func, Launch) else traits | Trait.IN_PYTHON

        def handled(func, args, kwargs, run):
            return in_python(func, args, kwargs, functools.partial(self.handle, func, args, kwargs, run))

        def handled_elsewhere(observer, func, args, kwargs, run):
            return bystander(observer, func, args, kwargs, functools.partial(self.handle, func, args, kwargs, run))

        self._patch.setattr(_hook, "_facts", in_python_all)
        self._patch.setattr(_hook, "_in_python", handled)
        self._patch.setattr(Bystander, "__call__", handled_elsewhere)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._patch.undo()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        run = functools.partial(func, *args, **kwargs)
        is_seen_by_a_block = native().works_here() and not native().is_inside()
        return run() if is_seen_by_a_block else self.handle(func, args, kwargs, run)
