"""Storages from before a block that torch calls not resizable: those of `torch.load`, slices of a file, arrays that
`torch.from_numpy` was given, and what NumPy has seen. They may move where nothing else has their memory.

An array of NumPy's that has a tensor's memory has a reference to the tensor, and Python's collector knows no arrays. So
a tensor has none where objects that the collector knows have all references to it.
"""

from __future__ import annotations

import collections
import gc
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tidelog.memory._record import Alias, has_storage, untyped_storage
from tidelog.native._built import native
from tidelog.native._module import Ledger

_OBJECTS_AT_ONCE = 10_000
_from_numpy = torch.from_numpy  # unpatched


def learn_arrays() -> None:
    """Learns how torch has an array of NumPy's, where there are any: see native/arrays.h."""
    if "numpy" in sys.modules:
        array = sys.modules["numpy"].zeros(1)
        native().learn_arrays(array, _from_numpy(array))


def find_alone(ledger: Ledger, tensors: Iterable[Tensor]) -> None:
    """Notes which storages of all tensors that live have their memory to themselves."""
    native().forget_alone()
    learn_arrays()
    found = _by_storage(ledger, tensors)
    if not found:
        return
    known = _known_to_collector([tensor for group in found.values() for tensor in group])
    for group in found.values():
        storage = untyped_storage(group[0])
        native().record_for(storage).is_alone = all(id(tensor) in known for tensor in group)
        whole = native().whole_of(storage)
        if whole is not None and not native().maps_file(whole):
            storage._tide_whole = Alias(native().record_for(whole))


def _by_storage(ledger: Ledger, tensors: Iterable[Tensor]) -> dict[int, list[Tensor]]:
    """The tensors of each storage that may be its memory's only one."""
    found: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        if has_storage(tensor) and native().may_be_own(tensor) and ledger.owns(tensor):
            found.setdefault(untyped_storage(tensor)._cdata, []).append(tensor)
    return found


def _known_to_collector(tensors: Sequence[Tensor]) -> set[int]:
    """The ids of those to which objects that the collector knows have all references, and C++."""
    all_objects: list[object] = [*tensors, []]  # the last one is in this list alone
    ids = set(map(id, all_objects))
    counts: collections.Counter[int] = collections.Counter()
    known = gc.get_objects()
    for begin in range(0, len(known), _OBJECTS_AT_ONCE):
        referents = gc.get_referents(*known[begin : begin + _OBJECTS_AT_ONCE])
        counts.update(filter(ids.__contains__, map(id, referents)))
        del referents
    references = [*map(sys.getrefcount, all_objects)]
    counts.update({id(each): native().references_to_object(each) for each in tensors})
    unknown = [count - counts[id(each)] for count, each in zip(references, all_objects, strict=True)]
    return {id(each) for each, count in zip(tensors, unknown, strict=False) if count == unknown[-1]}
