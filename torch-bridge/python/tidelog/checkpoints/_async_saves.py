"""Saves of `torch.distributed.checkpoint` that go on beside the training: `dcp.async_save`.

At the call all of the state is sealed, by reference; what has changed is written first, and nothing is
copied in memory. A thread of torch's own makes a checkpoint of what is sealed, which the training no longer
changes. A block has one such save at a time.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tidelog import _errors
from tidelog.abi._seals import Pool
from tidelog.checkpoints import _checkpoint
from tidelog.checkpoints._checkpoint import Block
from tidelog.checkpoints._manifest import Writer
from tidelog.checkpoints._saved import STAGED

if TYPE_CHECKING:
    from tidelog.checkpoints._stand_ins import OfStandIns, StandIns

_POLL_SECONDS = 0.005
# A thread of torch's begins at once. Where none comes, nothing has been saved.
_BEGINS_WITHIN_SECONDS = 30.0
# How long a block that fails waits for a save. Its other ranks may have failed, too.
_FAILS_WITHIN_SECONDS = 10.0


class State(dict[str, Any]):
    """State that torch's thread saves. Once nobody has it any more, the save is over."""

    def __init__(self, save: Save) -> None:
        super().__init__()
        self._save = save
        save.belongs_to(self)

    def __reduce__(self) -> NoReturn:
        self._save.give_up()
        raise _errors.Error(
            "async_save into a pool works on a thread (AsyncCheckpointerType.THREAD), which copies nothing. Another "
            "process (AsyncCheckpointerType.PROCESS) cannot write: the block has its share of the pool to itself."
        )


class Save:
    """One save, from the call on."""

    def __init__(self, pool: Pool) -> None:
        self.error: Exception | None = None  # why there is nothing to save: its future says so, on all ranks
        self.places: Sequence[torch.UntypedStorage] = ()  # what stands for the storages that are held
        self.pool = pool
        self._seal = secrets.token_hex(16) + STAGED
        self._ids: list[str] = []
        self._begun = time.monotonic()
        self._state: weakref.ref[State] | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

    def stage(self, tide: Block, stand_ins: StandIns) -> None:
        """Holds what the storages have now that these stand for."""
        self.places = stand_ins.places
        self._ids = _checkpoint.hold(tide, self.pool, self._seal, stand_ins.storages)

    def belongs_to(self, state: State) -> None:
        """Torch's thread has this state while it saves."""
        self._state = weakref.ref(state)

    # -- on torch's thread ------------------------------------------------------------------------

    def go_on(self) -> None:
        """Torch's thread is at work."""
        self._thread = threading.current_thread()
        if self._is_over:
            raise _errors.Error("this save is over: its offload block has ended, or has begun another.")

    def seal(self, name: str, writer: OfStandIns, state: object, *, verify: bool) -> None:
        """Seals a state in which tensors are views of stand-ins. What was held for it is let go by the
        same commit, and with it what it does not have."""
        ids: list[str] = []

        def found() -> list[str]:
            ids.extend(self._ids[number] for number in writer.found)
            return ids

        content = writer.manifest(state, found)
        _checkpoint.seal(self.pool, name, content, ids, staged=self._seal if self._ids else None)
        self._ids = []
        if verify:
            self.pool.verify(name)

    def note(self, name: str, state: object) -> None:
        """Seals a state without tensors."""
        content = Writer().manifest(state, list)
        _checkpoint.seal(self.pool, name, content, [])

    # -- on the block's thread --------------------------------------------------------------------

    def give_up(self) -> None:
        """Gives up the save."""
        self._state = None

    def await_end(self, within: float | None = None) -> bool:
        """Waits until torch's thread has ended; returns whether it has."""
        deadline = time.monotonic() + within if within is not None else None
        while not self._has_ended():
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _has_ended(self) -> bool:
        if self._state is None or self._state() is None:
            return True
        if self._thread is not None:
            return not self._thread.is_alive()
        return time.monotonic() > self._begun + _BEGINS_WITHIN_SECONDS

    def close(self) -> None:
        """Ends the save. What it held is free unless a checkpoint has it."""
        self._is_over = True
        if self._ids:
            with contextlib.suppress(_errors.Error), self.pool.batch() as batch:
                self.pool.drop_seal(batch, self._seal)
        self.pool.close()


class Saves:
    """Saves of one block: at most one at a time."""

    def __init__(self) -> None:
        self._current: Save | None = None

    def begin(self, pool: Pool) -> Save:
        """The next one, once the one before is over."""
        self.wait()
        self._current = Save(pool)
        return self._current

    def is_under_way(self) -> bool:
        """Returns whether one is."""
        return self._current is not None and not self._current.await_end(0)

    def wait(self) -> None:
        """Waits until none is under way. How it ended is for its future to tell."""
        self._end(None)

    def end_block(self, *, fails: bool) -> None:
        """The block ends, and with it a save that is under way: by its end, unless the block fails and
        that takes long."""
        self._end(_FAILS_WITHIN_SECONDS if fails else None)

    def _end(self, within: float | None) -> None:
        if self._current is not None:
            self._current.await_end(within)
            self._current.close()
            self._current = None
