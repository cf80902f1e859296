"""Pauses of a block: all that it moves is out, its memory is others', and no op is looked at until it goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from tidelog import _errors
from tidelog._whole import whole
from tidelog.abi._native import Session
from tidelog.checkpoints._async_saves import Saves
from tidelog.dispatch._access import Access
from tidelog.dispatch._steps import Steps
from tidelog.memory._device import Host
from tidelog.memory._heap import Cache, Heap, anonymous_bytes
from tidelog.native._built import native
from tidelog.native._module import Ledger, Record
from tidelog.order._updates import Updates
from tidelog.storages._async_uses import AsyncUses

_NAMED_MAX = 8
_PATIENCE_SECONDS = 5.0
_ROOM_SECONDS, _ROOM_POLL_SECONDS = 1.0, 0.02


class Pauses:
    """Pauses of one block."""

    def __init__(
        self,
        ledger: Ledger,
        session: Session,
        access: Access,
        steps: Steps,
        updates: Updates,
        async_uses: AsyncUses,
        device: Host,
        heap: Heap | Cache,
        saves: Saves,
        adopt_what_lives: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._session = session
        self._access = access
        self._steps = steps
        self._updates = updates
        self._async_uses = async_uses
        self._device = device
        self._heap = heap
        self._saves = saves
        self._adopt_what_lives = adopt_what_lives
        self._began = 0.0

    @whole
    def begin(self) -> None:
        """Has all that can leave memory. Where that fails, or is interrupted, the block goes on as it was."""
        self._refuse_in_the_middle()
        self._began = time.perf_counter()
        self._updates.run_all()
        self._steps.end_touch()
        self._await_collectives()
        self._refuse_what_is_in_use()
        self._ledger.end_quiet()
        try:
            self._leave()
            self._await_device()
        except BaseException:
            with contextlib.suppress(_errors.Error):  # it is raised again by who comes next
                self._session.go_on(at_once=False)
            raise
        self._access.is_paused = True
        native().suspend(True)
        self._ledger.pause(True)
        native().pause_arena(True)
        self._heap.rest()

    @whole
    def end(self, *, at_once: bool) -> None:
        """The block goes on, also where this raises an error."""
        access, ledger = self._access, self._ledger
        if not access.is_paused:
            raise _errors.Error("this offload block is not paused: resume() ends what pause() has begun.")
        if access.is_elsewhere():
            raise _errors.Error("resume() was called in another thread than that of this offload block: call it there.")
        self._heap.make_way()
        native().pause_arena(False)
        # What was made in a pause may be in graphs of CUDA's, which have its addresses.
        ledger.newborn_moves = not access.has_captured
        self._adopt_what_lives()
        ledger.newborn_moves = True
        self._heap.begin(anonymous_bytes() - ledger.live, lambda: ledger.live)
        try:
            self._session.go_on(at_once)
        finally:
            ledger.pause(False)
            native().suspend(False)
            access.is_paused = False
            self._steps.paused_seconds += time.perf_counter() - self._began

    def _leave(self) -> None:
        """Has all that can leave memory. A write for a tensor that has died keeps its room in the pool until it ends,
        so that one that is full may have room a moment later.
        """
        until = time.monotonic() + _ROOM_SECONDS
        while True:
            try:
                return self._session.pause()
            except _errors.PoolError:
                if time.monotonic() > until:
                    raise
                time.sleep(_ROOM_POLL_SECONDS)

    def _await_collectives(self) -> None:
        """Waits for collectives that end by themselves: nobody has the handle of those that DDP begins."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while (milliseconds := self._async_uses.wait_ms()) and time.monotonic() < until:
            time.sleep(milliseconds / 1000)

    def _await_device(self) -> None:
        """Waits until nothing that has left is read or written any more, and whatever was wrong with it is known."""
        self._device.streams.await_copies()
        if (event := self._device.streams.after()) is not None:
            event.synchronize()
        self._ledger.let_go()
        self._device.reclaim()
        self._session.settle()

    # -- what is under way ------------------------------------------------------------------------

    def _refuse_in_the_middle(self) -> None:
        access = self._access
        if access.is_elsewhere():
            raise _errors.Error(
                "pause() was called in another thread than that of this offload block: call it there, between two ops."
            )
        if access.is_instead() or access.is_replaced():
            raise _errors.Error(
                "pause() was called inside tidelog.accumulate, which is in the middle of several micro-batches: call "
                "it when that has returned."
            )
        if native().is_busy() or native().is_under_way_here() or native().is_inside():
            raise _errors.Error("pause() was called in the middle of an op: call it when that has returned.")
        if self._updates.is_ahead():
            raise _errors.Error(
                "pause() was called in a backward pass that updates parameters (updates='early'): call it when their "
                "optimizer has stepped."
            )
        if self._saves.is_under_way():
            raise _errors.Error(
                "pause() was called while a save of torch.distributed.checkpoint is under way: wait for its future."
            )

    def _refuse_what_is_in_use(self) -> None:
        ledger = self._ledger
        records = ledger.all()
        if self._async_uses:
            raise _errors.Error(
                f"{_named([each for each in records if each.async_uses or each.loans])} in use by an operation that is "
                "not complete (a collective, a send, an op of another thread): wait for it before pause()."
            )
        pinned = [each for each in records if each.pins and (storage := each()) and ledger.movable(storage)]
        if pinned:
            raise _errors.PinnedError(
                f"{_named(pinned)} pinned: NumPy, DLPack, somebody who has asked for an address or a "
                "`with tide.pinned(...)` sees its memory. Let go of it, or say by tide.unpin(tensor) that nobody "
                "uses the address, before pause()."
            )


def _named(records: list[Record]) -> str:
    """Names records, as the subject of a sentence."""
    names = [record.describe() for record in records[:_NAMED_MAX]]
    more = f" and {len(records) - _NAMED_MAX} more" if len(records) > _NAMED_MAX else ""
    size = sum(record.size for record in records)
    return f"{', '.join(names) or 'something'}{more} ({size} bytes) {'are' if len(records) > 1 else 'is'}"
