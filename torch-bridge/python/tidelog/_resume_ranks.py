"""Resuming of ranks together: from a checkpoint of `tidelog.dcp`, the same one on all of them.

It is read before the block, as a rank's block has its share of the pool to itself, and by whatever number
of ranks there is now.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypedDict, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from tidelog import _devices, _errors
from tidelog.abi._seals import Pool
from tidelog.checkpoints._resume import LATEST, Resumed, set_random_state
from tidelog.checkpoints._saved import OF_RANKS
from tidelog.dcp import StorageReader, names

_FILE = "tidelog.device"  # in a directory of which a pool is made
_RANDOM = "rng"


class Opening(TypedDict):
    """Options of opening the pool."""

    buffered: bool
    degraded: bool


def resume(pool: str, name: str, model: nn.Module, optimizer: Optimizer | None, opening: Opening) -> Resumed | None:
    """Goes on from a checkpoint; from none where the latest is asked for and there is none."""
    dist.barrier()  # none has its share to itself any more
    found = _agreed(lambda: _choose(pool, name, opening))
    if found is None:
        return None
    resumed = _load(StorageReader(pool, found, **opening), found, model, optimizer)
    dist.barrier()  # the others have read what this rank's block has to itself in a moment
    return resumed


def _agreed(choose: Callable[[], str | None]) -> str | None:
    """Returns the choice of rank 0. Its error is that of all."""
    told: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            told[0] = choose()
        except _errors.Error as error:
            told[1] = error
    dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    return cast("str | None", told[0])


def _choose(pool: str, name: str, opening: Opening) -> str | None:
    """The newest that all ranks have committed."""
    if name != LATEST:
        return name
    devices = _devices.split(pool)
    if not any(os.path.exists(os.path.join(it, _FILE) if os.path.isdir(it) else it) for it in devices):
        return None
    found = names(pool, **opening)
    if not found and (own := _of_one_process(pool, opening)):
        raise _errors.Error(
            f"the pool has no checkpoint of ranks, and {len(own)} that one process kept by tide.checkpoint ({own[0]!r} "
            "is one): ranks go on from what tidelog.dcp has saved."
        )
    return found[-1] if found else None


def _of_one_process(pool: str, opening: Opening) -> list[str]:
    with contextlib.closing(Pool.at(pool, read_only=True, share=0, **opening)) as opened:
        return [seal["name"] for seal in opened.seals() if not seal["name"].endswith(OF_RANKS)]


def _load(reader: StorageReader, name: str, model: nn.Module, optimizer: Optimizer | None) -> Resumed:
    metadata = reader.read_metadata()
    paths = {key: tuple(path) for key, path in (metadata.planner_data or {}).items()}
    of_model, of_optimizer = get_state_dict(model, optimizer if optimizer is not None else ())
    state: dict[str, Any] = {"model": of_model}
    if optimizer is not None:
        state["optimizer"] = of_optimizer
    parts = {path[0] for path in paths.values()}
    missing = sorted(state.keys() - parts)
    if missing:
        raise _errors.Error(
            f"the checkpoint {name!r} has no {' and no '.join(missing)}: load it by torch.distributed.checkpoint before "
            "the block, or save by tidelog.dcp what a run goes on from: tidelog.dcp.state_of(model, optimizer)."
        )
    kept = {".".join(map(str, path[1:])) for path in paths.values() if path[0] == "model"}
    other = sorted(kept ^ of_model.keys())
    if other:
        raise _errors.Error(
            f"the checkpoint {name!r} is of another model: only one of both has {', '.join(other[:8])}."
        )
    rest = {key: _room(metadata, key) for key, path in paths.items() if path[0] not in ("model", "optimizer")}
    loaded = {**state, **rest}
    load(loaded, storage_reader=reader)
    set_state_dict(
        model,
        optimizer if optimizer is not None else (),
        model_state_dict=loaded["model"],
        optim_state_dict=loaded.get("optimizer", {}),
    )
    nested = _nested({paths[key]: loaded[key] for key in rest})
    random = nested.pop(_RANDOM, None)
    # Other ranks than there were draw numbers of their own.
    if isinstance(random, dict) and len(random) == dist.get_world_size():
        set_random_state(random[str(dist.get_rank())])
    return Resumed(name, nested)


def _room(metadata: Metadata, key: str) -> Any:
    """Returns the object into which a value is read that is no part of the model or the optimizer."""
    described = metadata.state_dict_metadata[key]
    if isinstance(described, TensorStorageMetadata):
        return torch.empty(described.size, dtype=described.properties.dtype, device="cpu")
    return None


def _nested(values: dict[tuple[Any, ...], Any]) -> dict[str, Any]:
    """The dicts and lists to which paths lead, of keys and of places."""

    def part(at: dict[tuple[Any, ...], Any]) -> Any:
        if () in at:
            return at[()]
        inner: dict[Any, dict[tuple[Any, ...], Any]] = {}
        for path, value in at.items():
            inner.setdefault(path[0], {})[path[1:]] = value
        if all(isinstance(key, int) for key in inner):
            return [part(inner[key]) for key in sorted(inner)]
        return {key: part(below) for key, below in inner.items()}

    return part(values) if values else {}
