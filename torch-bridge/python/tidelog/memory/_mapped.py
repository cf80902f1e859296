"""A GPU's memory that can be given back in parts: CUDA's virtual memory, through libtidelog. torch's allocator has none
such, so a storage that has been out comes back in memory of ours.

A kernel that uses memory may run long after the storage has let go of it, and no allocator orders streams here. So what
goes is noted with an event behind all that was launched by then, and goes once that has happened.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from tidelog.abi._library import Library, Signatures, declare, last_error, load_library
from tidelog.memory import _record
from tidelog.native._built import native
from tidelog.native._module import Event

_i32, _u8, _u64, _pointer = ctypes.c_int32, ctypes.c_uint8, ctypes.c_uint64, ctypes.c_void_p

SIGNATURES: Signatures = {
    "tide_gpu_memory_granule": (_i32, [_u8, ctypes.POINTER(_u64)]),
    "tide_gpu_memory_allocate": (_i32, [_u8, _u64, _i32, ctypes.POINTER(_pointer)]),
    "tide_gpu_memory_is_live": (_i32, [_u64]),
    "tide_gpu_memory_decommit": (_i32, [_u64, _u64]),
    "tide_gpu_memory_recommit": (_i32, [_u64, _u64]),
    "tide_gpu_memory_take_care": (_i32, [_i32]),
    "tide_gpu_memory_take_dead": (_u64, []),
    "tide_gpu_memory_free": (_i32, [_u64]),
}

PART_UNIT = 2 << 20  # of which parts are multiples
# What is smaller stays in torch's memory: it would be rounded up by more than a fifth.
LEAST_BYTES = 8 << 20

_base: Any = torch._C.StorageBase  # unpatched, see `_record`
_copy: Callable[[torch.UntypedStorage, torch.UntypedStorage], object] = _base.copy_
_CAPSULE = b"dltensor"  # DLPack's name, alive as long as capsules
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [_pointer, ctypes.c_char_p, _pointer]


@cache
def _library() -> Library:
    library = load_library()
    declare(library, SIGNATURES, lambda status: last_error(library, status))
    return library


def granule(gpu: int) -> int:
    """Returns the unit of the parts that this GPU releases. `gpu`: as in the C ABI."""
    library, found = _library(), _u64()
    library.tide_gpu_memory_granule(gpu, ctypes.byref(found))
    return found.value


def make_usual(storage: _record.Storage) -> None:
    """A storage gets memory of torch's, with its bytes: nobody can resize memory that another has made."""
    with _record.unseen():
        usual = torch.UntypedStorage(_record.nbytes(storage), device=storage.device)
        _copy(usual, storage)
    native().swap(storage, usual, None, bool)


class MappedMemory:
    """Mapped memory of one block."""

    def __init__(self, gpu: int, device_type: int, after: Callable[[], Event | None]) -> None:
        """`after`: an event behind all that was launched."""
        self._gpu, self._device_type, self._after = gpu, device_type, after
        self._library = _library()
        self._going: deque[tuple[Event | None, Callable[[], object]]] = deque()  # in the order of events
        self._library.tide_gpu_memory_take_care(1)

    def storage(self, size: int) -> torch.UntypedStorage:
        """A storage in such memory."""
        self.await_all()  # what goes counts no longer
        managed = self._allocate(size)
        if not managed:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / (1 << 20):.2f} MiB.")
        with _record.unseen():
            tensor: torch.Tensor = torch._C._from_dlpack(_new_capsule(managed, _CAPSULE, None))
            return _record.untyped_storage(tensor)

    def _allocate(self, size: int) -> int | None:
        managed = _pointer()
        self._library.tide_gpu_memory_allocate(self._gpu, size, self._device_type, ctypes.byref(managed))
        return managed.value

    def has(self, storage: _record.Storage) -> bool:
        """Returns whether a storage has such memory."""
        try:
            address = _record.data_ptr(storage)
        except RuntimeError:  # it is guarded
            return False
        return bool(self._library.tide_gpu_memory_is_live(address))

    def decommit(self, address: int, length: int) -> None:
        """A part is not used any more by what is launched from now on."""
        self._goes(partial(self._library.tide_gpu_memory_decommit, address, length))
        self.reclaim()

    def recommit(self, address: int, length: int) -> bool:
        """A part is about to be written. `False`: the GPU has no memory left."""
        self.await_all()  # the part may be among what goes
        return bool(self._library.tide_gpu_memory_recommit(address, length))

    def reclaim(self) -> None:
        """Frees released storages and parts, if nothing that was launched uses them."""
        if taken := self._library.tide_gpu_memory_take_dead():
            self._goes(partial(self._library.tide_gpu_memory_free, taken))
        while self._going and ((event := self._going[0][0]) is None or event.query()):
            self._going[0][1]()
            self._going.popleft()

    def await_all(self) -> None:
        """Waits for released memory, and frees it."""
        self.reclaim()
        if self._going and (event := self._going[-1][0]) is not None:
            event.synchronize()
            self.reclaim()

    def end(self) -> None:
        """The block ends. What storages have stays theirs."""
        with contextlib.suppress(RuntimeError):  # the GPU has failed for good
            self.await_all()
        self._library.tide_gpu_memory_take_care(0)

    def _goes(self, free: Callable[[], object]) -> None:
        self._going.append((self._after(), free))
