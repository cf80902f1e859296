"""Durable tensors in the shares of a pool, by the C ABI: what ranks that are killed must not harm."""

import contextlib
import ctypes
import importlib.util
import os
from pathlib import Path

import numpy

import tidelog
from tidelog.abi import _library
from tidetest import KIB, MIB

COUNT, BYTES = 4, 64 * KIB  # of tensors in each share

_EXAMPLE = Path(__file__).resolve().parents[3] / "torch-bridge" / "examples" / "numpy_arrays.py"
_found = importlib.util.spec_from_file_location("numpy_arrays", _EXAMPLE)
numpy_arrays = importlib.util.module_from_spec(_found)
_found.loader.exec_module(numpy_arrays)


class _Share(numpy_arrays.Pool):
    def __init__(self, devices, share):
        super().__init__(_library.load_library()._name, devices, staging=MIB, share=share, must_exist=1)

    def commit(self, tensors):
        """Commits all tensors at once, as durable ones."""
        batch = ctypes.c_uint64()
        self._check(self._library.tide_batch_begin(self._pool, ctypes.byref(batch)))
        for name, tensor in tensors:
            address, length = ctypes.c_void_p(tensor.ctypes.data), ctypes.c_uint64(tensor.nbytes)
            self._check(self._library.tide_batch_put(batch, name.encode(), address, length))
        self._check(self._library.tide_batch_commit(batch))


def _tensors(share):
    for number in range(COUNT):
        bytes_of = numpy.random.default_rng([share, number]).integers(0, 256, BYTES, dtype=numpy.uint8)
        yield f"kept {number}", bytes_of


def keep(devices, shares):
    """Makes a pool with `shares` shares, and commits tensors in each."""
    os.environ["LOCAL_WORLD_SIZE"] = shares
    with tidelog.offload(pool=devices, pool_size=128 * MIB, memory="2MiB", staging=256 * KIB):
        pass
    for share in range(int(shares)):
        with contextlib.closing(_Share(devices, share)) as pool:
            pool.commit(list(_tensors(share)))


def find(devices, shares):
    """Opens each share, and compares every byte of what was committed there."""
    for share in range(int(shares)):
        with contextlib.closing(_Share(devices, share)) as pool:
            for name, tensor in _tensors(share):
                found = numpy.empty_like(tensor)
                pool.get(name, found)
                assert (found == tensor).all(), f"{name} of share {share} has changed"
