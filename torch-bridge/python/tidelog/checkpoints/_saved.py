"""One checkpoint in a pool: its manifest, its tensors, its bytes."""

from __future__ import annotations

import copy
import ctypes
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tidelog import _errors
from tidelog.abi._seals import Pool, Seal, Tickets
from tidelog.checkpoints._manifest import Manifest, View
from tidelog.memory._record import data_ptr

# The tensor in each checkpoint that has its manifest.
MANIFEST = "tidelog.checkpoint"
# How the seals of a checkpoint of ranks end: what is in each rank's share, the coordinator's, and what an
# async_save holds that has not ended.
PART, METADATA, STAGED = OF_RANKS = (" (part)", " (metadata)", " (staged)")


def age(seal: Seal) -> tuple[Any, ...]:
    """Returns the key that sorts the seals of a share by their commits, the oldest first. Those of older software,
    which knew no order, are the oldest: by their clock, and in one second by the numbers in their names.
    """
    parts = re.split(r"(\d+)", seal["name"])
    return seal["order"], seal["sealed_at"], [int(part) if part.isdigit() else part for part in parts]


# Gets in flight.
_IN_FLIGHT = 16


class Saved:
    """A checkpoint that a pool has."""

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool, self._name = pool, name
        identity = pool.named(MANIFEST)
        length = next((it["length"] for it in pool.sealed(name) if it["id"] == identity), None)
        if length is None:
            raise _errors.PoolError(f"the seal {name!r} is no checkpoint that Tidelog's Python package wrote.")
        buffer = ctypes.create_string_buffer(length)
        self._read(identity, 0, ctypes.addressof(buffer), length)
        self.manifest = Manifest(buffer.raw)

    def state(self, *, weights_only: bool) -> Any:
        """The state that was kept, in new memory."""
        storages: list[torch.UntypedStorage] = []
        tickets: Tickets = []
        try:
            for identity, size in zip(self.manifest.ids, self.manifest.sizes, strict=True):
                storage = torch.UntypedStorage(size)
                storages.append(storage)
                address = data_ptr(storage) if size else 0
                self._pool.get(tickets, self._name, identity, 0, address, size)
                if len(tickets) >= _IN_FLIGHT:
                    self._pool.wait_first(tickets)
        finally:
            # Whatever went wrong, nothing writes to the memory any more.
            self._pool.wait_all(tickets)
        return self.manifest.state(lambda view: view.on(storages[view.storage]), weights_only=weights_only)

    @staticmethod
    def parts(state: object) -> dict[str, object]:
        """Returns all leaves of nested dicts and lists, by the names that lead there: "model.layer.weight"."""
        found: dict[str, object] = {}
        for key, value in _flattened(state, ""):
            if key in found:
                raise _errors.Error(f"two parts of the checkpoint would be called {key!r}.")
            found[key] = value
        return found

    def tensor(self, view: View) -> torch.Tensor:
        """One tensor, of whose storage no more is read than it needs."""
        identity, start, length = self.manifest.ids[view.storage], 0, self.manifest.sizes[view.storage]
        if view.is_contiguous():
            start, length = view.offset * view.dtype.itemsize, view.nbytes()
            view = copy.copy(view)
            view.offset = 0
        storage = torch.UntypedStorage(length)
        self._read(identity, start, data_ptr(storage) if length else 0, length)
        return view.on(storage)

    def bytes_of(self, view: View, chunk: int) -> Iterator[bytes]:
        """Yields the bytes of a contiguous tensor, `chunk` at a time."""
        identity = self.manifest.ids[view.storage]
        at = view.offset * view.dtype.itemsize
        end = at + view.nbytes()
        buffer = ctypes.create_string_buffer(min(chunk, end - at) or 1)
        while at < end:
            length = min(chunk, end - at)
            self._read(identity, at, ctypes.addressof(buffer), length)
            yield buffer.raw[:length]
            at += length

    def _read(self, identity: str, offset: int, address: int, length: int) -> None:
        tickets: Tickets = []
        try:
            self._pool.get(tickets, self._name, identity, offset, address, length)
            self._pool.wait_first(tickets)
        finally:
            self._pool.wait_all(tickets)


class Parts(Mapping[str, Any]):
    """Contents of a checkpoint by the names that lead there ("model.layer.weight"). A tensor is read when it is asked
    for, each time, and only its own bytes.
    """

    def __init__(self, saved: Saved, *, weights_only: bool) -> None:
        self._saved = saved
        self._parts = saved.parts(saved.manifest.state(lambda view: view, weights_only=weights_only))

    def __getitem__(self, key: str) -> Any:
        part = self._parts[key]
        return self._saved.tensor(part) if isinstance(part, View) else part

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _flattened(state: object, key: str) -> Iterator[tuple[str, object]]:
    pairs: Iterator[tuple[object, object]]
    if isinstance(state, dict):
        pairs = iter(state.items())
    elif isinstance(state, (list, tuple)):
        pairs = iter(enumerate(state))
    else:
        yield key, state
        return
    for name, value in pairs:
        yield from _flattened(value, f"{key}.{name}" if key else str(name))
