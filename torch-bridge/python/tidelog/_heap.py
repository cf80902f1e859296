"""Freed memory must leave the process, or a budget for tensors is none for the machine.

glibc keeps what is freed for later, and gives blocks above a threshold a mapping of their own,
which costs a page fault for every 4 KiB each time. Both are wrong here: the first breaks the
budget, the second costs a fifth of a step. So blocks stay in the heap, where they are used again,
and the heap is trimmed when the process outgrows its allowance.
"""

import ctypes
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 << 20  # the most that glibc takes (mallopt(3))
_TRIM_THRESHOLD_BYTES = 16 << 20
# What the process may hold above its tensors before the heap is trimmed: fragments, and blocks
# between two uses.
_ALLOWANCE_BYTES = 28 << 20
# The kernel is asked how much that is whenever so much was allocated.
_LOOK_EVERY_BYTES = 4 << 20
_PAGE_BYTES = 4096


class Heap:
    """Keeps a process's anonymous memory near what its tensors take."""

    def __init__(self, tensors_max: int) -> None:
        self._tensors_max = tensors_max
        self._most = sys.maxsize  # until it is known what the process holds beside its tensors
        self._unseen = 0  # bytes allocated since the last look
        # Another C library keeps freed memory as it likes.
        libc = ctypes.CDLL(None)
        self._libc = libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None

    def begin(self, base: int) -> None:
        """`base`: what the process holds beside its tensors."""
        self._most = base + self._tensors_max + _ALLOWANCE_BYTES

    def take_over(self) -> None:
        """Sets glibc's thresholds."""
        if self._libc is not None:
            self._libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
            self._libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
            self.release()

    def release(self) -> None:
        """What is kept for later goes back to the kernel."""
        if self._libc is not None:
            self._libc.malloc_trim(0)

    def allocated(self, size: int) -> None:
        """A tensor got memory. Freed memory goes back to the kernel where the process holds too
        much."""
        self._unseen += size
        if self._unseen >= _LOOK_EVERY_BYTES:
            self._unseen = 0
            if anonymous_bytes() > self._most:
                self.release()


class Cache:
    """Keeps what torch's caching allocator holds of a GPU near what the tensors take: free blocks
    are used again as long as that fits, and go back to the driver where it does not."""

    def __init__(self, device: torch.device, tensors_max: int) -> None:
        self._device = device
        self._most = tensors_max + _ALLOWANCE_BYTES
        self._unseen, self._look_every = 0, _LOOK_EVERY_BYTES

    def begin(self, base: int) -> None:
        """What the process holds in the host's memory is not asked here."""

    def take_over(self) -> None:
        """The budget is reached: what is cached beyond it goes."""
        self.release()

    def release(self) -> None:
        """Blocks that no tensor has a part of go back to the driver."""
        torch.cuda.empty_cache()

    def allocated(self, size: int) -> None:
        self._unseen += size
        if self._unseen < self._look_every:
            return
        self._unseen = 0
        if self._is_too_much():
            self.release()
        # What is still too much is in blocks that tensors have parts of. To empty the cache costs a
        # wait for the GPU and every block anew, so what did not help is not done again soon.
        self._look_every = 2 * self._look_every if self._is_too_much() else _LOOK_EVERY_BYTES

    def _is_too_much(self) -> bool:
        return torch.cuda.memory_reserved(self._device) > self._most


def anonymous_bytes() -> int:
    """Resident memory that is no file's (proc(5): resident less shared pages)."""
    with open("/proc/self/statm", "rb") as figures:
        _, resident, shared, *_ = figures.read().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES
