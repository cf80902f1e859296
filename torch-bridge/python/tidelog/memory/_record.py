"""Marks that hang on a storage, and torch's own methods of storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import torch

from tidelog import _errors
from tidelog.native._built import loaded
from tidelog.native._module import Record

if TYPE_CHECKING:

    class Storage(torch.UntypedStorage):
        """A storage while a block is open, with what `_escape.install` hangs on its class."""

        _tide: Record | None
        _tide_update: Pending | None  # that writes or reads it, and has not run
        _tide_whole: Alias  # of a slice: that it has the memory of another one
        _cdata: int

else:
    Storage = torch.UntypedStorage

# What has a storage. A storage that Python has met has an object there as long as it lives, and autograd adds nothing
# to its memory in place any more. So ops are looked at by their tensors.
Holder: TypeAlias = "torch.Tensor | Storage"

# The methods as torch has them: inside an offload block its classes carry wrappers of these.
_torch: Any = torch._C
untyped_storage: Callable[[torch.Tensor], Storage] = _torch.TensorBase.untyped_storage
nbytes: Callable[[torch.UntypedStorage], int] = _torch.StorageBase.nbytes
data_ptr: Callable[[torch.UntypedStorage], int] = _torch.StorageBase.data_ptr
resizable: Callable[[torch.UntypedStorage], bool] = _torch.StorageBase.resizable
fill: Callable[[torch.UntypedStorage, int], object] = _torch.StorageBase.fill_
has_storage: Callable[[torch.Tensor], bool] = torch._C._has_storage


def unseen() -> AbstractContextManager[None]:
    """Ops of this thread come neither to a block nor to a mode meanwhile. It is C's: Ctrl-C finds them seen before it
    or after it.
    """
    module = loaded()
    return module.Unseen() if module else torch._C._DisableTorchDispatch()


# Record.state: the mark that the session put on a storage. 0: resident, no copy in the log.
SETTLED = 0
CLEAN = 1  # resident, and the log holds the same bytes: a modification must be reported
LEAVING = 2  # resident, a copy is being written
OUT = 4  # no memory; guarded
COMING = 8  # memory is there, its bytes are not yet; guarded
AWAY = OUT | COMING


def run_updates(storages: Iterable[Storage]) -> None:
    """Runs the updates of storages that an access which is no op is about to use: they are up to date after this."""
    for storage in storages:
        if storage._tide_update is not None:
            storage._tide_update.run()


class Pending(Protocol):
    """Mark on the storages of an update that has not run, or whose step has not come."""

    def run(self) -> None:
        """Runs the update before an access that is no op, or an error is raised."""

    def touch(self, func: object) -> None:
        """Runs the update before an op."""

    def guard(self, storage: Storage) -> None:
        """Sets the guard on one of its storages that is in memory."""


def refuse(record: Record) -> NoReturn:
    """Raises the error that the guard would give."""
    raise _errors.Error(record.guard_text())


def refuse_in_child(record: Record) -> None:
    """Memory that a fork copied is as good as any; what was out stays with the parent."""
    if record.state & AWAY:
        raise _errors.ForkedError(
            f"{record.describe()} is {record.ledger.outside} and belongs to the parent process "
            f"({record.ledger.process}). Fork inside a `with tide.pinned(tensor):`, where it is in memory."
        )


class Alias:
    """Says, while it lives, that something else has a storage's memory."""

    def __init__(self, record: Record) -> None:
        self._record = record
        record.alias_begins()

    def __del__(self) -> None:
        self._record.alias_ends()


class Hold:
    """Keeps a storage where it is while it lives."""

    def __init__(self, record: Record) -> None:
        self._record, self._ledger = record, record.ledger
        self._ledger.pin(record)

    def __del__(self) -> None:
        self._ledger.unpin(self._record)
