"""Moves NumPy arrays to SSDs and back over the C ABI, by ctypes alone: no torch, no package.

python numpy_arrays.py libtidelog.so /mnt/nvme0/tide,/mnt/nvme1/tide
"""

import ctypes
import sys

import numpy

URGENT, WAITING = 1, 2  # as tidelog.h has them


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("devices", ctypes.c_char_p),
        ("data_path", ctypes.c_char_p),
        ("staging", ctypes.c_uint64),
        ("pool_size", ctypes.c_uint64),
        ("share", ctypes.c_uint32),
        ("buffered", ctypes.c_uint8),
        ("gpu", ctypes.c_uint8),
        ("arena", ctypes.c_uint64),
        ("arena_bytes", ctypes.c_uint64),
        ("must_exist", ctypes.c_uint64),
    ]


class Pool:
    def __init__(self, library, devices, **options):
        """Makes the pool where there is none. `options` take the place of the usual ones."""
        self._library = ctypes.CDLL(library)
        usual = {"data_path": b"auto", "staging": 8 << 20, "pool_size": 256 << 20}
        options = PoolOptions(devices=devices.encode(), **{**usual, **options})
        options.size = ctypes.sizeof(options)
        self._pool = ctypes.c_uint64()
        self._check(self._library.tide_pool_open(ctypes.byref(options), ctypes.byref(self._pool)))

    def put(self, name, array):
        """Returns once the array's memory is its owner's again."""
        self._transfer(self._library.tide_put, name, array)

    def get(self, name, array, offset=0):
        """Fills the array with the tensor's bytes from `offset`."""
        self._transfer(self._library.tide_get, name, array, ctypes.c_uint64(offset))

    def close(self):
        self._check(self._library.tide_pool_close(self._pool))

    def _transfer(self, function, name, array, *offset):
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: the array is not contiguous")
        ticket = ctypes.c_uint64()
        address, length = ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(array.nbytes)
        self._check(function(self._pool, name.encode(), *offset, address, length, URGENT, ctypes.byref(ticket)))
        try:
            while self._check(self._library.tide_ticket_wait(ticket, 1000)) == WAITING:
                pass
        finally:
            while self._library.tide_ticket_released(ticket) == 0:
                self._library.tide_ticket_wait(ticket, 100)
            self._library.tide_ticket_drop(ticket)

    def _check(self, status):
        if status < 0:
            text = ctypes.create_string_buffer(1024)
            self._library.tide_last_error(text, ctypes.c_size_t(len(text)), None)
            raise OSError(status, text.value.decode())
        return status


def main():
    _, library, devices = sys.argv
    pool = Pool(library, devices)
    array = numpy.arange(1 << 20, dtype=numpy.float32)
    pool.put("array", array)
    back = numpy.empty_like(array)
    pool.get("array", back)
    part = numpy.empty(10, dtype=numpy.float32)
    pool.get("array", part, offset=4 * 1000)
    pool.close()
    assert (back == array).all() and (part == array[1000:1010]).all()
    print(f"{array.nbytes} bytes went out and came back")


if __name__ == "__main__":
    main()
