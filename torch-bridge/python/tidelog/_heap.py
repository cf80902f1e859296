"""Freed memory must leave the process, or a budget for tensors is none for the machine.

glibc raises its threshold for giving blocks their own mapping as large blocks are freed, up to 32 MiB, and keeps
what it freed below. A fixed threshold makes every block above it come and go with its tensor (mallopt(3)).
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_OWN_MAPPING_BYTES_MIN = 256 << 10
_TRIM_BYTES_MIN = 1 << 20


def give_back_freed_memory():
    """From now on freed blocks return to the kernel; those freed before do so now. Without glibc: nothing."""
    libc = ctypes.CDLL(None)
    try:
        libc.mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES_MIN)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES_MIN)
        libc.malloc_trim(0)
    except AttributeError:
        pass
