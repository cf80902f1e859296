"""Threads of the program that are not the block's: what they use is in memory, and stays until they have used it.

The dispatch mode that asks the session covers the thread that entered the block alone. Others get this lighter one:
the thread borrows what an op uses until the op has run, and what is out comes back first, at the thread's turn
(`_turns`). Threads that start inside the block have it, and in older ones each task that Python starts: those of
executors, of pools, and of asyncio. A thread that is older than the block, and whose tasks nobody starts, meets the
guard.
"""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import functools
import multiprocessing.pool
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tidelog.dispatch._access import Access, lacks, loans_of_this_thread
from tidelog.dispatch._hook import Hook
from tidelog.escapes._forks import tensors_in
from tidelog.memory._record import AWAY, LEAVING, Record, Storage
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ledger import borrowed, release_loans
from tidelog.storages._ops import (
    Args,
    Kwargs,
    OpOverload,
    any_wrapper,
    functional_collectives,
    info_of,
    memory_of,
    storages_of,
)

# What gives tasks to threads: each takes a function first.
_OF_POOLS = ("apply_async", "_map_async", "imap", "imap_unordered")


class Bystander(TorchDispatchMode):
    """`notice` is called before each op that is launched."""

    def __init__(self, access: Access, async_uses: AsyncUses, notice: Callable[[], None]) -> None:
        super().__init__()
        self.access = access
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
        if not self.access.is_live():
            return func(*args, **kwargs)
        info, storages = info_of(func), storages_of(args, kwargs)
        self._notice()
        with borrow(self.access, storages, info.modified(args, kwargs)):
            result = func(*args, **kwargs)
            self._async_uses.began_elsewhere(info, result, storages)
            return result


@contextlib.contextmanager
def borrow(access: Access, storages: Sequence[Storage], written: Sequence[Storage] = ()) -> Iterator[None]:
    """Another thread borrows what it is about to use: meanwhile nothing of it loses its memory. What is out comes back
    first, and so does what is being copied out and written here: the copy might miss it."""
    records = borrowed(storages)
    mine = loans_of_this_thread()
    # Loans first, then the look: the block's thread marks a storage before it looks for loans.
    if (wanted := _wanted(storages, written)) is not None:
        release_loans(records)
        records = access.bring_and_borrow(storages, written, wanted)
    mine += records
    try:
        yield
    finally:
        del mine[len(mine) - len(records) :]
        release_loans(records)


def _wanted(storages: Sequence[Storage], written: Sequence[Storage]) -> Record | None:
    """What another thread cannot use as it is."""
    for storage in storages:
        record = storage._tide
        if record is not None and (lacks(record) or storage._tide_update is not None):
            return record
    for storage in written:
        if storage._tide is not None and storage._tide.state & (AWAY | LEAVING):
            return storage._tide
    return None


def watch(access: Access, async_uses: AsyncUses, notice: Callable[[], None]) -> Callable[[], None]:
    """Gives threads that start from now on a `Bystander`, and tasks that others start. Returns a function that ends
    this for new ones."""

    def covered(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            is_own = getattr(args[0] if args else None, "has_modes_of_block", False)
            if is_own or not access.is_live() or not access.is_elsewhere() or is_covered(access):
                return function(*args, **kwargs)
            with Bystander(access, async_uses, notice):
                return function(*args, **kwargs)

        return run

    def first_covered(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def submit(pool: object, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return original(pool, covered(function), *args, **kwargs)

        return submit

    def callback_covered(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def then(future: object, callback: Callable[..., Any]) -> Any:
            if not access.is_live() or access.is_elsewhere():
                return original(future, covered(callback))
            return original(future, _holding(access, covered(callback), callback))

        return then

    wraps: list[tuple[Any, str, Callable[..., Any]]] = [
        # Not `run`, which classes of the program's have their own of.
        (threading.Thread, "_bootstrap_inner", covered),
        (concurrent.futures.thread._WorkItem, "run", covered),
        *((torch._C.Future, name, callback_covered) for name in ("then", "add_done_callback")),
        *((multiprocessing.pool.ThreadPool, name, first_covered) for name in _OF_POOLS),
    ]
    wraps = [each for each in wraps if hasattr(*each[:2])]
    own = [vars(owner).get(name) for owner, name, _ in wraps]
    for owner, name, wrap in wraps:
        setattr(owner, name, wrap(getattr(owner, name)))

    def stop() -> None:
        for (owner, name, _), original in zip(wraps, own, strict=True):
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    return stop


def _holding(access: Access, run: Callable[..., Any], callback: Callable[..., Any]) -> Callable[..., Any]:
    """A future that is pending holds what its callback closes over, such as a bucket of DDP. The callback runs on a
    thread of a collective's, for which the block's may wait in the middle of an op: it could bring nothing back."""
    holds = access.bring_and_hold([storage for tensor in tensors_in(callback) for storage in memory_of(tensor)])

    def call(*args: Any) -> Any:
        try:
            return run(*args)
        finally:
            holds.clear()

    return call


def is_covered(access: Access) -> bool:
    """Whether this thread has the mode of this block."""
    modes = map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack()))
    return any(isinstance(mode, Bystander) and mode.access is access for mode in modes)
