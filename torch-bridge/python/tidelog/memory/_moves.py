"""How a storage loses its memory and gets it back, by the module in C++ (native/memory.h).

The size of a storage that is out stays, so views go on working. A stray touch of it (another thread, a kernel that does
not go through the dispatcher) meets torch's access guard, with a message that names the tensor; without a message
nothing is guarded: see `Record.is_guarded`. Version counters stay as they are.

Each of these calls is one of C: Python delivers Ctrl-C only between bytecodes, and a storage that had lost its memory
and was not guarded yet would be a segmentation fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch

from tidelog.memory._record import Storage, data_ptr
from tidelog.native._built import native

_fill: Callable[[torch.UntypedStorage, int], object] = cast(Any, torch._C).StorageBase.fill_  # unpatched


class Moves(Protocol):
    """What the module has for this."""

    def take(self, storage: Storage, message: str | None) -> None: ...
    def empty(self, storage: Storage, message: str | None) -> None: ...
    def give(self, storage: Storage, size: int, message: str | None) -> int: ...
    def swap(
        self, storage: Storage, other: torch.UntypedStorage, message: str | None, noting: Callable[[], object]
    ) -> None: ...
    def discard(self, storage: Storage) -> None: ...
    def guard(self, storage: Storage, message: str) -> None: ...
    def open_to_reads(self, storage: Storage) -> None: ...
    def without_memory(self, like: Storage, size: int) -> torch.UntypedStorage: ...


def _native() -> Moves:
    return cast(Moves, native())


def take(storage: Storage, message: str | None) -> None:
    """Frees its memory; whoever touches it meets the message."""
    _native().take(storage, message)


def empty(storage: Storage, message: str | None) -> None:
    """Frees its memory, and makes it a storage of no bytes."""
    _native().empty(storage, message)


def give(storage: Storage, size: int, message: str | None) -> int:
    """Allocates memory for it and returns the address; the guard stays up.

    Raises torch.OutOfMemoryError where a GPU has none: the storage stays as it was.
    """
    return _native().give(storage, size, message)


def give_zeroes(storage: Storage, size: int) -> None:
    """Gives memory to one that was emptied, which is zero."""
    _native().give(storage, size, None)
    _fill(storage, 0)


def swap(
    storage: Storage, other: torch.UntypedStorage, message: str | None, noting: Callable[[], object] = bool
) -> None:
    """Exchanges the memory of two storages; whoever touches the first meets the message, if there is one. `noting`, of
    no bytecode, notes it."""
    _native().swap(storage, other, message, noting)


def discard(storage: Storage) -> None:
    """Makes a storage that is out an empty one that nothing guards: what it held is not wanted any more."""
    _native().discard(storage)


def guard(storage: Storage, message: str) -> None:
    """Sets the guard."""
    _native().guard(storage, message)


def open_to_reads(storage: Storage) -> None:
    """Lifts the guard: the storage's bytes are back."""
    _native().open_to_reads(storage)


def without_memory(like: Storage, size: int) -> torch.UntypedStorage:
    """A storage on the same device that has this size, and no memory."""
    return _native().without_memory(like, size)


def data_pointer(storage: Storage) -> int:
    """The storage's address, past the wrappers that pin."""
    return data_ptr(storage)
