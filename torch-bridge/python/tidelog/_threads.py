"""Threads that a program starts inside the block: their ops are refused what is out, and lent what is in.

The dispatch mode that asks the residency machine covers the thread that entered the block alone. A thread
started meanwhile gets this lighter one: an op on a tensor that is out raises an error that names it, and what
an op uses keeps its memory until the op has run. A thread that is older than the block meets the guard.
"""

import functools
import threading

from torch.utils._python_dispatch import TorchDispatchMode

from tidelog import _errors, _record
from tidelog._ops import storages_of


class Bystander(TorchDispatchMode):
    def __init__(self, tide):
        super().__init__()
        self._tide = tide

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tide = self._tide
        if tide.forked or not tide.is_open:
            return func(*args, **kwargs)
        records = [storage._tide for storage in storages_of(args, kwargs) if storage._tide is not None]
        with tide.lent:
            for record in records:
                record.loans += 1
        try:
            # Loans first, then the look: the block's thread marks a storage as out before it looks for loans.
            for record in records:
                if record.state & _record.AWAY:
                    raise _errors.Error(tide.guard_text(record))
            return func(*args, **kwargs)
        finally:
            with tide.lent:
                for record in records:
                    record.loans -= 1


def watch(tide):
    """Gives threads that start from now on a `Bystander`. Answers a function that ends this for new threads."""
    original = threading.Thread.run

    @functools.wraps(original)
    def run(thread):
        with Bystander(tide):
            original(thread)

    threading.Thread.run = run

    def stop():
        threading.Thread.run = original

    return stop
