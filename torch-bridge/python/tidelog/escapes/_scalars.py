"""Numbers that C++ reads out of tensors where no dispatch mode sees it: `torch.tensor` of a list of tensors, as a
`collate_fn` of labels has it, `x[mask] = t`, `torch.LongTensor([...])`. They all come to one op, for a key below those
of modes (cpp/scalar.h).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tidelog.dispatch import _dispatch
from tidelog.dispatch._access import Access
from tidelog.escapes._threads import borrow
from tidelog.memory._record import AWAY, Storage, run_updates, untyped_storage

_OP = torch.ops.aten._local_scalar_dense.default
_KEY = "BackendSelect"
_BELOW: Any = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

_access: list[Access] = []  # of the block that is open
_instead: list[torch.library.Library] = []  # what does it without C++


def install(access: Access, on_gpu: bool) -> None:
    """For a block; `on_gpu`: of a GPU's memory."""
    _access[:] = [access]
    if _dispatch.watches_scalars(_bring_back, on_gpu):
        _instead.clear()
    elif not _instead:  # it costs 5 us a number, and stays: other threads may be at it
        library = torch.library.Library("aten", "IMPL")
        library.impl("_local_scalar_dense", _read, _KEY, with_keyset=True)
        _instead.append(library)


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


def _read(keys: Any, tensor: Tensor) -> Any:
    if _access:
        try:
            storage = untyped_storage(tensor)
        except RuntimeError:  # it has none of its own
            return _OP.redispatch(keys & _BELOW, tensor)
        _bring_back(storage)
    return _OP.redispatch(keys & _BELOW, tensor)
