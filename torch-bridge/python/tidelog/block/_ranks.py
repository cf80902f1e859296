"""Failures of other ranks of a distributed program: which of them has failed, and why; and from which step on all of
them follow their plans.

A rank that fails leaves the others in a collective, whose error says that a connection was closed
and not which rank is gone. So each says who it is, and what ended its block, in the store that all
ranks have; the others look there.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from typing import Any

import torch

from tidelog._errors import Error, RankError

# How long the store is asked again: of two ranks that fail, either may be faster.
_PATIENCE_SECONDS = 2
_POLL_SECONDS = 0.05
# A rank whose program goes on after its block failed leaves the others in a collective that never
# ends. They wait so long in one call, and then end.
_STUCK_SECONDS = 10
_WATCH_SECONDS = 1.0
# How many steps a rank waits with its plan for the others: some may never have one.
_PLAN_STEPS_MAX = 5


def local_rank() -> int:
    """Returns this process's number among the ranks of this machine, as torchrun says it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_world_size() -> int:
    """Returns the number of ranks of this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def go_on_together() -> bool:
    """Returns whether a block that goes on from a checkpoint does so with other ranks, which have to be known then."""
    local = local_world_size()
    size = torch.distributed.get_world_size() if _is_distributed() else 1
    if local > 1 and size == 1:
        raise Error(
            f"resume: this is one of {local} ranks (LOCAL_WORLD_SIZE), which go on together; call "
            "torch.distributed.init_process_group before the block."
        )
    if size > local:
        raise Error(
            f"resume: {local} of the {size} ranks are on this machine (LOCAL_WORLD_SIZE), and a checkpoint of ranks is "
            "of one machine. Load by torch.distributed.checkpoint, before the block, what the ranks have in common."
        )
    return size > 1


class Ranks:
    """Messages between one rank's block and the others."""

    blocks = 0  # of this process, that were distributed: what one says is not meant for the next

    def __init__(self) -> None:
        self._is_known = False
        self._step = 0  # of those that `follows_plan` was asked about
        self._ready_since: int | None = None  # the step in which this rank's plan was ready
        self._over = threading.Event()  # the block's end

    def introduce(self) -> None:
        """Says to the others which process this rank is."""
        if self._is_known or not _is_distributed():
            return
        self._is_known = True
        Ranks.blocks += 1
        with contextlib.suppress(RuntimeError):  # the store's own; then nobody hears of us
            _tell("process", {"host": socket.gethostname(), "process": os.getpid()})
            watch = threading.Thread(target=_watch, args=(self._over, threading.get_ident()), daemon=True)
            watch.start()

    def leave(self) -> None:
        """The block ends: what waits from here on is the program's own business."""
        self._over.set()

    def follows_plan(self, is_ready: bool) -> bool:
        """Returns whether the step that begins follows this rank's first plan, if that is ready. Called in each step
        until it does, so that all ranks count alike.

        The last rank to have a plan names the next step to the others, who wait for it in this one's
        collectives at the latest; so all begin in the same step."""
        self._step += 1
        if not is_ready:
            return False
        with contextlib.suppress(RuntimeError):  # the store's own; then each begins when it can
            store = _store()
            ready, agreed = (f"tidelog/{Ranks.blocks}/plans/{what}" for what in ("ready", "step"))
            if self._ready_since is None:
                self._ready_since = self._step
                if store.add(ready, 1) == torch.distributed.get_world_size():
                    store.set(agreed, str(self._step + 1))
            if store.check([agreed]):
                return self._step >= int(store.get(agreed))
            return self._step >= self._ready_since + _PLAN_STEPS_MAX
        return True

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
                with contextlib.suppress(RuntimeError):
                    _tell("explained", found)
                raise RankError(found) from error
            time.sleep(_POLL_SECONDS)


def _watch(over: threading.Event, thread: int) -> None:
    """Ends the process if the block of another rank has failed and `thread` is stuck since then: a
    wait in a backend of torch ends by nothing else but its time-out, which is half an hour."""
    stuck_at, since = None, 0.0
    while not over.wait(_WATCH_SECONDS):
        try:
            found = _first_error() if _is_distributed() else None
        except (RuntimeError, ValueError):  # the store has gone, or the process group just now
            return
        if found is None:
            continue
        frame = sys._current_frames().get(thread)
        place = (id(frame), frame.f_lasti if frame is not None else 0)
        if place != stuck_at:
            stuck_at, since = place, time.monotonic()
        elif time.monotonic() - since >= _STUCK_SECONDS:
            sys.stdout.flush()
            print(f"tidelog.RankError: {found}", file=sys.stderr, flush=True)
            os._exit(1)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _store() -> Any:
    """The one that all ranks have."""
    return torch.distributed.distributed_c10d._get_default_store()


def _key(what: str, rank: int) -> str:
    return f"tidelog/{Ranks.blocks}/{what}/{rank}"


def _tell(what: str, value: object) -> None:
    _store().set(_key(what, torch.distributed.get_rank()), json.dumps(value))


def _heard(what: str, rank: int) -> Any:
    """Returns the message of a rank; None: nothing."""
    store = _store()
    return json.loads(store.get(_key(what, rank))) if store.check([_key(what, rank)]) else None


def _others() -> tuple[list[int], int]:
    own, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return [rank for rank in range(size) if rank != own], size


def _first_error() -> str | None:
    """Returns the rank whose block failed first, and the reason."""
    others, size = _others()
    for rank in others:
        if (told := _heard("error", rank)) is not None:
            return f"rank {rank} of {size} failed, which ended this one: {told}"
    return None


def _first_to_fail() -> str | None:
    if (found := _first_error()) is not None:
        return found
    others, size = _others()
    for rank in others:
        who = _heard("process", rank)
        if who is None or who["host"] != socket.gethostname() or _is_alive(who["process"]):
            continue
        if _heard("explained", rank) is None:  # else it ended because another one had
            return f"rank {rank} of {size} (process {who['process']}) has ended, which ended this one"
    return None


def _is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
