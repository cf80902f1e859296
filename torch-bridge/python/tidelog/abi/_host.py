"""The host's memory, as the library reads it from the kernel."""

from __future__ import annotations

import ctypes
from typing import TypedDict, cast

from tidelog.abi._library import Signatures, Status, declare, last_error, load_library, read_json

SIGNATURES: Signatures = {"tide_host_memory": (ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t])}


class HostMemory(TypedDict):
    """Memory of the host that this process may use, in bytes."""

    machine: int
    limit: int | None  # of control groups, as a container is one; None: the machine has no more
    limit_file: str | None  # the kernel's, which says so
    available: int  # now, without swapping


def host_memory() -> HostMemory:
    """Reads the limits from the kernel."""
    library = load_library()
    declare(library, SIGNATURES, lambda status: last_error(library, status))
    return cast(HostMemory, read_json(library.tide_host_memory, lambda: last_error(library, Status.INVALID_ARGUMENT)))
