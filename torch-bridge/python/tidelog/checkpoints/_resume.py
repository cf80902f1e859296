"""Resuming of a run from a checkpoint: what `tide.checkpoint` has kept becomes that of the model, of the optimizer and
of torch again.

It is read inside the block, a tensor at a time, so that a state larger than the budget moves out as it
comes.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from tidelog import _errors
from tidelog.abi._native import Session
from tidelog.abi._seals import Pool
from tidelog.checkpoints._manifest import View
from tidelog.checkpoints._saved import METADATA, OF_RANKS, Saved, age

LATEST = "latest"


class Resumed(NamedTuple):
    """The checkpoint that a block goes on from."""

    name: str
    state: dict[str, Any]  # what it has besides "model", "optimizer" and "rng"


def resume(session: Session, name: str, model: nn.Module, optimizer: Optimizer | None) -> Resumed | None:
    """Goes on from a checkpoint in the pool of a session; from none where the latest is asked for and
    there is none."""
    with contextlib.closing(Pool.of_session(session)) as pool:
        found = _latest(pool) if name == LATEST else name
        if found is None and (of_ranks := [seal["name"] for seal in pool.seals() if seal["name"].endswith(METADATA)]):
            last = of_ranks[-1].removesuffix(METADATA)
            raise _errors.Error(
                f"the pool has no checkpoint that one process kept, and {len(of_ranks)} of ranks ({last!r} is one): go "
                "on with ranks, or load it before the block by tidelog.dcp.StorageReader."
            )
        return _load(Saved(pool, found), found, model, optimizer) if found is not None else None


def _latest(pool: Pool) -> str | None:
    """The newest checkpoint."""
    found = [seal for seal in pool.seals() if not seal["name"].endswith(OF_RANKS)]
    return max(found, key=age)["name"] if found else None


def _load(saved: Saved, name: str, model: nn.Module, optimizer: Optimizer | None) -> Resumed:
    state = saved.manifest.state(lambda view: view)
    missing = {"model", *(["optimizer"] if optimizer is not None else [])} - set(
        state if isinstance(state, dict) else ()
    )
    if missing:
        raise _errors.Error(
            f"the checkpoint {name!r} has no {' and no '.join(sorted(missing))}: restore it by tidelog.restore, "
            "or keep by tide.checkpoint(name) what a run goes on from."
        )

    def made(part: Any) -> Any:
        # A clone is an op's output: there is room for it, and it may move.
        return tree_map(lambda leaf: saved.tensor(leaf).clone() if isinstance(leaf, View) else leaf, part)

    with torch.no_grad():
        _load_model(saved, name, state.pop("model"), model, made)
        of_optimizer, random = state.pop("optimizer", None), state.pop("rng", None)
        if optimizer is not None:
            optimizer.load_state_dict(made(of_optimizer))
        rest = made(state)
        if random is not None:
            set_random_state(made(random))
    return Resumed(name, rest)


def _load_model(saved: Saved, name: str, state: dict[str, Any], model: nn.Module, made: Any) -> None:
    targets = model.state_dict(keep_vars=True)
    other = sorted(targets.keys() ^ state.keys())
    if other:
        raise _errors.Error(
            f"the checkpoint {name!r} is of another model: only one of both has {', '.join(other[:8])}."
        )
    besides = {}  # what modules keep that is no tensor
    for key, view in state.items():
        target = targets[key]
        if not isinstance(view, View) or not isinstance(target, torch.Tensor):
            besides[key] = made(view)
        elif tuple(target.shape) != tuple(view.shape):
            raise _errors.Error(
                f"{key} has {tuple(view.shape)} in the checkpoint {name!r}, and {tuple(target.shape)} in the model."
            )
        else:
            target.copy_(saved.tensor(view))
    if besides:
        model.load_state_dict(besides, strict=False)


def random_state() -> dict[str, Any]:
    """Torch's random state."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Torch draws what it would have drawn where this was its random state."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
