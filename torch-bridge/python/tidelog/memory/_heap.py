"""Freed memory must leave the process, or a budget for tensors is none for the machine.

To give it back costs a page fault for every 4 KiB when memory is asked for again, a third of what
offloading costs. So torch's allocator works on an arena of ours (`_kept`): freed pages stay and are used
first, and as many leave as the process has above its allowance. It does so from the block's beginning on:
glibc seldom puts aligned memory where the last of its size was, and tensors go through more memory than caches hold.

What is small is used again by the thread that freed it: glibc is slow with aligned memory, and programs of many
small ops spend a tenth of their time there.

glibc's heap, for what else is small, and where torch's allocator cannot be directed: blocks stay in it up
to the allowance. Then it is trimmed as a whole, because it cannot be asked for less; and because
tensors leave and come back in another order than they came, it is trimmed ten times a step.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from tidelog.memory import _kept
from tidelog.output._figures import ArenaFigures, GpuMemory, HostHeap

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 << 20  # the most that glibc takes (mallopt(3))
_TRIM_THRESHOLD_BYTES = 16 << 20
# What the process may hold above its tensors before the heap is trimmed: fragments, and blocks
# between two uses.
_ALLOWANCE_BYTES = 28 << 20
# The kernel is asked how much that is whenever so much was allocated; so is torch, of a GPU.
_LOOK_EVERY_BYTES, _LOOK_SELDOM_BYTES = 4 << 20, 32 << 20
_LESS_TOLERATED_BYTES = 64 << 10  # by each look: a trim that does not help is retried after 448 of them
# Free blocks that torch's allocator may keep above the budget: so much, or this part of the budget.
_KEPT_BYTES_MIN = 256 << 20
_KEPT_PARTS = 10
_PAGE_BYTES = mmap.PAGESIZE
# What the allocator would say if it had been asked for anything yet.
_NOTHING_YET = {
    **{name: {"all": {"current": 0}} for name in ("reserved_bytes", "allocated_bytes")},
    **dict.fromkeys(("num_device_alloc", "num_device_free", "num_ooms"), 0),
}


class Heap:
    """Keeps a process's anonymous memory near what its tensors take."""

    def __init__(self, tensors_max: int) -> None:
        self._tensors_max = tensors_max
        self._most = sys.maxsize  # until it is known what the process holds beside its tensors
        self._unseen = 0  # bytes allocated since the last look
        self._tolerated = 0  # so much more than it may hold is not worth a trim
        self._kept: _kept.Kept | None = None
        self._trims = 0
        # Another C library keeps freed memory as it likes.
        libc = ctypes.CDLL(None)
        self._libc = libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None

    def begin(self, base: int, live: Callable[[], int]) -> None:
        """`base`: what the process holds beside its tensors. `live` is for the heap of a GPU."""
        self._most = base + self._tensors_max + _ALLOWANCE_BYTES
        _kept.keep_small(True)
        self._kept = _kept.begin()
        if self._kept is not None:
            self._kept.hold(self._most)

    def make_way(self) -> None:
        """The rings of a session are in nobody's way."""

    def take_over(self) -> None:
        """The budget is reached: what glibc's heap has too much leaves, from here on by thresholds of ours."""
        if self._libc is not None:
            self._libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
            self._libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        self._trim()

    def release(self) -> None:
        """Releases memory that is kept for later to the kernel."""
        if self._kept is not None:
            self._kept.release()
        self._trim()

    def _trim(self) -> None:
        """Releases memory that glibc's heap keeps to the kernel."""
        if self._libc is not None:
            self._trims += 1
            self._libc.malloc_trim(0)

    def rest(self) -> None:
        """Keeps nothing until the next `begin`."""
        self.end()
        self._trim()

    def end(self) -> None:
        """The block ends, and with it what is kept for it."""
        _kept.keep_small(False)
        self._kept = None
        _kept.end()

    def allocated(self, size: int) -> None:
        """A tensor got memory. Freed memory goes back to the kernel where the process holds too
        much."""
        self._unseen += size
        # What is kept is held below the limit between two looks, too.
        if self._unseen < (_LOOK_EVERY_BYTES if self._kept is None else _LOOK_SELDOM_BYTES):
            return
        self._unseen = 0
        if self._excess() <= self._tolerated:
            self._tolerated = max(0, self._tolerated - _LESS_TOLERATED_BYTES)
            return
        self._trim()
        # Where others than tensors fill the allowance (Python's objects, what autograd holds), a trim does
        # not help for long, and each page that comes back costs a fault. So it is done again when the
        # process has grown by the allowance since, or after many looks: they may have freed something.
        kept = self._kept.size if self._kept is not None else 0
        self._tolerated = max(0, anonymous_bytes() - kept - self._most + _ALLOWANCE_BYTES)

    def _excess(self) -> int:
        """Returns the bytes that the process holds more than it may, without what is kept, which makes way."""
        return anonymous_bytes() - self._most if self._kept is None else self._kept.hold(self._most)

    def figures(self) -> GpuMemory | None:
        """Returns no figures, as there is no GPU."""
        return None

    def host_figures(self) -> HostHeap | None:
        """Returns the process's memory, and its limit."""
        return {
            "anonymous": anonymous_bytes(),
            "anonymous_max": self._most if self._most != sys.maxsize else 0,
            "allowance": _ALLOWANCE_BYTES,
            "kept": self._kept.size if self._kept is not None else 0,
            "trims": self._trims,
        }


class Cache:
    """Keeps what torch's caching allocator holds of a GPU near what the tensors take: free blocks
    are used again as long as that fits, and go back to the driver where it does not.

    To empty the cache costs a wait for the GPU and every block anew. What the allocator gave to
    others than the block's tensors (the workspaces of cuBLAS, what C++ alone holds) does not come
    back by it, so it is no reason for it.
    """

    def __init__(
        self,
        device: torch.device,
        tensors_max: int,
        release_ours: Callable[[], object] = bool,
        arena: Callable[[], ArenaFigures | None] = lambda: None,
    ) -> None:
        """`release_ours` releases what is free and not torch's. `arena` has the figures of what is an arena's."""
        self._arena = arena
        self._device = device
        self._release_ours = release_ours
        self._tensors_max = tensors_max
        self._kept_max = max(_KEPT_BYTES_MIN, tensors_max // _KEPT_PARTS)
        self._live: Callable[[], int] = lambda: tensors_max  # until a ledger is there to be asked
        self._unseen, self._look_every = 0, _LOOK_EVERY_BYTES
        self._trims = 0

    def begin(self, base: int, live: Callable[[], int]) -> None:
        """Begins a block, which does not ask what the process holds in the host's memory. `live`: the bytes of the
        block's tensors that are in memory.
        """
        self._live = live

    def make_way(self) -> None:
        """The driver gets back what is free: the rings of a session are allocated past torch."""
        self.release()

    def take_over(self) -> None:
        """The budget is reached: what is cached beyond it goes."""
        if self._is_too_much():
            self.release()

    def release(self) -> None:
        """Blocks that no tensor has a part of go back to the driver."""
        self._trims += 1
        self._release_ours()
        torch.cuda.empty_cache()

    def allocated(self, size: int) -> None:
        self._unseen += size
        if self._unseen < self._look_every:
            return
        self._unseen = 0
        if not self._is_too_much():
            self._look_every = _LOOK_EVERY_BYTES
            return
        self.release()
        # What is still too much is in blocks that tensors have parts of: what did not help is not
        # done again soon.
        self._look_every = 2 * self._look_every if self._is_too_much() else _LOOK_EVERY_BYTES

    def rest(self) -> None:
        """The driver gets back what is free, and with it what cuBLAS works in: that comes again when it is needed."""
        clear: Callable[[], object] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        self.release()

    def end(self) -> None:
        """Ends the block; cached memory stays torch's."""

    def host_figures(self) -> HostHeap | None:
        """Returns no figures of the host's memory."""
        return None

    def figures(self) -> GpuMemory | None:
        """Returns the memory that the allocator holds now, and its users."""
        stats, live, arena = self._stats(), self._live(), self._arena()
        in_arena = arena.get("requested", 0) if arena is not None else 0
        reserved, given = (stats[name]["all"]["current"] for name in ("reserved_bytes", "allocated_bytes"))
        return {
            "reserved": reserved,
            "kept": reserved - given,
            "tensors": live,
            "not_ours": max(given + in_arena - live, 0),
            "trims": self._trims,
            "device_allocations": stats["num_device_alloc"],
            "device_frees": stats["num_device_free"],
            "out_of_memory": stats["num_ooms"],
            "arena": arena,
        }

    def _is_too_much(self) -> bool:
        stats = self._stats()
        kept: int = stats["reserved_bytes"]["all"]["current"] - stats["allocated_bytes"]["all"]["current"]
        return kept > self._kept_max and kept + self._live() > self._tensors_max + self._kept_max

    def _stats(self) -> Any:
        # As it comes from C++: what else torch makes of it takes a hundred times as long.
        return torch.cuda.memory_stats_as_nested_dict(self._device) or _NOTHING_YET


def asked_for(said: str) -> int:
    """The bytes that the caching allocator did not find, by its message; 0 where that does not
    say."""
    found = re.search(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", said)
    units = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return int(float(found[1]) * units[found[2]]) if found else 0


def anonymous_bytes() -> int:
    """Resident memory that is no file's (proc(5): resident less shared pages)."""
    with open("/proc/self/statm", "rb") as figures:
        _, resident, shared, *_ = figures.read().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES
