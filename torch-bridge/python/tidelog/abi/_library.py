"""libtidelog: where it is, and how its functions are called from Python.

Every status is checked: one below zero is raised as one of Tidelog's exceptions, with the name of the tensor that it
is about.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol, cast

from tidelog import _errors


class Status(IntEnum):
    """Status of a call. Below zero: an error, whose text tide_last_error gives."""

    READY = 0
    ACTION = 1
    WAITING = 2
    INVALID_ARGUMENT = -1
    POOL_FAILED = -2
    DEVICE_FAILED = -3
    BUDGET_EXCEEDED = -4
    FORKED = -5
    STALE_HANDLE = -6
    PANICKED = -7
    NOT_FOUND = -8
    FULL = -9
    HELD = -10
    OUT_OF_RANGE = -11
    CHECKSUM = -12
    CANCELLED = -13
    READ_ONLY = -14
    BUSY = -15
    INTERRUPTED = -16


NO_STORAGE = 0xFFFFFFFF  # what an error is about, where it is about no storage

_EXCEPTIONS: dict[int, type[_errors.Error]] = {
    Status.POOL_FAILED: _errors.PoolError,
    Status.NOT_FOUND: _errors.PoolError,
    Status.FULL: _errors.PoolError,
    Status.HELD: _errors.PoolError,
    Status.DEVICE_FAILED: _errors.DeviceError,
    Status.CHECKSUM: _errors.DeviceError,
    Status.CANCELLED: _errors.DeviceError,
    Status.FORKED: _errors.ForkedError,
}  # BUDGET_EXCEEDED: BudgetError, which needs torch; any other: _errors.Error

# What each function returns and takes. An int32_t is a status, and is checked.
Signatures = Mapping[str, tuple[Any, list[Any]]]


class Library(Protocol):
    """libtidelog: what most of its functions return is a number."""

    def __getattr__(self, name: str, /) -> Callable[..., int]:
        """The function of this name, with what `SIGNATURES` says of it."""


def version() -> str:
    """The version of the library, which the package is part of."""
    library: Any = load_library()
    library.tide_version.restype = ctypes.c_char_p
    return str(library.tide_version().decode())


def declare(library: Library, signatures: Signatures, error_of: Callable[[int], _errors.Error]) -> None:
    """Tells ctypes what functions take and return. A status below zero is raised as its error."""

    def check(status: int, _function: object, _arguments: object) -> int:
        if status < 0:
            raise error_of(status)
        return status

    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        if result is ctypes.c_int32:
            function.errcheck = check


def last_error(library: Library, status: int, name_of: Callable[[int], str | None] | None = None) -> _errors.Error:
    """The exception for a status below zero, with the name of the storage that it is about."""
    storage = ctypes.c_uint32(NO_STORAGE)
    length = library.tide_last_error(None, 0, ctypes.byref(storage))
    buffer = ctypes.create_string_buffer(length + 1)
    library.tide_last_error(buffer, length + 1, None)
    text = buffer.value.decode(errors="replace")
    name = name_of(storage.value) if name_of is not None and storage.value != NO_STORAGE else None
    kind = _EXCEPTIONS.get(status, _errors.Error)
    if status == Status.BUDGET_EXCEEDED:
        from tidelog._budget_error import BudgetError

        kind = BudgetError
    return kind(f"{name}: {text}" if name else text)


def read_json(write: Callable[[Any, int], int], error: Callable[[], _errors.Error]) -> Any:
    """Reads JSON from a function that writes JSON to a buffer and returns its length, 0 where it fails. JSON may be
    null, so that None is no failure.
    """
    length = write(None, 0)
    while True:
        buffer = ctypes.create_string_buffer(length + 1)
        actual = write(buffer, length + 1)
        if actual == 0:
            raise error()
        if actual <= length:
            return json.loads(buffer.value)
        length = actual


def load_library(calling_back: Sequence[str] = ()) -> Library:
    """libtidelog, with function objects of its own for each caller. Functions that call back are called with Python's
    lock, and raise what Python has raised there."""
    tried = _candidates()
    for path in tried:
        if path.exists():
            library, locked = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
            for name in calling_back:
                setattr(library, name, getattr(locked, name))
            return cast(Library, library)
    raise _errors.Error(
        "libtidelog.so was not found; build it with `cargo build --release -p tidelog-torch`, or "
        "set TIDELOG_LIBRARY to its path. Looked at: " + ", ".join(map(str, tried))
    )


def _candidates() -> list[pathlib.Path]:
    if "TIDELOG_LIBRARY" in os.environ:
        return [pathlib.Path(os.environ["TIDELOG_LIBRARY"])]
    package = pathlib.Path(__file__).resolve().parents[1]
    checkout = package.parents[2]
    return [
        package / "libtidelog.so",
        checkout / "target" / "release" / "libtidelog.so",
        checkout / "target" / "debug" / "libtidelog.so",
    ]
