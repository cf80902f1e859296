"""Device of a block's memory: the host's or a GPU's, and what differs with that beside streams and events
(native/streams.h).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tidelog import _devices
from tidelog._errors import Error
from tidelog.memory import _arena, _heap, _kept, _mapped
from tidelog.memory._record import Storage, nbytes, resizable, unseen
from tidelog.native._built import native
from tidelog.native._module import Event
from tidelog.output._figures import ArenaFigures, StrPath

_USUAL_POOL = (0, 0)  # the number of that which torch allocates from unless it is told otherwise

_base: Any = torch._C.StorageBase  # unpatched, see `_record`
_lets_backward_have_threads: Callable[[], bool] = torch._C._is_multithreading_enabled
_let_backward_have_threads: Callable[[bool], None] = torch._C._set_multithreading_enabled
is_shared: Callable[[Storage], bool] = _base.is_shared


def is_page_locked(storage: Storage) -> bool:
    """Returns whether a storage of the host's memory is one that CUDA has locked. A GPU may copy from and to it while
    the op that asked for that has returned long ago, and memory that came back would not be locked.
    """
    if not torch.cuda.is_initialized():
        return False  # then there is no such memory
    with unseen():
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).is_pinned()


class Host:
    """The host's memory: an op that has returned is done."""

    option = 0  # in the C ABI
    place = torch.device("cpu")  # where torch has the memory
    moves_by_cores = True  # what computes also copies what moves, and its checksums
    has_graphs = False  # the program may replay launches (CUDA graphs), and manage pools of memory

    def __init__(self) -> None:
        self.streams = native().streams(None)

    def why_unmovable(self, storage: Storage) -> str | None:
        """Returns the reason why its memory is not torch's own to give and take, if so."""
        if is_shared(storage):
            return "it is shared with other processes"
        if not resizable(storage) and not native().is_own(storage):
            return "its memory is a NumPy array's or a file's, which something else may use, too"
        return "it is page-locked" if is_page_locked(storage) else None

    def locks_memory(self) -> bool:
        """Returns whether plain memory of it may be page-locked."""
        return bool(torch.cuda.is_initialized())

    def staging_in(self, staging: int, data_path: str, pool: StrPath) -> int:
        """Returns the part of the budget for staging buffers."""
        return staging

    def heap(self, budget: int, tensors_max: int) -> _heap.Heap | _heap.Cache:
        """Returns the object that sees to it that freed memory leaves the process, where `tensors_max` bytes of tensors
        may be in memory, and with them rings of the session, up to `budget`.
        """
        return _heap.Heap(budget)

    def at_work(self) -> contextlib.AbstractContextManager[object]:
        """Context of an open block."""
        return contextlib.nullcontext()

    def pools(self) -> Sequence[range]:
        """The addresses that pools of the program's own have now: see `_pools`."""
        return ()

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of this shape and type in the host's memory, from and to which the device copies by itself."""
        return torch.empty_like(tensor, device="cpu")

    # -- parts of storages: see `_parts` ----------------------------------------------------------

    def why_no_parts(self) -> str | None:
        """Returns the reason why memory cannot be given back in parts, if so."""
        return None

    def use_arena(self, tensors_max: int) -> None:
        """Has torch's large blocks come from an arena in the next block, of `tensors_max` bytes."""

    def use_parts(self) -> tuple[bool, int]:
        """Uses parts in the next block. Returns whether what comes back has memory of ours then, not of torch's, and
        the bytes from which it has an arena's, where parts of that move."""
        return False, 0

    def divisible(self, size: int) -> torch.UntypedStorage | None:
        """A storage whose memory can be given back in parts, where that of others cannot, and there are parts of this
        size."""
        return None

    def is_divisible(self, storage: Storage) -> bool:
        """Returns whether parts of its memory can be given back, which it has."""
        return native().whole_of(storage) is None

    def make_usual(self, storage: Storage) -> None:
        """A storage that is in memory has memory of torch's again, which can be resized."""

    def decommit(self, address: int, begin: int, length: int) -> None:
        """Gives back a part of memory that begins at `address`. Nobody reads it before it is written again."""
        _kept.decommit(address + begin, length)

    def recommit(self, address: int, begin: int, length: int) -> bool | Event:
        """The part is about to be written, behind the event if there is one. `False`: there is no memory for it."""
        _kept.recommit(address + begin, length)
        return True

    def reclaim(self) -> None:
        """A storage has let go of its memory."""


class Gpu(Host):
    """A GPU of CUDA's, through torch."""

    dlpack_type = 2  # CUDA's
    moves_by_cores = False
    has_graphs = True

    def __init__(self, device: torch.device, streams_of: str = "cuda") -> None:
        """`streams_of`: the kind of device, to torch, that has the streams."""
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        self.option = index + 1
        self.place = self.device
        self.streams = native().streams(torch.device(streams_of, index))
        self._streams_of = torch.device(streams_of, index)
        self._uses_parts = False
        self._in_arena_max: int | None = None  # bytes of tensors, where there is to be an arena
        self._arena: _arena.Arena | None = None
        self._mapped: _mapped.MappedMemory | None = None  # where they move, from when a block has begun

    def why_unmovable(self, storage: Storage) -> str | None:
        # Torch calls every storage of a GPU shared.
        return None if resizable(storage) or self.is_divisible(storage) else "its memory is not torch's own"

    def locks_memory(self) -> bool:
        return False

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu", pin_memory=True)

    def staging_in(self, staging: int, data_path: str, pool: StrPath) -> int:
        # By cuFile there is a ring on the GPU, as large as the one in host memory; so is the window
        # for peer DMA, which is counted before it is known whether controllers reach it.
        names = _devices.split(_devices.listed(pool))
        peer = data_path == "spdk" or any(name.startswith("spdk:") for name in names)
        return staging if peer or data_path.startswith("gds") else 0

    def heap(self, budget: int, tensors_max: int) -> _heap.Heap | _heap.Cache:
        # The rings are not torch's.
        return _heap.Cache(self.device, tensors_max, self._release_ours, self._arena_figures)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        # Backward runs on the thread that called it: others have no hook, and could not be asked to
        # wait.
        if self._uses_parts and self._in_arena_max is None:
            self._mapped = _mapped.MappedMemory(self.option, self.dlpack_type, self.streams.after)
        if self._in_arena_max is not None:
            self._arena = _arena.Arena(self.option, self._in_arena_max, self.place, self._streams_of)
        before = _lets_backward_have_threads()
        _let_backward_have_threads(False)
        try:
            yield
        finally:
            # Where a mode for functions is on (a default device is one), torch 2.11 asks it first, and
            # crashes where the interpreter is on its way out.
            with torch._C.DisableTorchFunction():
                _let_backward_have_threads(before)
            if self._mapped is not None:
                self._mapped.end()
            if self._arena is not None:
                self._arena.end()

    def use_arena(self, tensors_max: int) -> None:
        self._require_arena()
        self._in_arena_max = tensors_max

    def _require_arena(self) -> None:
        _arena.in_front_of_cuda()

    def pools(self) -> Sequence[range]:
        if torch.cuda.get_allocator_backend() != "native":
            return ()  # there are none
        segments: Iterable[Mapping[str, Any]] = torch.cuda.memory_snapshot(include_traces=False)
        return [
            range(segment["address"], segment["address"] + segment["total_size"])
            for segment in segments
            if segment["device"] == self.device.index and tuple(segment["segment_pool_id"]) != _USUAL_POOL
        ]

    def why_no_parts(self) -> str | None:
        try:
            granule = _mapped.granule(self.option)
        except Error as error:
            return str(error)
        if _mapped.PART_UNIT % granule:
            return f"{self.device} gives memory back in pieces of {granule} bytes"
        return None

    def use_parts(self) -> tuple[bool, int]:
        self._uses_parts = True
        return (True, 0) if self._in_arena_max is None else (False, _mapped.LEAST_BYTES)

    def divisible(self, size: int) -> torch.UntypedStorage | None:
        if self._mapped is None or size < _mapped.LEAST_BYTES:
            return None
        return self._mapped.storage(size)

    def is_divisible(self, storage: Storage) -> bool:
        if self._mapped is None:
            return self._uses_parts and nbytes(storage) >= _mapped.LEAST_BYTES and native().is_in_arena(storage)
        return self._mapped.has(storage)

    def make_usual(self, storage: Storage) -> None:
        if self._mapped is not None and self._mapped.has(storage):
            self._await_launched()  # on any stream, which may write it
            _mapped.make_usual(storage)
            self._await_launched()  # any stream may be the next to use it
            self.reclaim()

    def decommit(self, address: int, begin: int, length: int) -> None:
        if self._mapped is None:
            native().free_part_of_arena(address, begin, length, self.streams.after())
        else:
            self._mapped.decommit(address + begin, length)

    def recommit(self, address: int, begin: int, length: int) -> bool | Event:
        if self._mapped is None:
            return native().allocate_part_of_arena(address, begin, length) or False
        return self._mapped.recommit(address + begin, length)

    def reclaim(self) -> None:
        if self._mapped is not None:
            self._mapped.reclaim()

    def _await_launched(self) -> None:
        event = self.streams.after()
        if event is not None:
            event.synchronize()

    def _release_ours(self) -> None:
        if self._mapped is not None:
            self._mapped.await_all()
        if self._arena is not None:
            self._arena.trim()

    def _arena_figures(self) -> ArenaFigures | None:
        return self._arena.figures() if self._arena is not None else None


def place_cufile_log() -> None:
    """cuFile writes its log into the current folder, unless the environment or its configuration
    say otherwise: by default it is in the user's folder for such files."""
    configuration = os.environ.get("CUFILE_ENV_PATH_JSON", "/etc/cufile.json")
    with contextlib.suppress(OSError), open(configuration, encoding="utf-8", errors="replace") as lines:
        if any(line.strip().startswith('"dir"') for line in lines):
            return
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = os.path.join(home, "tidelog")
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        os.environ.setdefault("CUFILE_LOGFILE_PATH", os.path.join(folder, "cufile.log"))


def choose(device: str | torch.device, model: nn.Module | None) -> Host:
    """The device for `device`: "cpu", "cuda", "cuda:1"; "auto" is where the model's first parameter
    is."""
    if device == "auto":
        first = next(model.parameters(), None) if model is not None else None
        device = first.device if first is not None and first.device.type == "cuda" else "cpu"
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise Error(f"device={device!r}: {error}") from None
    if device.type == "cpu":
        return Host()
    if device.type != "cuda":
        raise Error(f"device={str(device)!r}: memory of a CPU or of a CUDA GPU can move, not of this.")
    if not torch.cuda.is_available():
        raise Error(f"device={str(device)!r}: torch finds no CUDA GPU here.")
    if (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise Error(f"device={str(device)!r}: there is no such GPU; torch finds {count}.")
    if torch.cuda.get_allocator_backend() == "pluggable":
        raise Error(
            f"device={str(device)!r}: torch allocates all memory of GPUs by an allocator of this "
            "program (change_current_allocator), and cannot say how much that holds. Use the allocator "
            "for a torch.cuda.MemPool instead, whose tensors stay where they are."
        )
    torch.cuda.init()  # streams are asked for in C++, which does not do it
    return Gpu(device)
