"""Numbers that C++ reads out of tensors where no dispatch mode sees it: `torch.tensor` of a list of tensors, as a
`collate_fn` of labels has it, `x[mask] = t`, `torch.LongTensor([...])`. They all come to one op, for a key below those
of modes (native/scalar.h).
"""

from __future__ import annotations

from tidelog.dispatch import _dispatch
from tidelog.dispatch._access import Access
from tidelog.escapes._threads import borrow
from tidelog.memory._record import AWAY, Storage, run_updates

_access: list[Access] = []  # of the block that is open


def install(access: Access) -> None:
    """For a block."""
    _access[:] = [access]
    _dispatch.watch_scalars(_bring_back)


def remove() -> None:
    """The block has ended."""
    _access.clear()


def _bring_back(storage: Storage) -> None:
    """A number of it is about to be read. Called also where it is only guarded, or another block's."""
    if not _access:
        return
    access, record = _access[0], storage._tide
    if storage._tide_update is None and (record is None or not record.state & AWAY):
        return
    if access.is_elsewhere() and access.is_live():
        with borrow(access, [storage]):
            return
    run_updates([storage])
    access.bring_back(storage)
