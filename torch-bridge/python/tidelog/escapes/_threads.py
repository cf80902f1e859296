"""Threads of the program that are not the block's: what they use is in memory, and stays until they have used it.

The session is asked for the threads that work for the block. Ops of all others come here: the thread borrows what an
op uses until the op has run, and what is out comes back first, at the thread's turn (`_turns`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tidelog import _patches
from tidelog.dispatch._access import Access, lacks, loans_of_this_thread
from tidelog.escapes._forks import tensors_in
from tidelog.memory._record import AWAY, LEAVING, Storage
from tidelog.native._module import Record
from tidelog.storages._async_uses import AsyncUses
from tidelog.storages._ledger import borrowed, release_loans
from tidelog.storages._ops import (
    Args,
    Kwargs,
    OpOverload,
    functional_collectives,
    info_of,
    memory_of,
    storages,
    storages_of,
)


class Bystander:
    """`notice` is called before each op that is launched."""

    def __init__(self, access: Access, async_uses: AsyncUses, notice: Callable[[], None]) -> None:
        self._access = access
        self._async_uses = async_uses
        self._notice = notice

    def __call__(self, func: OpOverload, args: Args, kwargs: Kwargs, run: Callable[[], Any]) -> Any:
        """Called by the op's kernel. `run` has torch run it with these arguments."""
        if func in functional_collectives():
            return self._async_uses.launch(func, args, kwargs, run)
        if not self._access.is_live():
            return run()
        info, used = info_of(func), storages_of(args, kwargs)
        self._notice()
        with borrow(self._access, used, storages(info.modified(args, kwargs))):
            result = run()
            self._async_uses.began_elsewhere(info, result, used)
            return result


@contextlib.contextmanager
def borrow(access: Access, storages: Sequence[Storage], written: Sequence[Storage] = ()) -> Iterator[None]:
    """Borrows storages for another thread that is about to use them: meanwhile none loses its memory. What is out comes
    back first, and so does what is being copied out and written here: the copy might miss it.
    """
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
        for storage in written:
            if (record := storage._tide) is not None:
                record.writes += 1
        del mine[len(mine) - len(records) :]
        release_loans(records)


def _wanted(storages: Sequence[Storage], written: Sequence[Storage]) -> Record | None:
    """Returns a storage that another thread cannot use as it is."""
    for storage in storages:
        record = storage._tide
        if record is not None and (lacks(record) or storage._tide_update is not None):
            return record
    for storage in written:
        if storage._tide is not None and storage._tide.state & (AWAY | LEAVING):
            return storage._tide
    return None


def watch_futures(access: Access) -> None:
    """Keeps the storages that a callback of a future uses until it has run."""

    def holding(original: Callable[..., Any]) -> Callable[..., Any]:
        def then(future: object, callback: Callable[..., Any]) -> Any:
            if not access.is_live() or access.is_elsewhere():
                return original(future, callback)
            return original(future, _holding(access, callback))

        return then

    for name in ("then", "add_done_callback"):
        if hasattr(torch._C.Future, name):
            _patches.replace(torch._C.Future, name, holding)


def _holding(access: Access, callback: Callable[..., Any]) -> Callable[..., Any]:
    """A future that is pending holds what its callback closes over, such as a bucket of DDP. The callback runs on a
    thread of a collective's, for which the block's may wait in the middle of an op: it could bring nothing back."""
    holds = access.bring_and_hold([storage for tensor in tensors_in(callback) for storage in memory_of(tensor)])

    def call(*args: Any) -> Any:
        try:
            return callback(*args)
        finally:
            holds.clear()

    return call
