"""Tensors that are out when a block ends: they come back as far as the budget has room, and those that stay are named."""

from __future__ import annotations

import contextlib
import warnings

from tidelog import _errors
from tidelog.abi._native import Session
from tidelog.dispatch._access import Access
from tidelog.dispatch._performer import Performer
from tidelog.memory import _record
from tidelog.native._module import Ledger
from tidelog.output._progress import Progress

_NAMED_MAX = 8


class Restoring:
    """Brings tensors back where no op asks for them."""

    def __init__(self, ledger: Ledger, session: Session, performer: Performer, access: Access) -> None:
        self._ledger = ledger
        self._session = session
        self._performer = performer
        self._access = access

    def stop_migrations(self) -> None:
        """Stops migrations: from here on nobody says which tensors are used and written, so nothing may leave or be
        prefetched.
        """
        self._session.leave_plan()
        self._session.lift_budget()
        with contextlib.suppress(_errors.Error):  # a write that failed: its tensor is still here
            self._session.settle()
        self._keep_what_leaves()

    def _keep_what_leaves(self) -> None:
        """Tensors whose copies are being written stay."""
        for record in self._ledger.all():
            storage = record()
            if storage is not None and record.state & _record.LEAVING:
                with contextlib.suppress(_errors.Error):
                    self._access.bring_back(storage, written=storage)

    def what_fits(self) -> str:
        """Returns why the first that did not come back, although the budget has room, did not."""
        ledger, failure = self._ledger, ""
        # What is coming has its memory already, so it comes first.
        records = ledger.all()
        with self._progress() as progress:
            for record in sorted(records, key=lambda record: (-record.state, record.id)):
                storage = record()
                if storage is None or not record.state & _record.AWAY:
                    continue
                missing = record.size - record.present
                if record.state & _record.COMING or ledger.live + missing <= ledger.limit:
                    had_memory, before = record.state & _record.COMING, ledger.live
                    # Damaged on the device: it is named with those that stay.
                    try:
                        self._access.bring_back(storage)
                    except _errors.Error as error:
                        failure = failure or str(error)
                    else:
                        if not had_memory and ledger.live < before + missing:
                            # CUDA has no more: from here on each would only push another out.
                            return failure or "CUDA had memory for it only after another had left"
                progress.add(record.size)
        self._performer.make_usual()
        return failure

    def everything(self) -> None:
        """Restores everything, whatever the budget says."""
        self._session.lift_budget()
        self._keep_what_leaves()
        with self._progress() as progress:
            for record in self._ledger.all():
                storage = record()
                if storage is not None and record.state & _record.AWAY:
                    self._access.bring_back(storage)
                    progress.add(record.size)
        self._performer.make_usual()

    def leave_the_rest(self, budget: int, outside: str, failure: str) -> None:
        """Leaves out what does not fit, and warns whoever leaves the block with the names."""
        left = [record for record in self._ledger.all() if record.state & _record.AWAY]
        for record in left:
            # What is coming has memory, and a device may be writing it.
            if record.state & _record.OUT:
                self._performer.leave(record)
        names = [record.describe() for record in left]
        size = sum(record.size for record in left)
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        why = f"could not all come back ({failure})" if failure else f"do not fit the budget of {budget} bytes"
        warnings.warn(
            f"{len(names)} tensors ({size} bytes) stay {outside} because they {why}: "
            f"{', '.join(names[:_NAMED_MAX])}{more}. They are safe until this process "
            "ends; touching one raises an error. Enter another offload block to use them, or call "
            "restore() on this one to bring them back.",
            _errors.LeftBehindWarning,
            stacklevel=5,
        )

    def _progress(self) -> Progress:
        away = sum(record.size for record in self._ledger.all() if record.state & _record.AWAY)
        return Progress("restoring tensors", "B", away)
