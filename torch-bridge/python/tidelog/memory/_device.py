"""Whose memory a block moves: the host's or a GPU's, and what orders transfers with the kernels of
its streams.

A kernel runs long after the op that launched it has returned. So a transfer gets an event behind
everything that was launched before: an eviction must not read what is still being written, and a
fetch must not overwrite what is still being read (the allocator hands out memory whose last kernel
has not run yet). When a storage is settled its bytes are there for whatever is launched next, on
any stream: in memory, or, with a GPU, on their way, behind an event that every stream waits for. A
stream waits when the storage is settled, or at the first op that is launched on it. What is not
launched by an op that is seen waits on the host.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tidelog import _devices
from tidelog._errors import Error
from tidelog.memory import _heap, _kept, _mapped, _moves
from tidelog.memory._record import Storage, resizable, unseen
from tidelog.output._figures import StrPath

_USUAL_POOL = (0, 0)  # the number of that which torch allocates from unless it is told otherwise

_base: Any = torch._C.StorageBase  # unpatched, see `_record`
_lets_backward_have_threads: Callable[[], bool] = torch._C._is_multithreading_enabled
_let_backward_have_threads: Callable[[bool], None] = torch._C._set_multithreading_enabled
is_shared: Callable[[Storage], bool] = _base.is_shared


def is_page_locked(storage: Storage) -> bool:
    """Whether a storage of the host's memory is one that CUDA has locked. A GPU may copy from and to
    it while the op that asked for that has returned long ago, and memory that came back would not be
    locked."""
    if not torch.cuda.is_initialized():
        return False  # then there is no such memory
    with unseen():
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).is_pinned()


class Host:
    """The host's memory: an op that has returned is done."""

    option = 0  # in the C ABI
    place = torch.device("cpu")  # where torch has the memory
    streams: Mapping[int, torch.cuda.Stream] = MappingProxyType({})
    blind = False
    is_asynchronous = False  # an op that has returned may not have run
    is_noticed: Callable[[], bool] | None = None  # whether the current stream is one that ops were launched on

    def movable(self, storage: Storage) -> bool:
        return resizable(storage) and not is_shared(storage) and not is_page_locked(storage)

    def staging_in(self, staging: int, data_path: str, pool: StrPath) -> int:
        """How much of the budget staging buffers take."""
        return staging

    def heap(self, tensors_max: int) -> _heap.Heap | _heap.Cache:
        """What sees to it that freed memory leaves the process, where `tensors_max` bytes of
        tensors may be in memory."""
        return _heap.Heap(tensors_max)

    def at_work(self) -> contextlib.AbstractContextManager[object]:
        """While a block is open."""
        return contextlib.nullcontext()

    def notice(self) -> None:
        """An op is about to be launched on the current stream."""

    def after(self) -> torch.cuda.Event | None:
        """An event behind everything that was launched; None: it is all done."""

    def completes_by_event(self) -> bool:
        """Whether a fetch may end while its bytes are on their way, behind an event."""
        return False

    def unseen_threads(self) -> list[str]:
        """The threads because of which none does."""
        return []

    def fetched(self, event: torch.cuda.Event) -> None:
        """From here on a storage may be used, by what is launched, once this has happened."""

    def await_copies(self) -> None:
        """All bytes that are on their way are there when this returns: something may use them that
        is not launched by an op."""

    def forget_copies(self) -> None:
        """In a child of a fork: they are its parent's."""

    def share(self, storage: Storage, guard: Callable[[], object] = bool) -> None:
        """A storage has its bytes again, or is about to lose its memory: that concerns every stream.
        `guard` sets the guard that it has."""

    def op_begins(self, index: int) -> None:
        """An op of a step that is being profiled is about to run."""

    def op_ran(self) -> None:
        """It was launched."""

    def durations(self) -> Sequence[int]:
        """The nanoseconds that each op took; empty where the session's own clock is right."""
        return ()

    def pools(self) -> Sequence[range]:
        """The addresses that pools of the program's own have now: see `_pools`."""
        return ()

    # -- parts of storages: see `_parts` ----------------------------------------------------------

    def why_no_parts(self) -> str | None:
        """Why memory cannot be given back in parts, if so."""
        return None

    def use_parts(self) -> None:
        """In the next block it is."""

    def divisible(self, size: int) -> torch.UntypedStorage | None:
        """A storage whose memory can be given back in parts, where that of others cannot, and there are parts of this
        size."""
        return None

    def is_divisible(self, storage: Storage) -> bool:
        """Whether parts of its memory can be given back, which it has."""
        return True

    def make_usual(self, storage: Storage) -> None:
        """A storage that is in memory has memory of torch's again, which can be resized."""

    def make_all_usual(self, storages: Iterable[Storage]) -> None:
        """The same of each."""

    def decommit(self, address: int, length: int) -> None:
        """A part is given back. Nobody reads it before it is written again."""
        _kept.decommit(address, length)

    def recommit(self, address: int, length: int) -> bool:
        """The part is about to be written. `False`: there is no memory for it."""
        _kept.recommit(address, length)
        return True

    def reclaim(self) -> None:
        """A storage has let go of its memory."""


def _others() -> list[threading.Thread]:
    """The threads of Python's but this one."""
    return [thread for thread in threading.enumerate() if thread is not threading.current_thread()]


class Gpu(Host):
    """A GPU of CUDA's, through torch."""

    dlpack_type = 2  # CUDA's
    is_asynchronous = True
    _record_stream: Callable[[Tensor, torch.cuda.Stream], object] = staticmethod(Tensor.record_stream)

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        self.option = index + 1
        self.place = self.device
        self.streams: dict[int, torch.cuda.Stream] = {}  # every stream that an op was launched on, by its handle
        self.blind = True  # ops were launched that nobody looked at: on which streams is not known
        self._current = torch._C._cuda_getCurrentRawStream
        self._timed: list[list[Any]] = []
        self._copies: list[torch.cuda.Event] = []  # in the order in which they happen
        self._older: list[threading.Thread] = []  # threads that were there before the block
        self._uses_parts = False
        self._mapped: _mapped.MappedMemory | None = None  # where they move, from when a block has begun

    def movable(self, storage: Storage) -> bool:
        return resizable(storage) or self.is_divisible(storage)  # torch calls every storage of a GPU shared

    def staging_in(self, staging: int, data_path: str, pool: StrPath) -> int:
        # By cuFile there is a ring on the GPU, as large as the one in host memory; so is the window
        # for peer DMA, which is counted before it is known whether controllers reach it.
        names = _devices.split(_devices.listed(pool))
        peer = data_path == "spdk" or any(name.startswith("spdk:") for name in names)
        return staging if peer or data_path.startswith("gds") else 0

    def heap(self, tensors_max: int) -> _heap.Heap | _heap.Cache:
        return _heap.Cache(self.device, tensors_max, self._await_freed)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        # Backward runs on the thread that called it: others have no hook, and could not be asked to
        # wait.
        self._older = _others()
        if self._uses_parts:
            self._mapped = _mapped.MappedMemory(self.option, self.dlpack_type, self.after)
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

    def is_noticed(self) -> bool:
        return self._current(self.device.index) in self.streams

    def notice(self) -> None:
        handle = self._current(self.device.index)
        if handle not in self.streams:
            # First the stream, then the look for what is on its way: `fetched` does the opposite, maybe
            # in another thread.
            self.streams[handle] = stream = torch.cuda.current_stream(self.device)
            for event in list(self._copies):
                stream.wait_event(event)

    def completes_by_event(self) -> bool:
        return not self._older or not self.unseen_threads()

    def unseen_threads(self) -> list[str]:
        # Ops of threads that are older than the block are not seen, nor are their streams.
        self._older = [thread for thread in self._older if thread.is_alive()]
        return [thread.name for thread in self._older]

    def fetched(self, event: torch.cuda.Event) -> None:
        if event.query():
            return
        self._copies.append(event)
        for stream in list(self.streams.values()):
            stream.wait_event(event)
        self._copies = [each for each in self._copies if not each.query()]

    def await_copies(self) -> None:
        for event in list(self._copies):
            event.synchronize()
            with contextlib.suppress(ValueError):  # another thread has waited, too
                self._copies.remove(event)

    def forget_copies(self) -> None:
        self._copies = []

    def after(self) -> torch.cuda.Event | None:
        self.notice()
        if self.blind:
            torch.cuda.synchronize(self.device)
            self.blind = False
        streams = list(self.streams.values())
        current = torch.cuda.current_stream(self.device)
        if len(streams) == 1:
            only: torch.cuda.Event = current.record_event()
            return only
        # One event behind all of them, made where no kernel is held up by it.
        join = self._join()
        for stream in streams:
            join.wait_event(stream.record_event())
        behind: torch.cuda.Event = join.record_event()
        return behind

    def _join(self) -> torch.cuda.Stream:
        if not hasattr(self, "_joining"):
            self._joining = torch.cuda.Stream(self.device)
        return self._joining

    def share(self, storage: Storage, guard: Callable[[], object] = bool) -> None:
        if len(self.streams) > 1:
            self._record_streams(storage, guard)

    def _record_streams(self, storage: Storage, guard: Callable[[], object]) -> None:
        """The allocator gives this memory to nobody before the kernels that were launched on every
        stream have run."""
        with unseen():
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
            records = [partial(self._record_stream, whole, stream) for stream in list(self.streams.values())]
            _moves.past_guard(storage, guard, partial(whole.set_, storage), *records)

    def op_begins(self, index: int) -> None:
        del self._timed[index:]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(torch.cuda.current_stream(self.device))
        self._timed.append([begin, end, False])

    def op_ran(self) -> None:
        self._timed[-1][1].record(torch.cuda.current_stream(self.device))
        self._timed[-1][2] = True

    def durations(self) -> Sequence[int]:
        timed, self._timed = self._timed, []
        torch.cuda.synchronize(self.device)
        return [int(begin.elapsed_time(end) * 1e6) if ran else 0 for begin, end, ran in timed]

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

    def use_parts(self) -> None:
        self._uses_parts = True

    def divisible(self, size: int) -> torch.UntypedStorage | None:
        if self._mapped is None or size < _mapped.LEAST_BYTES:
            return None
        return self._mapped.storage(size)

    def is_divisible(self, storage: Storage) -> bool:
        return self._mapped is not None and self._mapped.has(storage)

    def make_all_usual(self, storages: Iterable[Storage]) -> None:
        for storage in storages:
            self.make_usual(storage)

    def make_usual(self, storage: Storage) -> None:
        if self.is_divisible(storage):
            self._await_launched()  # on any stream, which may write it
            _mapped.make_usual(storage)
            self._await_launched()  # any stream may be the next to use it
            self.reclaim()

    def decommit(self, address: int, length: int) -> None:
        assert self._mapped is not None
        self._mapped.decommit(address, length)

    def recommit(self, address: int, length: int) -> bool:
        assert self._mapped is not None
        return self._mapped.recommit(address, length)

    def reclaim(self) -> None:
        if self._mapped is not None:
            self._mapped.reclaim()

    def _await_launched(self) -> None:
        event = self.after()
        if event is not None:
            event.synchronize()

    def _await_freed(self) -> None:
        if self._mapped is not None:
            self._mapped.await_all()


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
    return Gpu(device)
