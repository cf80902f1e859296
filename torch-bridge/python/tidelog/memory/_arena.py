"""Arena of a GPU's memory, from which torch's large blocks come while a block runs with `allocator="arena"`.

What is freed stays mapped, and carries its last use in each stream: who gets it next waits on the GPU for that, and for
nothing else. So tensors that come and go find no memory in pieces, and neither torch's cache nor the driver is asked in
the steady state (docs/plan.md). What is small, and what there is no room for, comes from torch's own allocator.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, partial
from typing import Any, cast

import torch

from tidelog._errors import Error
from tidelog.abi._library import Library, Signatures, declare, last_error, load_library, read_json
from tidelog.native import _built
from tidelog.native._built import native
from tidelog.output._figures import ArenaFigures

_i32, _u8, _u64, _size, _pointer = ctypes.c_int32, ctypes.c_uint8, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p

SIGNATURES: Signatures = {
    "tide_gpu_arena_open": (_i32, [_u8, _u64, ctypes.POINTER(_u64), ctypes.POINTER(_u64)]),
    "tide_gpu_arena_close": (_i32, [_u64]),
    "tide_gpu_arena_trim": (_i32, [_u64]),
    "tide_gpu_arena_allocate": (_i32, [_u64, _u64, _pointer, _pointer, ctypes.POINTER(_u64)]),
    "tide_gpu_arena_use": (_i32, [_u64, _pointer]),
    "tide_gpu_arena_free": (_i32, [_u64, ctypes.POINTER(_u64), _size, _pointer]),
    "tide_gpu_arena_free_part": (_i32, [_u64, _u64, _u64, _pointer]),
    "tide_gpu_arena_allocate_part": (_i32, [_u64, _u64, _u64, _pointer]),
    "tide_gpu_arena_figures": (_size, [_u64, ctypes.c_char_p, _size]),
}

# What an arena has beside the bytes of tensors, as each is rounded up to whole granules: this part of them.
_ROUNDING_PARTS = 64


@cache
def _library() -> Library:
    library = load_library()
    declare(library, SIGNATURES, lambda status: last_error(library, status))
    return library


def functions() -> tuple[int, ...]:
    """Returns the addresses of the library's functions that allocate, note a use, and free, and of those that free and
    allocate a part."""
    library: Any = _library()
    called = (
        *(library.tide_gpu_arena_allocate, library.tide_gpu_arena_use, library.tide_gpu_arena_free),
        *(library.tide_gpu_arena_free_part, library.tide_gpu_arena_allocate_part),
    )
    return tuple(ctypes.cast(function, _pointer).value or 0 for function in called)


class _CudaFunctions(ctypes.Structure):
    """`Arena` of native/cuda_allocator.cpp."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("allocate", "use", "ended")]


@cache
def in_front_of_cuda() -> Any:
    """Returns the library that goes in front of torch's allocator of GPUs, or raises an Error where there is none."""
    built = _built.cuda_allocator()
    if isinstance(built, str):
        raise Error(f'allocator="arena" does not work here: {built}. Leave it out.')
    library = ctypes.CDLL(os.fspath(built))
    library.tidelog_cuda_open.restype = ctypes.c_void_p
    library.tidelog_cuda_open.argtypes = [ctypes.c_int, _CudaFunctions]
    return library


def open_for_cuda(gpu: int) -> None:
    """Has torch ask the open arena first for memory of a GPU."""
    functions = _CudaFunctions(*native().arena_functions())
    native().arena_is_before(in_front_of_cuda().tidelog_cuda_open(gpu, functions) or 0)


class Arena:
    """The arena of one block."""

    def __init__(self, gpu: int, tensors_max: int, place: torch.device, streams_of: torch.device) -> None:
        """`gpu`: as in the C ABI. `place`: where torch has the tensors, of which `tensors_max` bytes are in memory.
        `streams_of`: the device that has the streams.
        """
        self._library, least, arena = _library(), _u64(), _u64()
        capacity = tensors_max + tensors_max // _ROUNDING_PARTS
        self._library.tide_gpu_arena_open(gpu, capacity, ctypes.byref(least), ctypes.byref(arena))
        self._number, self._figures = arena.value, ArenaFigures()
        native().open_arena(self._number, least.value, functions(), place, streams_of)
        self._is_of_cuda = place.type == "cuda"
        if self._is_of_cuda:
            open_for_cuda(place.index)

    def trim(self) -> None:
        """Gives what is free back to the driver, when nothing uses it any more."""
        if self._number:
            self._library.tide_gpu_arena_trim(self._number)

    def figures(self) -> ArenaFigures:
        """Returns what it has, and what it has done; after its end as it was then."""
        if self._number:
            write = partial(self._library.tide_gpu_arena_figures, self._number)
            self._figures = cast(ArenaFigures, read_json(write, lambda: last_error(self._library, -1)))
        return self._figures

    def end(self) -> None:
        """Blocks come from torch's own allocator again. What tensors have stays theirs."""
        if self._is_of_cuda:
            in_front_of_cuda().tidelog_cuda_close()
        native().close_arena()
        self.figures()
        number, self._number = self._number, 0
        self._library.tide_gpu_arena_close(number)
