"""Torch's data-pointer access guard: with it set, whoever asks a storage for its memory gets an
error that we have worded.

Torch sets it since long, and lifts it since 2.15. In an older one it is lifted by hand: it is one
flag of the storage's C++ object, which is found by setting the guard of a storage of ours and
looking at what changed. Nothing is taken for granted there: where not exactly this is found, or the
guard then does not do what it should, there is no guard.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_set: Any = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
_clear: Any = getattr(torch._C, "_clear_storage_data_ptr_access_error_msg", None)

_OBJECT_BYTES = 96  # at least so many has a storage's C++ object, the flags among them
# With the GIL held, and no bytecode in it: neither another thread nor a signal comes between it and
# what follows.
_memset = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(
    ("memset", ctypes.pythonapi)
)


def setting(storage: torch.UntypedStorage, message: str) -> Callable[[], object]:
    """A call, of no bytecode, that sets the guard."""
    return partial(_set, storage._cdata, message)


def lifting(storage: torch.UntypedStorage) -> Callable[[], object]:
    """A call, of no bytecode, that lifts the guard if it is set."""
    if _clear is not None:
        return partial(_clear, storage._cdata)
    return partial(_memset, storage._cdata + _flag, 0, 1)


def is_there() -> bool:
    """Whether this torch has a guard that can be lifted again."""
    return _set is not None and (_clear is not None or _flag is not None)


def _stops(storage: torch.UntypedStorage) -> bool:
    """Whether the guard keeps readers and writers from a storage's memory."""
    stopped = 0
    for access in (partial(storage.__getitem__, 0), partial(storage.__setitem__, 0, 1)):
        try:
            access()
        except RuntimeError as error:
            stopped += "tidelog" in str(error)
    return stopped == 2


def _find_flag() -> int | None:
    storage = torch.UntypedStorage(8)
    before = ctypes.string_at(storage._cdata, _OBJECT_BYTES)
    setting(storage, "tidelog")()
    after = ctypes.string_at(storage._cdata, _OBJECT_BYTES)
    # Two flags go up: the guard's, and one that says that there is something to look at. The
    # message is behind a pointer.
    changed = [at for at in range(_OBJECT_BYTES) if before[at] != after[at]]
    words = [at - at % 8 for at in changed]
    flags = [at for at in changed if words.count(at - at % 8) <= 2]
    raised = [at for at in flags if (before[at], after[at]) == (0, 1)]
    if len(raised) != 2 or not _stops(storage):
        return None
    for flag in raised:
        _memset(storage._cdata + flag, 0, 1)
        try:
            storage[0]
        except RuntimeError:
            _memset(storage._cdata + flag, 1, 1)
            continue
        storage[0] = 1
        setting(storage, "tidelog")()
        stops = _stops(storage)
        _memset(storage._cdata + flag, 0, 1)
        return flag if stops and storage[0] == 1 else None
    return None


_flag: Any = _find_flag() if _set is not None and _clear is None else None
