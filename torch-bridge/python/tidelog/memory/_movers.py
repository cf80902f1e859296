"""How a storage loses its memory and regains it.

Both movers set torch's data-pointer access guard on a storage that is out, so that a stray touch
(a thread that is older than the block, a kernel that does not go through the dispatcher) raises an error that names the
tensor. Neither touches version counters. Without a message nothing is guarded: see
`Record.is_guarded`.

Taking and giving run their torch calls as one C-level loop: Python delivers Ctrl-C only between
bytecodes, and a storage that is emptied but not yet guarded would be a segmentation fault.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, Protocol

import torch

from tidelog._errors import Error
from tidelog.memory import _guard
from tidelog.memory._record import Storage, data_ptr, nbytes

_call = methodcaller("__call__")

_base: Any = torch._C.StorageBase  # unpatched, see `_record`
_resize: Callable[[torch.UntypedStorage, int], object] = _base.resize_
_construct: Any = torch._C._construct_storage_from_data_pointer
_swap: Any = getattr(_base, "_swap_data_ptr_", None)


class Mover(Protocol):
    """How a storage loses its memory and regains it."""

    name: str

    @staticmethod
    def take(storage: Storage, message: str | None) -> None:
        """Its memory is freed; whoever touches it meets the message."""

    @staticmethod
    def give(storage: Storage, size: int, message: str | None) -> int:
        """It gets memory again, whose address is returned; the guard stays up."""

    @staticmethod
    def leave(storage: Storage, size: int, message: str) -> None:
        """The block ends and the storage stays out."""


def guarding(storage: Storage, message: str | None) -> Callable[[], object]:
    """A call that sets the guard; without a message nothing is set."""
    return _guard.setting(storage, message) if message is not None else bool


def _in_one_go(*calls: Callable[[], object]) -> list[Any]:
    """Runs zero-argument calls with no bytecode, hence no signal handler, between them."""
    return list(map(_call, calls))


class ResizeMover:
    """`resize_(0)` and back: the reference. Portable; a view of an emptied storage fails its bounds
    check."""

    name = "resize"

    @staticmethod
    def take(storage: Storage, message: str | None) -> None:
        _in_one_go(
            _guard.lifting(storage),  # repeated after an interrupt: resize_ needs the pointer
            partial(_resize, storage, 0),
            guarding(storage, message),
        )

    @staticmethod
    def give(storage: Storage, size: int, message: str | None) -> int:
        if nbytes(storage) and _swap is not None:
            return SwapMover.give(storage, size, message)  # it was left, with a size and no memory
        try:
            _, _, address, _ = _in_one_go(
                _guard.lifting(storage),
                partial(_resize, storage, size),
                partial(data_ptr, storage),
                guarding(storage, message),
            )
        except RuntimeError:  # of memory there was none: it stays out, and guarded
            guarding(storage, message)()
            raise
        return int(address)

    @staticmethod
    def leave(storage: Storage, size: int, message: str) -> None:
        """The block ends and the storage stays out. Its size comes back, and no memory with it: views
        of it then meet the guard, which names the tensor, and not a bounds check."""
        if _swap is not None:
            SwapMover.empty(storage, size, message)
        elif storage.device.type == "cpu":  # memory that is never touched, which costs nothing there
            ResizeMover.give(storage, size, message)
        else:
            guarding(storage, message)()


class SwapMover:
    """Swaps the storage's pointer with an empty storage's: `nbytes` stays, so views go on
    working."""

    name = "swap"

    @staticmethod
    def take(storage: Storage, message: str | None) -> None:
        SwapMover.empty(storage, nbytes(storage), message)

    @staticmethod
    def empty(storage: Storage, size: int, message: str | None) -> None:
        """It has a size, and no memory."""
        swap(storage, without_memory(storage, size), message)

    @staticmethod
    def give(storage: Storage, size: int, message: str | None) -> int:
        fresh = torch.UntypedStorage(size, device=storage.device)
        address = data_ptr(fresh)
        swap(storage, fresh, message)
        return address

    @staticmethod
    def leave(storage: Storage, size: int, message: str) -> None:
        """The block ends and the storage stays out. It is guarded, and its size was never gone."""
        _guard.setting(storage, message)()


def without_memory(like: Storage, size: int) -> torch.UntypedStorage:
    """A storage on the same device that has this size, and no memory: sizes change hands with pointers."""
    empty: torch.UntypedStorage = _construct(0, like.device, size)
    return empty


def swap(
    storage: Storage, other: torch.UntypedStorage, message: str | None, noting: Callable[[], object] = bool
) -> None:
    """The two have each other's memory from here on; whoever touches the first meets the message, if there is one.
    `noting`, of no bytecode, notes it."""
    _in_one_go(
        _guard.lifting(storage),
        partial(_swap, storage, other),
        noting,
        guarding(storage, message),
    )


def discard(storage: Storage) -> None:
    """What is out is not wanted any more: the storage is empty, and nothing guards it."""
    if nbytes(storage):  # it left by a swap, and torch resizes no storage that has a size but no memory
        SwapMover.give(storage, 0, None)
    else:
        _guard.lifting(storage)()


def give_zeroes(storage: Storage, size: int) -> None:
    """What `ResizeMover.take` has emptied gets memory again, which is zero."""
    ResizeMover.give(storage, size, None)
    _base.fill_(storage, 0)


def open_to_reads(storage: Storage) -> None:
    """Lifts the guard: the storage's bytes are back."""
    _guard.lifting(storage)()


def past_guard(storage: Storage, guard: Callable[[], object], *calls: Callable[[], object]) -> None:
    """Runs calls, of no bytecode, that need the memory of a storage that may be guarded. `guard` sets the
    guard that it has."""
    try:
        _in_one_go(_guard.lifting(storage), *calls)
    finally:
        guard()


def data_pointer(storage: Storage) -> int:
    """The storage's address, past the wrappers that pin."""
    return data_ptr(storage)


def choose(name: str, default: str = "swap") -> type[Mover]:
    """The mover for `name`: "resize", "swap", or "auto" (the default where this torch has it)."""
    if not _guard.is_there():
        raise Error(
            f"torch {torch.__version__} has no data-pointer access guard that could be lifted "
            "again, without which a stray touch of a tensor that is on NVMe would read other "
            "bytes. Use torch 2.15 or newer."
        )
    if name == "auto":
        name = default if _swap else "resize"
    if name == "swap" and _swap is None:
        raise Error(f"torch {torch.__version__} cannot swap data pointers; use mover='resize'.")
    movers: dict[str, type[Mover]] = {"resize": ResizeMover, "swap": SwapMover}
    if name not in movers:
        raise Error(f"mover={name!r}: expected 'auto', 'resize' or 'swap'.")
    return movers[name]
