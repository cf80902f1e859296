"""Memory of tensors that is kept when it is freed: torch's CPU allocator gets its memory from the
library's arena, as `tide_memory_keep` says."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

from tidelog._errors import Error
from tidelog.abi._library import Library, Signatures, declare, last_error, load_library
from tidelog.native._built import native

_i32, _u64, _size, _pointer = ctypes.c_int32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p

_ALL = (1 << 64) - 1
# They show the memory of tensors by the allocator that the C library has.
_PROFILERS = ("memray", "filprofiler")

SIGNATURES: Signatures = {
    "tide_memory_keep": (_i32, [_i32]),
    "tide_memory_keep_small": (None, [_i32]),
    "tide_memory_hold": (_u64, [_u64]),
    "tide_memory_release": (_u64, [_u64]),
    "tide_memory_kept": (_u64, []),
    "tide_memory_allocate": (_i32, [ctypes.POINTER(_pointer), _size, _size]),
    "tide_memory_free": (None, [_pointer]),
    "tide_memory_decommit": (None, [_pointer, _u64]),
    "tide_memory_recommit": (None, [_pointer, _u64]),
}


class Kept:
    """Freed memory that the process keeps."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def hold(self, most: int) -> int:
        """Holds the process at `most` bytes of anonymous memory, as far as what is kept goes, until the next call.
        Returns by how many bytes it would be more if nothing were kept.
        """
        return int(self._library.tide_memory_hold(most))

    def release(self) -> None:
        """Releases all kept memory to the kernel."""
        self._library.tide_memory_release(_ALL)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return int(self._library.tide_memory_kept())


def begin() -> Kept | None:
    """Begins to keep freed memory. None: torch's allocator stays as it is."""
    library = _directed()
    if library is None:
        return None
    try:
        library.tide_memory_keep(1)
    except Error:
        return None
    return Kept(library)


def keep_small(on: bool) -> None:
    """Sets whether this thread keeps what it frees of small tensors' memory, a few MiB, for the next ones."""
    library = _directed()
    if library is not None:
        library.tide_memory_keep_small(on)


def end() -> None:
    """Ends keeping freed memory."""
    library = _directed()
    if library is not None:
        library.tide_memory_keep(0)


def decommit(address: int, length: int) -> None:
    """The pages of a part of an allocation go back to the kernel. Nobody reads it before it is written again."""
    library = _library()
    library.tide_memory_decommit(address, length)


def recommit(address: int, length: int) -> None:
    """The part is about to be written: what is kept makes way for its pages."""
    library = _library()
    library.tide_memory_recommit(address, length)


@functools.cache
def _library() -> Library:
    library = load_library()
    declare(library, SIGNATURES, lambda status: last_error(library, status))
    return library


@functools.cache
def _directed() -> Library | None:
    """The library, once torch's allocator calls it: that is for the rest of the process."""
    if os.environ.get("TIDELOG_HEAP", "") == "libc" or any(name in sys.modules for name in _PROFILERS):
        return None
    library: Any = _library()
    functions = library.tide_memory_allocate, library.tide_memory_free
    allocate, free = (ctypes.cast(function, _pointer).value or 0 for function in functions)
    return library if native().use_allocator(allocate, free) else None
