"""Requests of a block's session, one by one."""

import contextlib
import ctypes

from tidelog.dispatch._requests import Requests as InPython

KINDS = ("evict", "release", "allocate", "settle")


class Bytes(ctypes.Structure):
    """tide_bytes"""

    _fields_ = (
        *(("begin", ctypes.c_uint64), ("length", ctypes.c_uint64)),
        *(("storage", ctypes.c_uint32), ("is_part", ctypes.c_uint32)),
    )


class Memory(ctypes.Structure):
    """tide_memory"""

    _fields_ = (
        *(("address", ctypes.c_uint64), ("after", ctypes.c_void_p)),
        *(("landed", ctypes.c_void_p), ("last_use", ctypes.c_void_p)),
    )


# They keep Python's lock, which is held, and raise what Python has raised in them.
_memory = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Bytes), ctypes.POINTER(Memory))
_release = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Bytes))
_settle = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Bytes), ctypes.c_uint64)
_wait = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Callbacks(ctypes.Structure):
    """tide_session_callbacks"""

    _fields_ = (
        *(("size", ctypes.c_uint64), ("context", ctypes.c_void_p)),
        *(("evict", _memory), ("release", _release), ("allocate", _memory), ("settle", _settle)),
        *(("wait_begins", _wait), ("wait_ends", _wait)),
    )


_set_callbacks = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.POINTER(Callbacks))


def of_python(monkeypatch):
    """The list of kinds of requests that Python does from here on."""
    done = []

    def noted(kind, does):
        return lambda *arguments: (done.append(kind), does(*arguments))[1]

    for kind in KINDS:
        monkeypatch.setattr(InPython, kind, noted(kind, getattr(InPython, kind)))
    return done


# -- halfway ---------------------------------------------------------------------------------------


class _Halfway(BaseException):
    pass


class _Endless:
    """An asynchronous use, of which only Python knows."""

    waited, storages, records, ends_alone = False, (), (), True

    def has_ended(self):
        return False


@contextlib.contextmanager
def asked_how_long(tide, function):
    """Calls a function that limits the milliseconds of each wait of a session."""
    uses, use = tide._async_uses, _Endless()
    uses._running.append(use)
    uses.wait_ms = function
    try:
        yield
    finally:
        uses._running.remove(use)
        del uses.wait_ms


def until_it_waits(tide, call, is_halfway=lambda: True):
    """Calls a function of the session, which ends where it would wait and is halfway."""

    def wait_ms():
        if is_halfway():
            raise _Halfway
        return 50

    with asked_how_long(tide, wait_ms), contextlib.suppress(_Halfway):
        call()


# -- between a block and the library -----------------------------------------------------------------


class Between:
    """Stands between a block and the library: the session calls back here, and what is here calls the block's."""

    def __init__(self, block):
        self._block = block
        self.original = block.session._library.tide_session_set_callbacks
        self._replaced = _set_callbacks(self._replace)
        block.session._library.tide_session_set_callbacks = self._replaced

    def _replace(self, handle, theirs):
        self._theirs = Callbacks.from_buffer_copy(theirs.contents)
        self._ours = Callbacks.from_buffer_copy(theirs.contents)
        for kind in KINDS:
            function = getattr(self._theirs, kind)
            setattr(self._ours, kind, type(function)(self._calling(kind, function)))
        return self.original(handle, ctypes.addressof(self._ours))

    def _calling(self, kind, function):
        def called(context, bytes_, *argument):
            status = function(context, bytes_, *argument)
            self.answered_by(kind, bytes_.contents, argument)
            return status

        return called

    def answered_by(self, kind, bytes_, argument):
        """A callback has returned. Its last argument: the memory or the state, if it has one."""


class _WhenDone(Between):
    def __init__(self, block, function):
        super().__init__(block)
        self._function, self._addresses = function, []

    def _calling(self, kind, function):
        calling = super()._calling(kind, function)
        return lambda *arguments: (self.deliver(), calling(*arguments))[1]

    def answered_by(self, kind, bytes_, argument):
        if kind in ("evict", "allocate") and argument[0].contents.address:
            self._addresses.append(argument[0].contents.address)

    def deliver(self):
        while self._addresses:
            self._function(self._addresses.pop())
        return 50


@contextlib.contextmanager
def when_done(block, function):
    """Calls a function with the address that each request of an open block has asked for, once the library has it."""
    between = _WhenDone(block, function)
    block.performer.connect()
    try:
        with asked_how_long(block, between.deliver):
            yield
    finally:
        block.session._library.tide_session_set_callbacks = between.original
        block.performer.connect()
