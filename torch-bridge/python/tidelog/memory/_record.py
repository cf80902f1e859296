"""What is known of one storage (`storage._tide`), and torch's own methods of storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, cast

import torch

from tidelog import _errors
from tidelog.native._built import loaded, native

if TYPE_CHECKING:

    class Storage(torch.UntypedStorage):
        """A storage while a block is open, with what `_escape.install` hangs on its class."""

        _tide: Record | None
        _aliased: bool  # somebody has its address
        _tide_update: Pending | None  # that writes or reads it, and has not run
        _tide_whole: Hold | None  # of a part of another one: holds that
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
has_storage: Callable[[torch.Tensor], bool] = torch._C._has_storage


def unseen() -> AbstractContextManager[None]:
    """Ops of this thread come neither to a block nor to a mode meanwhile. It is C's: Ctrl-C finds them seen before it
    or after it.
    """
    module = loaded()
    return cast("AbstractContextManager[None]", module.Unseen() if module else torch._C._DisableTorchDispatch())


def between_ops() -> AbstractContextManager[None]:
    """Ops of this thread are seen meanwhile, also inside an op."""
    return cast("AbstractContextManager[None]", native().Between())


def seen() -> AbstractContextManager[None]:
    """Ops of this thread come to the block meanwhile, also inside an op and in another thread."""
    return cast("AbstractContextManager[None]", native().Seen())


# Record.state: the mark that the session put on a storage. 0: resident, no copy in the log.
SETTLED = 0
CLEAN = 1  # resident, and the log holds the same bytes: a modification must be reported
LEAVING = 2  # resident, a copy is being written
OUT = 4  # no memory; guarded
COMING = 8  # memory is there, its bytes are not yet; guarded
AWAY = OUT | COMING


def record_in(holder: Holder) -> Record | None:
    """The record of its storage. None: no block counts it."""
    return cast("Record | None", native().record_in(holder))


def update_on(holder: Holder) -> Pending | None:
    """The update that hangs on a storage, and has not run."""
    return cast("Pending | None", native().update_on(holder))


def run_updates(storages: Iterable[Storage]) -> None:
    """What is no op is about to use these storages: they are up to date after this."""
    for storage in storages:
        if storage._tide_update is not None:
            storage._tide_update.run()


class Pending(Protocol):
    """What hangs on the storages of an update that has not run, or whose step has not come."""

    def run(self) -> None:
        """What is no op is about to use one of the storages: it is up to date after this, or an error is raised."""

    def touch(self, func: object) -> None:
        """The same for an op."""

    def guard(self, storage: Storage) -> None:
        """Sets the guard on one of its storages that is in memory."""


class Parted(Protocol):
    """The memory of a storage of which parts move: see `_parts`."""

    # Where a part begins that a device may touch -> the storage (and event), alive as long.
    moving: dict[int, Storage | tuple[Storage, object]]

    @property
    def address(self) -> int:
        """Where the memory is that was taken from the storage."""

    @property
    def present(self) -> int:
        """The bytes that are in memory."""

    @property
    def is_done(self) -> bool:
        """Whether all is in memory and nothing moves."""

    def leaves(self, storage: Storage, begin: int, length: int, message: str | None) -> None:
        """A part's pages are given back."""

    def comes(self, begin: int, length: int) -> bool:
        """A part is about to be written. `False`: there is no memory for it."""

    def is_back(self, storage: Storage) -> None:
        """All parts have come: the storage has its memory."""


class Reach(Protocol):
    """What brings a storage back, for whoever meets it out of memory."""

    def bring_back(self, *storages: Storage, written: Storage | None = None) -> None:
        """Makes storages resident; `written` is about to be written."""

    def rebind(self, storage: Storage) -> None:
        """Lets another block take the storage over."""


class Record(Protocol):
    """What is known of one storage. It is kept in C++ (native/records.h), by the storage's object there."""

    ledger: Any  # that it stands in; None: in none
    id: int  # the session's number for it, given when it is first asked for
    state: int  # SETTLED or one of those below it
    is_out: bool  # whether nothing of it is in memory
    size: int
    present: int  # bytes of it that are in memory while it is OUT, in part
    reported: bool  # whether the session has heard of it
    in_flight: bool  # whether a device or a copy may touch its memory
    pins: int  # aliases that we cannot see; above zero the memory stays where it is
    addresses_end: int  # scopes after which nobody uses an address that they asked for
    async_uses: int  # ops that have returned and use it still
    loans: int  # ops of other threads that are using it right now
    is_guarded: bool  # when it is out; not a bucket of DDP
    moves: bool  # not where the program has memory of its own
    name: str | None
    parted: Parted | None  # of which parts move

    def __call__(self) -> Storage | None:
        """The storage; None: it has died."""

    def borrow(self, more: int) -> None:
        """Counts another thread in (1) or out (-1) that uses the storage's memory right now."""

    def describe(self) -> str:
        """The name people know the tensor by."""

    def guard_text(self) -> str:
        """What an access meets that nothing has brought the bytes back for."""

    def guard(self) -> str | None:
        """The text of the guard while the block runs; None: there is none."""


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


class Hold:
    """Keeps a storage where it is while it lives."""

    def __init__(self, record: Record) -> None:
        self._record, self._ledger = record, record.ledger
        self._ledger.pin(record)

    def __del__(self) -> None:
        self._ledger.unpin(self._record)
