"""Loading inside a block: what `torch.load` reads counts as it is read, and may leave before the next is.

It gives each storage the memory that its file reader made, which torch calls not resizable and nobody else has. Of a
file that is mapped (`mmap=True`) each is a slice: see native/slices.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tidelog import _patches
from tidelog.dispatch._access import Access
from tidelog.memory._record import Storage
from tidelog.native._built import native

Place = Callable[[Storage, str], Any]


def install(access: Access) -> None:
    """Installs the hooks for a block."""
    module: Any = torch.serialization
    if hasattr(module, "_get_restore_location"):
        _patches.replace(module, "_get_restore_location", lambda original: _placed(access, original))


def _placed(access: Access, original: Callable[[Any], Place]) -> Callable[[Any], Place]:
    def get_restore_location(map_location: Any) -> Place:
        place = original(map_location)

        def restore(storage: Storage, location: str) -> Any:
            placed = place(storage, location)
            is_read = placed is storage and native().may_be_own(storage) and native().whole_of(storage) is None
            if is_read and access.is_live() and access.owns(storage):
                access.came(storage)
            return placed

        return restore

    return get_restore_location
