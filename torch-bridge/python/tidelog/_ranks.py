"""The other ranks of a distributed program: which of them has failed, and why.

A rank that fails leaves the others in a collective, whose error says that a connection was closed
and not which rank is gone. So each says who it is, and what ended its block, in the store that all
ranks have; the others look there.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

import torch

from tidelog._errors import Error, RankError

# How long the store is asked again: of two ranks that fail, either may be faster.
_PATIENCE_SECONDS = 2
_POLL_SECONDS = 0.05


class Ranks:
    """What one rank's block says to the others, and hears of them."""

    def __init__(self) -> None:
        self._is_known = False

    def introduce(self) -> None:
        """Says to the others which process this rank is."""
        if self._is_known or not _is_distributed():
            return
        self._is_known = True
        with contextlib.suppress(RuntimeError):  # the store's own; then nobody hears of us
            _tell("process", {"host": socket.gethostname(), "process": os.getpid()})

    def failed(self, error: BaseException | None) -> None:
        """Tells the others what ends this rank's block, unless it may be their end that ends it."""
        is_own = not isinstance(error, RuntimeError) or (isinstance(error, Error) and not isinstance(error, RankError))
        if isinstance(error, Exception) and is_own and self._is_known and _is_distributed():
            with contextlib.suppress(RuntimeError):
                _tell("error", f"{type(error).__name__}: {error}")

    def explain(self, error: BaseException | None) -> None:
        """Raises RankError where another rank is why this one's block ends by an error."""
        if not self._is_known or isinstance(error, Error) or not isinstance(error, RuntimeError):
            return
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while _is_distributed() and time.monotonic() < deadline:
            try:
                found = _first_to_fail()
            except RuntimeError:
                return  # the store has gone with a rank
            if found is not None:
                raise RankError(found) from error
            time.sleep(_POLL_SECONDS)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _key(what: str, rank: int) -> str:
    return f"tidelog/{what}/{rank}"


def _tell(what: str, value: object) -> None:
    store = torch.distributed.distributed_c10d._get_default_store()
    store.set(_key(what, torch.distributed.get_rank()), json.dumps(value))


def _heard(what: str, rank: int) -> Any:
    """What a rank told; None: nothing."""
    store = torch.distributed.distributed_c10d._get_default_store()
    return json.loads(store.get(_key(what, rank))) if store.check([_key(what, rank)]) else None


def _first_to_fail() -> str | None:
    own, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    others = [rank for rank in range(size) if rank != own]
    for rank in others:
        if (told := _heard("error", rank)) is not None:
            return f"rank {rank} of {size} failed, which ended this one: {told}"
    for rank in others:
        who = _heard("process", rank)
        if who is not None and who["host"] == socket.gethostname() and not _is_alive(who["process"]):
            return f"rank {rank} of {size} (process {who['process']}) has ended, which ended this one"
    return None


def _is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
