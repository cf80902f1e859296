"""`torch.distributed.checkpoint` on a pool: what is in the log already is held by reference.

    import torch.distributed.checkpoint as dcp
    from tidelog.dcp import StorageReader, StorageWriter

    dcp.save(state_dict, storage_writer=StorageWriter(tide, "step 100"))
    dcp.load(state_dict, storage_reader=StorageReader("/mnt/nvme/tide", "step 100"))

Each rank holds its part in its own share of the pool. The coordinator's `finish` is the commit: it
holds the metadata once every rank's part is on the media, so that a checkpoint that is found is whole.
A checkpoint lives as long as its pool.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from tidelog import _checkpoint, _errors
from tidelog._checkpoint import Checkpoints
from tidelog._figures import StrPath
from tidelog._saved import Saved
from tidelog._seals import Pool

if TYPE_CHECKING:
    from tidelog._block import Tide

# Where the coordinator's share has the metadata.
_METADATA = " (metadata)"


class StorageWriter(storage.StorageWriter):
    """Writes to the pool of an open block."""

    def __init__(self, tide: Tide, name: str) -> None:
        self._tide, self._name = tide, name
        self._share = tide.session.share

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        """The next checkpoint, under another name if one is given."""
        if checkpoint_id is not None:
            self._name = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is to be set up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The plans as they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Holds this rank's part, by one commit in its share."""
        parts: list[object] = []
        for item in plan.items:
            data = planner.resolve_data(item)
            parts.append(data.getvalue() if isinstance(data, io.BytesIO) else data)
        self._seal(self._name, parts)
        future: Future[list[WriteResult]] = Future()
        future.set_result(
            [
                WriteResult(index=item.index, size_in_bytes=_size_of(part), storage_data=(self._share, place))
                for place, (item, part) in enumerate(zip(plan.items, parts, strict=True))
            ]
        )
        return future

    def finish(self, metadata: dcp_metadata.Metadata, results: list[list[WriteResult]]) -> None:
        """The commit of all ranks: from here on the checkpoint can be found."""
        metadata.storage_data = {result.index: result.storage_data for rank in results for result in rank}
        metadata.storage_meta = self.storage_meta()
        self._seal(self._name + _METADATA, metadata)

    def storage_meta(self) -> dcp_metadata.StorageMeta | None:
        """What a checkpoint says of itself."""
        return dcp_metadata.StorageMeta(checkpoint_id=self._name)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        """Any name of 1 to 1024 bytes will do."""
        return 0 < len(os.fspath(checkpoint_id).encode()) <= 1024 - len(_METADATA)

    def _seal(self, name: str, state: object) -> None:
        pool = Pool.of_session(self._tide.session)
        try:
            _checkpoint.write(self._tide, pool, name, state)
        finally:
            pool.close()


class StorageReader(storage.StorageReader):
    """Reads from a pool: inside the block that has it open, or without one. As many ranks as there are
    may read what another number wrote."""

    def __init__(self, pool: StrPath, name: str, *, buffered: bool = False) -> None:
        self._devices, self._name, self._buffered = os.fspath(pool), name, buffered
        self._places: dict[Any, tuple[int, int]] = {}

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        """The next checkpoint, of another name if one is given."""
        if checkpoint_id is not None:
            self._name = os.fspath(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        """What the coordinator committed."""
        with Checkpoints(self._pool(0)) as checkpoints:
            found = checkpoints.restore(self._name + _METADATA, weights_only=False)
        if not isinstance(found, dcp_metadata.Metadata):
            raise _errors.PoolError(f"{self._name!r} is no checkpoint of torch.distributed.checkpoint.")
        return found

    def set_up_storage_reader(
        self, metadata: dcp_metadata.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Learns where everything lies."""
        self._places = metadata.storage_data or {}

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what a plan wants, share by share and one tensor at a time."""
        by_share: dict[int, list[tuple[int, Any]]] = {}
        for item in plan.items:
            share, place = self._places[item.storage_index]
            by_share.setdefault(share, []).append((place, item))
        for share, items in by_share.items():
            pool = self._pool(share)
            try:
                saved = Saved(pool, self._name)
                parts = saved.manifest.state(lambda view: view)
                for place, item in items:
                    if item.type == LoadItemType.BYTE_IO:
                        planner.load_bytes(item, io.BytesIO(parts[place]))
                    else:
                        _load(planner, item, saved.tensor(parts[place]))
            finally:
                pool.close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        """Any name of 1 to 1024 bytes will do."""
        return StorageWriter.validate_checkpoint_id(checkpoint_id)

    def _pool(self, share: int) -> Pool:
        return Pool.at(self._devices, read_only=True, share=share, buffered=self._buffered)


def _load(planner: LoadPlanner, item: Any, tensor: torch.Tensor) -> None:
    for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        tensor = tensor.narrow(dimension, offset, length)
    target = planner.resolve_tensor(item).detach()
    if target.size() != tensor.size():
        raise _errors.Error(
            f"{item.storage_index.fqn} has {tuple(tensor.size())} where {tuple(target.size())} is wanted."
        )
    target.copy_(tensor)
    planner.commit_tensor(item, target)


def _size_of(part: object) -> int:
    return part.nbytes if isinstance(part, torch.Tensor) else len(part)  # type: ignore[arg-type]
