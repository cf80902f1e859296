"""`torch.distributed.checkpoint` on a pool: what is in the log already is held by reference.

    import torch.distributed.checkpoint as dcp
    from tidelog.dcp import StorageReader, StorageWriter

    dcp.save(state_dict, storage_writer=StorageWriter(tide, "step 100"))
    dcp.load(state_dict, storage_reader=StorageReader("/mnt/nvme/tide", "step 100"))

`dcp.async_save` takes the same writer, which is its stager too: what is out is sealed at the call, what
has changed is written, and nothing is copied in memory.

Each rank holds its part in its own share of the machine's pool, by one commit. The coordinator's
`finish` is the commit of all: it holds the metadata once every rank's part is on the media, so that a
checkpoint that is found is whole. A checkpoint lives as long as its pool.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.optim import Optimizer

from tidelog import _devices, _errors
from tidelog.abi._seals import Pool
from tidelog.checkpoints import _checkpoint
from tidelog.checkpoints._async_saves import Save, State
from tidelog.checkpoints._checkpoint import Checkpoints
from tidelog.checkpoints._resume import random_state
from tidelog.checkpoints._saved import METADATA, PART, STAGED, Saved, age
from tidelog.checkpoints._stand_ins import OfStandIns, StandIns
from tidelog.output._figures import StrPath

if TYPE_CHECKING:
    from tidelog.block._block import Tide

_NAME_BYTES = 1024 - len(METADATA)


class Place(NamedTuple):
    """Place of an item. `save` tells this save from any other of the same name, and of other machines."""

    share: int
    save: str
    item: int


class StorageWriter(storage.StorageWriter):
    """Writes to the pool of an open block. Of a name that is taken nothing is written over: delete it
    first. For `dcp.async_save` it is the stager, too; with `verify`, what that has kept is read and
    compared, beside the training, before it is a checkpoint."""

    # As `torch.distributed.checkpoint.staging.AsyncStager`: async_save asks whether a writer has all of it.
    _synchronize_after_execute = False

    def __init__(self, tide: Tide, name: str, *, verify: bool = True) -> None:
        self._tide, self._name, self._verify = tide, name, verify
        self._save: Save | None = None

    # -- the stager of async_save -----------------------------------------------------------------

    @property
    def should_synchronize_after_execute(self) -> bool:
        """No: all has been done when `stage` returns."""
        return self._synchronize_after_execute

    def stage(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Holds what the state has now. Waits until a save of this block is over that was begun before.
        What goes wrong goes wrong in the save, which tells the other ranks."""
        if self._tide.access.is_elsewhere() or not self._tide.is_open:
            raise _errors.Error("async_save is called on the thread of an open offload block: it looks at its tensors.")
        self._save = save = self._tide.saves.begin(_pool_of(self._tide))
        state = State(save)
        try:
            stand_ins = StandIns()
            state.update(stand_ins.of(state_dict))
            save.stage(self._tide, stand_ins)
        except Exception as error:
            # Its frames would keep the state's tensors for as long as the future is kept.
            error.__traceback__ = error.__context__ = None
            save.error = error
            state.clear()
        return state

    def synchronize_staging(self) -> None:
        """Returns at once, as there is nothing to wait for."""

    def close(self) -> None:
        """Does nothing, as there is nothing to close."""

    # -- the writer -------------------------------------------------------------------------------

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        """The next checkpoint, under another name if one is given."""
        self._going_on()
        if checkpoint_id is not None:
            self._name = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses what could not be read again."""
        save = self._going_on()
        if save is None:
            self._tide.saves.wait()
        elif save.error is not None:
            raise save.error
        if is_coordinator and self._tide.session.share != 0:
            raise _errors.Error(
                f"the coordinator of the save has share {self._tide.session.share} of the pool, and readers look "
                "into share 0: let the rank with share 0 coordinate (coordinator_rank)."
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The plans as they are, unless there is a checkpoint of this name: its parts are not replaced."""
        save = self._going_on()
        with (
            contextlib.nullcontext(save.pool) if save is not None else contextlib.closing(_pool_of(self._tide)) as pool
        ):
            if any(seal["name"] == self._name + METADATA for seal in pool.seals()):
                raise _errors.PoolError(
                    f"the pool has a checkpoint {self._name!r}: take another name, or call tidelog.dcp.delete first."
                )
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Holds this rank's part, by one commit in its share."""
        parts: list[object] = []
        for item in plan.items:
            data = planner.resolve_data(item)
            parts.append(data.getvalue() if isinstance(data, io.BytesIO) else data)
        token = secrets.token_hex(16)
        name, state, save = self._name + PART, {"save": token, "items": parts}, self._going_on()
        if save is None:
            _checkpoint.write(self._tide, name, state)
        else:
            save.seal(name, OfStandIns(save.places), state, verify=self._verify)
        share = self._tide.session.share
        results = [
            WriteResult(index=item.index, size_in_bytes=_size_of(part), storage_data=Place(share, token, place))
            for place, (item, part) in enumerate(zip(plan.items, parts, strict=True))
        ]
        return _done(results)

    def finish(self, metadata: dcp_metadata.Metadata, results: list[list[WriteResult]]) -> None:
        """The commit of all ranks: from here on the checkpoint can be found."""
        metadata.storage_data = {result.index: result.storage_data for rank in results for result in rank}
        metadata.storage_meta = self.storage_meta()
        save = self._going_on()
        if save is None:
            _checkpoint.write(self._tide, self._name + METADATA, metadata)
        else:
            save.note(self._name + METADATA, metadata)

    def storage_meta(self) -> dcp_metadata.StorageMeta | None:
        """Returns the description of a checkpoint."""
        self._going_on()
        return dcp_metadata.StorageMeta(checkpoint_id=self._name)

    def _going_on(self) -> Save | None:
        """The save that a thread of torch's goes on with; None on the block's own thread."""
        if not self._tide.access.is_elsewhere():
            return None
        if self._save is None:
            raise _errors.Error(
                "a save on another thread is one of dcp.async_save, with this writer as its stager (async_stager): "
                "what another stager has copied, a pool has no use for. Or call dcp.save."
            )
        self._save.go_on()
        return self._save

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        """Any name will do that is not too long."""
        return 0 < len(os.fspath(checkpoint_id).encode()) <= _NAME_BYTES


class StorageReader(storage.StorageReader):
    """Reads from a pool, on as many ranks as there are, whatever number wrote it. Outside of blocks: a
    rank's block has its share to itself. With `degraded` one device of a pool with two copies may be missing."""

    def __init__(self, pool: StrPath, name: str, *, buffered: bool = False, degraded: bool = False) -> None:
        self._devices, self._name = _devices.listed(pool), name
        self._buffered, self._degraded = buffered, degraded
        self._places: dict[Any, Place] = {}

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        """The next checkpoint, of another name if one is given."""
        if checkpoint_id is not None:
            self._name = os.fspath(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        """Returns the metadata that the coordinator committed."""
        with Checkpoints(self._pool(0)) as checkpoints:
            found = checkpoints.restore(self._name + METADATA, weights_only=False)
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
        by_share: dict[int, list[tuple[Place, Any]]] = {}
        for item in plan.items:
            place = self._places[item.storage_index]
            by_share.setdefault(place.share, []).append((place, item))
        for share, items in by_share.items():
            with contextlib.closing(self._pool(share)) as pool:
                saved = Saved(pool, self._name + PART)
                part = saved.manifest.state(lambda view: view)
                for place, item in items:
                    self._read(planner, item, saved, self._found(part, place))
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        """Any name will do that is not too long."""
        return StorageWriter.validate_checkpoint_id(checkpoint_id)

    def _pool(self, share: int) -> Pool:
        return Pool.at(self._devices, read_only=True, share=share, buffered=self._buffered, degraded=self._degraded)

    def _found(self, part: Any, place: Place) -> Any:
        if part["save"] != place.save:
            raise _errors.PoolError(
                f"what share {place.share} has of {self._name!r} is of another save than its metadata; the machines "
                "of a run have a pool each, and what one wrote another cannot read."
            )
        return part["items"][place.item]

    def _read(self, planner: LoadPlanner, item: Any, saved: Saved, found: Any) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(found))
            return
        tensor = saved.tensor(found)
        for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            tensor = tensor.narrow(dimension, offset, length)
        target = planner.resolve_tensor(item).detach()
        if target.size() != tensor.size():
            raise _errors.Error(
                f"{item.storage_index.fqn} has {tuple(tensor.size())} where {tuple(target.size())} is wanted."
            )
        target.copy_(tensor)
        planner.commit_tensor(item, target)


def state_of(model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Returns the state that `offload(resume=...)` continues with ranks: model, optimizer, and each rank's random
    state. Every rank calls this, adds what else it needs under names of its own, and saves it.
    """
    of_model, of_optimizer = get_state_dict(model, optimizer if optimizer is not None else ())
    state: dict[str, Any] = {"model": of_model, "rng": {str(dist.get_rank()): random_state()}}
    if optimizer is not None:
        state["optimizer"] = of_optimizer
    return state


def names(pool: StrPath | Tide, *, buffered: bool = False, degraded: bool = False) -> list[str]:
    """The checkpoints of all ranks that a pool has, the oldest first. Those whose save did not end are
    none. With a block instead of a pool: for the rank that has share 0. With `degraded` one device of a
    pool with two copies may be missing."""
    if isinstance(pool, (str, os.PathLike)):
        opened = Pool.at(_devices.listed(pool), read_only=True, share=0, buffered=buffered, degraded=degraded)
    else:
        opened = _pool_of(pool)
    with Checkpoints(opened) as checkpoints:
        found = [seal for seal in checkpoints.list() if seal["name"].endswith(METADATA)]
    found.sort(key=age)
    return [seal["name"].removesuffix(METADATA) for seal in found]


def delete(tide: Tide, *names: str) -> None:
    """Deletes checkpoints, and what saves of these names have left that did not end. Every rank calls
    this, inside its block. First they are found no more, then their parts go."""
    for what in (METADATA, PART):
        with Checkpoints(_pool_of(tide)) as checkpoints:
            there = {seal["name"] for seal in checkpoints.list()}
            gone = [name + what for name in names if name + what in there]
            if gone:
                checkpoints.delete(*gone)
        if dist.is_initialized():
            dist.barrier()


def delete_unfinished(tide: Tide) -> list[str]:
    """Deletes what kills have left: parts of saves that did not end, and of checkpoints that were being
    deleted. Every rank calls this, inside its block and while nothing is saved; each gets the names of
    its own."""
    tide.saves.wait()
    whole = [names(tide) if tide.session.share == 0 else []]
    if dist.is_initialized():
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, whole[0])
        whole = everybody
    found = {name for each in whole for name in each}
    with Checkpoints(_pool_of(tide)) as checkpoints:
        there = [seal["name"] for seal in checkpoints.list()]
        parts = [name.removesuffix(PART) for name in there if name.endswith(PART)]
        unfinished = [name for name in parts if name not in found]
        gone = [name + PART for name in unfinished] + [name for name in there if name.endswith(STAGED)]
        if gone:
            checkpoints.delete(*gone)
    return unfinished


def _pool_of(tide: Tide) -> Pool:
    return Pool.of_session(tide.session)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _size_of(part: object) -> int:
    return part.nbytes if isinstance(part, torch.Tensor) else len(part)  # type: ignore[arg-type]
