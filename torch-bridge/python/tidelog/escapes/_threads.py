"""Threads that a program starts inside the block: their ops are refused what is out, and passed what
is in.

The dispatch mode that asks the session covers the thread that entered the block alone. A thread
started meanwhile gets this lighter one: an op on a tensor that is out raises an error that names
it, and what an op uses keeps its memory until the op has run. A thread that is older than the block
meets the guard.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from tidelog.dispatch._access import Access
from tidelog.dispatch._hook import Hook
from tidelog.memory._record import AWAY, LEAVING, Storage
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ops import Args, Kwargs, OpOverload, any_wrapper, functional_collectives, info_of, storages_of


class Bystander(TorchDispatchMode):
    """`notice` is called before each op that is launched."""

    def __init__(self, access: Access, async_uses: AsyncUses, notice: Callable[[], None]) -> None:
        super().__init__()
        self._access = access
        self._async_uses = async_uses
        self._notice = notice

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return Hook.ignore_compile_internals()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        if types and any_wrapper(args, kwargs):
            return NotImplemented
        if func in functional_collectives():
            return self._async_uses.launch(self, func, args, kwargs)
        if not self._access.is_live():
            return func(*args, **kwargs)
        info, storages = info_of(func), storages_of(args, kwargs)
        self._notice()
        with borrow(storages, info.modified(args, kwargs)):
            result = func(*args, **kwargs)
            self._async_uses.began_elsewhere(info, result, storages)
            return result


@contextlib.contextmanager
def borrow(storages: Sequence[Storage], written: Sequence[Storage] = ()) -> Iterator[None]:
    """Lends another thread what it is about to use: meanwhile nothing of it loses its memory.
    Refuses what is out, and a write to what is being copied out: the copy might miss it."""
    records = [storage._tide for storage in storages if storage._tide is not None]
    for record in records:
        record.borrow(1)
    try:
        # Loans first, then the look: the block's thread marks a storage before it looks for loans.
        for record in records:
            if record.state & AWAY:
                record.refuse()
        for storage in written:
            if storage._tide is not None and storage._tide.state & LEAVING:
                storage._tide.refuse()
        yield
    finally:
        for record in records:
            record.borrow(-1)


def watch(access: Access, async_uses: AsyncUses, notice: Callable[[], None]) -> Callable[[], None]:
    """Gives threads that start from now on a `Bystander`. Returns a function that ends this for new
    threads."""
    original = threading.Thread.run

    @functools.wraps(original)
    def run(thread: threading.Thread) -> None:
        with Bystander(access, async_uses, notice):
            original(thread)

    setattr(threading.Thread, "run", run)

    def stop() -> None:
        setattr(threading.Thread, "run", original)

    return stop
