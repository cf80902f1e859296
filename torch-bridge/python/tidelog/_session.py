"""The session in libtidelog that a block talks to: it begins and ends there, hears what changed, and says what went wrong."""

import ctypes
import json
import logging

import torch

from tidelog import _native

_nbytes = torch._C.StorageBase.nbytes

_UNLIMITED = (1 << 63) - 1

_log = logging.getLogger("tidelog")


class Session:
    """The functions of the C ABI are called as `session.library.tide_session_x(session.sync(), ...)`, so that the machine
    has heard of every storage before it is asked about one; what answers a negative status is `check`ed."""

    def __init__(self, ledger):
        self.library = _native.load()
        self.handle = 0
        self.attention = None  # while it is open: [0] is non-zero while completions wait to be taken in
        self.forked = False  # true in a child of a fork: its handles are dead
        self._ledger = ledger

    def open(self, options):
        """Begins the session; devices are opened, and formatted where that is needed, which is said."""
        handle = ctypes.c_uint64()
        self.check(self.library.tide_session_open(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle.value
        address = self.library.tide_session_attention(self.handle)
        self.attention = memoryview((ctypes.c_uint32 * 1).from_address(address)).cast("B").cast("I")
        if made := self.figures(self.library.tide_session_stats)["made"]:
            _log.warning("%s. If there should have been one, mount its file system; must_exist=True refuses to make any.", made)

    def close(self):
        """Ends it, when all that is in flight has landed. In a child of a fork, or for the second time, nothing happens."""
        handle, self.handle = self.handle, 0
        if handle and not self.forked:
            self.attention = None
            self.library.tide_session_close(handle)

    def sync(self):
        """Tells what has not been told yet. Returns the handle, for chaining."""
        if self._ledger.has_news():
            self._ledger.tell(self)
        return self.handle

    def check(self, code):
        if code < 0:
            raise self.error(code)
        return code

    def error(self, code):
        """The exception for a negative status; it names the tensor that it is about."""
        kind, text, about = _native.last_error(self.library, code)
        record = self._ledger.records.get(about)
        return kind(f"{record.describe()}: {text}" if record is not None else text)

    def figures(self, function):
        """What a function of the ABI that writes JSON says."""
        return json.loads(_native.text_of(lambda buffer, size: function(self.handle, buffer, size)))

    def lift_budget(self):
        """From here on the machine lets everything be in memory at once."""
        self.check(self.library.tide_session_set_budget(self.handle, _UNLIMITED))

    def leave_plan(self):
        """What follows is not what was planned: until the step ends, the machine only reacts."""
        self.check(self.library.tide_session_leave_plan(self.handle))

    def measure_again(self, storage):
        """Something may have resized this storage."""
        record = self._ledger.record_of(storage)
        if record is not None and (size := _nbytes(storage)) != record.size:
            self._ledger.live += size - record.size
            record.size = size
            self.check(self.library.tide_session_resized(self.sync(), record.id, size))
