"""A Python program that opens a pool over spdk goes on running on the cores that it chose: the thread that opened it,
and every thread that it starts afterwards. `affinity.py LIBTIDELOG DEVICES`."""

import ctypes
import os
import sys
import threading


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("devices", ctypes.c_char_p),
        ("data_path", ctypes.c_char_p),
        ("staging", ctypes.c_uint64),
        ("pool_size", ctypes.c_uint64),
        ("share", ctypes.c_uint32),
        ("buffered", ctypes.c_uint8),
    ]


library = ctypes.CDLL(sys.argv[1])
library.tide_put.argtypes = [
    ctypes.c_uint64,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_uint32,
    ctypes.c_void_p,
]
library.tide_get.argtypes = [
    ctypes.c_uint64,
    ctypes.c_char_p,
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_uint32,
    ctypes.c_void_p,
]
for name, arguments in [("tide_pool_close", []), ("tide_ticket_wait", [ctypes.c_uint32]), ("tide_ticket_drop", [])]:
    getattr(library, name).argtypes = [ctypes.c_uint64, *arguments]


def check(status):
    if status != 0:
        text = ctypes.create_string_buffer(4096)
        library.tide_last_error(text, ctypes.c_size_t(len(text)), None)
        sys.exit(f"status {status}: {text.value.decode()}")


def finish(ticket):
    check(library.tide_ticket_wait(ticket, 60_000))
    check(library.tide_ticket_drop(ticket))


def cores_of_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    return found[0]


# The last core alone: neither all of them nor the one that SPDK would take first.
chosen = {max(os.sched_getaffinity(0))}
os.sched_setaffinity(0, chosen)

options = PoolOptions(size=ctypes.sizeof(PoolOptions), devices=sys.argv[2].encode(), data_path=b"spdk", staging=4 << 20)
pool, ticket = ctypes.c_uint64(), ctypes.c_uint64()
check(library.tide_pool_open(ctypes.byref(options), ctypes.byref(pool)))
length = 1 << 20
written, found = os.urandom(length), ctypes.create_string_buffer(length)
check(library.tide_put(pool, b"tensor", written, length, 0, ctypes.byref(ticket)))
finish(ticket)
check(library.tide_get(pool, b"tensor", 0, found, length, 0, ctypes.byref(ticket)))
finish(ticket)
during = (os.sched_getaffinity(0), cores_of_a_new_thread())
check(library.tide_pool_close(pool))
after = (os.sched_getaffinity(0), cores_of_a_new_thread())

if found.raw != written:
    sys.exit("other bytes came back")
if {frozenset(it) for it in (*during, *after)} != {frozenset(chosen)}:
    sys.exit(f"it chose {chosen}, and ran on {during} while the pool was open and on {after} afterwards")
print(f"it chose {chosen} of {os.cpu_count()} cores, and stays there")
