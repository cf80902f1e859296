"""Memory that is taken from CUDA itself, past torch: what is left then is all that a process can have of the GPU."""

import ctypes

import torch

_PIECES = (4 << 30, 2 << 20)  # the largest and the smallest that is taken at once


class Ballast:
    """Leaves `left` bytes of the GPU free, until `release`."""

    def __init__(self, left):
        torch.zeros(1, device="cuda")  # the context, which the driver's calls use
        self._driver, self._taken = ctypes.CDLL("libcuda.so.1"), []
        piece, smallest = _PIECES
        while piece >= smallest:
            address = ctypes.c_uint64()
            spare = torch.cuda.mem_get_info()[0] - left
            if spare < piece or self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(piece)):
                piece //= 2
            else:
                self._taken.append(address)

    def release(self):
        while self._taken:
            self._driver.cuMemFree_v2(self._taken.pop())
