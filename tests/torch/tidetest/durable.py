"""Durable tensors in the shares of a pool, by the C ABI: what ranks that are killed must not harm."""

import contextlib
import ctypes
import os

import numpy

import tidelog
from tidelog import _native
from tidetest import KIB, MIB

COUNT, BYTES = 4, 64 * KIB  # of tensors in each share
_WAITING, _URGENT = 2, 1


class _PoolOptions(ctypes.Structure):
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


_library = _native._load()


def _check(status):
    if status < 0:
        text = ctypes.create_string_buffer(1024)
        _library.tide_last_error(text, ctypes.c_size_t(len(text)), None)
        raise AssertionError(text.value.decode())
    return status


@contextlib.contextmanager
def _opened(devices, share):
    options = _PoolOptions(devices=devices.encode(), data_path=b"auto", staging=MIB, share=share, must_exist=1)
    options.size = ctypes.sizeof(options)
    pool = ctypes.c_uint64()
    _check(_library.tide_pool_open(ctypes.byref(options), ctypes.byref(pool)))
    yield pool
    _check(_library.tide_pool_close(pool))


def _tensors(share):
    for number in range(COUNT):
        bytes_of = numpy.random.default_rng([share, number]).integers(0, 256, BYTES, dtype=numpy.uint8)
        yield f"kept {number}".encode(), bytes_of


def keep(devices, shares):
    """Makes a pool with so many shares, and commits tensors in each."""
    os.environ["LOCAL_WORLD_SIZE"] = shares
    with tidelog.offload(pool=devices, pool_size=128 * MIB, memory="2MiB", staging=256 * KIB):
        pass
    for share in range(int(shares)):
        with _opened(devices, share) as pool:
            batch, kept = ctypes.c_uint64(), list(_tensors(share))
            _check(_library.tide_batch_begin(pool, ctypes.byref(batch)))
            for name, tensor in kept:
                address = ctypes.c_void_p(tensor.ctypes.data)
                _check(_library.tide_batch_put(batch, name, address, ctypes.c_uint64(BYTES)))
            _check(_library.tide_batch_commit(batch))


def find(devices, shares):
    """Opens each share, and compares every byte of what was committed there."""
    for share in range(int(shares)):
        with _opened(devices, share) as pool:
            for name, tensor in _tensors(share):
                found, ticket = numpy.empty_like(tensor), ctypes.c_uint64()
                words = ctypes.c_uint64(0), ctypes.c_void_p(found.ctypes.data), ctypes.c_uint64(BYTES), _URGENT
                _check(_library.tide_get(pool, name, *words, ctypes.byref(ticket)))
                while _check(_library.tide_ticket_wait(ticket, 1000)) == _WAITING:
                    pass
                _check(_library.tide_ticket_drop(ticket))
                assert (found == tensor).all(), f"{name} of share {share} has changed"
