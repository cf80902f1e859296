"""What `torch.load` reads inside a block may move like all else.

It gives each storage the memory that its file reader made, which torch cannot resize. Here each is copied
as it comes into memory that an op has made: there is room for it then, and it may leave before the next
one is read. A mapped file (`mmap=True`) stays what it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.serialization import config

from tidelog import _patches
from tidelog._budget_error import BudgetError
from tidelog.dispatch._access import Access
from tidelog.memory._record import Storage, nbytes, resizable

Place = Callable[[Storage, str], Any]

_mapping = [False]  # whether the load that runs maps its file


def install(access: Access) -> None:
    """For a block."""
    module: Any = torch.serialization
    if hasattr(module, "_get_restore_location"):
        _patches.replace(torch, "load", _noted)
        _patches.replace(module, "_get_restore_location", lambda original: _placed(access, original))


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(*args: Any, **kwargs: Any) -> Any:
        mmap = kwargs.get("mmap")
        before, _mapping[0] = _mapping[0], bool(config.load.mmap if mmap is None else mmap)
        try:
            return original(*args, **kwargs)
        finally:
            _mapping[0] = before

    return load


def _placed(access: Access, original: Callable[[Any], Place]) -> Callable[[Any], Place]:
    def get_restore_location(map_location: Any) -> Place:
        place = original(map_location)

        def restore(storage: Storage, location: str) -> Any:
            placed = place(storage, location)
            may_move = access.is_live() and not access.is_elsewhere() and not _mapping[0]
            return _movable(placed) if may_move and placed is storage and access.owns(placed) else placed

        return restore

    return get_restore_location


def _movable(storage: Storage) -> torch.UntypedStorage:
    length = nbytes(storage)
    if resizable(storage) or length == 0:
        return storage
    with torch.no_grad(), contextlib.suppress(BudgetError):
        # The default device may be another.
        room = torch.empty(length, dtype=torch.uint8, device=storage.device)
        room.copy_(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        return room.untyped_storage()
    return storage  # larger than the budget: it stays
