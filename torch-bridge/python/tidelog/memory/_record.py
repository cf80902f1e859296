"""What Python knows of one storage: a weak reference to it, hung on the storage itself.

A storage owns its record (`storage._tide`), so that a lookup is one attribute read and a record
never outlives its storage unnoticed: the weak reference's callback reports the death.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from tidelog import _errors

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

# The methods as torch has them: inside an offload block its classes carry wrappers of these.
_torch: Any = torch._C
untyped_storage: Callable[[torch.Tensor], Storage] = _torch.TensorBase.untyped_storage
nbytes: Callable[[torch.UntypedStorage], int] = _torch.StorageBase.nbytes
data_ptr: Callable[[torch.UntypedStorage], int] = _torch.StorageBase.data_ptr
resizable: Callable[[torch.UntypedStorage], bool] = _torch.StorageBase.resizable

# Record.state: the mark that the session put on a storage. 0: resident, no copy in the log.
SETTLED = 0
CLEAN = 1  # resident, and the log holds the same bytes: a modification must be reported
LEAVING = 2  # resident, a copy is being written
OUT = 4  # no memory; guarded
COMING = 8  # memory is there, its bytes are not yet; guarded
AWAY = OUT | COMING

_lending = threading.Lock()


def whole_size(storage: Storage) -> int:
    """The bytes of a storage, also of one that is out: by `resize` it has none then."""
    record = getattr(storage, "_tide", None)  # without a block there is none
    return record.size if record is not None and record.state & AWAY else nbytes(storage)


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
    moving: dict[int, Storage | tuple[Storage, torch.cuda.Event]]

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


class Pins(Protocol):
    """What keeps a storage where it is."""

    def pin(self, record: Record) -> None:
        """From now on."""

    def unpin(self, record: Record) -> None:
        """Takes one `pin` back."""


class Reach(Protocol):
    """What brings a storage back, for whoever meets it out of memory."""

    def bring_back(self, *storages: Storage, written: Storage | None = None) -> None:
        """Makes storages resident; `written` is about to be written."""

    def rebind(self, storage: Storage) -> None:
        """Lets another block take the storage over."""


class _Newborn(weakref.ref[Storage]):
    """What every record has: slots, so that one that nothing else is asked of needs no dict, and the kernels
    in C++ find them without a search (`Slot` in dispatch/cpp/ledger.h)."""

    __slots__ = ("birth", "size", "state")

    birth: object  # (op index, output slot, op name), or the op alone, or None
    size: int
    state: int  # SETTLED or one of those below it


class Record(_Newborn):
    """Made once per new storage, on the hot path: what most records never need is a default of the
    class."""

    # Each block sets these four in a class of its own.
    ledger: Pins  # that it stands in
    access: Reach  # how another block or thread reaches the storage
    outside: str  # where it is when it is out, in words
    process: int  # whose block it is
    # The session's number for it, given when the session must learn of it.
    id: int = None  # type: ignore[assignment]  # where it is used there is one: no look at each op
    reported = False  # whether the session has heard of it
    pins = 0  # aliases that we cannot see; above zero the memory stays where it is
    addresses_end = 0  # scopes after which nobody uses an address that they asked for
    async_uses = 0  # ops that have returned and use it still
    loans = 0  # ops of other threads that are using it right now
    is_guarded = True  # when it is out; for a bucket of DDP: see `Ledger.of_a_reducer`
    moves = True  # not where the program has memory of its own: see `Ledger.of_a_pool`
    name: str | None = None
    parted: Parted | None = None  # of which parts move
    present = 0  # bytes of it that are in memory while it is OUT, in part

    @property
    def is_out(self) -> bool:
        """Whether nothing of it is in memory."""
        return bool(self.state & OUT) and not self.present

    def hold(self) -> Hold:
        """Keeps the memory where it is, until what this returns is gone."""
        return Hold(self)

    def borrow(self, more: int) -> None:
        """Counts another thread in (1) or out (-1) that uses the storage's memory right now."""
        with _lending:
            self.loans += more

    def describe(self) -> str:
        """The name people know the tensor by."""
        if self.name is not None:
            return self.name
        if self.birth is not None:
            if not isinstance(self.birth, tuple):
                return f"an output of {self.birth}"
            index, slot, op = self.birth
            where = f"op {index}" if index >= 0 else "outside a step"
            return f"output {slot} of {op} ({where})"
        return f"a tensor of {self.size} bytes (storage {self.id})"

    def guard_text(self) -> str:
        """What an access meets that nothing has brought the bytes back for."""
        return (
            f"tidelog: tensor {self.describe()} is {self.outside}, and this access did not go "
            "through the offload block (a thread that is older than it, a raw kernel, or after the block). Touch "
            "it by a torch op inside the block first, or call restore() on the block's object."
        )

    def guard(self) -> str | None:
        """The text of the guard while the block runs; None: there is none."""
        return self.guard_text() if self.is_guarded else None

    def refuse(self) -> NoReturn:
        """Raises the error that the guard would give."""
        raise _errors.Error(self.guard_text())

    def refuse_in_child(self) -> None:
        """Memory that a fork copied is as good as any; what was out stays with the parent."""
        if self.state & AWAY:
            raise _errors.ForkedError(
                f"{self.describe()} is {self.outside} and belongs to the parent process "
                f"({self.process}). Fork inside a `with tide.pinned(tensor):`, where it is in memory."
            )


class Hold:
    """Keeps a storage where it is while it lives."""

    def __init__(self, record: Record) -> None:
        self._record = record
        record.ledger.pin(record)

    def __del__(self) -> None:
        self._record.ledger.unpin(self._record)
