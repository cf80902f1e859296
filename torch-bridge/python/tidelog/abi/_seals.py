"""The part of the C ABI that pools and seals have: structs, numbers, a method for each call.

As in `_native`, no other module makes these calls, and every status is checked.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

from tidelog import _errors
from tidelog.abi._library import Library, Signatures, Status, declare, last_error, load_library, read_json
from tidelog.abi._native import Session, open_sessions

_u8, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64
_i32, _size = ctypes.c_int32, ctypes.c_size_t
_text, _pointer = ctypes.c_char_p, ctypes.c_void_p

_FOREVER = 0xFFFFFFFF  # milliseconds
_STAGING = 64 << 20  # bytes
AS_DURABLE = 2  # flag of a put


class Tensor(ctypes.Structure):
    """A tensor's id in the log."""

    _fields_ = [("high", _u64), ("low", _u64)]

    @classmethod
    def of_hex(cls, text: str) -> Tensor:
        """The id that 32 hexadecimal digits say."""
        return cls(int(text[:16], 16), int(text[16:], 16))

    def hex(self) -> str:
        """Returns the number as 32 hexadecimal digits."""
        return f"{self.high:016x}{self.low:016x}"


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("size", _u64),
        ("devices", _text),
        ("data_path", _text),
        ("staging", _u64),
        ("pool_size", _u64),
        ("share", _u32),
        ("buffered", _u8),
        ("gpu", _u8),
        ("arena", _u64),
        ("arena_bytes", _u64),
        ("must_exist", _u64),
        ("read_only", _u64),
        ("sparse", _u64),
        ("degraded", _u64),
    ]


# Transfers under way. A ticket is in the list before its transfer begins, so that no interrupt loses it.
Tickets = list[ctypes.c_uint64]

SIGNATURES: Signatures = {
    "tide_last_error": (_size, [_text, _size, ctypes.POINTER(_u32)]),
    "tide_pool_open": (_i32, [ctypes.POINTER(PoolOptions), ctypes.POINTER(_u64)]),
    "tide_pool_close": (_i32, [_u64]),
    "tide_pool_stats": (_size, [_u64, _text, _size]),
    "tide_pool_seals": (_size, [_u64, _text, _size]),
    "tide_seal_tensors": (_size, [_u64, _text, _text, _size]),
    "tide_seal_get": (_i32, [_u64, _text, Tensor, _u64, _pointer, _u64, _u32, ctypes.POINTER(_u64)]),
    "tide_seal_verify": (_i32, [_u64, _text]),
    "tide_tensor_named": (_i32, [_text, ctypes.POINTER(Tensor)]),
    "tide_put": (_i32, [_u64, _text, _pointer, _u64, _u32, ctypes.POINTER(_u64)]),
    "tide_delete": (_i32, [_u64, _text]),
    "tide_batch_begin": (_i32, [_u64, ctypes.POINTER(_u64)]),
    "tide_batch_seal": (_i32, [_u64, _text, ctypes.POINTER(Tensor), _size]),
    "tide_batch_seal_from": (_i32, [_u64, _text, _text, ctypes.POINTER(Tensor), _size]),
    "tide_batch_drop_seal": (_i32, [_u64, _text]),
    "tide_batch_commit": (_i32, [_u64]),
    "tide_batch_drop": (_i32, [_u64]),
    "tide_ticket_wait": (_i32, [_u64, _u32]),
    "tide_ticket_drop": (_i32, [_u64]),
    "tide_session_pool": (_i32, [_u64, ctypes.POINTER(_u64)]),
    "tide_session_copies": (_i32, [_u64, _pointer, _pointer, _pointer, _size, _u32, ctypes.POINTER(Tensor)]),
}


@functools.cache
def _library() -> Library:
    # Of each that ctypes makes it never frees all.
    library = load_library()
    declare(library, SIGNATURES, lambda status: last_error(library, status))
    return library


class Seal(TypedDict):
    """A seal, as a pool lists it."""

    name: str
    sealed_at: int  # seconds since 1970, by a clock that may have been set back
    order: int  # of its commit among the seals of its share, from 1; 0 where older software made it
    tensors: int
    bytes: int
    alone: int  # bytes of space that it alone holds


class SealedTensor(TypedDict):
    """A tensor that a seal holds."""

    id: str  # 32 hexadecimal digits
    name: str | None
    length: int  # bytes


class Pool:
    """A pool beside a session, or without one."""

    def __init__(self) -> None:
        self._handle = 0
        self._library = _library()

    @classmethod
    def open(
        cls, devices: str, *, read_only: bool, share: int = 0, buffered: bool = False, degraded: bool = False
    ) -> Pool:
        """A pool that is there; `degraded` allows one device to be missing."""
        pool, handle = cls(), _u64()
        options = PoolOptions(devices=devices.encode(), data_path=b"auto", staging=_STAGING, share=share)
        options.size, options.must_exist = ctypes.sizeof(PoolOptions), 1
        options.buffered, options.read_only, options.degraded = buffered, read_only, degraded
        pool._library.tide_pool_open(ctypes.byref(options), ctypes.byref(handle))
        pool._handle = handle.value
        return pool

    @classmethod
    def at(cls, devices: str, *, read_only: bool, share: int, buffered: bool, degraded: bool = False) -> Pool:
        """Opens a pool, or returns that of a session of this process which has it open: a share is open once."""
        for session in open_sessions:
            if session.is_open() and (session.devices, session.share) == (devices.encode(), share):
                return cls.of_session(session)
        return cls.open(devices, read_only=read_only, share=share, buffered=buffered, degraded=degraded)

    @classmethod
    def of_session(cls, session: Session) -> Pool:
        """The pool in which a session's storages lie. Closing it ends the handle alone."""
        pool, handle = cls(), _u64()
        pool._library.tide_session_pool(session.handle, ctypes.byref(handle))
        pool._handle = handle.value
        return pool

    def close(self) -> None:
        """Ends the handle, and with it the pool unless a session has it open."""
        handle, self._handle = self._handle, 0
        if handle:
            self._library.tide_pool_close(handle)

    def stats(self) -> Any:
        """Figures since it was opened."""
        return self._json(lambda buffer, length: self._library.tide_pool_stats(self._handle, buffer, length))

    # -- tensors ------------------------------------------------------------------------------------

    def copies(self, session: Session, storages: Sequence[tuple[int, int, int]], *, write: bool) -> list[str | None]:
        """The ids of copies in the log that have a storage's bytes, for storages that are a number,
        an address (0: not in memory) and a length. `write`: copies that are not there and can be are
        written."""
        count = len(storages)
        numbers = (_u32 * count)(*(number for number, _, _ in storages))
        addresses = (_u64 * count)(*(address for _, address, _ in storages))
        lengths = (_u64 * count)(*(length for _, _, length in storages))
        found = (Tensor * count)()
        session.flush()
        self._library.tide_session_copies(session.handle, numbers, addresses, lengths, count, write, found)
        return [tensor.hex() if tensor.high or tensor.low else None for tensor in found]

    def named(self, name: str) -> str:
        """The id that a name stands for."""
        tensor = Tensor()
        self._library.tide_tensor_named(name.encode(), ctypes.byref(tensor))
        return tensor.hex()

    def put(self, tickets: Tickets, name: str, address: int, length: int) -> None:
        """Begins to write a scratch tensor that a seal is to keep."""
        tickets.append(_u64())
        result = ctypes.byref(tickets[-1])
        self._library.tide_put(self._handle, name.encode(), address, length, AS_DURABLE, result)

    def delete(self, name: str) -> None:
        """Forgets a scratch tensor."""
        self._library.tide_delete(self._handle, name.encode())

    def wait_all(self, tickets: Tickets) -> None:
        """Waits for every one of these, and raises the first error once all have ended."""
        first: _errors.Error | None = None
        while tickets:
            try:
                self.wait_first(tickets)
            except _errors.Error as error:
                first = first or error
        if first is not None:
            raise first

    def wait_first(self, tickets: Tickets) -> None:
        """Waits for the first of these, and takes it off. An interrupt leaves it there: nothing may
        let go of its memory before it has ended."""
        ticket = tickets[0]
        try:
            # What was refused has no ticket.
            while ticket.value and self._library.tide_ticket_wait(ticket, _FOREVER) == Status.WAITING:
                time.sleep(0)
        except _errors.Error:
            self._end_first(tickets)
            raise
        self._end_first(tickets)

    def _end_first(self, tickets: Tickets) -> None:
        if tickets[0].value:
            self._library.tide_ticket_drop(tickets[0])
        tickets.pop(0)

    # -- seals --------------------------------------------------------------------------------------

    @contextmanager
    def batch(self) -> Iterator[int]:
        """A batch, committed at the end unless an error ends it."""
        batch = _u64()
        self._library.tide_batch_begin(self._handle, ctypes.byref(batch))
        try:
            yield batch.value
        except BaseException:
            self._library.tide_batch_drop(batch)
            raise
        self._library.tide_batch_commit(batch)

    def seal(self, batch: int, name: str, tensors: Sequence[str]) -> None:
        """Adds a seal to a batch, of what it has put under these ids, or else of what stands."""
        ids = (Tensor * len(tensors))(*(Tensor.of_hex(each) for each in tensors))
        self._library.tide_batch_seal(batch, name.encode(), ids, len(tensors))

    def seal_from(self, batch: int, name: str, other: str, tensors: Sequence[str]) -> None:
        """Seals what another seal holds under these ids, and of the rest of what stands."""
        ids = (Tensor * len(tensors))(*(Tensor.of_hex(each) for each in tensors))
        self._library.tide_batch_seal_from(batch, name.encode(), other.encode(), ids, len(tensors))

    def drop_seal(self, batch: int, name: str) -> None:
        """Adds the end of a seal to a batch."""
        self._library.tide_batch_drop_seal(batch, name.encode())

    def seals(self) -> list[Seal]:
        """The seals, by name."""
        found = self._json(lambda buffer, length: self._library.tide_pool_seals(self._handle, buffer, length))
        return list(found)

    def sealed(self, seal: str) -> list[SealedTensor]:
        """Returns the tensors of a seal."""
        name, function = seal.encode(), self._library.tide_seal_tensors
        return list(self._json(lambda buffer, length: function(self._handle, name, buffer, length)))

    def get(self, tickets: Tickets, seal: str, tensor: str, offset: int, address: int, length: int) -> None:
        """Begins to read what a seal holds."""
        tickets.append(_u64())
        identity, ticket = Tensor.of_hex(tensor), ctypes.byref(tickets[-1])
        self._library.tide_seal_get(self._handle, seal.encode(), identity, offset, address, length, 0, ticket)

    def verify(self, seal: str) -> None:
        """Reads all that a seal holds; raises DeviceError where bytes are lost."""
        self._library.tide_seal_verify(self._handle, seal.encode())

    # -- what comes back ------------------------------------------------------------------------------------

    def _json(self, write: Callable[[Any, int], int]) -> Any:
        return read_json(write, lambda: last_error(self._library, Status.POOL_FAILED))
